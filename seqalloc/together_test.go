package seqalloc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// warmAll makes conversations warm and empty.
func (x *fixture) warmAll(t testing.TB, convs []watermark.ConversationID) {
	t.Helper()
	tokens, err := x.Begin(t.Context(), convs)
	check(t, err)
	loaded := make([]seqalloc.Loaded, len(convs))
	for i, c := range convs {
		loaded[i] = seqalloc.Loaded{Token: tokens[i], State: &watermark.State{Conversation: watermark.Conversation{ID: c}, Complete: true}}
	}
	_, err = x.Install(t.Context(), loaded)
	check(t, err)
}

func groups(n int) []watermark.ConversationID {
	out := make([]watermark.ConversationID, n)
	for i := range out {
		out[i] = watermark.GroupOf(fmt.Sprint("g", i))
	}
	return out
}

// One call of a script has many conversations, and each is decided by itself:
// whatever the short way leaves to the long one gets its own answer in its own
// place, and its neighbours theirs.
func TestConversationsOfOneCallAreDecidedEachByItself(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		convs := groups(100)
		x.warmAll(t, convs)
		first := make([]watermark.Batch, len(convs))
		for i, c := range convs {
			first[i] = watermark.Batch{Conversation: c, Inputs: x.sends("alice", 1+i%3)}
		}
		_, err := x.Malloc(t.Context(), first)
		check(t, err)

		batches := make([]watermark.Batch, len(convs))
		want := make([]string, len(convs))
		for i, c := range convs {
			batches[i] = watermark.Batch{Conversation: c, Inputs: x.sends("alice", 1+i%2)}
			had := 1 + i%3
			want[i] = fmt.Sprintf("accepted %d", had+1)
			if i%2 == 1 {
				want[i] += fmt.Sprintf(", accepted %d", had+2)
			}
			switch i % 10 {
			case 3: // its keys are gone
				check(t, x.client.Del(t.Context(), x.space.Key(c, keyspace.Meta)).Err())
				want[i] = "cold absent"
			case 4: // a resend
				m := *first[i].Inputs[0].Message
				batches[i].Inputs[0].Message = &m
				want[i] = "resent 1"
			case 5: // a command
				batches[i].Inputs = append(batches[i].Inputs, x.join("bob", "j", watermark.HistoryAll, 0))
				want[i] += fmt.Sprintf(", accepted %d", had+2)
			case 6: // under the other policy
				batches[i].Policy = watermark.KeepOnSend
			case 7: // a counter that was set back
				batches[i].Floor = watermark.MaxSeq
				want[i] = "cold floor"
			}
		}
		allocs, err := x.Malloc(t.Context(), batches)
		check(t, err)
		got := make([]string, len(convs))
		for i := range allocs {
			got[i] = inWords(&allocs[i])
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func inWords(a *watermark.Allocation) string {
	if a.Temperature != watermark.Warm {
		return "cold " + a.Why
	}
	var text strings.Builder
	for i := range a.Outcomes {
		o := &a.Outcomes[i]
		if i > 0 {
			text.WriteString(", ")
		}
		seq := o.Seq
		if o.Member != nil {
			seq = a.Max
		}
		text.WriteString(fmt.Sprintf("%s %d", map[watermark.Verdict]string{watermark.Accepted: "accepted", watermark.Resent: "resent", watermark.Refused: "refused", watermark.Again: "again"}[o.Verdict], seq))
	}
	return text.String()
}

// A thousand warm conversations are a few calls on one server; on a Cluster, whose
// keys are spread, each has its own.
func TestPlainBatchesShareCalls(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		convs := groups(1000)
		x.warmAll(t, convs)
		round := func() {
			batches := make([]watermark.Batch, len(convs))
			for i, c := range convs {
				batches[i] = watermark.Batch{Conversation: c, Inputs: x.sends("alice", 1)}
			}
			allocs, err := x.Malloc(t.Context(), batches)
			check(t, err)
			if i := slices.IndexFunc(allocs, func(a watermark.Allocation) bool { return a.Temperature != watermark.Warm }); i >= 0 {
				t.Fatalf("%s: %+v", convs[i], allocs[i])
			}
		}
		round()
		s := &statuses{}
		x.client.AddHook(s)
		round()
		want := 32
		if _, ok := x.client.(*redis.ClusterClient); ok {
			want = 1000
		}
		if len(s.seen) != want || slices.ContainsFunc(s.seen, func(w string) bool { return w != "run" }) {
			t.Errorf("%d calls: %v", len(s.seen), s.seen[:min(5, len(s.seen))])
		}
	})
}

