package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
)

// The version is saved after what it covers, and worth nothing without the
// numbers that were saved beside it.
func TestTheVersionCoversWhatWasDelivered(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	s.send("group:b", 3)
	run := func() error { return d.client(t, s, false, nil).Run(t.Context()) }
	d.die = 4
	if err := run(); !errors.Is(err, errDied) || d.list.kept != "" {
		t.Fatalf("died in the middle: %v, version %q is kept", err, d.list.kept)
	}
	d.die = -1
	if err := run(); err != nil || d.list.kept == "" {
		t.Fatalf("%v, version %q", err, d.list.kept)
	}
	lists := s.lists
	s.send("group:b", 1)
	if err := run(); err != nil || s.lists != lists+1 {
		t.Errorf("%v, %d pages for one that changed", err, s.lists-lists)
	}
	clear(d.store)
	if err := run(); err != nil {
		t.Fatal(err)
	}
	for conv, want := range map[string][]int64{"group:a": {1, 2, 3, 1, 2, 3}, "group:b": {1, 2, 3, 4, 1, 2, 3, 4}} {
		if !slices.Equal(d.order[conv], want) {
			t.Errorf("%s: delivered %v, want %v", conv, d.order[conv], want)
		}
	}
	s.log = "another" // it does not know the first conversation
	delete(s.bodies, "group:a")
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if d.store["group:a"].Listed || !d.store["group:b"].Listed {
		t.Errorf("after a full resync: %v", d.store)
	}
}

// A group that the user wrote to without joining it is in no list.
func TestWhatIsNotListedIsFollowedToo(t *testing.T) {
	s, d := newServer(), newDevice()
	s.open["group:a"] = true
	s.send("group:a", 1)
	s.send("group:b", 1)
	live(t, s, d, nil, func(settle func()) {
		s.push("group:a", 1)
		settle()
		s.send("group:a", 5)
		s.connected()
	})
	if !slices.Equal(d.order["group:a"], seqs(1, 6)) {
		t.Errorf("delivered %v", d.order["group:a"])
	}
}

func TestConversationsAreToldAsTheyChange(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 1)
	s.send("group:b", 1)
	var told []string
	live(t, s, d, func(c *client.Config) {
		c.OnConversation = func(_ context.Context, e *tidemarkv1.ConversationEntry, listed bool) error {
			told = append(told, fmt.Sprint(e.GetWatermarks().GetConversation(), " ", e.GetWatermarks().GetMaxSeq(), " ", listed))
			return nil
		}
	}, func(settle func()) {
		s.send("group:b", 1)
		s.connected()
	})
	if want := []string{"group:a 1 true", "group:b 1 true", "group:b 2 true"}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// However a device dies, reconnects and is pushed to, it ends with every
// message once and in order.
func TestAnyHistoryEndsComplete(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, d := newServer(), newDevice()
		conv := "group:a"
		s.send(conv, rapid.IntRange(0, 20).Draw(rt, "before"))
		for range rapid.IntRange(1, 3).Draw(rt, "lives") {
			switch rapid.IntRange(0, 6).Draw(rt, "lost") {
			case 0:
				d.list.kept = ""
			case 1:
				s.log += "x"
			case 2:
				s.open[conv] = !s.open[conv]
			}
			d.die = rapid.IntRange(-1, 10).Draw(rt, "die after")
			s.ready = make(chan struct{})
			synctest.Test(t, func(t *testing.T) {
				c := d.client(t, s, true, nil)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				<-s.ready
				for range rapid.IntRange(0, 12).Draw(rt, "steps") {
					switch rapid.IntRange(0, 3).Draw(rt, "step") {
					case 0:
						s.send(conv, rapid.IntRange(1, 9).Draw(rt, "n"))
					case 1:
						if n := len(s.bodies[conv]); n > 0 {
							s.push(conv, int64(rapid.IntRange(1, n).Draw(rt, "seq")))
						}
					case 2:
						s.connected()
					case 3:
						synctest.Wait()
					}
				}
				synctest.Wait()
				cancel()
				if err := <-done; err != nil && !errors.Is(err, errDied) {
					rt.Fatalf("run: %v", err)
				}
			})
		}
		d.die = -1
		delete(s.open, conv)
		s.log += "x" // it joined, which the list tells
		if err := d.client(rt, s, false, nil).Run(context.Background()); err != nil {
			rt.Fatal(err)
		}
		if want := seqs(1, int64(len(s.bodies[conv]))); !slices.Equal(d.order[conv], want) {
			rt.Fatalf("delivered %v, want 1..%d", d.order[conv], len(want))
		}
	})
}
