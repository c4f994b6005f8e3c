package hot_test

import (
	"fmt"
	"testing"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestTemperature(t *testing.T) {
	known := open("ann", 3, 5)
	tests := []struct {
		name  string
		conv  watermark.ConversationID
		setup func(e *env)
		user  watermark.UserID
		want  watermark.Temperature
	}{
		{"nothing there", group, func(*env) {}, "ann", watermark.Cold},
		{"parts without a meta", group, func(e *env) { e.member(group, known) }, "ann", watermark.Cold},
		{"foreign incarnation", group, func(e *env) { e.meta(group, "inc", "another-server"); e.member(group, known) }, "ann", watermark.Cold},
		{"warming", group, func(e *env) { e.meta(group, "st", "warming"); e.member(group, known) }, "ann", watermark.Cold},
		{"unknown state", group, func(e *env) { e.meta(group, "st", "other"); e.member(group, known) }, "ann", watermark.Cold},
		{"known member", group, func(e *env) { e.meta(group); e.member(group, known) }, "ann", watermark.Warm},
		{"unknown member", group, func(e *env) { e.meta(group); e.member(group, known) }, "bob", watermark.Partial},
		{"a score is not knowledge", group, func(e *env) {
			e.meta(group)
			e.do("ZADD", e.space.Key(group, keyspace.Read), 5, "bob")
		}, "bob", watermark.Partial},
		{"known to have none", group, func(e *env) {
			e.meta(group)
			e.do("HSET", e.space.Key(group, keyspace.Members), "bob", keyspace.NoWindow)
		}, "bob", watermark.Warm},
		{"all known", group, func(e *env) { e.meta(group, "full", "1") }, "bob", watermark.Warm},
		{"nobody asks", group, func(e *env) { e.meta(group) }, "", watermark.Warm},
		{"peer unknown", single, func(e *env) { e.meta(single); e.member(single, known) }, "ann", watermark.Partial},
		{"peer known", single, func(e *env) { e.meta(single); e.member(single, known); e.member(single, open("bob", 1, 0)) }, "ann", watermark.Warm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			tt.setup(e)
			before := e.dump()
			got := e.view(tt.conv, tt.user)
			if got.Temperature != tt.want {
				t.Errorf("temperature = %v, want %v", got.Temperature, tt.want)
			}
			if tt.want == watermark.Cold {
				diff(t, "a cold view", got, watermark.View{
					Temperature:  watermark.Cold,
					Conversation: watermark.Conversation{ID: tt.conv}, Member: watermark.Member{User: tt.user},
				})
			}
			diff(t, "a view wrote", e.dump(), before)
		})
	}
}

func TestWarmView(t *testing.T) {
	for _, owns := range []bool{false, true} { // which plain commands leave to the script
		t.Run(fmt.Sprint("own messages: ", owns), func(t *testing.T) { testWarmView(t, owns) })
	}
}

func testWarmView(t *testing.T, owns bool) {
	e := newEnv(t)
	e.meta(single, "min", 3, "max", int64(watermark.MaxSeq), "rn", 9, "rf", 4, "pol", 1, "lt", 1_700_000_000_123, "in:x/3", 5)
	ann := watermark.Member{
		User: "ann", Version: 7, LastMembership: 2,
		Memberships: []watermark.Membership{{Number: 1, Lower: 2, Upper: 5}, {Number: 2, Lower: 8}},
		Ops:         []watermark.AppliedOp{{ID: "op|,;:1", Edge: 5}},
		Read:        watermark.MaxSeq - 2, Own: []watermark.Seq{watermark.MaxSeq - 1, watermark.MaxSeq},
	}
	bob := open("bob", 2, 6)
	bob.Read, bob.Receipt = 9, 8
	bob.Own = []watermark.Seq{12, 200}
	if !owns {
		ann.Own, bob.Own = nil, nil
	}
	e.member(single, ann)
	e.member(single, bob)
	if owns {
		e.do("ZADD", e.space.Key(single, keyspace.Own), 0, keyspace.OwnMember("ann", watermark.MaxSeq-2))
		e.do("ZADD", e.space.Key(single, keyspace.Own), 0, keyspace.OwnMember("anna", 1))
	}

	conv := watermark.Conversation{
		ID: single, Min: 3, Max: watermark.MaxSeq, Policy: watermark.KeepOnSend,
		Repair: watermark.Repaired{Number: 9, From: 4}, LastTime: 1_700_000_000_123,
	}
	diff(t, "ann's view", e.view(single, "ann"), watermark.View{
		Conversation: conv, Member: ann, Token: "t1",
		PeerReceipt: 8, PeerWindow: watermark.Intervals{{First: 6, Last: watermark.MaxSeq}},
	})
	diff(t, "bob's view", e.view(single, "bob"), watermark.View{
		Conversation: conv, Member: bob, Token: "t1",
		PeerWindow: ann.Window(),
	})
}

