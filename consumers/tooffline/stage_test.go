package tooffline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAbsentUsersAreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.badge = 7
		w.standing["B"] = tooffline.Standing{Conversation: watermark.Conversation{Max: 9}, Member: watermark.Member{Read: 5}}
		w.begin(func(c *tooffline.Config) { c.Preview = 4 })
		defer w.close()
		if d := w.mention(group, 9, []watermark.UserID{"B"}, "B"); d != 0 {
			t.Errorf("durable = %d before anybody was told", d)
		}
		if d := w.after(time.Second); d != 0 || len(w.sent) != 0 {
			t.Errorf("durable = %d, sent %v before the delay was over", d, w.told())
		}
		if d := w.after(2 * time.Second); d != 1 {
			t.Errorf("durable = %d", d)
		}
		if len(w.sent) != 1 {
			t.Fatalf("sent %v", w.told())
		}
		n := w.sent[0]
		if n.User != "B" || n.Conversation != group || n.First != 9 || n.Last != 9 || n.Messages != 1 || !n.Mentioned ||
			n.Unread != 4 || n.Badge != 7 || n.Try != 1 || n.Latest.Text != "mess" || n.Latest.Sender != "S" || n.Latest.ClientID != "c9" || n.ID == "" {
			t.Errorf("got %+v", n)
		}
	})
}

// A message that comes while a notification of its conversation and user waits,
// or is under way, makes no second one at once.
func TestMessagesOfAConversationCollapse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { time.Sleep(3 * time.Second); return nil }
		w.begin(nil)
		defer w.close()
		w.tell(group, 1, "B", "C")
		w.tell(group, 2, "B")
		w.tell(single, 1, "B") // another conversation
		w.tell(group, 2, "B")  // a replay of the producer's
		w.tell(group, 3, "B")
		w.after(2500 * time.Millisecond) // under way
		w.tell(group, 4, "B")
		w.tell(group, 5, "B")
		if d := w.after(10 * time.Second); d != 7 {
			t.Errorf("durable = %d", d)
		}
		got := w.told()
		slices.Sort(got[:3])
		equal(t, "sent", got, []string{"B 1-1 x1", "B 1-3 x3", "C 1-1 x1", "B 4-5 x2"})
		ids := make(map[string]bool)
		for _, n := range w.sent {
			ids[n.ID] = true
		}
		if len(ids) != 4 {
			t.Errorf("%d ids for 4 notifications", len(ids))
		}
	})
}

// What has failed is tried again as one notification with what came meanwhile.
func TestAFailedNotificationTakesWhatCameMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(_ context.Context, n *tooffline.Notification) error {
			time.Sleep(time.Second)
			if n.Try == 1 {
				return errDown
			}
			return nil
		}
		w.begin(nil)
		defer w.close()
		w.mention(group, 1, []watermark.UserID{"B"}, "B")
		w.after(2500 * time.Millisecond)
		w.tell(group, 2, "B")
		w.tell(group, 3, "B")
		if d := w.after(time.Minute); d != 3 {
			t.Errorf("durable = %d", d)
		}
		equal(t, "sent", w.told(), []string{"B 1-1 x1", "B 1-3 x3"})
		if n := w.sent[1]; n.Try != 2 || !n.Mentioned || n.Latest.Text != "message 3" {
			t.Errorf("second attempt: %+v", n)
		}
	})
}

func TestWhoNeedNotBeToldIsNot(t *testing.T) {
	muted := func(how string) map[string]string { return map[string]string{"muted": how} }
	closed := []watermark.Membership{{Number: 1, Lower: 1, Upper: 4}}
	for _, c := range []struct {
		name, outcome string
		st            tooffline.Standing
		mentioned     bool
	}{
		{name: "told", outcome: "delivered"},
		{name: "has read it", outcome: "read", st: tooffline.Standing{Member: watermark.Member{Read: 5}}},
		{name: "has read less", outcome: "delivered", st: tooffline.Standing{Member: watermark.Member{Read: 4}}},
		{name: "muted", outcome: "muted", st: tooffline.Standing{Member: watermark.Member{Attributes: muted("1")}}},
		{name: "muted and mentioned", outcome: "delivered", mentioned: true, st: tooffline.Standing{Member: watermark.Member{Attributes: muted("1")}}},
		{name: "all muted and mentioned", outcome: "muted", mentioned: true, st: tooffline.Standing{Member: watermark.Member{Attributes: muted("all")}}},
		{name: "was kicked before", outcome: "not_visible", st: tooffline.Standing{Member: watermark.Member{Version: 2, LastMembership: 1, Memberships: closed}}},
		{name: "deleted for all", outcome: "not_visible", st: tooffline.Standing{Conversation: watermark.Conversation{Min: 6, Max: 9}}},
		{name: "revoked", outcome: "revoked", st: tooffline.Standing{Revoked: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t)
				w.standing["B"] = c.st
				w.begin(nil)
				defer w.close()
				var mentions []watermark.UserID
				if c.mentioned {
					mentions = []watermark.UserID{"B"}
				}
				w.mention(group, 5, mentions, "B")
				if d := w.after(time.Minute); d != 1 {
					t.Errorf("durable = %d", d)
				}
				w.outcome(c.outcome, 1)
				if want := c.outcome == "delivered"; (len(w.sent) == 1) != want {
					t.Errorf("sent %v", w.told())
				}
			})
		})
	}
}

