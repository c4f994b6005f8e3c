package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withEnv runs a command line with an environment of its own.
func withEnv(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := contextOf(t)
	defer cancel()
	var out, errOut buffer
	a := &app{in: strings.NewReader(""), out: &out, errOut: &errOut, environ: func() []string { return env }}
	code := a.execute(ctx, args)
	return result{code, out.String(), errOut.String()}
}

func mint(t testing.TB, secret string, args ...string) string {
	t.Helper()
	r := withEnv(t, []string{"TIDEMARK_AUTH_SECRET=" + secret}, append([]string{"token"}, args...)...)
	if r.code != exitOK {
		t.Fatalf("token: exit code %d: %s", r.code, r.errOut)
	}
	return strings.TrimSpace(r.out)
}

func TestDevWithAuthentication(t *testing.T) {
	dir := t.TempDir()
	d := startDev(t, "--auth", "--data", dir)
	secret := objects[struct{ Name, Value string }](t, d.out.String())[0].Value
	if len(secret) < 32 {
		t.Fatalf("no secret in\n%s", d.out)
	}
	file := filepath.Join(t.TempDir(), "token")
	alice, bob, boss := mint(t, secret, "--user", "alice"), mint(t, secret, "--user", "bob"), mint(t, secret, "--user", "ops", "--admin")
	if err := os.WriteFile(file, []byte(alice+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const g = "group:g1"
	must := func(env string, args ...string) string {
		t.Helper()
		r := withEnv(t, []string{env}, append(args, "--server", d.sync)...)
		if r.code != exitOK {
			t.Fatalf("%q: exit code %d: %s", args, r.code, r.errOut)
		}
		return r.out
	}
	refused := func(env, want string, args ...string) {
		t.Helper()
		if r := withEnv(t, []string{env}, append(args, "--server", d.sync)...); r.code != exitFailed || !strings.Contains(r.errOut, want) {
			t.Errorf("%q: exit code %d: %s, want %q", args, r.code, r.errOut, want)
		}
	}
	join := []string{"join", "--conversation", g, "--user", "alice", "--history", "all"}
	refused("", "asks who calls: no bearer token", join...)
	refused("TIDEMARK_TOKEN="+alice, "administrator's scope", join...)
	must("TIDEMARK_TOKEN="+boss, join...)
	must("TIDEMARK_TOKEN_FILE="+file, "send", "--conversation", g, "--from", "alice", "--text", "hello", "--wait")
	refused("TIDEMARK_TOKEN="+bob, "another user", "send", "--conversation", g, "--from", "alice", "--text", "x", "--wait")
	pull := []string{"pull", "--conversation", g, "--user"}
	wantSays(t, must("", append(pull, "alice", "--token", alice)...), "hello")
	refused("TIDEMARK_TOKEN="+bob, "another user", append(pull, "alice")...)
	refused("TIDEMARK_TOKEN="+bob, g+": not_found", append(pull, "bob")...)
	wantSays(t, must("TIDEMARK_TOKEN="+bob, "watch", "--user", "bob", "--gateway", d.gateway, "--token-file", file, "--count", "1", "--help"), "token-file")
	wantSays(t, must("TIDEMARK_TOKEN="+alice, "watch", "--user", "alice", "--gateway", d.gateway, "--count", "1"), "alice: hello")

	if r := d.stop(); r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.errOut)
	}
	d = startDev(t, "--auth", "--data", dir)
	wantSays(t, must("TIDEMARK_TOKEN="+alice, "pull", "--conversation", g, "--user", "alice"), "hello")
}

func TestDevSaysHowToMakeAToken(t *testing.T) {
	d := start(t, "dev", "--auth", "--kafka-port", "0", "--sync", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	d.await("Nothing is kept")
	wantSays(t, d.out.String(), "export TIDEMARK_AUTH_SECRET=", "export TIDEMARK_TOKEN=$(tidemark token --user alice --admin)", `-H "authorization: Bearer $TIDEMARK_TOKEN"`)
}

func TestTokenCommand(t *testing.T) {
	secret := strings.Repeat("k", 32)
	for name, tc := range map[string]struct {
		env  string
		args []string
		says string
	}{
		"no secret":    {"", []string{"--user", "a"}, "no auth.secret"},
		"short secret": {"TIDEMARK_AUTH_SECRET=short", []string{"--user", "a"}, "at least 32"},
		"no user":      {"TIDEMARK_AUTH_SECRET=" + secret, nil, `"user" not set`},
		"no time":      {"TIDEMARK_AUTH_SECRET=" + secret, []string{"--user", "a", "--ttl", "0"}, "good for a second at least"},
		"no file":      {"TIDEMARK_AUTH_SECRET_FILE=/nonexistent/file", []string{"--user", "a"}, "auth.secret_file"},
	} {
		if r := withEnv(t, []string{tc.env}, append([]string{"token"}, tc.args...)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.errOut, tc.says) || strings.Contains(r.errOut, secret) {
			t.Errorf("%s: exit code %d: %s%s", name, r.code, r.out, r.errOut)
		}
	}
	got := objects[tokenLine](t, mint(t, secret, "--user", "a", "-o", "json"))
	if len(got) != 1 || strings.Count(got[0].Token, ".") != 2 || got[0].Expires.IsZero() {
		t.Errorf("%+v", got)
	}
	if r := withEnv(t, nil, "pull", "--user", "a", "--conversation", "group:g", "--token", "x", "--token-file", "y"); r.code != exitUsage || !strings.Contains(r.errOut, "do not go together") {
		t.Errorf("two tokens: exit code %d: %s", r.code, r.errOut)
	}
}
