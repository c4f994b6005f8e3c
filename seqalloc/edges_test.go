package seqalloc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// What is due is done by the long way, so the short one must see that it is.
func TestTheShortWayLeavesWhatIsDue(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		now := time.Now()
		a, err := seqalloc.New(seqalloc.Config{Redis: x.client, Space: x.space, Append: encode, Now: func() time.Time { return now }})
		check(t, err)
		x.Allocator = a
		s := &statuses{}
		x.client.AddHook(s)
		ways := func(ins ...watermark.Input) string {
			s.seen = nil
			x.decide(t, ins...)
			return fmt.Sprint(s.seen)
		}
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 1)...)

		for _, age := range []struct {
			after time.Duration
			want  string
		}{{keyspace.DefaultExpiry/4 - time.Second, "[run]"}, {2 * time.Second, "[turned ok]"}, {0, "[run]"}, {-time.Minute, "[turned ok]"}} {
			now = now.Add(age.after)
			if got := ways(x.sends("alice", 1)...); got != age.want {
				t.Errorf("%s later: %s, want %s", age.after, got, age.want)
			}
		}
		// Ids rotate, whatever way the messages come.
		for range 2200 {
			x.decide(t, x.sends("alice", 1)...)
		}
		for _, p := range []keyspace.Part{keyspace.IDs, keyspace.OldIDs} {
			if n := x.client.HLen(t.Context(), x.key(p)).Val(); n > watermark.DedupeHorizon+1 {
				t.Errorf("%d ids in %s", n, p)
			}
			if ttl := x.client.TTL(t.Context(), x.key(p)).Val(); ttl <= 0 {
				t.Errorf("%s expires in %s", p, ttl)
			}
		}
	})
}

// A set of marks that the short way makes expires as well.
func TestMarksThatTheShortWayMakesExpire(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		for n := range 2 {
			x.conv = watermark.GroupOf(fmt.Sprint("e", n))
			x.warm(t, fresh())
			x.policy = watermark.KeepOnSend
			x.decide(t, x.sends("alice", 1)...)
			x.policy = watermark.AdvanceOnSend
			x.decide(t, x.sends("alice", 1)...)
			check(t, x.client.Del(t.Context(), x.key(keyspace.Read)).Err())
			x.decide(t, x.sends("alice", 1+n)...)
			if ttl := x.client.TTL(t.Context(), x.key(keyspace.Read)).Val(); ttl <= 0 {
				t.Errorf("%d messages: marks expire in %s", 1+n, ttl)
			}
		}
	})
}

// The last seq is given out, and none beyond it, one by one and in one batch.
func TestTheShortWayEndsAtTheLastSeq(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		for _, together := range []int{1, 3} {
			x.conv = watermark.GroupOf(fmt.Sprint("last", together))
			state := fresh()
			state.Max = watermark.MaxSeq - 3
			x.warm(t, state)
			x.decide(t, x.sends("alice", 1)...)
			var outs []watermark.Outcome
			for n := 0; n < 3; n += together {
				outs = append(outs, x.decide(t, x.sends("alice", together)...)...)
			}
			wantVerdicts(t, outs, fmt.Sprint("accepted ", int64(watermark.MaxSeq)-1), fmt.Sprint("accepted ", int64(watermark.MaxSeq)), "refused seqs_exhausted")
		}
	})
}

// An input below the mark of its partition was decided before, though its id is
// not known any more: it has no seq, and gets none.
func TestTheShortWayPassesOverWhatWasDecided(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 5)...)
		for _, n := range []int{1, 2} {
			late := x.sends("alice", n)
			for i := range late {
				late[i].Origin.Offset -= int64(n) + 1
			}
			x.offset -= int64(n)
			for _, o := range x.decide(t, late...) {
				if o.Verdict != watermark.Known {
					t.Errorf("%d inputs: %+v", n, o)
				}
			}
		}
	})
}

// The short way is asked only about what Go can tell it may decide.
func TestWhatTheShortWayIsNotAskedAbout(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.conv = single
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 1)...)
		wantVerdicts(t, x.decide(t, x.sends("mallory", 1)...), "refused "+watermark.ReasonNotParticipant)
		x.decide(t, x.sends("alice", 1)...)

		swapped := x.sends("alice", 2)
		swapped[0].Origin, swapped[1].Origin = swapped[1].Origin, swapped[0].Origin
		wantVerdicts(t, x.decide(t, swapped...), "accepted 3", "known 0")
		x.decide(t, x.sends("alice", 1)...)

		apart := x.sends("alice", 2)
		apart[1].Origin.Partition.Number++
		wantVerdicts(t, x.decide(t, apart...), "accepted 5", "accepted 6")
		for _, in := range apart {
			field := "in:" + keyspace.PlaceName(in.Origin.Partition)
			if got, want := x.client.HGet(t.Context(), x.key(keyspace.Meta), field).Val(), fmt.Sprint(in.Origin.Offset); got != want {
				t.Errorf("%s is %s, want %s", field, got, want)
			}
		}
	})
}

// Who has left is refused, also where nothing but its message comes.
func TestTheShortWayLeavesWhoMayNotSend(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.join("bob", "j", watermark.HistoryAll, 0), x.leave("bob", "l", 0))
		x.decide(t, x.sends("alice", 2)...)
		wantVerdicts(t, x.decide(t, x.sends("bob", 1)...), "refused "+watermark.ReasonNotMember)
		x.decide(t, x.sends("alice", 1)...)
		wantVerdicts(t, x.decide(t, append(x.sends("alice", 1), x.sends("bob", 1)...)...), "accepted 4", "refused "+watermark.ReasonNotMember)
	})
}
