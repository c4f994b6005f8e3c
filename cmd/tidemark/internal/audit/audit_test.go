package audit_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	wm "github.com/tidemark-im/tidemark/watermark"
)

const conv = wm.ConversationID("group:g")

func msg(seq wm.Seq, id string) wm.Message {
	m := wm.Message{Seq: seq, Sender: "A", ClientID: id, BodyType: wm.BodyText, Body: []byte(id)}
	m.Hash = m.SumHash()
	return m
}

// store is history and Redis over one state.
type store struct {
	state *wm.State
	rows  map[wm.Seq]wm.Message
	warm  bool
}

func (s *store) States(_ context.Context, wants []wm.Want) ([]*wm.State, error) {
	out := make([]*wm.State, len(wants))
	for i := range wants {
		out[i] = s.state
	}
	return out, nil
}

func (s *store) Messages(_ context.Context, _ wm.ConversationID, in wm.Interval, _ int) ([]wm.Message, error) {
	var out []wm.Message
	for _, q := range slices.Sorted(maps.Keys(s.rows)) {
		if in.Contains(q) {
			out = append(out, s.rows[q])
		}
	}
	return out, nil
}

type redis struct{ *store }

func (r redis) Views(_ context.Context, asks []wm.Ask) ([]wm.View, error) {
	out := make([]wm.View, len(asks))
	for i, a := range asks {
		out[i] = r.state.ViewOf(a.User)
		if !r.warm {
			out[i] = wm.View{Temperature: wm.Cold}
		}
	}
	return out, nil
}

func (r redis) Messages(ctx context.Context, spans []wm.Span) ([][]wm.Message, error) {
	rows, err := r.store.Messages(ctx, conv, wm.Interval{First: 1, Last: wm.MaxSeq}, 0)
	return slices.Repeat([][]wm.Message{rows}, len(spans)), err
}

