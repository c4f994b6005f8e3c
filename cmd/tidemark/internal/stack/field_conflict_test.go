package stack_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// comer is a client that comes back now and then, with what it keeps.
type comer struct {
	r       *rig
	user    string
	numbers map[string]client.Numbers
	ids     map[int64]string // what it has at each seq
	again   int              // messages that it was given because of a repair
}

func newComer(r *rig, user string) *comer {
	return &comer{r: r, user: user, numbers: map[string]client.Numbers{}, ids: map[int64]string{}}
}

func (d *comer) Load(context.Context) (map[string]client.Numbers, error) {
	return maps.Clone(d.numbers), nil
}

func (d *comer) Save(_ context.Context, conv string, n client.Numbers) error {
	d.numbers[conv] = n
	return nil
}

// sync pulls what the device has missed.
func (d *comer) sync() {
	d.r.t.Helper()
	c, err := client.New(client.Config{
		User: watermark.UserID(d.user), Service: d.r.svc, Store: d, Logger: testLogger(d.r.t),
		OnMessage: func(_ context.Context, u client.Update) error {
			d.ids[u.Message.GetSeq()] = u.Message.GetClientMessageId()
			if u.Again {
				d.again++
			}
			return nil
		},
	})
	if err == nil {
		err = c.Run(d.r.ctx())
	}
	if err != nil {
		d.r.t.Fatal(err)
	}
}

func idsOf(msgs []*tidemarkv1.Message) map[int64]string {
	out := map[int64]string{}
	for _, m := range msgs {
		out[m.GetSeq()] = m.GetClientMessageId()
	}
	return out
}

// TestTheSameMessageLosesItsSeqAgainAndAgain forces the case that nothing can
// prevent: Redis falls back under the same incarnation while nobody who would
// know better is there, so the next owner gives a seq that was given. It is done
// three times over, and each time the same message is the one that loses.
func TestTheSameMessageLosesItsSeqAgainAndAgain(t *testing.T) {
	t.Parallel()
	const c, rounds = "single:A:B", 3
	r := startAll(t, nil)
	lines, ids := numbered(c, "A", "m", 13)
	away, here := newComer(r, "B"), newComer(r, "B")
	r.produce(c, lines[:9]...)
	r.settle()
	away.sync()
	old := copyOf(r, c)
	r.produce(c, lines[9:12]...)
	r.settle()
	here.sync()

	var repair, conflicts int64
	for round := 1; round <= rounds; round++ {
		r.stop(stack.ToMongo)
		r.stop(stack.ToRedis)
		old.restore(r, c)
		r.start(stack.ToRedis)
		r.produce(c, lines[12]) // in later rounds: its producer sends it again
		if err := r.offsetsReach(stack.ToRedis, r.topic(wire.TopicToRedis)); err != nil {
			t.Fatal(err)
		}
		if w := r.marks("B", c); w.GetMaxSeq() != 10 {
			t.Fatalf("round %d: the fall-back has no effect: %v", round, w)
		}
		if round == 1 {
			away.sync() // meets the wrong state
			if away.ids[10] != "m13" {
				t.Errorf("round %d: a device has %q at the seq that is given twice", round, away.ids[10])
			}
		}
		r.start(stack.ToMongo)
		r.settle() // the conflict is found, and handed back
		r.settle() // its owner has mended it

		w := r.marks("B", c)
		if w.GetMaxSeq() != 13 || w.GetRepairNumber() <= repair || w.GetRepairFrom() != 10 {
			t.Errorf("round %d: %v, want 13 messages and a repair number above %d from 10", round, w, repair)
		}
		repair = w.GetRepairNumber()
		conflicts = int64(r.metric(stack.ToMongo, "tidemark_tomongo_conflicts_total"))
		if conflicts != 1 {
			t.Errorf("round %d: %d conflicts counted by the new writer, want 1", round, conflicts)
		}
		if n := r.metric(stack.ToRedis, "tidemark_toredis_cold_loads_total"); n != 1 {
			t.Errorf("round %d: %v cold loads, want the one of the resequencing", round, n)
		}
		for _, d := range []*comer{away, here} {
			before := d.again
			d.sync()
			if diff := cmp.Diff(idsOf(r.pullAll("B", c, 1, 100)), d.ids); diff != "" {
				t.Errorf("round %d: a device does not have what history has (-history +device):\n%s", round, diff)
			}
			if d.again == before {
				t.Errorf("round %d: nothing was given again because of the repair", round)
			}
			if got := d.numbers[c].Repair; got != repair {
				t.Errorf("round %d: a device is right up to repair %d, want %d", round, got, repair)
			}
		}
	}
	wantIDs(t, auditConversation(r, c), ids...)
	// 13 messages, the loser twice more, and one command for each conflict:
	// what was mended does not come round again.
	r.eventually("nothing comes any more", func() error {
		r.settle()
		if n := len(r.records(wire.TopicToRedis)); n != 12+rounds+rounds {
			return fmt.Errorf("%d records on toRedis", n)
		}
		return nil
	})
	repaired := map[int64]bool{}
	for _, rec := range r.log(c) {
		for _, e := range rec.Events {
			if e, ok := e.(watermark.Repaired); ok {
				repaired[e.Number] = true
			}
		}
	}
	if len(repaired) != rounds {
		t.Errorf("%d repairs in the log, want %d", len(repaired), rounds)
	}
	if seq := r.send(c, "A", "m13"); seq != 13 {
		t.Errorf("a resend has seq %d", seq)
	}
	if seq := r.send(c, "A", "m14"); seq != 14 {
		t.Errorf("the next message has seq %d", seq)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}
