package hot_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestAnswers(t *testing.T) {
	e := newEnv(t)
	full := watermark.Member{
		User: "ann", Version: 7, LastMembership: 2, Read: 4, Receipt: 3, Own: []watermark.Seq{5}, ChangedAt: 9,
		Memberships: []watermark.Membership{{Number: 1, Lower: 2, Upper: 5}, {Number: 2, Lower: 8}},
		Ops:         []watermark.AppliedOp{{ID: "öp {1}:", Edge: watermark.MaxSeq}},
	}
	puts := []watermark.KeyedAnswer{
		{Key: watermark.AnswerKey{Conversation: group, Caller: "node:1", OpID: "ann/x"}, Answer: watermark.Answer{Verdict: watermark.Accepted, Seq: watermark.MaxSeq, Min: 3}},
		{Key: watermark.AnswerKey{Conversation: group, Caller: "node", OpID: "1:ann/x"}, Answer: watermark.Answer{Verdict: watermark.Again, Seq: 2, Changed: true, Member: &full}},
		{Key: watermark.AnswerKey{Conversation: single, Caller: "node", OpID: "1:ann/x"}, Answer: watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonNotMember}},
		{Key: watermark.AnswerKey{Conversation: group, Caller: "a", OpID: "resent"}, Answer: watermark.Answer{Verdict: watermark.Resent, Seq: 1}},
		{Key: watermark.AnswerKey{Conversation: group, Caller: "a", OpID: "known"}, Answer: watermark.Answer{Verdict: watermark.Known}},
	}
	if err := e.PutAnswers(t.Context(), puts); err != nil {
		t.Fatal(err)
	}
	var keys []watermark.AnswerKey
	var want []*watermark.Answer
	for i := range puts {
		keys = append(keys, puts[i].Key)
		want = append(want, &puts[i].Answer)
	}
	keys = append(keys, watermark.AnswerKey{Conversation: group, Caller: "node", OpID: "other"})
	want = append(want, nil)
	// A caller that tries again reads the same.
	for range 2 {
		got, err := e.Answers(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		diff(t, "answers", got, want)
	}
	ttl := e.client.PTTL(t.Context(), e.space.AnswerKey(keys[0])).Val()
	if ttl <= 50*time.Second || ttl > hot.DefaultAnswerTTL {
		t.Errorf("an answer waits %v, want %v", ttl, hot.DefaultAnswerTTL)
	}
}

func TestADamagedAnswerIsAnError(t *testing.T) {
	e := newEnv(t)
	key := watermark.AnswerKey{Conversation: group, Caller: "a", OpID: "b"}
	for _, text := range []string{"", "{", `{"verdict":"other"}`, `{"verdict":"known","seq":"x"}`} {
		e.do("SET", e.space.AnswerKey(key), text)
		if got, err := e.Answers(t.Context(), []watermark.AnswerKey{key}); err == nil {
			t.Errorf("%q gave %+v", text, got[0])
		}
	}
}

func TestPushMarks(t *testing.T) {
	e := newEnv(t)
	convs := []watermark.ConversationID{group, "group:none", single}
	for _, m := range []hot.Mark{{Seq: 5, Offset: 1 << 40}, {Seq: 9, Offset: 7}, {Seq: 3, Offset: 3}, {}, {Seq: -1, Offset: -1}} {
		m.Conversation = group
		if err := e.RaisePushed(t.Context(), []hot.Mark{m, {Conversation: single, Seq: 1, Offset: 2}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := e.Pushed(t.Context(), convs)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "marks", got, []hot.Mark{
		{Conversation: group, Seq: 9, Offset: 1 << 40}, {Conversation: "group:none"}, {Conversation: single, Seq: 1, Offset: 2},
	})
	life := func() time.Duration { return e.client.TTL(t.Context(), e.space.PushedKey(group)).Val() }
	if ttl := life(); ttl < 23*time.Hour {
		t.Errorf("a push mark expires in %v, want %v", ttl, hot.DefaultPushedTTL)
	}
	// It is renewed when that is asked for, and when it was lost meanwhile.
	mark := hot.Mark{Conversation: group, Seq: 10}
	raise := func() {
		t.Helper()
		if err := e.RaisePushed(t.Context(), []hot.Mark{mark}); err != nil {
			t.Fatal(err)
		}
	}
	e.do("EXPIRE", e.space.PushedKey(group), "1000")
	raise()
	if ttl := life(); ttl > 1000*time.Second {
		t.Errorf("a push mark that was to be raised lives for %v", ttl)
	}
	mark.Renew = true
	raise()
	if ttl := life(); ttl < 23*time.Hour {
		t.Errorf("a renewed push mark expires in %v", ttl)
	}
	mark.Renew = false
	e.do("DEL", e.space.PushedKey(group))
	raise()
	if ttl := life(); ttl < 23*time.Hour {
		t.Errorf("a push mark that was lost expires in %v", ttl)
	}
}

func TestManyAnswers(t *testing.T) {
	e := newEnv(t)
	var puts []watermark.KeyedAnswer
	var keys []watermark.AnswerKey
	for i := range 1500 {
		k := watermark.AnswerKey{Conversation: group, Caller: "a", OpID: fmt.Sprint(i)}
		keys = append(keys, k)
		puts = append(puts, watermark.KeyedAnswer{Key: k, Answer: watermark.Answer{Seq: watermark.Seq(i)}})
	}
	if trips := e.trips.during(func() {
		if err := e.PutAnswers(t.Context(), puts); err != nil {
			t.Fatal(err)
		}
	}); trips != 2 {
		t.Errorf("round trips = %d, want 2", trips)
	}
	got, err := e.Answers(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range got {
		if a.Seq != watermark.Seq(i) {
			t.Fatalf("answer %d has seq %d", i, a.Seq)
		}
	}
}
