package toredis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	warm  = "group:warm"
	cold  = "group:cold"
	cold2 = "group:cold2"
)

// errAway is what a history that cannot be reached gives.
var errAway = fault.New(fault.Transient, "history_down", errors.New("history is away"))

// away makes every read of the truth fail until back is called.
func (w *world) away() (back func()) {
	w.down.Store(true)
	return func() { w.down.Store(false) }
}

// tick lets more than the longest pause between two loads pass.
func (w *world) tick() { w.now = w.now.Add(6 * time.Second) }

func flush(t testing.TB, s *toredis.Stage) int64 {
	t.Helper()
	durable, err := s.Flush(t.Context())
	if err != nil {
		t.Fatalf("Flush: %v", err)
	}
	return durable
}

// caughtUp flushes as the runner does, until everything is durable: the first
// load after a failed one is not waited for.
func (w *world) caughtUp(t testing.TB, s *toredis.Stage, want int64) {
	t.Helper()
	var got int64
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		w.tick()
		if got = flush(t, s); got == want {
			return
		}
	}
	t.Errorf("durable = %d, want %d", got, want)
}

// of gives the lines of a story that are about a conversation.
func of(conv string, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasPrefix(l, conv+" ") })
}

// warmed gives a stage that has made the conversation warm with one message.
func (w *world) warmed(t testing.TB, conv string) *toredis.Stage {
	t.Helper()
	s := w.stage(t, 0)
	w.send(t, -1, conv, "A", "1", "a", "")
	handle(t, s, w.input(0))
	return s
}

func TestColdConversationsAreParkedAndWarmOnesGoOn(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	back := w.away()
	w.send(t, -1, cold, "A", "1", "c1", "caller")  // 1
	w.send(t, -1, warm, "A", "2", "w2", "")        // 2
	w.command(t, leave(cold, "B", "op1", "other")) // 3
	w.send(t, -1, cold, "B", "1", "too late", "")  // 4
	if d := handle(t, s, w.input(0)[1:]); d != 1 {
		t.Errorf("durable = %d, want 1: the lowest parked", d)
	}
	w.send(t, -1, warm, "A", "3", "w3", "")                                  // 5
	w.send(t, -1, cold, "A", "2", "c2", "")                                  // 6
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: cold, Value: []byte{255}}) // 7
	if d := handle(t, s, w.input(0)[5:]); d != 1 {
		t.Errorf("durable = %d, want 1: the lowest parked", d)
	}
	equal(t, "log of the warm one", of(warm, story(t, w, 0)), []string{warm + " 1 A/1", warm + " 2 A/2", warm + " 3 A/3"})
	equal(t, "log of the cold one", of(cold, story(t, w, 0)), []string{})
	equal(t, "letters", w.letters(t), []string{"0@7 undecodable"})
	if len(w.answers) != 0 {
		t.Errorf("answered %v", w.answers)
	}

	back()
	w.caughtUp(t, s, 8)
	equal(t, "log of the cold one", of(cold, story(t, w, 0)), []string{cold + " 1 A/1", cold + " leave B v1", cold + " 2 A/2"})
	equal(t, "letters", w.letters(t), []string{"0@7 undecodable", "0@4 not_member"})
	if len(w.answers) != 2 {
		t.Errorf("answers %v, want those to caller and other", w.answers)
	}
	if d := handle(t, s, w.input(0)[7:]); d != 8 {
		t.Errorf("durable = %d, want 8", d)
	}
}

// A record of a parked conversation that comes when the truth is back must not
// be decided before the parked ones.
func TestParkedRecordsComeBeforeNewerOnes(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	back := w.away()
	w.send(t, -1, cold, "A", "1", "c1", "") // 1
	handle(t, s, w.input(0)[1:])
	back()
	// The pause is not over: the newer one waits as well, though it could be
	// loaded by now.
	w.send(t, -1, cold, "A", "2", "c2", "") // 2
	if d := handle(t, s, w.input(0)[2:]); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	w.tick()
	w.send(t, -1, cold, "A", "3", "c3", "") // 3
	handle(t, s, w.input(0)[3:])
	w.caughtUp(t, s, 4)
	equal(t, "log", of(cold, story(t, w, 0)), []string{cold + " 1 A/1", cold + " 2 A/2", cold + " 3 A/3"})
}