func TestViewOfACompleteConversationGivesAStrangerTheWholeWindow(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "full", "1")
	got := e.view(group, "eve")
	if got.Member.Known() || got.Member.User != "eve" {
		t.Errorf("member = %+v, want a user who never had a window", got.Member)
	}
}

func TestOwnSeqsAreBounded(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "max", 3000)
	m := open("ann", 1, 0)
	e.member(group, m)
	p := e.client.Pipeline()
	for s := range watermark.Seq(1500) {
		p.Do(t.Context(), "ZADD", e.space.Key(group, keyspace.Own), 0, keyspace.OwnMember("ann", s+1))
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(e.view(group, "ann").Member.Own); got != watermark.MaxOwn {
		t.Errorf("own seqs = %d, want %d", got, watermark.MaxOwn)
	}
}

// A mark above what the user sees must not make unread negative.
func TestUnreadFromAView(t *testing.T) {
	capped := watermark.Member{
		User: "ann", Version: 1, LastMembership: 1, Read: 561,
		Memberships: []watermark.Membership{{Number: 1, Lower: 1, Upper: 399}},
	}
	ahead := open("ann", 1, 0)
	ahead.Read = 15
	keep := open("ann", 1, 0)
	keep.Own = []watermark.Seq{6}
	tests := []struct {
		name   string
		max    int64
		member watermark.Member
		raise  watermark.Seq
		read   watermark.Seq
		unread int64
	}{
		{"mark above the maximum", 10, ahead, 0, 10, 0},
		{"window that ends below the mark", 600, capped, 0, 399, 0},
		{"own messages do not count", 7, keep, 0, 0, 6},
		{"a huge mark", 10, open("ann", 1, 0), 1<<63 - 1, 10, 0},
		{"a mark that passes own messages", 7, keep, 7, 7, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.meta(group, "max", tt.max)
			e.member(group, tt.member)
			e.raise(group, watermark.Member{User: "ann", Read: tt.raise})
			v := e.view(group, "ann")
			visible := v.Member.Visible(v.Min, v.Max)
			if got := watermark.ClampRead(visible, v.Member.Read); got != tt.read {
				t.Errorf("read = %d, want %d", got, tt.read)
			}
			if got := watermark.Unread(visible, v.Member.Read, v.Member.Own); got != tt.unread {
				t.Errorf("unread = %d, want %d", got, tt.unread)
			}
		})
	}
}

func TestRoundTrips(t *testing.T) {
	e := newEnv(t)
	var asks []hot.Ask
	var convs []watermark.ConversationID
	for i := range 2500 {
		c := watermark.ConversationID(fmt.Sprintf("group:%d", i))
		convs = append(convs, c)
		asks = append(asks, hot.Ask{Conversation: c, User: "ann"})
	}
	e.meta(convs[999], "full", "1")
	e.log(convs[999], 1, 10)
	ask := func(n int) func() {
		return func() {
			views, err := e.Views(t.Context(), asks[:n])
			if err != nil {
				t.Fatal(err)
			}
			if n > 999 && (views[999].Max != 10 || views[998].Temperature != watermark.Cold) {
				t.Errorf("views out of order: %+v", views[999])
			}
		}
	}
	messages := func() {
		if _, err := e.Messages(t.Context(), []hot.Span{{Conversation: convs[999], First: 1, Last: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	ask(1)() // teaches the server the scripts
	messages()
	tests := []struct {
		name string
		f    func()
		want int64
	}{
		{"125 views", ask(125), 1},
		{"500 views", ask(500), 4}, // all at once
		{"2,500 views", ask(2500), 20},
		{"no views", ask(0), 0},
		{"a pull", func() { ask(500)(); messages() }, 5},
		{"answers", func() {
			if _, err := e.Answers(t.Context(), make([]watermark.AnswerKey, 300)); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"push marks", func() {
			if _, err := e.Pushed(t.Context(), convs[:300]); err != nil {
				t.Fatal(err)
			}
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := e.trips.during(tt.f); got != tt.want {
				t.Errorf("round trips = %d, want %d", got, tt.want)
			}
		})
	}
}