func log(recs ...wm.Record) iter.Seq2[wm.Record, error] {
	return func(yield func(wm.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func rec(offset int64, events ...wm.Event) wm.Record {
	return wm.Record{Conversation: conv, Offset: offset, Events: events}
}

func run(msgs ...wm.Message) wm.Event { return wm.MessagesSequenced{Messages: msgs} }

// projected gives a store that has exactly what the records say, the first
// message in the log standing for a seq.
func projected(recs ...wm.Record) *store {
	s := &store{state: wm.NewState(conv), rows: map[wm.Seq]wm.Message{}}
	for _, r := range recs {
		s.state.Apply(r)
		for _, e := range r.Events {
			switch e := e.(type) {
			case wm.MessagesSequenced:
				for _, m := range e.Messages {
					if _, ok := s.rows[m.Seq]; !ok {
						s.rows[m.Seq] = m
					}
				}
			case wm.Revoked:
				s.rows[e.Seq] = s.rows[e.Seq].Tombstone(e)
			}
		}
	}
	return s
}

func TestRunFindsEachFault(t *testing.T) {
	clean := []wm.Record{rec(0, run(msg(1, "a"), msg(2, "b"))), rec(1, wm.ReadAdvanced{User: "B", Read: 2}), rec(2, run(msg(2, "b"), msg(3, "c"))), rec(3, wm.Revoked{Seq: 2})}
	tests := []struct {
		name  string
		recs  []wm.Record
		spoil func(history, hot *store)
		want  []audit.Kind
	}{
		{name: "clean, with a replay and a revoke", recs: clean},
		{name: "clean and warm", recs: clean, spoil: func(_, hot *store) { hot.warm = true }},
		{name: "hole", recs: []wm.Record{rec(0, run(msg(1, "a"))), rec(1, run(msg(3, "c")))}, want: []audit.Kind{audit.Hole}},
		{name: "one seq, two messages", recs: []wm.Record{rec(0, run(msg(1, "a"))), rec(1, run(msg(1, "x")))}, want: []audit.Kind{audit.TwoMessages}},
		{name: "the same, repaired", recs: []wm.Record{rec(0, run(msg(1, "a"))), rec(1, run(msg(1, "x"))), rec(2, run(msg(2, "x")), wm.Repaired{Number: 2, From: 1})}},
		{name: "one id, two seqs", recs: []wm.Record{rec(0, run(msg(1, "a"), msg(2, "a")))}, want: []audit.Kind{audit.TwoSeqs}},
		{name: "the log begins late", recs: []wm.Record{rec(5, run(msg(2, "b"), msg(3, "c")))}, spoil: func(h, _ *store) { h.rows[1] = msg(1, "a") }},
		{name: "the log begins late, history has a hole", recs: []wm.Record{rec(5, run(msg(2, "b"), msg(3, "c")))}, want: []audit.Kind{audit.MissingRow}},
		{name: "a hole as wide as seqs go", recs: []wm.Record{rec(0, run(msg(1, "a"))), rec(1, run(msg(wm.MaxSeq, "c")))}, want: []audit.Kind{audit.Hole}},
		{name: "the log begins late, history has nothing", recs: []wm.Record{rec(5, run(msg(wm.MaxSeq, "c")))}, want: slices.Repeat([]audit.Kind{audit.MissingRow}, 10)},
		{name: "history lacks a row", recs: clean, spoil: func(h, _ *store) { delete(h.rows, 3) }, want: []audit.Kind{audit.MissingRow}},
		{name: "history has another row", recs: clean, spoil: func(h, _ *store) { h.rows[3] = msg(3, "x") }, want: []audit.Kind{audit.OtherRow}},
		{name: "history forgot the revoke", recs: clean, spoil: func(h, _ *store) { h.rows[2] = msg(2, "b") }, want: []audit.Kind{audit.OtherRow}},
		{name: "history is behind", recs: clean, spoil: func(h, _ *store) { h.state.Max = 2 }, want: []audit.Kind{audit.WrongBounds}},
		{name: "history knows nothing", recs: clean, spoil: func(h, _ *store) { *h = *projected() }, want: []audit.Kind{audit.UnknownState}},
		{name: "history has another mark", recs: clean, spoil: func(h, _ *store) { h.state.Members["B"] = wm.Member{User: "B", Read: 1} }, want: []audit.Kind{audit.WrongMember}},
		{name: "redis fell back", recs: clean, spoil: func(_, hot *store) { hot.warm, hot.state.Max = true, 2 }, want: []audit.Kind{audit.StaleRedis, audit.StaleRedis}},
		{name: "redis fell back and is cold", recs: clean, spoil: func(_, hot *store) { hot.state.Max = 2 }},
		{name: "redis has another row", recs: clean, spoil: func(_, hot *store) { hot.warm, hot.rows[3] = true, msg(3, "x") }, want: []audit.Kind{audit.OtherHotRow}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			history, hot := projected(tt.recs...), projected(tt.recs...)
			if tt.spoil != nil {
				tt.spoil(history, hot)
			}
			r, err := audit.Run(t.Context(), audit.Sources{Log: log(tt.recs...), History: history, Hot: redis{hot}})
			if err != nil {
				t.Fatal(err)
			}
			var got []audit.Kind
			for _, f := range r.Findings {
				got = append(got, f.Kind)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("findings (-want +got):\n%s\n%v", d, r.Findings)
			}
			if r.Clean() != (len(tt.want) == 0) {
				t.Errorf("clean = %v", r.Clean())
			}
		})
	}
}

func TestAnUnreadableLogIsAnErrorNotACleanReport(t *testing.T) {
	broken := errors.New("broken")
	s := projected()
	_, err := audit.Run(t.Context(), audit.Sources{History: s, Hot: redis{s}, Log: func(yield func(wm.Record, error) bool) { yield(wm.Record{}, broken) }})
	if !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
}