// Members that Redis does not know hold up their conversation as a cold one is
// held up, with those that it knows.
func TestUnknownMembersAreWaitedForInOrder(t *testing.T) {
	w := newWorld(1)
	w.roster = false
	s := w.warmed(t, warm)
	back := w.away()
	w.send(t, -1, warm, "B", "1", "b", "") // 1: nobody knows B
	w.send(t, -1, warm, "A", "2", "a", "") // 2
	handle(t, s, w.input(0)[1:])
	w.send(t, -1, warm, "A", "3", "a", "") // 3
	if d := handle(t, s, w.input(0)[3:]); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	back()
	w.caughtUp(t, s, 4)
	equal(t, "log", story(t, w, 0), []string{warm + " 1 A/1", warm + " 2 B/1", warm + " 3 A/2", warm + " 4 A/3"})
}

// Members are loaded for the warm-up that did not know them. When Redis is
// flushed and another owner warms the conversation up while the load is under
// way, what it brings may be older than what that owner did.
func TestLateMembersOfAnEarlierWarmUpAreRefused(t *testing.T) {
	w := newWorld(1)
	w.roster = false
	s := w.warmed(t, warm)
	w.send(t, -1, warm, "B", "1", "b", "") // 1: nobody knows B
	var other []wire.Record
	w.onCall = func(op string) error {
		if op != "members" {
			return nil
		}
		w.onCall = nil
		// B is kicked by another owner, in a warm-up of its own. Then that one is
		// loaded anew without B.
		w.redis.FlushAll()
		w.command(t, leave(warm, "B", "kick", ""))
		other = w.input(0)[2:]
		handle(t, w.stage(t, 0), other)
		w.redis.FlushAll()
		w.send(t, -1, warm, "A", "9", "a", "")
		handle(t, w.stage(t, 0), w.input(0)[3:])
		return nil
	}
	handle(t, s, w.input(0)[1:2])
	// B's record lies below what the other owner decided, so it is merely known;
	// what matters is that B, who was kicked, is not taken for open.
	w.send(t, -1, warm, "B", "2", "b", "")
	handle(t, s, w.input(0)[4:])
	equal(t, "letters", w.letters(t), []string{"0@4 not_member"})
}

func TestParkingIsBounded(t *testing.T) {
	big := strings.Repeat("x", 60_000)
	for _, tt := range []struct {
		name string
		text string
		n    int // records that fit
	}{
		{"records", "c", toredis.MaxParkedRecords},
		{"bytes", big, toredis.MaxParkedBytes / 60_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			w := newWorld(1)
			seq := w.sequencer(t, func(c *toredis.Config) { c.Registerer = reg })
			s, err := seq.Stage(0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w.send(t, -1, warm, "A", "1", "a", "")
			handle(t, s, w.input(0))
			back := w.away()
			for i := range tt.n + 3 {
				w.send(t, -1, []string{cold, cold2}[i%2], "A", fmt.Sprint(i), tt.text, "")
			}
			w.send(t, -1, warm, "A", "2", "a", "")
			for range 5 {
				if _, err := s.Handle(t.Context(), w.input(0)[1:]); fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "parking_full" {
					t.Fatalf("err = %v, want a transient one, reason parking_full", err)
				}
				w.tick()
			}
			// What is warm was decided once, however often the batch comes again.
			equal(t, "log", story(t, w, 0), []string{warm + " 1 A/1", warm + " 2 A/2"})
			got := gather(t, reg)
			for _, want := range []string{
				"tidemark_toredis_waiting_partitions{reason=parking_full} 1",
				"tidemark_toredis_waiting_partitions{reason=cold_load} 1",
				"tidemark_toredis_parked_conversations{} 2",
			} {
				if !slices.Contains(got, want) {
					t.Errorf("no %q among the metrics:\n%s", want, strings.Join(got, "\n"))
				}
			}
			bytes, records := value(t, got, "tidemark_toredis_parked_bytes{}"), value(t, got, "tidemark_toredis_parked_records{}")
			if records > toredis.MaxParkedRecords || bytes > toredis.MaxParkedBytes || records < float64(tt.n-1) {
				t.Errorf("%v records of %v bytes are parked, want about %d", records, bytes, tt.n)
			}
			if err := seq.Ready(); err == nil || !strings.Contains(err.Error(), "partition 0: parking_full") || !strings.Contains(err.Error(), "history_down") {
				t.Errorf("ready: %v", err)
			}
			if n := value(t, got, "tidemark_toredis_load_failures_total{reason=history_down}"); n < 2 {
				t.Errorf("%v loads failed", n)
			}
			back()
			for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
				w.tick()
				_, err := s.Handle(t.Context(), w.input(0)[1:])
				if err == nil {
					break
				}
				if fault.ReasonOf(err) != "parking_full" || time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
			w.caughtUp(t, s, int64(len(w.input(0))))
			for i, conv := range []string{cold, cold2} {
				var want []string
				for j := i; j < tt.n+3; j += 2 {
					want = append(want, fmt.Sprintf("%s %d A/%d", conv, len(want)+1, j))
				}
				equal(t, "log of "+conv, of(conv, story(t, w, 0)), want)
			}
			if err := seq.Ready(); err != nil {
				t.Errorf("ready: %v", err)
			}
		})
	}
}

