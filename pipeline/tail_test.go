package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	keyFetch       int16 = 1
	keyListOffsets int16 = 2
	keyOffsetFetch int16 = 9
)

func tailKeys(keys ...int16) []kmsg.Key {
	out := make([]kmsg.Key, len(keys))
	for i, k := range keys {
		out[i] = kmsg.Key(k)
	}
	return out
}

const tailConv = watermark.ConversationID("group:g1")

func TestTailConfigReportsEveryFault(t *testing.T) {
	_, err := pipeline.NewTail(pipeline.TailConfig{MaxRecords: -1, Patience: time.Second, Confirm: time.Second})
	for _, want := range []string{"brokers", "group", "max records", "confirm"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q: %v", want, err)
		}
	}
}

func TestTailGivesWhatHistoryMayLack(t *testing.T) {
	l := newTailLog(t, 1)
	for s := range watermark.Seq(10) {
		l.add(tailConv, tailRun(s+1))
	}
	u := l.tail(nil)

	t.Run("nothing committed", func(t *testing.T) {
		p := u.pin(tailConv)
		l.completes(tailConv, 0, -1, u.state(p, tailConv))
	})
	t.Run("some committed", func(t *testing.T) {
		l.commit(0, 4)
		p := u.pin(tailConv)
		got := u.state(p, tailConv)
		l.completes(tailConv, 4, -1, got)
		if got.Max != 10 {
			t.Errorf("max = %d, want 10", got.Max)
		}
	})
	t.Run("another conversation is absent", func(t *testing.T) {
		p := u.pin("group:other")
		if got := u.state(p, "group:other"); got != nil {
			t.Errorf("state = %+v, want none", got)
		}
	})
}

// The end must be asked after history was read. A record that is appended
// between the pin and the question, or between two questions, is in neither
// when an older end is believed.
func TestTailEndIsAskedAfterTheQuestion(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.commit(0, 1)
	u := l.tail(nil)
	p := u.pin(tailConv)
	for s := watermark.Seq(2); s < 20; s++ {
		l.add(tailConv, tailRun(s))
		got := u.state(p, tailConv)
		if got == nil || got.Max != s {
			t.Fatalf("after seq %d was acknowledged the tail says %+v", s, got)
		}
	}
}

func TestTailStatesAreTheCallers(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1, 2, 3), watermark.WindowChanged{Member: watermark.Member{User: "b", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 1}}}})
	u := l.tail(nil)
	p := u.pin(tailConv)
	first := u.state(p, tailConv)
	first.Max = 99
	first.Members["b"].Memberships[0] = watermark.Membership{Number: 7}
	delete(first.Members, "a")
	clear(first.Sent)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

func TestTailPinsAreCoalesced(t *testing.T) {
	tests := []struct {
		name string
		key  int16
		ask  func(*tailUnder) error
	}{
		{"committed offset", keyOffsetFetch, func(u *tailUnder) error {
			p, err := u.Pin(t.Context(), []watermark.ConversationID{tailConv})
			if err == nil {
				p.Release()
			}
			return err
		}},
		{"end", keyListOffsets, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTailLog(t, 1)
			l.add(tailConv, tailRun(1))
			l.commit(0, 0)
			u := l.tail(nil)
			ask := tt.ask
			if ask == nil {
				p := u.pin(tailConv)
				ask = func(u *tailUnder) error {
					_, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
					return err
				}
			}
			if err := ask(u); err != nil { // connections stand
				t.Fatal(err)
			}
			release, arrived := l.holdBack(tt.key)
			count := l.requests(tt.key)
			var wg sync.WaitGroup
			failed := make(chan error, 100)
			start := func() { wg.Go(func() { failed <- ask(u) }) }
			start()
			<-arrived
			for range 99 {
				start()
			}
			close(release)
			wg.Wait()
			close(failed)
			for err := range failed {
				if err != nil {
					t.Fatal(err)
				}
			}
			// The held request answers the one that began it; the others came
			// later. Those that had not yet asked when it was let go add rounds
			// of their own, but never one each.
			if n := count(); n < 2 || n > 50 {
				t.Errorf("%d requests for 100 questions", n)
			}
		})
	}
}

// holdBack holds the next request of a kind until release is closed; arrived
// tells that it is there.
func (l *tailLog) holdBack(key int16) (release chan struct{}, arrived chan struct{}) {
	release, arrived = make(chan struct{}), make(chan struct{})
	var once sync.Once
	l.cluster.ControlKey(key, func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() {
			l.cluster.SleepControl(func() { close(arrived); <-release })
		})
		l.cluster.DropControl()
		return nil, nil, false
	})
	return release, arrived
}