// Several batches of one conversation in one call are decided in order, though
// the first be one that the short way would leave.
func TestBatchesOfOneConversationAreDecidedInOrder(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		other := watermark.ConversationID("group:other")
		x.warmAll(t, []watermark.ConversationID{group, other})
		check(t, second(x.Malloc(t.Context(), []watermark.Batch{{Conversation: group, Inputs: x.sends("alice", 1)}, {Conversation: other, Inputs: x.sends("alice", 2)}})))
		join, one, two, three := x.join("bob", "j", watermark.HistoryNone, 0), x.send("bob", "1"), x.send("bob", "2"), x.send("bob", "3")
		allocs, err := x.Malloc(t.Context(), []watermark.Batch{
			{Conversation: group, Inputs: []watermark.Input{join}},
			{Conversation: other, Inputs: []watermark.Input{one}},
			{Conversation: group, Inputs: []watermark.Input{two}},
			{Conversation: group, Inputs: []watermark.Input{three}},
		})
		check(t, err)
		var got []watermark.Seq
		for _, a := range allocs[1:] {
			got = append(got, a.Outcomes[0].Seq)
		}
		if d := cmp.Diff([]watermark.Seq{3, 2, 3}, got); d != "" {
			t.Errorf("seqs (-want +got):\n%s", d)
		}
		if m := allocs[0].Outcomes[0].Member; m == nil || m.Memberships[0].Lower != 2 {
			t.Errorf("joined before the messages: %+v", m)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// Batches of several partitions, and of several places, are not taken together.
func TestPlainBatchesOfSeveralPlaces(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		convs := groups(6)
		x.warmAll(t, convs)
		for round := range 3 {
			var batches []watermark.Batch
			for i, c := range convs {
				ins := x.sends("alice", 1)
				ins[0].Origin.Partition.Number = int32(i / 3)
				batches = append(batches, watermark.Batch{
					Conversation: c, Inputs: ins,
					Place: watermark.Place{Partition: watermark.Partition{TopicID: "p", Number: 1}, Number: int64(i / 2 * (10 + round))},
				})
			}
			check(t, second(x.Malloc(t.Context(), batches)))
		}
		for i, c := range convs {
			meta := x.client.HGetAll(t.Context(), x.space.Key(c, keyspace.Meta)).Val()
			place := ""
			if i/2 > 0 {
				place = fmt.Sprintf("p/1|%d", i/2*12)
			}
			offset := fmt.Sprint(x.offset - int64(len(convs)-1-i))
			if meta["bt"] != place || meta[fmt.Sprintf("in:topic/%d", i/3)] != offset || meta["max"] != "3" {
				t.Errorf("%s: %v, want place %q and offset %s", c, meta, place, offset)
			}
		}
	})
}

// answers replaces what scripts reply.
type answers struct{ value any }

func (*answers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (a *answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, c := range cmds {
			if c, ok := c.(*redis.Cmd); ok {
				c.SetVal(a.value)
			}
		}
		return err
	}
}

// A reply of the short way that cannot be one is the program's fault, and nobody
// is given a seq by it.
func TestDamagedRepliesOfTheShortWayAreFatal(t *testing.T) {
	x := embedded(t)
	x.warm(t, fresh())
	x.decide(t, x.sends("alice", 1)...)
	a := &answers{}
	x.client.AddHook(a)
	for name, value := range map[string]any{
		"a word": "OK", "a list of one": []any{int64(2)}, "of three": []any{int64(2), int64(0), int64(0)}, "words": []any{"2", "0"},
		"a counter below what was sent": []any{int64(1), int64(0)}, "below zero": []any{int64(-1), int64(0)},
	} {
		a.value = value
		allocs, err := x.Malloc(t.Context(), []watermark.Batch{{Conversation: x.conv, Inputs: x.sends("alice", 2)}})
		if allocs != nil || fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != keyspace.ReasonScript {
			t.Errorf("%s: %v, %v", name, allocs, err)
		}
	}
}

// What a batch says once for all of its messages: who sent them, and how far each
// of them has read by it, and the newest time, whatever the order of the times is.
// The next batch of the call has senders of its own.
func TestSendersOfABatchAreToldOnce(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		convs := groups(3)
		x.warmAll(t, convs)
		// Those that are warm and empty go the long way once.
		warm := make([]watermark.Batch, len(convs))
		for i, c := range convs {
			warm[i] = watermark.Batch{Conversation: c, Inputs: x.sends("first", 1)}
		}
		_, err := x.Malloc(t.Context(), warm)
		check(t, err)

		senders := [][]watermark.UserID{{"a", "b", "a", "c"}, {"d", "d"}, {"e", "f", "g", "f", "e"}}
		marks := []map[string]float64{{"first": 1, "a": 4, "b": 3, "c": 5}, {"first": 1, "d": 3}, {"first": 1, "e": 6, "f": 5, "g": 4}}
		batches := make([]watermark.Batch, len(convs))
		for i, c := range convs {
			batches[i].Conversation = c
			for k, u := range senders[i] {
				in := x.sends(u, 1)[0]
				in.Message.RecordTime = int64(5000 + 100*i - 10*k)
				batches[i].Inputs = append(batches[i].Inputs, in)
			}
		}
		allocs, err := x.Malloc(t.Context(), batches)
		check(t, err)
		for i, c := range convs {
			if want := watermark.Seq(1 + len(senders[i])); allocs[i].Max != want {
				t.Errorf("%s: up to %d, want %d: %+v", c, allocs[i].Max, want, allocs[i])
			}
			read, err := x.client.ZRangeWithScores(t.Context(), x.space.Key(c, keyspace.Read), 0, -1).Result()
			check(t, err)
			got := make(map[string]float64)
			for _, z := range read {
				got[z.Member.(string)] = z.Score
			}
			if d := cmp.Diff(marks[i], got); d != "" {
				t.Errorf("%s: read (-want +got):\n%s", c, d)
			}
			last, err := x.client.HGet(t.Context(), x.space.Key(c, keyspace.Meta), "lt").Int64()
			if check(t, err); last != int64(5000+100*i) {
				t.Errorf("%s: last time %d, want %d", c, last, 5000+100*i)
			}
		}
	})
}