func value(t testing.TB, lines []string, name string) float64 {
	t.Helper()
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Nothing of what is parked is marked, so the next owner gets it, together with
// later records of others that are done: those it must recognise.
func TestTheNextOwnerTakesUpWhatWasParked(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("redis lost ", lost), func(t *testing.T) {
			w := newWorld(1)
			s := w.warmed(t, warm)
			back := w.away()
			w.send(t, -1, cold, "A", "1", "c1", "") // 1
			w.send(t, -1, warm, "A", "2", "w2", "") // 2
			handle(t, s, w.input(0)[1:])
			w.send(t, -1, warm, "A", "3", "w3", "") // 3
			w.send(t, -1, cold, "A", "2", "c2", "") // 4
			durable := handle(t, s, w.input(0)[3:])
			if d := flush(t, s); d != durable || d != 1 {
				t.Fatalf("durable = %d, then %d, want 1", durable, d)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			back()
			if lost {
				w.redis.FlushAll()
			}
			if d := handle(t, w.stage(t, 0), w.input(0)[durable:]); d != 5 {
				t.Errorf("durable = %d, want 5", d)
			}
			equal(t, "log of the cold one", of(cold, story(t, w, 0)), []string{cold + " 1 A/1", cold + " 2 A/2"})
			o := outcomeOf(t, w) // fails where a seq is two messages
			if o.Order[warm+" 2"] != "A/2 w2" || o.Order[warm+" 3"] != "A/3 w3" || o.Order[warm+" 4"] != "" {
				t.Errorf("the warm one has %v", o.Order)
			}
		})
	}
}

// Strays are not this owner's to decide, so nothing holds them up; they arrive
// at their own owner and are parked there, in their order.
func TestStraysAreForwardedWhileOthersAreParked(t *testing.T) {
	w := newWorld(4)
	mine := wire.PartitionOf(cold, 4)
	var stray string
	for i := 0; stray == ""; i++ {
		if c := fmt.Sprint("group:s", i); wire.PartitionOf(c, 4) != mine {
			stray = c
		}
	}
	home := wire.PartitionOf(stray, 4)
	s, h := w.stage(t, mine), w.stage(t, home)
	back := w.away()
	w.send(t, mine, cold, "A", "1", "c", "")
	w.send(t, mine, stray, "A", "1", "s1", "")
	w.send(t, mine, stray, "A", "2", "s2", "")
	if d := handle(t, s, w.input(mine)); d != 0 {
		t.Errorf("durable = %d, want 0", d)
	}
	if d := handle(t, h, w.input(home)); d != 0 || len(w.input(home)) != 2 {
		t.Errorf("durable = %d of %d", d, len(w.input(home)))
	}
	// The next owner of the first partition forwards them again.
	again := w.stage(t, mine)
	handle(t, again, w.input(mine))
	if d := handle(t, h, w.input(home)[2:]); d != 0 || len(w.input(home)) != 4 {
		t.Errorf("durable = %d of %d", d, len(w.input(home)))
	}
	back()
	w.caughtUp(t, h, 4)
	w.caughtUp(t, again, 3)
	o := outcomeOfPartition(t, w, home)
	if len(o.Order) != 2 || o.Order[stray+" 1"] != "A/1 s1" || o.Order[stray+" 2"] != "A/2 s2" {
		t.Errorf("order = %v", o.Order)
	}
}