// A question that comes while a round is under way must wait for the next one:
// the answer on its way may be older than what the asker knows.
func TestTailQuestionIsNotAnsweredByAnEarlierRound(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	u.state(p, tailConv)

	// The broker answers that the log ends at 1, and the answer takes its time.
	release, arrived := make(chan struct{}), make(chan struct{})
	l.cluster.ControlKey(keyListOffsets, func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.ListOffsetsRequest)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		part := kmsg.NewListOffsetsResponseTopicPartition()
		part.Offset = 1
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic, topic.Partitions = tailTopic, append(topic.Partitions, part)
		resp.Topics = append(resp.Topics, topic)
		l.cluster.SleepControl(func() { close(arrived); <-release })
		return resp, nil, true
	})
	ask := func(max chan<- watermark.Seq) {
		states, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
		if err != nil {
			t.Error(err)
			max <- -1
			return
		}
		max <- states[tailConv].Max
	}
	early, late := make(chan watermark.Seq, 1), make(chan watermark.Seq, 1)
	go ask(early)
	<-arrived
	l.add(tailConv, tailRun(2))
	go ask(late)
	tailAwait(t, "both questions wait", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return strings.Count(string(stacks), "rounds[...]).get(") == 2
	})
	close(release)
	if got := <-early; got != 1 && got != 2 {
		t.Errorf("max of the early question = %d", got)
	}
	if got := <-late; got != 2 {
		t.Errorf("max of the late question = %d, want 2", got)
	}
}

func TestTailIsNeverTrimmedAboveTheLowestPin(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 4 })
	for s := range watermark.Seq(40) {
		l.add(tailConv, tailRun(s+1))
	}
	old := u.pin(tailConv)
	u.state(old, tailConv)
	if n := u.metric("tidemark_pipeline_tail_segments"); n != 10 {
		t.Fatalf("%v segments, want 10", n)
	}
	l.commit(0, 30)
	young := u.pin(tailConv)
	l.completes(tailConv, 30, -1, u.state(young, tailConv))
	young.Release()
	l.completes(tailConv, 0, -1, u.state(old, tailConv))
	messages, err := old.Messages(t.Context(), tailConv, watermark.Interval{First: 1, Last: 100}, 0)
	if err != nil || len(messages) != 40 {
		t.Errorf("%d messages, %v; want 40", len(messages), err)
	}

	old.Release()
	if n := u.metric("tidemark_pipeline_tail_segments"); n != 3 {
		t.Errorf("%v segments after the release, want 3 (records 28..39)", n)
	}
	p := u.pin(tailConv)
	l.completes(tailConv, 30, -1, u.state(p, tailConv))
	if n := u.metric("tidemark_pipeline_tail_records"); n != 12 {
		t.Errorf("%v records, want 12", n)
	}
}

func TestTailJumpsOverWhatNobodyNeeds(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(nil)
	l.add(tailConv, tailRun(1))
	p := u.pin(tailConv)
	u.state(p, tailConv)
	p.Release()
	for s := range watermark.Seq(50) {
		l.add(tailConv, tailRun(s+2))
	}
	l.commit(0, 50)
	p = u.pin(tailConv)
	l.completes(tailConv, 50, -1, u.state(p, tailConv))
	if n := u.metric("tidemark_pipeline_tail_folded_records_total"); n != 2 {
		t.Errorf("%v records were folded, want 2: the first and the last", n)
	}
}

func TestTailFollowsARewoundGroup(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 2 })
	for s := range watermark.Seq(20) {
		l.add(tailConv, tailRun(s+1))
	}
	l.commit(0, 15)
	held := u.pin(tailConv)
	l.completes(tailConv, 15, -1, u.state(held, tailConv))
	l.commit(0, 3)
	p := u.pin(tailConv)
	l.completes(tailConv, 3, -1, u.state(p, tailConv))
	l.completes(tailConv, 15, -1, u.state(held, tailConv))
	held.Release()
	l.completes(tailConv, 3, -1, u.state(p, tailConv))
}

