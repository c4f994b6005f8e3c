package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
)

// outbox outlives the clients of a device.
type outbox struct {
	mu   sync.Mutex // of msgs, which the one who writes and the one who sends share
	msgs []*tidemarkv1.SendMessage
	fail error
}

func (o *outbox) Put(_ context.Context, m *tidemarkv1.SendMessage) error {
	if o.fail != nil {
		return o.fail
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = append(o.msgs, m)
	return nil
}

func (o *outbox) Waiting(context.Context) ([]*tidemarkv1.SendMessage, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.msgs), o.fail
}

func (o *outbox) Remove(_ context.Context, _, id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = slices.DeleteFunc(o.msgs, func(m *tidemarkv1.SendMessage) bool { return m.GetClientMessageId() == id })
	return nil
}

func text(conv, s string) *tidemarkv1.SendMessage {
	return &tidemarkv1.SendMessage{Conversation: conv, Body: &tidemarkv1.SendMessage_Text{Text: s}}
}

// What was written while the server was away is sent in order, and stands in the
// device's own state like everything else.
func TestWhatWasWrittenOfflineIsSentInOrder(t *testing.T) {
	s, d, o := newServer(), newDevice(), &outbox{}
	s.send("group:a", 2)
	s.fail = 5
	var sent []string
	synctest.Test(t, func(t *testing.T) {
		c := d.client(t, s, false, func(cfg *client.Config) {
			cfg.Outbox, cfg.Device = o, "phone"
			cfg.OnSent = func(_ context.Context, x client.Sent) error {
				sent = append(sent, fmt.Sprint(x.Message.GetText(), "=", x.Seq, x.Err == nil))
				return nil
			}
		})
		for i := range 3 {
			if _, err := c.Send(t.Context(), text("group:a", fmt.Sprint("own", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if want := []string{"m1", "m2", "own0", "own1", "own2"}; !slices.Equal(s.bodies["group:a"], want) {
		t.Errorf("the server has %v, want %v", s.bodies["group:a"], want)
	}
	if want := []string{"1:m1", "2:m2", "3:own0", "4:own1", "5:own2"}; !slices.Equal(d.got["group:a"], want) {
		t.Errorf("the device has %v, want %v", d.got["group:a"], want)
	}
	if want := []string{"own0=3 true", "own1=4 true", "own2=5 true"}; !slices.Equal(sent, want) || len(o.msgs) != 0 {
		t.Errorf("told %v, want %v; %d are left", sent, want, len(o.msgs))
	}
	m := s.own["group:a"][3]
	if m.GetSender() != "A" || m.GetDevice() != "phone" || m.GetClientMessageId() == "" || m.GetSendTimeMs() == 0 {
		t.Errorf("sent as %v", m)
	}
}

// A message whose answer was lost is looked for before it is sent again: beyond
// its horizon the server would not know it.
func TestAMessageWithoutAnAnswerIsLookedForFirst(t *testing.T) {
	s, d, o := newServer(), newDevice(), &outbox{}
	s.send("group:a", 1)
	s.unheard = 1
	synctest.Test(t, func(t *testing.T) {
		ctx, die := context.WithCancel(t.Context())
		c := d.client(t, s, false, func(cfg *client.Config) {
			cfg.Outbox = o
			cfg.OnMessage = func(ctx context.Context, u client.Update) error {
				if u.Message.GetSender() != "" {
					die() // before the device has seen its own message
					return errDied
				}
				d.order["group:a"] = append(d.order["group:a"], u.Message.GetSeq())
				return nil
			}
		})
		if _, err := c.Send(t.Context(), text("group:a", "own")); err != nil {
			t.Fatal(err)
		}
		_ = c.Run(ctx)
	})
	s.send("group:a", 50)
	if len(o.msgs) != 1 {
		t.Fatalf("%d messages wait", len(o.msgs))
	}
	if err := d.client(t, s, false, func(cfg *client.Config) { cfg.Outbox = o }).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.sends != 1 || len(o.msgs) != 0 || !slices.Equal(d.order["group:a"], seqs(1, 52)) {
		t.Errorf("%d sends, %d wait, delivered %v", s.sends, len(o.msgs), d.order["group:a"])
	}
}

func TestARefusedMessageHoldsUpNothing(t *testing.T) {
	// Only what the service itself said is final.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = connect.NewErrorWriter().Write(w, r, connect.NewError(connect.CodePermissionDenied, errors.New("not a member")))
	}))
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()
	_, wire := tidemarkv1connect.NewSyncServiceClient(http.DefaultClient, srv.URL).Send(t.Context(), &tidemarkv1.SendRequest{})

	s, d, o := newServer(), newDevice(), &outbox{}
	s.refuse = wire
	var told []error
	c := d.client(t, s, false, func(cfg *client.Config) {
		cfg.Outbox = o
		cfg.OnSent = func(_ context.Context, x client.Sent) error {
			told = append(told, x.Err)
			s.refuse = nil
			return nil
		}
	})
	for _, m := range []string{"one", "two"} {
		if _, err := c.Send(t.Context(), text("group:a", m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || connect.CodeOf(told[0]) != connect.CodePermissionDenied || told[1] != nil || !slices.Equal(s.bodies["group:a"], []string{"two"}) {
		t.Errorf("told %v, the server has %v", told, s.bodies)
	}
}

func TestSendChecksWhatItTakes(t *testing.T) {
	o := &outbox{}
	c := newDevice().client(t, newServer(), false, func(cfg *client.Config) { cfg.Outbox = o })
	for name, m := range map[string]*tidemarkv1.SendMessage{
		"no conversation": text("", "x"), "no text": text("group:a", ""), "another's": {Conversation: "group:a", Sender: "B", Body: &tidemarkv1.SendMessage_Text{Text: "x"}},
	} {
		if _, err := c.Send(t.Context(), m); err == nil || len(o.msgs) != 0 {
			t.Errorf("%s: %v, %d wait", name, err, len(o.msgs))
		}
	}
	o.fail = errDown
	if _, err := c.Send(t.Context(), text("group:a", "x")); !errors.Is(err, errDown) {
		t.Errorf("an outbox that fails: %v", err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, errDown) {
		t.Errorf("run: %v", err)
	}
}

// A number that is gone, and a conversation of which all are, are brought again
// although the version says that the device has them.
func TestLostNumbersComeAgain(t *testing.T) {
	for name, lose := range map[string]func(d *device){
		"a conversation": func(d *device) { delete(d.store, "group:a") },
		"its seq":        func(d *device) { n := d.store["group:a"]; n.Seq = 0; d.store["group:a"] = n },
		"its read mark":  func(d *device) { n := d.store["group:a"]; n.Read = 0; d.store["group:a"] = n },
		"the version":    func(d *device) { d.list.kept = "" },
		"everything":     func(d *device) { clear(d.store); d.list.kept = "" },
	} {
		s, d := newServer(), newDevice()
		s.send("group:a", 3)
		s.send("group:b", 3)
		s.read["group:a"] = 2
		run := func() {
			if err := d.client(t, s, false, nil).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		run()
		had := d.store["group:a"]
		lose(d)
		d.order = map[string][]int64{}
		run()
		if d.store["group:a"] != had || len(d.store) != 2 || d.list.kept == "" {
			t.Errorf("without %s: %v, had %v", name, d.store, had)
		}
		if lost := name == "a conversation" || name == "its seq"; lost && !slices.Equal(d.order["group:a"], seqs(1, 3)) {
			t.Errorf("without %s: delivered %v", name, d.order["group:a"])
		}
		lists := s.lists
		run()
		if s.lists != lists+1 {
			t.Errorf("without %s: %d calls for the list afterwards", name, s.lists-lists)
		}
	}
}

func TestAPushWithoutAKindIsAHint(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	live(t, s, d, nil, func(settle func()) {
		s.send("group:a", 4)
		s.event(&tidemarkv1.PushEvent{Conversation: "group:a", MaxSeq: 7})
		settle()
		pulls := s.pulls
		s.event(&tidemarkv1.PushEvent{Conversation: "group:a", MaxSeq: 7})
		settle()
		if s.pulls != pulls {
			t.Error("pulled for what is known")
		}
	})
	if !slices.Equal(d.order["group:a"], seqs(1, 7)) {
		t.Errorf("delivered %v", d.order["group:a"])
	}
}

// Whenever the device dies and whatever answers are lost, each message that Send
// took stands once.
func TestAnySendingEndsWithEachMessageOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, d, o := newServer(), newDevice(), &outbox{}
		var want []string
		for life := range rapid.IntRange(1, 4).Draw(rt, "lives") {
			s.fail, s.unheard = rapid.IntRange(0, 3).Draw(rt, "fail"), rapid.IntRange(0, 3).Draw(rt, "unheard")
			s.lost, s.burst = rapid.IntRange(0, 3).Draw(rt, "lost"), rapid.SampledFrom([]int{0, 20}).Draw(rt, "burst")
			d.die = rapid.IntRange(-1, 6).Draw(rt, "die after")
			n := rapid.IntRange(0, 4).Draw(rt, "messages")
			s.send("group:a", rapid.IntRange(0, 15).Draw(rt, "of others"))
			synctest.Test(t, func(t *testing.T) {
				c := d.client(t, s, false, func(cfg *client.Config) { cfg.Outbox = o })
				for i := range n {
					m := fmt.Sprint("own", life, "-", i)
					want = append(want, m)
					if _, err := c.Send(t.Context(), text("group:a", m)); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Run(t.Context()); err != nil && !errors.Is(err, errDied) {
					t.Fatal(err)
				}
			})
		}
		d.die, s.fail, s.unheard, s.lost = -1, 0, 0, 0
		if err := d.client(rt, s, false, func(cfg *client.Config) { cfg.Outbox = o }).Run(context.Background()); err != nil {
			rt.Fatal(err)
		}
		var own []string
		for i, m := range s.bodies["group:a"] {
			if s.own["group:a"][int64(i+1)] != nil {
				own = append(own, m)
			}
		}
		if !slices.Equal(own, want) || len(o.msgs) != 0 {
			rt.Fatalf("the server has %v, want %v; %d wait", own, want, len(o.msgs))
		}
		if all := seqs(1, int64(len(s.bodies["group:a"]))); !slices.Equal(d.order["group:a"], all) {
			rt.Fatalf("delivered %v, want 1..%d", d.order["group:a"], len(all))
		}
	})
}