// The state is looked at after the delay, so reading elsewhere in time counts.
func TestReadingDuringTheDelayIsEnough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin(nil)
		defer w.close()
		w.tell(group, 5, "B")
		w.after(time.Second)
		w.mu.Lock()
		w.standing["B"] = tooffline.Standing{Member: watermark.Member{Read: 5}}
		w.mu.Unlock()
		if d := w.after(5 * time.Second); d != 1 || len(w.sent) != 0 {
			t.Errorf("durable = %d, sent %v", d, w.told())
		}
	})
}

func TestOldMessagesAreNotTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.record(group, 1, nil, "B")
		time.Sleep(25 * time.Hour)
		w.begin(nil)
		defer w.close()
		w.handle(r)
		if d := w.after(time.Minute); d != 1 || len(w.sent) != 0 {
			t.Errorf("durable = %d, sent %v", d, w.told())
		}
		w.outcome("old", 1)
	})
}

func TestPausesDoubleAndEndInTheDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { return errDown }
		w.begin(func(c *tooffline.Config) {
			c.Tries, c.Delay, c.FirstPause, c.LongestPause, c.BreakerAfter = 6, -1, time.Second, 4*time.Second, 100
		})
		defer w.close()
		w.mention(group, 4, []watermark.UserID{"B"}, "B")
		w.tell(single, 1, "C")
		if d := w.after(time.Hour); d != 2 {
			t.Errorf("durable = %d", d)
		}
		var at []time.Duration
		for i, n := range w.sent {
			if n.User == "B" {
				at = append(at, w.at[i])
				if n.ID != w.sent[0].ID && n.User == w.sent[0].User {
					t.Errorf("attempt %d has another id", n.Try)
				}
			}
		}
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}
		if len(at) != 6 {
			t.Fatalf("%d attempts", len(at))
		}
		for i, p := range want {
			if got := at[i+1] - at[i]; got < p*8/10 || got > p*12/10 {
				t.Errorf("pause %d: %v, want %v give or take a fifth", i+1, got, p)
			}
		}
		if len(w.letters) != 2 {
			t.Fatalf("%d dead letters", len(w.letters))
		}
		w.outcome("dead_letter", 2)
	})
}

// A dead letter is for its user and its endpoint alone, so that a replay bothers
// nobody else; and letters of two users of a record are two.
func TestADeadLetterCanBeReplayed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error {
			return &tooffline.SendError{Final: true, Err: errDown}
		}
		k := w.begin(nil)
		defer func() { w.close() }()
		w.mention(group, 4, []watermark.UserID{"C"}, "B", "C")
		w.tell(group, 5, "C")
		if d := w.after(time.Minute); d != 2 {
			t.Errorf("durable = %d", d)
		}
		if len(w.sent) != 2 || len(w.letters) != 2 {
			t.Fatalf("sent %v, %d letters", w.told(), len(w.letters))
		}
		slices.SortFunc(w.letters, func(a, b wire.DeadLetter) int { return int(a.Record.Offset - b.Record.Offset) })
		l := w.letters[1]
		if l.ID() == w.letters[0].ID() || l.Reason != tooffline.ReasonUndelivered || l.Tries != 1 || l.Record.Topic != wire.TopicOffline ||
			l.Record.Offset != 1 || !strings.Contains(l.Cause, "webhook: user C: endpoint is down") {
			t.Errorf("letter %s of %+v: %s", l.ID(), l.Record, l.Cause)
		}
		out, err := l.Replay()
		if err != nil {
			t.Fatal(err)
		}
		again := wire.Record{Topic: out.Topic, TopicID: "topic", Offset: 2, Time: time.Now(), Key: []byte(out.Key), Value: out.Value, Headers: out.Headers}
		if d := w.handle(again); d != 2 {
			t.Errorf("durable = %d", d)
		}
		if d := w.after(time.Minute); d != 3 {
			t.Errorf("durable = %d", d)
		}
		if got := w.told(); got[2] != "C 5-5 x1" || !w.sent[2].Mentioned || w.sent[2].ID != w.sent[1].ID && w.sent[2].ID != w.sent[0].ID {
			t.Errorf("replayed as %v (%+v)", got[2], w.sent[2])
		}
		if l := w.letters[2]; l.Tries != 2 {
			t.Errorf("tries of the replayed one: %d, want those before counted on", l.Tries)
		}
		w.close()

		// Another endpoint's worker passes it over.
		other := newWorld(t)
		other.begin(func(c *tooffline.Config) { c.Endpoint = "fcm" })
		if d := other.handle(again); d != 3 {
			t.Errorf("the other endpoint: durable = %d", d)
		}
		other.close()
		w.claim(k)
	})
}

func TestTheEndpointSaysWhenToComeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(_ context.Context, n *tooffline.Notification) error {
			if n.Try > 1 || n.User == "E" {
				return nil
			}
			switch n.User {
			case "B":
				return &tooffline.SendError{RetryAfter: time.Minute, Err: errDown}
			case "C":
				return &tooffline.SendError{RetryAfter: 1000 * time.Hour, Err: errDown}
			}
			return &tooffline.SendError{RetryAfter: 2 * time.Minute, Whole: true, Err: errDown}
		}
		w.begin(func(c *tooffline.Config) { c.Delay, c.MaxRetryAfter = -1, time.Hour })
		defer w.close()
		w.tell(group, 1, "B")
		w.tell(group, 1, "C")
		w.after(time.Second)
		w.tell(single, 1, "D")
		w.after(30 * time.Second)
		w.tell(group, 2, "E") // waits for what the endpoint told D
		if d := w.after(2 * time.Hour); d != 4 {
			t.Errorf("durable = %d", d)
		}
		at := make(map[string]time.Duration)
		for i, n := range w.sent {
			at[fmt.Sprint(n.User, n.Try)] = w.at[i].Round(time.Second)
		}
		for who, want := range map[string]time.Duration{"B1": 0, "C1": 0, "D1": time.Second, "E1": 121 * time.Second, "B2": 121 * time.Second, "D2": 121 * time.Second, "C2": time.Hour} {
			if got := at[who]; got != want {
				t.Errorf("%s at %v, want %v (%v)", who, got, want, at)
			}
		}
	})
}

func TestTheCircuitOpensAndTriesAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		var down, slow atomic.Bool
		down.Store(true)
		w.answer = func(context.Context, *tooffline.Notification) error {
			time.Sleep(10 * time.Millisecond)
			if slow.Load() {
				time.Sleep(time.Second)
			}
			if down.Load() {
				return errDown
			}
			return nil
		}
		w.begin(func(c *tooffline.Config) {
			c.Delay, c.BreakerAfter, c.BreakerPause, c.Tries, c.Concurrency = -1, 5, 10*time.Second, 3, 4
			c.FirstPause, c.LongestPause = 100*time.Millisecond, 100*time.Millisecond
		})
		defer w.close()
		for i := range 50 {
			w.tell(group, 1, watermark.UserID(fmt.Sprint("u", i)))
		}
		w.after(9 * time.Second)
		w.mu.Lock()
		n := len(w.sent)
		w.mu.Unlock()
		if n < 5 || n > 8 { // those under way when it opened, at most
			t.Errorf("%d attempts before the pause of an endpoint that fails", n)
		}
		slow.Store(true)
		looks := w.looks
		w.after(1500 * time.Millisecond) // one is under way
		if got := len(w.sent); got != n+1 || w.looks != looks+1 {
			t.Errorf("%d attempts after the pause and %d looks at users, want one", got-n, w.looks-looks)
		}
		slow.Store(false)
		w.after(time.Second)
		if v := w.gauge("tidemark_tooffline_circuit_open"); v != 1 {
			t.Errorf("circuit_open = %v", v)
		}
		down.Store(false)
		if d := w.after(time.Minute); d != 50 {
			t.Errorf("durable = %d", d)
		}
		if len(w.letters) != 0 {
			t.Errorf("%d dead letters: the circuit cost tries", len(w.letters))
		}
		if v := w.gauge("tidemark_tooffline_circuit_open"); v != 0 {
			t.Errorf("circuit_open = %v", v)
		}
	})
}