func TestTailTooLong(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.MaxRecords = 10; c.SegmentRecords = 2 })
	for s := range watermark.Seq(11) {
		l.add(tailConv, tailRun(s+1))
	}
	fetches := l.requests(keyFetch)
	p := u.pin(tailConv)
	_, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
	if !errors.Is(err, pipeline.ErrTailTooLong) || fault.ReasonOf(err) != pipeline.ReasonTailTooLong || fault.ClassOf(err) != fault.Transient {
		t.Fatalf("error = %v, want %v", err, pipeline.ErrTailTooLong)
	}
	if n := fetches(); n != 0 {
		t.Errorf("%d fetches for a tail that is known to be too long", n)
	}
	p.Release()
	l.commit(0, 1)
	p = u.pin(tailConv)
	l.completes(tailConv, 1, -1, u.state(p, tailConv))
}

// A pin that is held for too long must not keep others from reading.
func TestTailVoidsAPinThatHoldsTooMuch(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.MaxRecords = 10; c.SegmentRecords = 2 })
	add := func(n int) {
		for range n {
			l.add(tailConv, tailRun(watermark.Seq(len(l.at(tailConv))+1)))
		}
	}
	add(8)
	stuck := u.pin(tailConv)
	u.state(stuck, tailConv)
	l.commit(0, 6)
	add(8)
	for range 2 {
		p := u.pin(tailConv)
		l.completes(tailConv, 6, -1, u.state(p, tailConv))
		p.Release()
	}
	_, err := stuck.States(t.Context(), []watermark.ConversationID{tailConv})
	if err == nil || fault.ClassOf(err) != fault.Transient {
		t.Errorf("the stuck pin got %v, want a transient error", err)
	}
	if n := u.metric("tidemark_pipeline_tail_voided_pins_total"); n != 1 {
		t.Errorf("%v pins counted as void, want 1", n)
	}
	stuck.Release()
	p := u.pin(tailConv)
	l.completes(tailConv, 6, -1, u.state(p, tailConv))
}

func TestTailLostRecords(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*testing.T, *tailLog)
		fatal bool
	}{
		{"retention was faster than history", func(t *testing.T, l *tailLog) {
			l.commit(0, 5)
			if err := l.cluster.DeleteRecords(tailTopic, 0, 10); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"retention below the committed offset", func(t *testing.T, l *tailLog) {
			l.commit(0, 12)
			if err := l.cluster.DeleteRecords(tailTopic, 0, 10); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"topic made anew", func(t *testing.T, l *tailLog) {
			// Kafka drops a deleted topic's offsets; a restored backup brings such.
			if err := errors.Join(l.cluster.DeleteTopic(tailTopic), l.cluster.CreateTopic(tailTopic, 1, nil)); err != nil {
				t.Fatal(err)
			}
			l.commit(0, 20)
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTailLog(t, 1)
			for s := range watermark.Seq(20) {
				l.add(tailConv, tailRun(s+1))
			}
			tt.spoil(t, l)
			u := l.tail(nil)
			p := u.pin(tailConv)
			got, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
			if !tt.fatal {
				if err != nil || got[tailConv].Max != 20 {
					t.Errorf("state %+v, error %v", got[tailConv], err)
				}
				return
			}
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonLogLost {
				t.Errorf("error = %v (%s), want a fatal one, reason %s", err, fault.ReasonOf(err), pipeline.ReasonLogLost)
			}
		})
	}
}

// Retention that passes a pin which was held too long, but not the committed
// offset, is no loss.
func TestTailRetentionPassesAnOldPin(t *testing.T) {
	l := newTailLog(t, 1)
	for s := range watermark.Seq(20) {
		l.add(tailConv, tailRun(s+1))
	}
	l.commit(0, 5)
	u := l.tail(nil)
	old := u.pin(tailConv)
	l.commit(0, 12)
	if err := l.cluster.DeleteRecords(tailTopic, 0, 10); err != nil {
		t.Fatal(err)
	}
	_, err := old.States(t.Context(), []watermark.ConversationID{tailConv})
	if err == nil || fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != pipeline.ReasonTailMoved {
		t.Errorf("error = %v, want a transient one", err)
	}
	p := u.pin(tailConv)
	l.completes(tailConv, 12, -1, u.state(p, tailConv))
}

func TestTailPassesOverUndecodableRecords(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.addRaw(0, []byte{0xff, 0xff})
	l.addRaw(0, nil)
	l.add(tailConv, tailRun(2))
	u := l.tail(nil)
	p := u.pin(tailConv)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
	if n := u.metric("tidemark_pipeline_tail_undecodable_records_total"); n != 2 {
		t.Errorf("%v undecodable records counted, want 2", n)
	}
	l.addRaw(0, []byte{0xff})
	if got := u.state(p, tailConv); got.Max != 2 { // a bad last record holds nobody up
		t.Errorf("max = %d", got.Max)
	}
}

func TestTailRidesOutTransientFaults(t *testing.T) {
	tests := []struct {
		name string
		key  int16
		err  *kerr.Error
	}{
		{"coordinator moved", keyOffsetFetch, kerr.NotCoordinator},
		{"leader cannot vouch for its end", keyListOffsets, kerr.OffsetNotAvailable},
		{"leader moved, end", keyListOffsets, kerr.NotLeaderForPartition},
		{"leader moved, fetch", keyFetch, kerr.NotLeaderForPartition},
		{"disk", keyFetch, kerr.KafkaStorageError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTailLog(t, 1)
			l.add(tailConv, tailRun(1, 2, 3))
			l.commit(0, 0)
			u := l.tail(nil)
			l.cluster.Fault(kfake.Fault{Keys: tailKeys(tt.key), Err: tt.err, Count: 2})
			p := u.pin(tailConv)
			l.completes(tailConv, 0, -1, u.state(p, tailConv))
		})
	}
}

