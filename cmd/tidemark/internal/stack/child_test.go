package stack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// childEnv tells a copy of the test's own program that it is to run roles, on
// the servers of the test, until it is killed.
const childEnv = "TIDEMARK_STACK_TEST_CHILD"

type childRoles struct {
	Config config.Config
	Roles  []stack.Role
}

func TestMain(m *testing.M) {
	if c := os.Getenv(childEnv); c != "" {
		if err := runChild(c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	// sarama starts go-metrics' one global ticker for the life of the process. The
	// gateway's library and its client end some of theirs seconds later only.
	ticker := goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")
	err := goleak.Find(ticker)
	for until := time.Now().Add(15 * time.Second); err != nil && time.Now().Before(until); {
		err = goleak.Find(ticker)
	}
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		code = 1
	}
	os.Exit(code)
}

func runChild(text string) error {
	var c childRoles
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := stack.Open(context.Background(), stack.Config{Config: c.Config, Roles: c.Roles, Logger: log})
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// child is a role in a process of its own, so that it can be killed in earnest.
type child struct {
	r   *rig
	cmd *exec.Cmd
}

// spawn starts roles in a child. It does not wait for them: what they do shows.
func (r *rig) spawn(roles ...stack.Role) *child {
	r.t.Helper()
	text, err := json.Marshal(childRoles{r.emb.Config, roles})
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = r.t.Output()
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	c := &child{r: r, cmd: cmd}
	r.t.Cleanup(c.kill)
	return c
}

// signal sends the child a signal.
func (c *child) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) }

// kill kills the child with SIGKILL, and returns when it is gone.
func (c *child) kill() {
	if c.cmd.ProcessState != nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // an error tells that it was killed
}
