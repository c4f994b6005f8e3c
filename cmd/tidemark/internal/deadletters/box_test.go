package deadletters_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errKilled = fault.New(fault.Fatal, "killed", errors.New("killed"))

const partitions = 3

// kafka is topics in memory.
type kafka struct {
	topics map[string]*[partitions][]wire.Record
	starts map[string]int64 // what is below is given up
	left   int              // calls of Append that succeed; below 0: all
	after  bool             // the one that fails takes effect
	refuse string           // the key of records that are never taken
	calls  int
	mu     chan struct{}
}

func newKafka() *kafka {
	return &kafka{topics: map[string]*[partitions][]wire.Record{}, starts: map[string]int64{}, left: -1, mu: make(chan struct{}, 1)}
}

func (k *kafka) topic(name string) *[partitions][]wire.Record {
	if k.topics[name] == nil {
		k.topics[name] = new([partitions][]wire.Record)
	}
	return k.topics[name]
}

func (k *kafka) Append(_ context.Context, outs []wire.Out) error {
	k.mu <- struct{}{}
	defer func() { <-k.mu }()
	k.calls++
	for _, o := range outs {
		if k.refuse != "" && o.Key == k.refuse {
			return fault.New(fault.Poison, "too_large", errors.New("record is too large"))
		}
	}
	if k.left == 0 && !k.after {
		return errKilled
	}
	for _, o := range outs {
		p := o.Partition
		if p < 0 {
			h := fnv.New32()
			h.Write([]byte(o.Key))
			p = int32(h.Sum32() % partitions)
		}
		list := &k.topic(o.Topic)[p]
		*list = append(*list, wire.Record{
			Topic: o.Topic, TopicID: "id-of-" + o.Topic, Partition: p, Offset: int64(len(*list)), Time: time.UnixMilli(1_000_000 + int64(len(*list))).UTC(),
			Key: []byte(o.Key), Value: o.Value, Headers: o.Headers,
		})
	}
	if k.left == 0 {
		return errKilled
	}
	k.left--
	return nil
}

func (k *kafka) Ends(_ context.Context, topic string) (map[int32]int64, error) {
	out := map[int32]int64{}
	for p, list := range k.topic(topic) {
		out[int32(p)] = int64(len(list))
	}
	return out, nil
}

func (k *kafka) Scan(_ context.Context, topic string, from, to map[int32]int64) iter.Seq2[wire.Record, error] {
	return func(yield func(wire.Record, error) bool) {
		for p, list := range k.topic(topic) {
			first, given := from[int32(p)]
			if given && first < k.starts[topic] {
				yield(wire.Record{}, fmt.Errorf("scan: %w", pipeline.ErrLogStart))
				return
			}
			for _, r := range list {
				if last, ok := to[int32(p)]; r.Offset >= first && (!ok || r.Offset < last) && !yield(r, nil) {
					return
				}
			}
		}
	}
}