func TestTailStaysBehind(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(func(c *pipeline.TailConfig) { c.Patience = 500 * time.Millisecond; c.Confirm = 100 * time.Millisecond })
	h := l.cluster.Fault(kfake.Fault{Keys: tailKeys(keyFetch), Err: kerr.KafkaStorageError, Count: -1})
	p := u.pin(tailConv)
	_, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
	if fault.ReasonOf(err) != pipeline.ReasonTailBehind || fault.ClassOf(err) != fault.Transient {
		t.Fatalf("error = %v, want reason %s", err, pipeline.ReasonTailBehind)
	}
	h.Remove()
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

func TestTailCallersContextEnds(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	release, arrived := l.holdBack(keyListOffsets)
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := p.States(ctx, []watermark.ConversationID{tailConv}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want canceled", err)
	}
}

func TestTailEnds(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	u.stop()
	if _, err := p.States(t.Context(), []watermark.ConversationID{tailConv}); fault.ReasonOf(err) != pipeline.ReasonTailClosed {
		t.Errorf("States after Run: %v", err)
	}
	if _, err := u.Pin(t.Context(), []watermark.ConversationID{tailConv}); fault.ReasonOf(err) != pipeline.ReasonTailClosed {
		t.Errorf("Pin after Run: %v", err)
	}
	p.Release()
	p.Release()
	if n := u.metric("tidemark_pipeline_tail_records"); n != 0 {
		t.Errorf("%v records held after Run", n)
	}
}

func TestTailDropsIdlePartitions(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(func(c *pipeline.TailConfig) { c.Idle = 40 * time.Millisecond })
	p := u.pin(tailConv)
	u.state(p, tailConv)
	p.Release()
	tailAwait(t, "the view is dropped", func() bool { return u.metric("tidemark_pipeline_tail_partitions") == 0 })
	p = u.pin(tailConv)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

// tailAwait polls until ok, for at most ten seconds.
func tailAwait(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			tb.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

func TestTailMembersOf(t *testing.T) {
	l := newTailLog(t, 4)
	single := watermark.SingleOf("a", "b")
	l.add(single, watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "b", "x")}})
	l.add(tailConv, watermark.WindowChanged{Member: watermark.Member{User: "a", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}}, Cause: "join"})
	l.add("group:g2", watermark.ReadAdvanced{User: "a", Read: 1})
	l.add("group:g3", watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "a", "y")}})
	l.add("group:g4", watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "c", "z")}})
	u := l.tail(nil)
	p, err := u.PinAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	for user, want := range map[watermark.UserID][]watermark.ConversationID{
		"a": {tailConv, "group:g2", "group:g3", single},
		"b": {single},
		"d": nil,
	} {
		got, err := p.MembersOf(t.Context(), user)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("conversations of %s: %v\n%s", user, err, diff)
		}
	}
	if n := u.metric("tidemark_pipeline_tail_partitions"); n != 4 {
		t.Errorf("%v partitions, want 4", n)
	}
	got, err := p.States(t.Context(), []watermark.ConversationID{tailConv, "group:g2", single, "group:nobody"})
	if err != nil || len(got) != 3 {
		t.Errorf("%d states, %v; want 3", len(got), err)
	}
}