func TestDeadLettersOfParkedRecordsAreNotRepeated(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	back := w.away()
	w.send(t, -1, cold, "A", "1", "c1", "")
	w.send(t, -1, cold, "A", "1", "other", "") // 2: id reused
	handle(t, s, w.input(0)[1:])
	back()
	w.on(func(op string) error {
		if op == "append sequenced" {
			return errDied
		}
		return nil
	})
	deadline := time.Now().Add(10 * time.Second)
	for refused := 0; refused < 3; runtime.Gosched() {
		w.tick()
		if d := flush(t, s); d != 1 {
			t.Errorf("durable = %d, want 1", d)
		}
		if len(w.letters(t)) > 0 {
			refused++
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is refused")
		}
	}
	// Redis loses the conversation, and it cannot be loaded any more, while
	// others go on.
	w.redis.Forget(cold)
	back = w.away()
	w.on(nil)
	w.tick()
	w.send(t, -1, warm, "A", "2", "w2", "")
	if d := handle(t, s, w.input(0)[3:]); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	back()
	w.caughtUp(t, s, 4)
	equal(t, "letters", w.letters(t), []string{"0@2 id_reused"})
}

// A command to resequence makes its conversation cold, which must not be done
// while it cannot be made warm again; and it is loaded anew once, not each time
// that it is looked at.
func TestResequenceIsParked(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	back := w.away()
	w.send(t, -1, cold, "A", "1", "c1", "")
	handle(t, s, w.input(0)[1:])
	lost := decode(t, w.input(0)[0]).Message
	w.command(t, &v1.Command{Conversation: warm, OpId: "op", Kind: &v1.Command_Resequence{Resequence: &v1.ResequenceCommand{
		RepairNumber: 8,
		Message: &v1.LoggedMessage{Seq: 1, Sender: "B", ClientMessageId: "9", Hash: lost.Hash[:], Kind: "text",
			BodyType: v1.BodyType_BODY_TYPE_TEXT, Body: []byte("b")},
	}}})
	w.send(t, -1, warm, "A", "2", "w2", "")
	handle(t, s, w.input(0)[2:])
	if !w.isWarm(warm) {
		t.Error("it was made cold while it cannot be loaded")
	}
	back()
	w.journal = nil
	w.caughtUp(t, s, 4)
	equal(t, "calls", w.journal, []string{"malloc", "begin", "load", "install", "malloc", "append sequenced", "settle"})
	equal(t, "log", of(warm, story(t, w, 0)), []string{
		warm + " 1 A/1", warm + " 2 B/9", fmt.Sprintf("%s %T %+v", warm, watermark.Repaired{}, watermark.Repaired{Number: 8, From: 1}), warm + " 3 A/2",
	})
}

// What only asks for a load is not worth a place.
func TestWarmCommandsAreNotParked(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	warmUp := &v1.Command{Conversation: cold, Kind: &v1.Command_Warm{Warm: &v1.WarmCommand{}}}
	back := w.away()
	w.command(t, warmUp)
	if d := handle(t, s, w.input(0)[1:]); d != 2 {
		t.Errorf("durable = %d, want 2", d)
	}
	back()
	w.tick()
	w.send(t, -1, cold, "A", "1", "c", "")
	handle(t, s, w.input(0)[2:])
	w.caughtUp(t, s, 3)
	w.redis.FlushAll()
	w.command(t, warmUp)
	if d := handle(t, s, w.input(0)[3:]); d != 4 {
		t.Errorf("durable = %d, want 4", d)
	}
	if !w.isWarm(cold) {
		t.Error("a Warm command does not make its conversation warm")
	}
	equal(t, "log", of(cold, story(t, w, 0)), []string{cold + " 1 A/1"})
}

// slowTruth is a history that does not answer until it is told to.
type slowTruth struct {
	*world
	answer  chan error
	loads   atomic.Int32
	running atomic.Int32
}

func (s *slowTruth) Load(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	s.loads.Add(1)
	s.running.Add(1)
	defer s.running.Add(-1)
	select {
	case err := <-s.answer:
		if err != nil {
			return nil, err
		}
		return s.world.Load(ctx, wants)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func count(list []string, what string) int {
	n := 0
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}
