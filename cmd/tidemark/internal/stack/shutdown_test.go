package stack_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// The roles stop in the order in which a message goes through them, each when
// the one before has finished.
func TestRolesStopInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string
		say := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, what)
		}
		drains := func(name string, d time.Duration) stack.Part {
			return stack.Part{Name: name, Run: func(ctx context.Context) error {
				<-ctx.Done()
				say(name + " drains")
				time.Sleep(d)
				say(name + " ends")
				return nil
			}}
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		if err := stack.RunParts(ctx, time.Minute, drains("sync", 3*time.Second), drains("toredis", 2*time.Second), drains("tomongo", time.Second)); err != nil {
			t.Error(err)
		}
		want := []string{"sync drains", "sync ends", "toredis drains", "toredis ends", "tomongo drains", "tomongo ends"}
		if !slices.Equal(said, want) {
			t.Errorf("%v, want %v", said, want)
		}
	})
}

func TestRolesThatDoNotStopAreLeftBehindAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		hangs := func(context.Context) error { <-hang; return nil }
		stops := func(ctx context.Context) error { <-ctx.Done(); return nil }
		ctx, stop := context.WithCancel(t.Context())
		stop()
		began := time.Now()
		err := stack.RunParts(ctx, 25*time.Second, stack.Part{Name: "sync", Run: stops}, stack.Part{Name: "toredis", Run: hangs}, stack.Part{Name: "tail", Run: hangs})
		if took := time.Since(began); took != 25*time.Second {
			t.Errorf("it took %v", took)
		}
		if err == nil || !strings.Contains(err.Error(), "not stopped within 25s: toredis, tail") {
			t.Errorf("err = %v", err)
		}
		close(hang)
	})
}

// A process never lives on with a role that has ended.
func TestOneRoleThatEndsEndsAll(t *testing.T) {
	stops := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, tt := range map[string]struct {
		run  func(context.Context) error
		says string
	}{
		"with an error": {func(context.Context) error { return errors.New("log lost") }, "tomongo: log lost"},
		"by itself":     {func(context.Context) error { return nil }, "tomongo: ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			err := stack.RunParts(t.Context(), time.Minute, stack.Part{Name: "toredis", Run: stops}, stack.Part{Name: "tomongo", Run: tt.run})
			if err == nil || err.Error() != tt.says {
				t.Errorf("err = %v, want %q", err, tt.says)
			}
		})
	}
}