// Whatever happens in whatever order: history below the committed offset, and
// what a pin says that was taken at or after that commit, make the whole log.
func TestTailCompletesHistory(t *testing.T) {
	l := newTailLog(t, 2)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 3; c.CacheBytes = 2000; c.FetchBytes = 600 })
	type held struct {
		pin *pipeline.Pin
		h   map[int32]int64
	}
	committed := make(map[int32]int64)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		var pins []held
		defer func() {
			for _, p := range pins {
				p.pin.Release()
			}
		}()
		round++
		var ids []watermark.ConversationID
		for n := range 4 {
			ids = append(ids, watermark.GroupOf(fmt.Sprintf("p%d-%d", round, n)))
		}
		ids[3] = watermark.SingleOf("a", watermark.UserID(fmt.Sprintf("p%d", round)))
		next := make(map[watermark.ConversationID]watermark.Seq)
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				var seqs []watermark.Seq
				for range rapid.IntRange(1, 3).Draw(rt, "n") {
					next[id]++
					seqs = append(seqs, next[id])
				}
				l.add(id, tailRun(seqs...))
			},
			"mark": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				l.add(id, watermark.ReadAdvanced{User: "a", Read: watermark.Seq(rapid.Int64Range(1, 50).Draw(rt, "read"))})
			},
			"commit": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				p := l.partition(id)
				h := max(0, l.end(p)-rapid.Int64Range(0, 30).Draw(rt, "behind"))
				l.commit(p, h)
				committed[p] = h
			},
			"pin": func(rt *rapid.T) {
				if len(pins) >= 4 {
					rt.Skip()
				}
				p, err := u.Pin(t.Context(), ids)
				if err != nil {
					rt.Fatal(err)
				}
				h := make(map[int32]int64)
				maps.Copy(h, committed)
				pins = append(pins, held{p, h})
			},
			"release": func(rt *rapid.T) {
				if len(pins) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(pins)-1).Draw(rt, "pin")
				pins[i].pin.Release()
				pins = slices.Delete(pins, i, i+1)
			},
			"ask": func(rt *rapid.T) {
				if len(pins) == 0 {
					rt.Skip()
				}
				p := rapid.SampledFrom(pins).Draw(rt, "pin")
				got, err := p.pin.States(t.Context(), ids)
				if err != nil {
					rt.Fatal(err)
				}
				for _, id := range ids {
					l.completes(id, p.h[l.partition(id)], -1, got[id])
				}
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				l.messagesComplete(p.pin, id, p.h[l.partition(id)])
				if t.Failed() {
					rt.FailNow()
				}
			},
		})
	})
}

// messagesComplete checks that a pin has every message at or above offset h.
func (l *tailLog) messagesComplete(p *pipeline.Pin, id watermark.ConversationID, h int64) {
	l.tb.Helper()
	want := make(map[watermark.Seq]bool)
	low := watermark.MaxSeq
	for _, r := range l.at(id) {
		for _, e := range r.Events {
			if e, ok := e.(watermark.MessagesSequenced); ok && r.Offset >= h {
				for _, m := range e.Messages {
					want[m.Seq] = true
					low = min(low, m.Seq)
				}
			}
		}
	}
	got, err := p.Messages(l.tb.Context(), id, watermark.Interval{First: low, Last: watermark.MaxSeq}, 0)
	if err != nil {
		l.tb.Error(err)
		return
	}
	last := watermark.Seq(0)
	for _, m := range got {
		if m.Seq <= last || string(m.Body) != fmt.Sprintf("body of m%d", m.Seq) {
			l.tb.Errorf("message %d after %d has body %q", m.Seq, last, m.Body)
		}
		last = m.Seq
		delete(want, m.Seq)
	}
	if len(want) > 0 && len(got) < watermark.MaxPage {
		l.tb.Errorf("%d messages of %s are missing", len(want), id)
	}
}

// Dashboards and alerts go by these names.
func TestTailMetricNames(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	u.state(p, tailConv)
	u.stop()
	if _, err := p.States(t.Context(), []watermark.ConversationID{tailConv}); err == nil {
		t.Error("no error after Run")
	}
	families, err := u.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	want := []string{
		"tidemark_pipeline_tail_cache_bytes",
		"tidemark_pipeline_tail_catch_up_seconds",
		"tidemark_pipeline_tail_failures_total",
		"tidemark_pipeline_tail_folded_records_total",
		"tidemark_pipeline_tail_partitions",
		"tidemark_pipeline_tail_records",
		"tidemark_pipeline_tail_rereads_total",
		"tidemark_pipeline_tail_segments",
		"tidemark_pipeline_tail_undecodable_records_total",
		"tidemark_pipeline_tail_voided_pins_total",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