func (k *kafka) box(t testing.TB) *deadletters.Box {
	t.Helper()
	b, err := deadletters.New(deadletters.Config{
		Log: k, Appender: k, Topic: "deadLetter", Input: "toRedis", Sequenced: "sequenced",
		Now: func() time.Time { return time.UnixMilli(5_000_000).UTC() },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// die makes dead letters of n messages, each of a conversation of its own kind.
func (k *kafka) die(t testing.TB, n int, reason string) {
	t.Helper()
	for i := range n {
		at := int64(len(k.topic("toRedis")[0]))
		r := wire.Record{
			Topic: "toRedis", TopicID: "id-of-toRedis", Partition: 0, Offset: at, Time: time.UnixMilli(1_000_000 + at).UTC(), Key: fmt.Appendf(nil, "group:g%d", i%7),
			Value: fmt.Appendf(nil, `{"conversation":"group:g%d","sender":"u%d","text":"%s %d"}`, i%7, i%3, reason, i),
		}
		k.topic("toRedis")[0] = append(k.topic("toRedis")[0], r)
		k.bury(t, r, reason)
	}
}

func (k *kafka) bury(t testing.TB, r wire.Record, reason string) {
	t.Helper()
	when := time.UnixMilli(2_000_000 + 1000*r.Offset).UTC()
	out, err := wire.EncodeDeadLetter(wire.DeadLetter{Record: r, Reason: reason, Cause: "because", First: when, Last: when, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	out.Topic = "deadLetter"
	if err := k.Append(t.Context(), []wire.Out{out}); err != nil {
		t.Fatal(err)
	}
}

// replays gives the ids of letters whose record stands on topic again, with
// how often.
func (k *kafka) replays(topic string) map[string]int {
	out := map[string]int{}
	for _, list := range k.topic(topic) {
		for _, r := range list {
			if id := wire.ReplayedLetter(&r); id != "" {
				out[id]++
			}
		}
	}
	return out
}

func (k *kafka) list(t testing.TB, f deadletters.Filter) (out []deadletters.Letter) {
	t.Helper()
	var strange int
	for l, err := range k.box(t).List(t.Context(), f, &strange) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	if strange != 0 {
		t.Errorf("%d records are no letters", strange)
	}
	return out
}

func (k *kafka) replay(t testing.TB, o deadletters.Order) *deadletters.Result {
	t.Helper()
	res, err := k.box(t).Replay(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func onlyOnce(t testing.TB, got map[string]int, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%d letters are replayed, want %d", len(got), n)
	}
	for id, times := range got {
		if times != 1 {
			t.Errorf("%s is replayed %d times", id, times)
		}
	}
}

func TestReplayedOnceAndHidden(t *testing.T) {
	k := newKafka()
	k.die(t, 450, "invalid")
	k.die(t, 3, "not_member")
	k.bury(t, k.topic("toRedis")[0][7], "invalid") // a worker died before it marked the offset
	if got := len(k.list(t, deadletters.Filter{})); got != 453 {
		t.Fatalf("%d letters", got)
	}
	var told int
	o := deadletters.Order{Filter: deadletters.Filter{Reason: "invalid"}, Each: func(*deadletters.Letter) { told++ }}
	o.DryRun = true
	calls := k.calls
	if res := k.replay(t, o); res.Chosen != 450 || res.Done != 0 || told != 450 || k.calls != calls {
		t.Errorf("a dry run did %+v", res)
	}
	o.DryRun = false
	if res := k.replay(t, o); res.Chosen != 450 || res.Done != 450 || res.Failed != 0 {
		t.Errorf("replayed %+v", res)
	}
	onlyOnce(t, k.replays("toRedis"), 450)
	if got := k.list(t, deadletters.Filter{}); len(got) != 3 || got[0].Reason != "not_member" {
		t.Errorf("%d are left", len(got))
	}
	if got := k.list(t, deadletters.Filter{Handled: true}); len(got) != 453 || got[0].Deed != wire.Replayed {
		t.Errorf("%d letters in all", len(got))
	}
	if res := k.replay(t, o); res.Chosen != 0 || res.Done != 0 {
		t.Errorf("a second call did %+v", res)
	}
	o.Handled = true
	if res := k.replay(t, o); res.Done != 450 {
		t.Errorf("asked to do it again it did %+v", res)
	}
}

// Killed before and after each of its appends, a replay goes on and repeats
// nothing, whatever the message's id would do.
func TestReplayKilledAnywhere(t *testing.T) {
	ended := false
	for n := 0; !ended; n++ {
		for _, after := range []bool{false, true} {
			k := newKafka()
			k.die(t, 30, "invalid")
			k.left, k.after = n, after
			_, err := k.box(t).Replay(t.Context(), deadletters.Order{})
			if ended = err == nil; !ended && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			k.left = -1
			open := 0
			for _, l := range k.list(t, deadletters.Filter{}) {
				if l.Deed == wire.Replaying {
					open++
				}
			}
			before := len(k.replays("toRedis"))
			res := k.replay(t, deadletters.Order{})
			if res.Found+res.Done < 30-before || res.Failed != 0 || (n == 0 && after && open != 30) {
				t.Errorf("killed at %d, %v: %d are open, the next call did %+v", n, after, open, res)
			}
			onlyOnce(t, k.replays("toRedis"), 30)
			if left := k.list(t, deadletters.Filter{}); len(left) != 0 {
				t.Errorf("killed at %d: %d are left", n, len(left))
			}
		}
		if n > 100 {
			t.Fatal("it does not end")
		}
	}
}

// What an earlier call appended may be gone: then nobody knows, and says so.
func TestReplayThatCannotBeSettled(t *testing.T) {
	k := newKafka()
	k.die(t, 5, "invalid")
	k.left, k.after = 0, true
	if _, err := k.box(t).Replay(t.Context(), deadletters.Order{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	k.left, k.starts["toRedis"] = -1, 1000
	if _, err := k.box(t).Replay(t.Context(), deadletters.Order{}); !errors.Is(err, pipeline.ErrLogStart) || !strings.Contains(err.Error(), "--again") {
		t.Errorf("got %v", err)
	}
	onlyOnce(t, k.replays("toRedis"), 0)
	if res := k.replay(t, deadletters.Order{Filter: deadletters.Filter{Handled: true}}); res.Done != 5 {
		t.Errorf("asked to do it again it did %+v", res)
	}
}

func TestWhatIsRefusedStays(t *testing.T) {
	k := newKafka()
	k.die(t, 14, "invalid")
	d := wire.DeadLetter{Record: wire.Record{Topic: "toRedis", TopicID: "T", Offset: 1, Value: []byte("x")}, Reason: "too_large"}.WithoutContent(errors.New("too large"))
	foreign := wire.DeadLetter{Record: wire.Record{Topic: "other", TopicID: "O", Offset: 1}, Reason: "invalid"}
	for _, d := range []wire.DeadLetter{d, foreign} {
		out, err := wire.EncodeDeadLetter(d)
		if err != nil {
			t.Fatal(err)
		}
		out.Topic = "deadLetter"
		if err := k.Append(t.Context(), []wire.Out{out}); err != nil {
			t.Fatal(err)
		}
	}
	k.refuse = "group:g3"
	res := k.replay(t, deadletters.Order{})
	if res.Chosen != 16 || res.Done != 12 || res.Failed != 4 || len(res.Failures) != 4 {
		t.Errorf("got %+v", res)
	}
	for _, want := range []string{"left out", "not of this deployment", "record is too large"} {
		if !slices.ContainsFunc(res.Failures, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%v does not say %q", res.Failures, want)
		}
	}
	if left := k.list(t, deadletters.Filter{}); len(left) != 4 || left[0].Deed != "" {
		t.Errorf("%d are left: %+v", len(left), left)
	}
	k.refuse = ""
	if res := k.replay(t, deadletters.Order{}); res.Done != 2 || res.Found != 0 {
		t.Errorf("got %+v", res)
	}
}

func TestSequencedRecordsGoToTheirPartition(t *testing.T) {
	k := newKafka()
	r := wire.Record{Topic: "sequenced", TopicID: "S", Partition: 2, Offset: 9, Key: []byte("group:g"), Value: []byte("x")}
	k.bury(t, r, "undecodable")
	k.replay(t, deadletters.Order{})
	if n := len(k.topic("sequenced")[2]); n != 1 {
		t.Errorf("%d records on its partition", n)
	}
}

// The order of a conversation's letters is that of its messages.
func TestReplayKeepsTheOrderOfAKey(t *testing.T) {
	k := newKafka()
	k.die(t, 300, "invalid")
	k.replay(t, deadletters.Order{})
	for p, list := range k.topic("toRedis") {
		last := map[string]int64{}
		for _, r := range list {
			if id := wire.ReplayedLetter(&r); id != "" {
				var at int64
				if _, err := fmt.Sscanf(id, "id-of-toRedis/0/%d", &at); err != nil || at <= last[string(r.Key)]-1 {
					t.Errorf("partition %d: %s stands behind %d", p, id, last[string(r.Key)])
				}
				last[string(r.Key)] = at
			}
		}
	}
}

func TestDropIsAMarkThatSaysWhy(t *testing.T) {
	k := newKafka()
	k.die(t, 250, "invalid")
	at := deadletters.Place{Topic: "toRedis", Offset: 3}
	if res, err := k.box(t).Drop(t.Context(), deadletters.Order{Filter: deadletters.Filter{Sender: "u0"}, DryRun: true}, "a test"); err != nil || res.Chosen != 84 || res.Done != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	before := len(k.list(t, deadletters.Filter{}))
	if res, err := k.box(t).Drop(t.Context(), deadletters.Order{Filter: deadletters.Filter{Sender: "u0"}}, "a test"); err != nil || res.Done != 84 {
		t.Errorf("%+v, %v", res, err)
	}
	if left := k.list(t, deadletters.Filter{}); len(left) != before-84 {
		t.Errorf("%d are left of %d", len(left), before)
	}
	got := k.list(t, deadletters.Filter{Places: []deadletters.Place{at}, Handled: true})
	if len(got) != 1 || got[0].Deed != wire.Dropped || got[0].Mark == nil || got[0].Mark.Why != "a test" || len(got[0].Record.Value) == 0 {
		t.Errorf("got %+v", got)
	}
	// Who changes their mind replays it.
	if res := k.replay(t, deadletters.Order{Filter: deadletters.Filter{Places: []deadletters.Place{at}, Handled: true}}); res.Done != 1 {
		t.Errorf("got %+v", res)
	}
	if got := k.list(t, deadletters.Filter{Places: []deadletters.Place{at}, Handled: true}); got[0].Deed != wire.Replayed {
		t.Errorf("got %+v", got)
	}
}

func TestFilters(t *testing.T) {
	k := newKafka()
	k.die(t, 21, "invalid")
	k.die(t, 2, "not_member")
	zero, one, ten, twelve := int32(0), int32(1), int64(10), int64(12)
	when := func(offset int64) time.Time { return time.UnixMilli(2_000_000 + 1000*offset) }
	for name, tt := range map[string]struct {
		f    deadletters.Filter
		want int
	}{
		"all":             {deadletters.Filter{}, 23},
		"reason":          {deadletters.Filter{Reason: "not_member"}, 2},
		"conversation":    {deadletters.Filter{Conversation: "group:g1"}, 4},
		"sender":          {deadletters.Filter{Sender: "u2"}, 7},
		"topic":           {deadletters.Filter{Topic: "toRedis"}, 23},
		"other topic":     {deadletters.Filter{Topic: "sequenced"}, 0},
		"partition":       {deadletters.Filter{Partition: &zero}, 23},
		"other partition": {deadletters.Filter{Partition: &one}, 0},
		"offsets":         {deadletters.Filter{First: &ten, Last: &twelve}, 3},
		"from an offset":  {deadletters.Filter{First: &twelve}, 11},
		"since":           {deadletters.Filter{Since: when(20)}, 3},
		"until":           {deadletters.Filter{Until: when(1)}, 2},
		"places":          {deadletters.Filter{Places: []deadletters.Place{{"toRedis", 0, 4}, {"toRedis", 1, 4}}}, 1},
		"several":         {deadletters.Filter{Reason: "invalid", Conversation: "group:g1", Sender: "u1"}, 1},
	} {
		if got := len(k.list(t, tt.f)); got != tt.want {
			t.Errorf("%s: %d letters, want %d", name, got, tt.want)
		}
	}
	l := k.list(t, deadletters.Filter{Places: []deadletters.Place{{"toRedis", 0, 4}}})[0]
	if l.Place() != "toRedis/0/4" || l.Kind != "send" || l.Conversation != "group:g4" || l.Sender != "u1" || !l.First.Equal(when(4)) {
		t.Errorf("got %+v", l)
	}
	for _, s := range []string{"", "toRedis", "toRedis/1", "toRedis/1/x", "toRedis/-1/2", "toRedis/1/2/3", "/1/2", "toRedis/01/2", "toRedis/1/2x", "toRedis/99999999999/1"} {
		if p, err := deadletters.ParsePlace(s); err == nil {
			t.Errorf("%q is read as %v", s, p)
		}
	}
	if p, err := deadletters.ParsePlace("a.b/1/99999999999"); err != nil || p != (deadletters.Place{Topic: "a.b", Partition: 1, Offset: 99999999999}) {
		t.Errorf("%v, %v", p, err)
	}
}

// A letter that comes back is another one, with its history.
func TestLettersThatComeBack(t *testing.T) {
	k := newKafka()
	k.die(t, 1, "not_member")
	for range 3 {
		letters := k.list(t, deadletters.Filter{})
		if len(letters) != 1 {
			t.Fatalf("%d letters", len(letters))
		}
		if res := k.replay(t, deadletters.Order{}); res.Done != 1 {
			t.Fatalf("got %+v", res)
		}
		for _, list := range k.topic("toRedis") {
			for _, r := range list {
				if wire.ReplayedLetter(&r) == letters[0].ID() {
					k.bury(t, r, "not_member")
				}
			}
		}
	}
	got := k.list(t, deadletters.Filter{})
	if len(got) != 1 || got[0].Tries != 4 || got[0].First.UnixMilli() != 2_000_000 {
		t.Errorf("after three replays: %+v", got)
	}
	if got := len(k.list(t, deadletters.Filter{Handled: true})); got != 4 {
		t.Errorf("%d letters in all", got)
	}
}

// What comes to stand while a call runs is for the next one: a letter that comes
// back at once would be replayed for ever.
func TestLettersThatComeMeanwhile(t *testing.T) {
	k := newKafka()
	k.die(t, 20, "invalid")
	n := int64(1000)
	late := func(*deadletters.Letter) {
		for i := range 7 { // one of them comes to each partition
			n++
			k.bury(t, wire.Record{Topic: "toRedis", TopicID: "late", Offset: n, Key: fmt.Append(nil, "late", i)}, "invalid")
		}
	}
	if res := k.replay(t, deadletters.Order{Each: late}); res.Chosen != 20 || res.Done != 20 {
		t.Errorf("got %+v", res)
	}
	if got := len(k.list(t, deadletters.Filter{})); got != 140 {
		t.Errorf("%d letters are left", got)
	}
}

func TestStrangeRecords(t *testing.T) {
	k := newKafka()
	k.die(t, 1, "invalid")
	for _, h := range []wire.Header{{Key: "x"}, {Key: wire.HeaderDeadLetter, Value: []byte("x")}, {Key: wire.HeaderDeadLetterMark, Value: []byte(`{"letter":"x"}`)}} {
		if err := k.Append(t.Context(), []wire.Out{{Topic: "deadLetter", Partition: 1, Headers: []wire.Header{h}}}); err != nil {
			t.Fatal(err)
		}
	}
	var strange, n int
	for _, err := range k.box(t).List(t.Context(), deadletters.Filter{}, &strange) {
		if n++; err != nil {
			t.Error(err)
		}
	}
	if strange != 3 || n != 1 {
		t.Errorf("%d letters and %d others", n, strange)
	}
	if _, err := deadletters.New(deadletters.Config{}); err == nil {
		t.Error("a box without a topic")
	}
}
