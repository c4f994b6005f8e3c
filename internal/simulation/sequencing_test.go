package simulation

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestAnyHistoryEndsAsTheInputsSay plays histories in which Redis loses what it
// likes, but not without becoming another incarnation, and expects exactly what
// the inputs mean one by one.
func TestAnyHistoryEndsAsTheInputsSay(t *testing.T) {
	play(t, false, func(h *history) {
		h.settle()
		h.compare()
	})
}

// play plays histories up to their last event, and hands them to end. The clock
// is synctest's, so that nothing waits.
func play(t *testing.T, silent bool, end func(*history)) {
	n, start := 0, time.Now()
	synctest.Test(t, func(t *testing.T) {
		d := newDesks(t)
		// A bubble has no deadline to ask for.
		rapid.Check(struct{ rapid.TB }{t}, func(r *rapid.T) {
			n++
			// By the clock, which moves no other way here, rapid knows when it has
			// shrunk for long enough.
			time.Sleep(10 * time.Millisecond)
			h := newHistory(r, d, silent)
			defer h.end()
			for range rapid.IntRange(1, 200).Draw(r, "events") {
				h.step()
			}
			end(h)
		})
	})
	t.Logf("%.0f histories a second", float64(n)/time.Since(start).Seconds())
}

// settle lets everything come to rest, without further faults.
func (h *history) settle() {
	h.w.stopped = false
	for i := range h.reads {
		for h.busy(reader1 + i) {
			h.stepRead(i, well)
		}
	}
	h.newOwner()
	h.newMongo()
	h.swap(ownerNow)
	h.swap(mongoNow) // nobody is left of those before
	h.owners, h.mongos = [2]*ownerProcess{}, [2]*mongoProcess{}
	h.newOwner()
	h.newMongo()
	for range 100_000 {
		switch {
		case h.w.owned < int64(len(h.w.input)):
			h.stepOwner(0, well, 500)
		case h.w.projected < int64(len(h.w.log)):
			h.stepMongo(0, well, 500, false)
		default:
			return
		}
	}
	h.r.Fatalf("it does not come to rest: %d of %d inputs, %d of %d records", h.w.owned, len(h.w.input), h.w.projected, len(h.w.log))
}

func (h *history) compare() {
	h.compareLog()
	h.compareLetters()
	for _, id := range conversations {
		h.compareStored(id)
	}
	d := h.desks[reader1]
	for _, id := range conversations {
		h.compareServed(d, id)
	}
	h.w.redis.FlushAll()
	h.compareServed(d, rapid.SampledFrom(conversations).Draw(h.r, "read when cold"))
}

// compareLog wants one message at each seq, dense and in the model's order,
// however often it was appended.
func (h *history) compareLog() {
	for _, id := range conversations {
		rows := h.m.chats[id].rows
		next := watermark.Seq(1)
		for m := range messagesOf(h.w.log, id) {
			if m.Seq > next {
				h.r.Fatalf("the log has %s %d before %d", id, m.Seq, next)
			}
			next = max(next, m.Seq+1)
			if int(m.Seq) > len(rows) || !rows[m.Seq-1].SameAs(&m) {
				h.r.Fatalf("the log has %s/%s at %s %d", m.Sender, m.ClientID, id, m.Seq)
			}
		}
		if int(next)-1 != len(rows) {
			h.r.Fatalf("the log has %d of %d messages of %s", next-1, len(rows), id)
		}
	}
}

// compareLetters wants a dead letter of each refused input, with its reason,
// however often there is one.
func (h *history) compareLetters() {
	got := make(map[int64]string)
	for _, l := range h.w.letters {
		d, err := wire.DecodeDeadLetter(l)
		h.check(err)
		if at := d.Record.Offset; got[at] == "" || got[at] == h.m.refused[at] {
			got[at] = d.Reason
		}
	}
	h.equal("dead letters", got, h.m.refused)
}

