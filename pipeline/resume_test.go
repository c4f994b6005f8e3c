package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// knows is a history, as far as a group asks it.
type knows struct {
	mu  sync.Mutex
	all map[watermark.Position]int64 // by position without Next
	err error
	// after is called once, with the lock held, when positions were asked for.
	after func()
	// written is called once, with the lock held, when positions were written.
	written func()
}

func (k *knows) Positions(context.Context) ([]watermark.Position, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []watermark.Position
	for p, next := range k.all {
		p.Next = next
		out = append(out, p)
	}
	if after := k.after; after != nil {
		k.after = nil
		after()
	}
	return out, k.err
}

func (k *knows) Write(_ context.Context, c watermark.Change) (watermark.Written, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range c.Positions {
		next := p.Next
		p.Next = 0
		if k.all == nil {
			k.all = make(map[watermark.Position]int64)
		}
		k.all[p] = max(k.all[p], next)
	}
	if written := k.written; written != nil {
		k.written = nil
		written()
	}
	return watermark.Written{}, nil
}

// log is a topic of one partition with a group that has read a part of it.
type log struct {
	t       testing.TB
	cluster *kfake.Cluster
	cfg     pipeline.Config
}

// begin makes n records, of which the first committed ones are read.
func (l *log) begin(n, committed int) {
	l.t.Helper()
	l.cluster, l.cfg = cluster(l.t, 1)
	send(l.t, producer(l.t, l.cfg, "toRedis"), "group:1", numbered(n, "m")...)
	if committed == 0 {
		return
	}
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		got.add(b)
		return min(end(b), int64(committed)), nil
	}}
	g := start(l.t, l.cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(l.t, "all are handled", func() bool { return got.len() == n })
	g.stop(l.t)
}

func (l *log) admin(f func(sarama.ClusterAdmin) error) {
	l.t.Helper()
	if err := pipeline.AdminForTest(l.cfg, f); err != nil {
		l.t.Fatal(err)
	}
}

func (l *log) overtaken() {
	l.begin(10, 5)
	l.admin(func(a sarama.ClusterAdmin) error { return a.DeleteRecords("toRedis", map[int32]int64{0: 8}) })
}

func (l *log) expired() {
	l.begin(10, 5)
	l.admin(func(a sarama.ClusterAdmin) error {
		return errors.Join(a.DeleteConsumerGroup("g"), a.DeleteRecords("toRedis", map[int32]int64{0: 2}))
	})
}

func (l *log) aboveEnd() {
	l.begin(10, 0)
	if err := pipeline.CommitForTest(l.cfg, "g", "toRedis", l.id(), 0, 50); err != nil {
		l.t.Fatal(err)
	}
}

// recreated has a new topic, which Kafka has no offsets of.
func (l *log) recreated() {
	l.begin(10, 5)
	l.remake()
	send(l.t, producer(l.t, l.cfg, "toRedis"), "group:1", numbered(10, "m")...)
}

