package pipeline_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

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