func (h *history) equal(what string, got, want any) {
	if reflect.DeepEqual(got, want) {
		return // much faster
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		h.r.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// compareStored looks at history.
func (h *history) compareStored(id watermark.ConversationID) {
	ctx := h.r.Context()
	c := h.m.chats[id]
	conv, err := h.w.history.Conversations(ctx, []watermark.ConversationID{id})
	h.check(err)
	if conv[0].Max != watermark.Seq(len(c.rows)) || max(conv[0].Min, 1) != watermark.Seq(max(c.min, 1)) {
		h.r.Fatalf("history of %s: %d..%d, want %d..%d", id, conv[0].Min, conv[0].Max, c.min, len(c.rows))
	}
	if conv[0].Repair != (watermark.Repaired{}) {
		h.r.Fatalf("%s was repaired: %+v", id, conv[0].Repair)
	}
	rows, err := h.w.history.Messages(ctx, id, watermark.Interval{First: 1, Last: watermark.MaxSeq}, watermark.MaxPage)
	h.check(err)
	var got, want []string
	for _, m := range rows {
		got = append(got, show(&m, m.Revoked != nil))
	}
	for i := range c.rows {
		if i+1 >= c.min {
			want = append(want, show(&c.rows[i], c.revoked[i]))
		}
	}
	h.equal("rows of "+string(id), got, want)
	for u, p := range c.people {
		ms, err := h.w.history.Members(ctx, id, []watermark.UserID{u})
		h.check(err)
		read := watermark.Seq(0)
		if len(ms) > 0 {
			read = ms[0].Read
		}
		if low, high := max(p.seen, p.acked), max(p.seen, p.asked); read < low || read > max(high, low) {
			h.r.Fatalf("history: %s has read %d in %s, want %d to %d", u, read, id, low, high)
		}
	}
}

func show(m *watermark.Message, revoked bool) string {
	if revoked {
		return fmt.Sprintf("%d %s/%s revoked", m.Seq, m.Sender, m.ClientID)
	}
	return fmt.Sprintf("%d %s/%s %s", m.Seq, m.Sender, m.ClientID, m.Body)
}

// compareServed looks through the query service.
func (h *history) compareServed(d *desk, id watermark.ConversationID) {
	if len(h.m.chats[id].rows) == 0 {
		return
	}
	for _, u := range users {
		if id.Admits(u) {
			h.compareServedTo(d, id, u)
		}
	}
}

func (h *history) compareServedTo(d *desk, id watermark.ConversationID, u watermark.UserID) {
	c := h.m.chats[id]
	p := c.people[u]
	d.hire()
	var marks *v1.GetWatermarksResponse
	var page *v1.PullResponse
	ended := d.actor.start(func() (err error) {
		if marks, err = d.service.GetWatermarks(h.r.Context(), &v1.GetWatermarksRequest{User: string(u), Conversations: []string{string(id)}}); err != nil {
			return err
		}
		page, err = d.service.Pull(h.r.Context(), &v1.PullRequest{User: string(u), Ranges: []*v1.PullRange{{
			Conversation: string(id), Begin: 0, End: 1 << 40, Num: 1000, Keep: v1.Keep_KEEP_NEAR_BEGIN,
		}}})
		return err
	})
	for !ended {
		ended = d.actor.step(well)
	}
	h.check(d.actor.err)
	visible := c.visible(p)
	var got []int64
	for _, m := range page.Pages[0].Messages {
		got = append(got, m.Seq)
		if want := &c.rows[m.Seq-1]; string(want.Sender) != m.Sender || want.ClientID != m.ClientMessageId || m.Revoked != c.revoked[int(m.Seq)-1] {
			h.r.Fatalf("%s is served %s/%s at %s %d, want %s", u, m.Sender, m.ClientMessageId, id, m.Seq, show(want, c.revoked[int(m.Seq)-1]))
		}
	}
	h.equal(fmt.Sprintf("what %s sees of %s (error %v)", u, id, page.Pages[0].Error), got, visible)
	w := marks.Watermarks[0]
	if low := max(p.seen, p.acked); watermark.Seq(w.ReadSeq) < low {
		h.r.Fatalf("%s is told to have read %d in %s, want at least %d", u, w.ReadSeq, id, low)
	}
	unread := int64(0)
	for _, s := range visible {
		if s > w.ReadSeq && !p.own[int(s)-1] {
			unread++
		}
	}
	h.equal(fmt.Sprintf("unread of %s in %s, read up to %d", u, id, w.ReadSeq), w.Unread, unread)
}