func (l *log) remake() {
	l.t.Helper()
	l.admin(func(a sarama.ClusterAdmin) error {
		return errors.Join(a.DeleteTopic("toRedis"), a.CreateTopic("toRedis", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
	})
}

func (l *log) id() string {
	l.t.Helper()
	infos, err := pipeline.Describe(l.cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return infos.ToRedis.ID
}

// resumed is what a group came to.
type resumed struct {
	err    error
	values []string // that it read
}

// resume starts the group and waits until it stops by itself, or has read up to
// the end of the log.
func (l *log) resume(gc pipeline.GroupConfig) resumed {
	l.t.Helper()
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	gc.NewStage = s.make
	g := start(l.t, l.cfg, gc)
	var err error
	eventually(l.t, "it stops or has read all", func() bool {
		select {
		case err = <-g.done:
			g.done <- err
			return true
		default:
			st := g.State()
			return len(st.Partitions) == 1 && st.Partitions[0].Next == 10
		}
	})
	if err == nil {
		g.stop(l.t)
	}
	return resumed{err, got.values()}
}

func TestLostOffsetsStopTheGroupUntilToldHowToGoOn(t *testing.T) {
	projects := func(gc pipeline.GroupConfig, history *knows) pipeline.GroupConfig {
		gc.History, gc.Projects = history, true
		return gc
	}
	tests := []struct {
		name     string
		lose     func(l *log)
		history  func(id string) map[watermark.Position]int64 // nil: there is none
		projects bool
		reason   string
		says     []string
		earliest int64 // where it goes on; -1: not at all
		latest   int64
	}{
		{"overtaken by retention", (*log).overtaken, nil, false, pipeline.ReasonOvertaken,
			[]string{"partition 0: retention deleted 3 records", "committed 5, log from 8 to 10", "earliest (partition 0 from 8)", "latest (partition 0 from 10)"}, 8, 10},
		{"expired group offsets", (*log).expired, nil, false, pipeline.ReasonNoOffsets,
			[]string{"offsets expired, and the log's first 2 records", "committed nothing, log from 2 to 10"}, 2, 10},
		{"above the end", (*log).aboveEnd, nil, false, pipeline.ReasonAboveEnd,
			[]string{"lost its last 40 records", "committed 50, log from 0 to 10"}, 0, 10},
		{"another topic than history knows", (*log).recreated, func(string) map[watermark.Position]int64 {
			return map[watermark.Position]int64{{Topic: "toRedis", Partition: watermark.Partition{TopicID: "old"}}: 7}
		}, false, pipeline.ReasonRecreated, []string{"deleted and made again", "id old", "committed nothing, log from 0 to 10"}, 0, 10},
		{"history overtaken by retention", (*log).overtaken, func(id string) map[watermark.Position]int64 {
			return map[watermark.Position]int64{{Topic: "toRedis", Partition: watermark.Partition{TopicID: id}}: 5}
		}, true, pipeline.ReasonOvertaken, []string{"earliest (partition 0 from 8)"}, 8, -1},
		{"restored history", func(l *log) { l.begin(10, 5) }, func(id string) map[watermark.Position]int64 {
			return map[watermark.Position]int64{{Topic: "toRedis", Partition: watermark.Partition{TopicID: id}}: 3}
		}, true, pipeline.ReasonHistoryBehind,
			[]string{"history has it up to 3 only", "committed 5, log from 0 to 10", "earliest (partition 0 from 3)"}, 3, -1},
		{"another history", func(l *log) { l.begin(10, 5) }, func(string) map[watermark.Position]int64 { return nil }, true,
			pipeline.ReasonHistoryBehind, []string{"history has nothing of it"}, 0, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, how := range []pipeline.OnLost{"", pipeline.LostStop, pipeline.LostLatest, pipeline.LostEarliest} {
				l := &log{t: t}
				tt.lose(l)
				history := &knows{}
				gc := pipeline.GroupConfig{OnLost: how}
				if tt.history != nil {
					history.all = tt.history(l.id())
					gc.History = history
				}
				if tt.projects {
					gc = projects(gc, history)
				}
				was := committedOffset(t, l.cfg, "g", "toRedis", 0)
				got := l.resume(gc)
				from := map[pipeline.OnLost]int64{"": -1, pipeline.LostStop: -1, pipeline.LostLatest: tt.latest, pipeline.LostEarliest: tt.earliest}[how]
				if from < 0 {
					checkStopped(t, got, tt.reason, append(tt.says, "group g", "topic toRedis", "docs/runbook.md#"+tt.reason))
					if now := committedOffset(t, l.cfg, "g", "toRedis", 0); now != was {
						t.Errorf("%q: committed was %d and is %d", how, was, now)
					}
					continue
				}
				if got.err != nil {
					t.Fatalf("%q: Run = %v", how, got.err)
				}
				if want := numbered(10, "m")[from:]; !slices.Equal(got.values, want) {
					t.Errorf("%q: read %v, want %v", how, got.values, want)
				}
				if n := metric(t, l.cfg, "tidemark_pipeline_moved_offsets_total"); n != 1 {
					t.Errorf("%q: %v offsets moved", how, n)
				}
				// It is told once.
				if tt.projects {
					history.Write(t.Context(), watermark.Change{Positions: []watermark.Position{
						{Topic: "toRedis", Partition: watermark.Partition{TopicID: l.id()}, Next: 10},
					}})
				}
				gc.OnLost = ""
				if got := l.resume(gc); got.err != nil || from < 10 && len(got.values) > 0 {
					t.Errorf("%q: the next start reads %v, %v", how, got.values, got.err)
				}
			}
		})
	}
}

func checkStopped(t *testing.T, got resumed, reason string, says []string) {
	t.Helper()
	if fault.ClassOf(got.err) != fault.Fatal || fault.ReasonOf(got.err) != reason || len(got.values) > 0 {
		t.Fatalf("Run = %v (%s) after %v, want %s at once", got.err, fault.ReasonOf(got.err), got.values, reason)
	}
	for _, want := range says {
		if !strings.Contains(got.err.Error(), want) {
			t.Errorf("it does not say %q: %v", want, got.err)
		}
	}
	if strings.Contains(got.err.Error(), "\n") {
		t.Errorf("more than one line: %v", got.err)
	}
}

// A stage that knows its records by their offsets must not read a log whose
// offsets begin again: nothing that an operator chooses makes that right.
func TestALogThatLostItsEndIsNotReadOnByOffsets(t *testing.T) {
	for _, how := range []pipeline.OnLost{pipeline.LostLatest, pipeline.LostEarliest} {
		l := &log{t: t}
		l.aboveEnd()
		got := l.resume(pipeline.GroupConfig{Origins: true, OnLost: how})
		checkStopped(t, got, pipeline.ReasonAboveEnd, nil)
		if strings.Contains(got.err.Error(), "earliest") || strings.Contains(got.err.Error(), "latest") {
			t.Errorf("it offers a choice: %v", got.err)
		}
	}
}

func TestACompleteLogIsReadFromItsStart(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 5)
	l.admin(func(a sarama.ClusterAdmin) error { return a.DeleteConsumerGroup("g") })
	got := l.resume(pipeline.GroupConfig{History: &knows{}, Projects: true})
	if diff := cmp.Diff(numbered(10, "m"), got.values); got.err != nil || diff != "" {
		t.Errorf("Run = %v, read (-want +got):\n%s", got.err, diff)
	}
}

// A worker that outlives its topic commits into the new one, which Kafka takes.
func TestACommitOfAnotherTopicIsNoticed(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 5)
	old := l.id()
	l.remake()
	send(t, producer(t, l.cfg, "toRedis"), "group:1", numbered(10, "m")...)
	if err := pipeline.CommitForTest(l.cfg, "g", "toRedis", old, 0, 5); err != nil {
		t.Fatal(err)
	}
	checkStopped(t, l.resume(pipeline.GroupConfig{}), pipeline.ReasonRecreated, []string{old, l.id(), "committed 5, log from 0 to 10"})
	if got := l.resume(pipeline.GroupConfig{OnLost: pipeline.LostEarliest}); got.err != nil || len(got.values) != 10 {
		t.Errorf("Run = %v, read %v", got.err, got.values)
	}
}

