//go:build browser

package browser_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

// own gives a deployment that no other test has.
func own(t *testing.T, change func(*config.Config), roles ...stack.Role) *deployment {
	t.Helper()
	dep, err := deploy(t.TempDir(), change, roles...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dep.end(); err != nil {
			t.Error(err)
		}
	})
	return dep
}

func TestThePipelineShowsWhatRunsAndWhatStopped(t *testing.T) {
	var lc net.ListenConfig
	admin, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dep := own(t, func(c *config.Config) { c.Sync.Console.Processes = []string{"http://" + admin.Addr().String()} },
		stack.Sync, stack.ToRedis, stack.ToPush, stack.Gateway)
	// tomongo runs as a process of its own does.
	cfg := stack.Config{Config: dep.emb.Config, Roles: []stack.Role{stack.ToMongo}, Registry: telemetry.NewRegistry(), Health: &telemetry.Health{}}
	_, stop, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, closeAdmin := context.WithCancel(t.Context())
	defer closeAdmin()
	port, err := telemetry.AdminHandler(telemetry.AdminConfig{Registry: cfg.Registry, Health: cfg.Health})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- telemetry.Serve(ctx, admin, port, time.Second) }()

	d := sit(t, dep.stack.ConsoleURL(), "conversation=group:p&users=alice")
	d.join("alice")
	d.write("alice", "one")
	d.awaitSeen("alice", "1 one")
	d.press("alice", "Go offline")
	d.awaitState("alice", "Offline")
	d.run(chromedp.Click(chromedp.CSS("#to-pipeline")))
	row := func(stage string) string {
		return `[...document.querySelectorAll('[aria-labelledby=table-stages] tbody tr')].find(r => r.querySelector('b').textContent === '` + stage + `').textContent`
	}
	for _, stage := range []string{"toredis", "tomongo", "topush"} {
		d.await(stage+" runs", `document.querySelector('[aria-labelledby=table-stages] tbody b') && %s.includes('Running4')`, row(stage))
	}
	d.await("all is well", `document.querySelector('[aria-label=Pipeline] [role=status]').textContent === 'All processes are ready.'`)
	d.await("the flush is known", `/^\d+ (s|min) ago$|^< 1 s ago$/.test(document.querySelector('[data-tile=flush]').textContent)`)
	d.await("the topics are there", `document.querySelector('[aria-labelledby=table-topics] tbody').textContent.includes('sequenced')`)
	d.picture("pipeline-healthy")

	closeAdmin()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	d.await("tomongo is missed", `%s.includes('Not seen')`, row("tomongo"))
	d.await("the process is not reached", `document.querySelector('[aria-labelledby=table-processes] tbody').textContent.includes('Not reached')`)
	d.await("who cannot see is told", `document.querySelector('[aria-label=Pipeline] [role=status]').textContent.includes('is not reached')`)
	d.await("no flush is made up", `document.querySelector('[data-tile=flush]').textContent === 'no data'`)
	d.await("others run on", `%s.includes('Running4')`, row("toredis"))
	d.picture("pipeline-stopped")

	// And when the console's own process is gone, the page says so.
	d.provoke("ERR_CONNECTION_REFUSED")
	if err := dep.stop(); err != nil {
		t.Fatal(err)
	}
	d.await("the page says that it is alone", `document.querySelector('[aria-label=Pipeline] [role=alert]').textContent.startsWith('The process that serves this page cannot be reached. What stands below is from ')`)
}

func TestWithAuthenticationTokensAreAskedFor(t *testing.T) {
	secret := strings.Repeat("s", access.MinSecret)
	dep := own(t, func(c *config.Config) { c.Auth.Secret = secret }, stack.Roles()...)
	token := func(user string, scopes ...string) string {
		tok, err := access.Mint(access.Config{Secret: []byte(secret)}, access.Claims{Subject: user, Scopes: scopes, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	enter := func(d *desk, within, token string) {
		d.run(chromedp.Evaluate[chromedp.Void](`document.querySelector('`+within+`').open = true`),
			chromedp.SetValue(chromedp.CSS(within+" input"), token), chromedp.Click(chromedp.CSS(within+" button")))
	}
	d := sit(t, dep.stack.ConsoleURL(), "conversation=group:a&users=alice,bob")
	d.provoke("status of 401", "status of 403")
	d.awaitState("alice", "Not live")
	d.await("a token is asked for", `%s.querySelector('.empty').textContent === 'A token is needed. Enter one above.'`, pane("alice"))
	d.run(chromedp.Click(chromedp.CSS("#to-pipeline")))
	fault := `document.querySelector('[aria-label=Pipeline] [role=alert]').textContent`
	d.await("the pipeline needs one", `%s === 'This view is for administrators. Enter a token above.'`, fault)
	enter(d, ".token.card", token("alice"))
	d.await("not just any", `%s === 'This view is for administrators, and the token is no administrator’s.'`, fault)
	enter(d, ".token.card", "rubbish")
	d.await("nor a bad one", `%s.startsWith('The token is not taken')`, fault)
	enter(d, ".token.card", token("alice", access.DefaultAdminScope))
	d.await("an administrator's is taken", `%s === '' && document.querySelector('[data-tile=dead]').textContent === '0'`, fault)
	d.run(chromedp.Click(chromedp.CSS("#to-chat")))
	// It is alice's own as well; bob is not live without his.
	d.join("alice")
	d.awaitState("bob", "Not live")
	d.press("bob", "Join")
	d.awaitLog("bob", "Joined")
	d.write("alice", "one")
	d.awaitSeen("alice", "1 one")
	d.press("bob", "Check now")
	d.awaitSeen("bob", "1 one")
	enter(d, "[data-user=bob] .token", token("bob"))
	d.awaitState("bob", "Live")
	d.write("alice", "two")
	d.awaitSeen("bob", "1 one", "2 two")
	d.write("bob", "three")
	d.awaitSeen("alice", "1 one", "2 two", "3 three")
	d.picture("auth")
}
