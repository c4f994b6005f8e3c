package toredis_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestARunCarriesTheTracesOfItsMessages: each with the seq that came of it, what
// has none and what was refused beside them.
func TestARunCarriesTheTracesOfItsMessages(t *testing.T) {
	w := newWorld(1)
	s := w.stage(t, 0)
	traced := func(r wire.Record, id string) wire.Record {
		r.Headers = append(r.Headers, wire.Header{Key: wire.HeaderTrace, Value: []byte("00-" + strings.Repeat(id, 32) + "-" + strings.Repeat("1", 16) + "-01")})
		return r
	}
	handle(t, s, []wire.Record{
		traced(w.send(t, 0, group, "A", "1", "x", ""), "a"),
		w.send(t, 0, group, "A", "2", "x", ""),
		traced(w.send(t, 0, group, "A", "3", "x", ""), "c"),
		traced(w.send(t, 0, group, "A", "1", "other", ""), "d"), // the id of another one
	})
	got := map[watermark.Seq]string{}
	for _, r := range w.topics[wire.TopicSequenced][0] {
		for seq, sc := range wire.TracesByMessage(&r) {
			got[seq] = sc.TraceID().String()[:1]
		}
	}
	equal(t, "traces by seq", got, map[watermark.Seq]string{1: "a", 3: "c"})
}