// An endpoint that hangs for 30 s holds up its own offsets and nothing else; its
// attempts are bounded in number and time.
func TestAnEndpointThatHangsDelaysNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bad, good := newWorld(t), newWorld(t)
		bad.answer = func(ctx context.Context, n *tooffline.Notification) error {
			if n.Try > 1 {
				return nil
			}
			return hang(ctx, n)
		}
		bad.begin(func(c *tooffline.Config) {
			c.Endpoint, c.Delay, c.Concurrency, c.Timeout, c.BreakerAfter = "bad", -1, 3, 30*time.Second, 1000
		})
		defer bad.close()
		good.begin(func(c *tooffline.Config) { c.Endpoint, c.Delay = "good", -1 })
		defer good.close()
		for i := range 10 {
			u := watermark.UserID(fmt.Sprint("u", i))
			bad.tell(group, 1, u)
			good.tell(group, 1, u)
		}
		if d := good.after(time.Second); d != 10 {
			t.Errorf("the good endpoint: durable = %d after a second", d)
		}
		if d := bad.after(0); d != 0 {
			t.Errorf("the bad endpoint: durable = %d", d)
		}
		if d := bad.after(10 * time.Minute); d != 10 {
			t.Errorf("the bad endpoint, later: durable = %d", d)
		}
		if bad.busiest != 3 {
			t.Errorf("%d attempts at once, want 3", bad.busiest)
		}
	})
}

// What was under way when a process died is attempted again, with the same id.
func TestWhatWasNotDoneIsDoneAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = hang
		k := w.begin(func(c *tooffline.Config) { c.Delay = -1 })
		w.tell(group, 1, "B")
		w.after(time.Second)
		w.close()
		w.mu.Lock()
		w.answer = nil
		w.mu.Unlock()
		w.claim(k)
		defer w.close()
		w.handle(w.log0...)
		if d := w.after(time.Minute); d != 1 || len(w.sent) != 2 || w.sent[0].ID != w.sent[1].ID {
			t.Errorf("durable = %d, sent %+v", d, w.sent)
		}
		if v := w.gauge("tidemark_tooffline_pending"); v != 0 {
			t.Errorf("pending = %v", v)
		}
	})
}

// The end of a process waits for attempts that are under way, so that they are
// not made again.
func TestDrainingWaitsForWhatIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { time.Sleep(5 * time.Second); return nil }
		k := w.begin(func(c *tooffline.Config) { c.Delay, c.Concurrency = -1, 1 })
		defer w.close()
		w.tell(group, 1, "B")
		w.tell(group, 2, "C")
		synctest.Wait()
		k.Drain()
		if d := w.after(0); d != 1 || len(w.sent) != 1 {
			t.Errorf("durable = %d, sent %v: want what was under way, and nothing begun", d, w.told())
		}
	})
}

func TestRecordsThatCannotBeReadArePoison(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin(nil)
		defer w.close()
		good := w.record(group, 1, nil, "B")
		bad := wire.Record{Offset: 1, Value: []byte{0xff}}
		if _, err := w.stage.Handle(t.Context(), []wire.Record{good, bad}); fault.ClassOf(err) != fault.Poison {
			t.Errorf("err = %v", err)
		}
		w.handle(good) // alone, as the runner does
		after := w.record(group, 2, nil, "B")
		after.Offset = 2
		w.handle(after)
		if d := w.after(time.Minute); d != 3 {
			t.Errorf("durable = %d", d)
		}
		equal(t, "sent", w.told(), []string{"B 1-2 x2"})
	})
}

func TestDevices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.devices["B"] = []watermark.Device{{ID: "phone", Platform: watermark.FCM, Token: "t1"}, {ID: "tablet", Platform: watermark.FCM, Token: "t2"}, {ID: "old", Platform: watermark.FCM, Token: "t3"}}
		var tries [][]string
		w.answer = func(_ context.Context, n *tooffline.Notification) error {
			var ids []string
			for _, d := range n.Devices {
				ids = append(ids, d.ID)
				switch {
				case d.ID == "phone":
					n.Told(d)
				case d.ID == "old":
					n.Gone(d)
				}
			}
			tries = append(tries, ids)
			if n.Try == 1 {
				return errDown
			}
			return nil
		}
		w.begin(func(c *tooffline.Config) { c.Devices = w })
		defer w.close()
		w.tell(group, 1, "B", "C")
		if d := w.after(time.Minute); d != 1 {
			t.Errorf("durable = %d", d)
		}
		equal(t, "devices of each try", tries, [][]string{{"phone", "tablet", "old"}, {"tablet"}})
		equal(t, "forgotten", w.forgot, []string{"B/old"})
		w.outcome("no_device", 1)
		w.outcome("delivered", 1)
	})
}

// Each user of a record has a letter of its own, so that replaying one does not
// count for the others.
func TestLettersOfOneRecordAreSeveral(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error {
			return &tooffline.SendError{Final: true, Err: errDown}
		}
		w.begin(nil)
		defer w.close()
		w.tell(group, 1, "B", "C", "D")
		w.after(time.Minute)
		ids := make(map[string]bool)
		for _, l := range w.letters {
			ids[l.ID()] = true
		}
		if len(w.letters) != 3 || len(ids) != 3 {
			t.Errorf("%d letters with %d ids", len(w.letters), len(ids))
		}
	})
}