func TestMarksNameTheTopic(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 10)
	l.admin(func(a sarama.ClusterAdmin) error {
		resp, err := a.ListConsumerGroupOffsets("g", map[string][]int32{"toRedis": {0}})
		if err != nil {
			return err
		}
		if b := resp.GetBlock("toRedis", 0); b == nil || b.Metadata != l.id() {
			t.Errorf("the commit is %+v, want it to name topic %s", b, l.id())
		}
		return nil
	})
}

func TestATopicMadeAnewWhileItIsReadStopsTheGroup(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 0)
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	g := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make}.WithTopicEvery(20*time.Millisecond))
	eventually(t, "all are handled", func() bool { return got.len() == 10 })
	// The driver sees the new log when it is longer than the old one was.
	held := l.cluster.Fault(kfake.Fault{Keys: tailKeys(int16(kmsg.Fetch)), Err: kerr.UnknownTopicOrPartition, Count: -1})
	l.remake()
	send(t, producer(t, l.cfg, "toRedis"), "group:1", numbered(20, "n")...)
	held.Remove()
	if err := g.wait(t); fault.ReasonOf(err) != pipeline.ReasonRecreated {
		t.Errorf("Run = %v (%s)", err, fault.ReasonOf(err))
	}
}

// A partition that comes from another member is looked at when it comes.
func TestAClaimIsLookedAtWhenItComes(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 5)
	at := watermark.Position{Topic: "toRedis", Partition: watermark.Partition{TopicID: l.id()}}
	history := &knows{all: map[watermark.Position]int64{at: 5}}
	history.after = func() { history.all[at] = 2 } // restored just now
	checkStopped(t, l.resume(pipeline.GroupConfig{History: history, Projects: true}), pipeline.ReasonHistoryBehind, []string{"up to 2 only"})
}

// What the operator said when the process started is not said for ever.
func TestWhatIsLostLaterStopsTheGroup(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 5)
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return 6, nil }}
	g := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make, OnLost: pipeline.LostEarliest})
	eventually(t, "it reads", func() bool { return got.len() == 5 })
	eventually(t, "it commits", func() bool { return committedOffset(t, l.cfg, "g", "toRedis", 0) == 6 })
	if err := l.cluster.DeleteRecords("toRedis", 0, 8); err != nil {
		t.Fatal(err)
	}
	l.cluster.Fault(kfake.Fault{Keys: tailKeys(int16(kmsg.Heartbeat)), Err: kerr.UnknownMemberID, Count: 1})
	checkStopped(t, resumed{err: g.wait(t)}, pipeline.ReasonOvertaken, []string{"committed 6, log from 8 to 10"})
}

