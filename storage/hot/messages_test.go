package hot_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

func (e *env) messages(s hot.Span) []watermark.Message {
	e.tb.Helper()
	got, err := e.Messages(e.tb.Context(), []hot.Span{s})
	if err != nil {
		e.tb.Fatal(err)
	}
	return got[0]
}

func seqs(messages []watermark.Message) []watermark.Seq {
	var out []watermark.Seq
	for _, m := range messages {
		s := m.Seq
		if m.Revoked != nil {
			s = -s
		}
		out = append(out, s)
	}
	return out
}

func span(first, last watermark.Seq) []watermark.Seq {
	var out []watermark.Seq
	for s := first; s <= last; s++ {
		out = append(out, s)
	}
	return out
}

func TestMessages(t *testing.T) {
	const huge = watermark.Seq(1) << 62
	tests := []struct {
		name  string
		setup func(e *env)
		span  hot.Span
		want  []watermark.Seq // negative: a tombstone
	}{
		{"all", func(e *env) { e.meta(group) }, hot.Span{First: 1, Last: 10}, span(1, 10)},
		{"a part", func(e *env) { e.meta(group) }, hot.Span{First: 4, Last: 6}, span(4, 6)},
		{"one", func(e *env) { e.meta(group) }, hot.Span{First: 4, Last: 4}, span(4, 4)},
		{"begin above end", func(e *env) { e.meta(group) }, hot.Span{First: 5, Last: 4}, nil},
		{"any numbers", func(e *env) { e.meta(group) }, hot.Span{First: -huge, Last: huge}, span(1, 10)},
		{"above the maximum", func(e *env) { e.meta(group) }, hot.Span{First: 11, Last: huge}, nil},
		{"below one", func(e *env) { e.meta(group) }, hot.Span{First: -5, Last: 0}, nil},
		{"at the end of numbers", func(e *env) { e.meta(group) }, hot.Span{First: huge, Last: huge}, nil},
		{"below the minimum", func(e *env) { e.meta(group, "min", 8) }, hot.Span{First: 1, Last: 10}, span(8, 10)},
		{"above a counter that fell back", func(e *env) { e.meta(group, "max", 7) }, hot.Span{First: 1, Last: 10}, span(1, 7)},
		{"absent", func(*env) {}, hot.Span{First: 1, Last: 10}, nil},
		{"foreign", func(e *env) { e.meta(group, "inc", "another-server") }, hot.Span{First: 1, Last: 10}, nil},
		{"warming", func(e *env) { e.meta(group, "st", "warming") }, hot.Span{First: 1, Last: 10}, nil},
		{"tombstones in their places", func(e *env) {
			e.meta(group)
			e.revoke(group, 1)
			e.revoke(group, 4)
			e.revoke(group, 5)
			e.revoke(group, 10)
		}, hot.Span{First: 1, Last: 10}, []watermark.Seq{-1, 2, 3, -4, -5, 6, 7, 8, 9, -10}},
		{"tombstones outside of the range", func(e *env) {
			e.meta(group)
			e.revoke(group, 3)
			e.revoke(group, 8)
		}, hot.Span{First: 4, Last: 7}, span(4, 7)},
		{"only tombstones", func(e *env) {
			e.meta(group)
			for s := range watermark.Seq(10) {
				e.revoke(group, s+1)
			}
		}, hot.Span{First: 4, Last: 6}, []watermark.Seq{-4, -5, -6}},
		{"a tombstone wins over an entry", func(e *env) {
			e.meta(group)
			e.do("HSET", e.space.Key(group, keyspace.Revoked), "4", keyspace.Tombstone{Header: []byte("ann")}.String())
		}, hot.Span{First: 3, Last: 5}, []watermark.Seq{3, -4, 5}},
		{"a hole stays a hole", func(e *env) {
			e.meta(group)
			e.do("XDEL", e.space.Key(group, keyspace.Log), "4-0")
		}, hot.Span{First: 3, Last: 6}, []watermark.Seq{3, 5, 6}},
		{"a hole with tombstones", func(e *env) {
			e.meta(group)
			e.revoke(group, 6)
			e.do("XDEL", e.space.Key(group, keyspace.Log), "4-0")
		}, hot.Span{First: 3, Last: 7, Keep: watermark.NearBegin}, []watermark.Seq{3, 5, -6, 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.log(group, 1, 10)
			tt.setup(e)
			before := e.dump()
			for _, keep := range []watermark.Keep{tt.span.Keep, watermark.NearBegin} {
				tt.span.Conversation, tt.span.Keep = group, keep
				diff(t, "seqs", seqs(e.messages(tt.span)), tt.want)
			}
			diff(t, "reading wrote", e.dump(), before)
		})
	}
}

