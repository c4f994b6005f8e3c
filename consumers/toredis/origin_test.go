package toredis_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// named gives r as somebody writes it who says that it was forwarded.
func named(r wire.Record, origin string) wire.Out {
	return wire.Out{
		Topic: r.Topic, Partition: -1, Key: group, Value: r.Value,
		Headers: append(slices.Clone(r.Headers), wire.Header{Key: wire.HeaderOrigin, Value: []byte(origin)}),
	}
}

// Somebody names a place that a forwarder could have named, far along another
// partition of the topic. What comes from there must not be taken for decided.
func TestAnOriginThatHoldsSomethingElseIsNotBelieved(t *testing.T) {
	const partitions = 4
	for _, c := range []struct {
		name   string
		origin func(w *world, wrong int32) string
	}{
		{"beyond the log's end", func(_ *world, wrong int32) string {
			return fmt.Sprintf("id-toRedis/%d/%d/0", wrong, int64(1)<<62)
		}},
		{"another record", func(_ *world, wrong int32) string { return fmt.Sprintf("id-toRedis/%d/1/1000001", wrong) }},
		{"the same record at another time", func(w *world, wrong int32) string {
			// It stands there, and is as good as its own: but the time makes the id of
			// a message without one.
			r := w.input(wire.PartitionOf(group, partitions))[0]
			w.put(wire.Out{Topic: r.Topic, Partition: wrong, Key: "x", Value: r.Value, Headers: r.Headers})
			return fmt.Sprintf("id-toRedis/%d/2/5", wrong)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(partitions)
			reg := prometheus.NewRegistry()
			home := wire.PartitionOf(group, partitions)
			wrong := (home + 1) % partitions
			w.send(t, -1, group, "A", "1", "a", "")
			w.send(t, wrong, group, "A", "2", "a", "")
			w.send(t, wrong, group, "A", "3", "a", "")
			w.put(named(w.input(home)[0], c.origin(w, wrong)))
			seq := w.sequencer(t, func(c *toredis.Config) { c.Registerer = reg })
			s, err := seq.Stage(home)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			handle(t, s, w.input(home))
			handle(t, w.stage(t, wrong), w.input(wrong)[:2])
			handle(t, s, w.input(home)[2:])
			equal(t, "log", story(t, w, home), []string{"group:g1 1 A/1", "group:g1 2 A/2", "group:g1 3 A/3"})
			equal(t, "letters", w.letters(t), []string(nil))
			got := gather(t, reg)
			for _, want := range []string{"tidemark_toredis_forged_origins_total{} 1", "tidemark_toredis_forwarded_records_total{} 2"} {
				if !slices.Contains(got, want) {
					t.Errorf("%s is missing in\n%s", want, strings.Join(got, "\n"))
				}
			}
		})
	}
}

// An honest forward counts the same whether its origin can still be read or not;
// and while Kafka does not say, the partition waits.
func TestOriginsAreReadBack(t *testing.T) {
	const partitions = 4
	w := newWorld(partitions)
	home := wire.PartitionOf(group, partitions)
	wrong := (home + 1) % partitions
	w.send(t, wrong, group, "A", "", "a", "") // its id follows from where it stood
	w.send(t, wrong, group, "A", "", "b", "")
	id := decode(t, w.input(wrong)[0]).Message.ClientID
	second := decode(t, w.input(wrong)[1]).Message.ClientID
	handle(t, w.stage(t, wrong), w.input(wrong))

	s := w.stage(t, home)
	w.on(func(op string) error {
		if op == "reread" {
			return fault.New(fault.Transient, "leader", errors.New("no leader"))
		}
		return nil
	})
	if durable, err := s.Handle(t.Context(), w.input(home)); fault.ClassOf(err) != fault.Transient || durable != 0 {
		t.Fatalf("origin cannot be read: durable %d, %v; want a transient error", durable, err)
	}
	equal(t, "log", story(t, w, home), []string(nil))
	w.on(nil)
	handle(t, s, w.input(home))
	want := []string{"group:g1 1 A/" + id, "group:g1 2 A/" + second}
	equal(t, "log", story(t, w, home), want)

	// Another owner, when retention has taken the first of them.
	w.starts[wrong] = 1
	w.redis.FlushAll()
	handle(t, w.stage(t, home), w.input(home))
	equal(t, "log of the next owner", story(t, w, home), slices.Concat(want, want))
	equal(t, "letters", w.letters(t), []string(nil))
}
