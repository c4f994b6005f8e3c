package wire_test

import (
	"slices"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// A record came from a place exactly when what stands there, forwarded, is that
// record in everything that it is decided by.
func TestIsForwardOf(t *testing.T) {
	const conv = "group:g"
	// forwarded gives a record, and what Forward makes of it as its owner reads it.
	forwarded := func(headers ...wire.Header) (from, to wire.Record) {
		from = record(binary(t, send()), headers...)
		out, err := wire.Forward(from, conv)
		if err != nil {
			t.Fatal(err)
		}
		return from, wire.Record{
			Topic: from.Topic, TopicID: from.TopicID, Partition: from.Partition + 1, Offset: 7, Time: from.Time.Add(5e9),
			Key: []byte(out.Key), Value: out.Value, Headers: append(out.Headers, header("traceparent", "of the hop")),
		}
	}
	from, to := forwarded(header("content-type", "application/protobuf"), header("tidemark-caller", "sync-1"))
	if !to.IsForwardOf(&from) {
		t.Error("a forward is not one of its origin")
	}
	if at, ok := to.From(); !ok || at != from.Place() {
		t.Errorf("it says that it comes from %v, %v; want %v", at, ok, from.Place())
	}
	if _, ok := from.From(); ok {
		t.Error("who was not forwarded says where from")
	}
	if bare := to.Unforwarded(); bare.IsForwarded() || !to.IsForwarded() {
		t.Error("Unforwarded leaves the note, or changes its record")
	}
	for name, change := range map[string]func(from, to *wire.Record){
		"value":                func(_, to *wire.Record) { to.Value = append(slices.Clone(to.Value), 0) },
		"partition":            func(from, _ *wire.Record) { from.Partition += 2 },
		"offset":               func(from, _ *wire.Record) { from.Offset++ },
		"time":                 func(from, _ *wire.Record) { from.Time = from.Time.Add(1e6) },
		"content type":         func(from, _ *wire.Record) { from.Headers = from.Headers[1:] },
		"caller":               func(from, _ *wire.Record) { from.Headers[1] = header("tidemark-caller", "sync-2") },
		"kind":                 func(_, to *wire.Record) { to.Headers = append(to.Headers, header("tidemark-type", "command")) },
		"a note in the origin": func(from, _ *wire.Record) { from.Headers = append(from.Headers, header("tidemark-origin", "x")) },
		"no note":              func(_, to *wire.Record) { *to = to.Unforwarded() },
	} {
		from, to := forwarded(header("content-type", "application/protobuf"), header("tidemark-caller", "sync-1"))
		change(&from, &to)
		if to.IsForwardOf(&from) {
			t.Errorf("%s: another record is taken for the origin", name)
		}
	}
}