func TestMessageContent(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	e.log(group, 1, 3)
	e.revoke(group, 2)
	diff(t, "messages", e.messages(hot.Span{Conversation: group, First: 1, Last: 2}), []watermark.Message{
		{Seq: 1, Sender: "ann", Body: []byte("body 1")},
		{Seq: 2, Sender: "ann", Revoked: &watermark.Revoked{Seq: 2, By: "mod", Time: 77}},
	})
}

// However wide a span is, at most MaxPage seqs are looked at, at the kept edge.
func TestHugeSpansAreBounded(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "max", 3000)
	e.log(group, 1, 3000)
	e.revoke(group, 2500)
	all := hot.Span{Conversation: group, First: 1, Last: 1 << 62}
	want := span(2001, 3000)
	want[2500-2001] = -2500
	diff(t, "near the end", seqs(e.messages(all)), want)
	all.Keep = watermark.NearBegin
	diff(t, "near the beginning", seqs(e.messages(all)), span(1, 1000))
}

func TestSpansAreCutByBytes(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	for s := watermark.Seq(1); s <= 10; s++ {
		e.do("XADD", e.space.Key(group, keyspace.Log), s.String()+"-0", "h", "ann", "b", strings.Repeat("x", 97))
	}
	tests := []struct {
		name  string
		keep  watermark.Keep
		bytes int
		want  []watermark.Seq
	}{
		{"exactly three, near the end", watermark.NearEnd, 300, span(8, 10)},
		{"one byte less", watermark.NearEnd, 299, span(9, 10)},
		{"near the beginning", watermark.NearBegin, 350, span(1, 3)},
		{"one always fits", watermark.NearEnd, 1, span(10, 10)},
		{"default", watermark.NearEnd, 0, span(1, 10)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := e.messages(hot.Span{Conversation: group, First: 1, Last: 10, Keep: tt.keep, Bytes: tt.bytes})
			diff(t, "seqs", seqs(got), tt.want)
		})
	}
}

func TestSpansAreServedInOrder(t *testing.T) {
	e := newEnv(t)
	e.meta("group:b")
	e.log("group:b", 1, 10)
	got, err := e.Messages(t.Context(), []hot.Span{
		{Conversation: "group:a", First: 1, Last: 10},
		{Conversation: "group:b", First: 3, Last: 3},
		{Conversation: "group:b", First: 2, Last: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("answers = %d, want 3", len(got))
	}
	diff(t, "absent", seqs(got[0]), seqs(nil))
	diff(t, "third", seqs(got[1]), span(3, 3))
	diff(t, "second", seqs(got[2]), span(2, 2))
}

// What cannot be decoded is left to history, and seen in a metric.
func TestDamagedEntriesAreLeftOut(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	log, rev := e.space.Key(group, keyspace.Log), e.space.Key(group, keyspace.Revoked)
	e.do("XADD", log, "1-0", "h", "ann", "b", "x")
	e.do("XADD", log, "2-0", "h", "damaged", "b", "x")
	e.do("XADD", log, "4-0", "h", "ann", "b", "x")
	e.do("HSET", rev, "3", "no tombstone")
	diff(t, "seqs", seqs(e.messages(hot.Span{Conversation: group, First: 1, Last: 10})), []watermark.Seq{1, 4})
	if got := e.counter("tidemark_hot_undecodable_entries_total"); got != 2 {
		t.Errorf("undecodable = %v, want 2", got)
	}
}