// Offsets are not moved under a member that reads.
func TestOffsetsAreMovedWhenTheGroupHasNoMembers(t *testing.T) {
	l := &log{t: t}
	l.cluster, l.cfg = cluster(t, 2)
	for p := range int32(2) {
		if err := producer(t, l.cfg, "toRedis").Append(within(t), []wire.Out{{Partition: p, Value: []byte("a")}, {Partition: p, Value: []byte("b")}}); err != nil {
			t.Fatal(err)
		}
	}
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	first := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "the first reads", func() bool { return first.Ready() == nil && got.len() == 4 })
	l.admin(func(a sarama.ClusterAdmin) error { return a.DeleteRecords("toRedis", map[int32]int64{0: 2}) })
	// History says that the topic is another one, which is as good a loss as any.
	history := &knows{all: map[watermark.Position]int64{}}
	for p := range int32(2) {
		history.all[watermark.Position{Topic: "toRedis", Partition: watermark.Partition{TopicID: l.id(), Number: p}}] = 0
	}
	second := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make, History: history, Projects: true, OnLost: pipeline.LostEarliest})
	eventually(t, "the second says what it waits for", func() bool {
		err := second.Ready()
		return err != nil && strings.Contains(err.Error(), "has no members")
	})
	first.stop(t)
	eventually(t, "the second reads", func() bool { return second.Ready() == nil && len(second.State().Partitions) == 2 })
	second.stop(t)
}

// A member that was leaving commits between the look at the offsets and the move.
func TestWhatTheLastMemberCommitsIsLookedAtAgain(t *testing.T) {
	l := &log{t: t}
	l.cluster, l.cfg = cluster(t, 2)
	if err := producer(t, l.cfg, "toRedis").Append(within(t), []wire.Out{
		{Partition: 0, Value: []byte("a")}, {Partition: 0, Value: []byte("b")}, {Partition: 1, Value: []byte("c")}, {Partition: 1, Value: []byte("d")},
	}); err != nil {
		t.Fatal(err)
	}
	l.admin(func(a sarama.ClusterAdmin) error { return a.DeleteRecords("toRedis", map[int32]int64{0: 1}) })
	history := &knows{written: func() {
		if err := pipeline.CommitForTest(l.cfg, "g", "toRedis", l.id(), 1, 2); err != nil {
			t.Error(err)
		}
	}}
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	g := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make, History: history, Projects: true, OnLost: pipeline.LostEarliest})
	eventually(t, "both are read from where history ends", func() bool { return got.len() == 3 })
	g.stop(t)
}

func TestHistoryIsWaitedForBeforeTheGroupIsJoined(t *testing.T) {
	l := &log{t: t}
	l.begin(10, 0)
	history := &knows{err: fault.New(fault.Transient, "history_away", errDown)}
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	g := start(t, l.cfg, pipeline.GroupConfig{NewStage: s.make, History: history})
	eventually(t, "it says why", func() bool {
		err := g.Ready()
		return err != nil && strings.Contains(err.Error(), "how far history has topic toRedis: down")
	})
	if got.len() > 0 {
		t.Error("it reads nevertheless")
	}
	history.mu.Lock()
	history.err = nil
	history.mu.Unlock()
	eventually(t, "it reads", func() bool { return got.len() == 10 })
	g.stop(t)
}

func TestManyLostPartitionsAreOneLine(t *testing.T) {
	_, cfg := cluster(t, 20)
	for p := range int32(20) {
		if err := pipeline.CommitForTest(cfg, "g", "toRedis", "", p, int64(p+1)); err != nil {
			t.Fatal(err)
		}
	}
	s := &stage{}
	err := start(t, cfg, pipeline.GroupConfig{NewStage: s.make}).wait(t)
	lost, ok := errors.AsType[*pipeline.LostOffsetsError](err)
	if !ok || len(lost.Partitions) != 20 {
		t.Fatalf("Run = %v", err)
	}
	for _, want := range []string{"partition 7: ", "and 12 partitions more"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "partition 8: ") {
		t.Errorf("it names too many: %v", err)
	}
}
