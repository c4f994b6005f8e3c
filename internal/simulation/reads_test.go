package simulation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestEveryAnswerIsTheOracles lets something happen, lets owner and toMongo
// settle as far as rapid says, and asks: every answer of every call must be what
// lists of all messages and memberships give, whatever Redis has forgotten
// before the call or in the middle of it, and however far history has got.
func TestEveryAnswerIsTheOracles(t *testing.T) {
	n, asked, start := 0, 0, time.Now()
	synctest.Test(t, func(t *testing.T) {
		d := newDesks(t)
		rapid.Check(struct{ rapid.TB }{t}, func(r *rapid.T) {
			n++
			time.Sleep(10 * time.Millisecond)
			h := newHistory(r, d, false)
			defer h.end()
			h.w.redis.HotLog = rapid.SampledFrom([]int{0, 1, 5}).Draw(r, "hot log")
			o := &oracle{h: h, d: h.desks[reader1]}
			for range rapid.IntRange(1, 40).Draw(r, "steps") {
				o.happen()
				o.ask()
				asked++
			}
		})
	})
	took := time.Since(start).Seconds()
	t.Logf("%.0f histories and %.0f calls a second", float64(n)/took, float64(asked)/took)
}

// oracle asks and compares.
type oracle struct {
	h *history
	d *desk
	// shown is, by user, what a device shows that follows the list by its version:
	// by conversation and seq whether it is a tombstone.
	shown map[watermark.UserID]*follower
}

type follower struct {
	version string
	gone    map[watermark.ConversationID]map[int64]bool
}

// happen does one thing, and all that follows of it at the owner.
func (o *oracle) happen() {
	h := o.h
	h.w.now = h.w.now.Add(100 * time.Millisecond)
	switch rapid.SampledFrom(strings.Fields("send send send resend command command mongo mongo flush forget owner")).Draw(h.r, "happens") {
	case "send":
		for range rapid.IntRange(1, 5).Draw(h.r, "messages") {
			h.send()
		}
	case "resend":
		h.resend()
	case "command":
		h.command()
	case "mongo":
		h.finishMongo(rapid.IntRange(1, 5).Draw(h.r, "records"), false)
	case "flush":
		h.finishMongo(1, true)
	case "forget":
		o.forget()
	case "owner":
		h.newOwner()
	}
	for h.busy(ownerNow) || h.w.owned < int64(len(h.w.input)) {
		h.stepOwner(0, well, 500)
	}
}

// finishMongo lets toMongo do one batch, or a flush, to its end.
func (h *history) finishMongo(size int, flush bool) {
	h.stepMongo(0, well, size, flush)
	for h.busy(mongoNow) {
		h.stepMongo(0, well, size, flush)
	}
}

func (o *oracle) forget() {
	if rapid.Bool().Draw(o.h.r, "restarts") {
		o.h.w.redis.Restart()
	} else {
		o.h.w.redis.FlushAll()
	}
}

// run makes a call. Redis may forget everything before any of its steps.
func (o *oracle) run(call func() error) error {
	o.d.hire()
	ended := o.d.actor.start(call)
	for !ended {
		if rapid.IntRange(0, 15).Draw(o.h.r, "meanwhile") == 15 {
			o.forget()
		}
		ended = o.d.actor.step(well)
	}
	return o.d.actor.err
}

func (o *oracle) ask() {
	switch rapid.SampledFrom(strings.Fields("pull pull pull terse several watermarks list follow follow set messages conversation")).Draw(o.h.r, "call") {
	case "pull":
		o.pull(o.d.service, 1)
	case "terse":
		o.pull(o.d.terse, 1)
	case "several":
		o.pull(o.d.service, 4)
	case "watermarks":
		o.watermarks()
	case "list":
		o.list()
	case "follow":
		_, u, _, _ := o.whoever()
		o.follow(u)
	case "set":
		o.mark(false, func(ctx context.Context, u, c string, seqs []int64) (*v1.ReadResponse, error) {
			return o.d.service.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: u, Conversation: c, ReadSeq: slices.Max(seqs)})
		})
	case "conversation":
		o.mark(true, func(ctx context.Context, u, c string, seqs []int64) (*v1.ReadResponse, error) {
			return o.d.service.MarkConversationRead(ctx, &v1.MarkConversationReadRequest{User: u, Conversation: c, ReadSeq: slices.Max(seqs)})
		})
	case "messages":
		o.mark(true, func(ctx context.Context, u, c string, seqs []int64) (*v1.ReadResponse, error) {
			return o.d.service.MarkMessagesRead(ctx, &v1.MarkMessagesReadRequest{User: u, Conversation: c, Seqs: seqs})
		})
	}
}

// whoever draws a conversation and one of its users.
func (o *oracle) whoever() (watermark.ConversationID, watermark.UserID, *chat, *person) {
	id, u := o.h.conversation()
	c := o.h.m.chats[id]
	return id, u, c, c.people[u]
}

func (p *person) read() int64 { return int64(max(p.seen, p.marks)) }

// unread counts message by message.
func (c *chat) unread(p *person) (n int64) {
	for _, s := range c.visible(p) {
		if s > p.read() && !p.own[int(s)-1] {
			n++
		}
	}
	return n
}

// edges gives the first and last seq that p sees; where there is none, the end
// of what it could know of.
func (c *chat) edges(p *person) (first, last int64) {
	if v := c.visible(p); len(v) > 0 {
		return v[0], v[len(v)-1]
	}
	for i, ok := range p.can {
		if ok || p.in {
			last = int64(i + 1)
		}
	}
	return last + 1, last
}

// peer gives the other one of a single conversation.
func (c *chat) peer(id watermark.ConversationID, u watermark.UserID) *person {
	if v, ok := id.Peer(u); ok {
		return c.people[v]
	}
	return nil
}

func (o *oracle) pull(s *syncapi.Service, ranges int) {
	r := o.h.r
	u := watermark.UserID("A") // of every conversation
	if ranges == 1 {
		_, u, _, _ = o.whoever()
	}
	req := &v1.PullRequest{User: string(u)}
	for range rapid.IntRange(1, ranges).Draw(r, "ranges") {
		id := rapid.SampledFrom(conversations[:o.h.talks]).Draw(r, "of")
		if !id.Admits(u) {
			id = advance
		}
		n := int64(len(o.h.m.chats[id].rows))
		x := &v1.PullRange{
			Conversation: string(id), Begin: rapid.Int64Range(-2, n+2).Draw(r, "begin"),
			Num:   rapid.SampledFrom([]int64{0, 1, 2, 5, -1, 1 << 62}).Draw(r, "num"),
			Order: rapid.SampledFrom([]v1.Order{v1.Order_ORDER_ASC, v1.Order_ORDER_DESC}).Draw(r, "order"),
			Keep:  rapid.SampledFrom([]v1.Keep{v1.Keep_KEEP_NEAR_END, v1.Keep_KEEP_NEAR_BEGIN}).Draw(r, "keep"),
		}
		x.End = rapid.SampledFrom([]int64{n, 1 << 62, x.Begin, x.Begin + 3, x.Begin - 1}).Draw(r, "end")
		req.Ranges = append(req.Ranges, x)
	}
	var res *v1.PullResponse
	o.h.check(o.run(func() (err error) {
		res, err = s.Pull(context.Background(), req)
		return err
	}))
	for i, x := range req.Ranges {
		limit := 0
		if s == o.d.terse {
			limit = terseBytes
		}
		o.page(u, x, res.Pages[i], limit)
	}
}

// page holds one page against the lists.
func (o *oracle) page(u watermark.UserID, x *v1.PullRange, got *v1.PullPage, limit int) {
	id := watermark.ConversationID(x.Conversation)
	c := o.h.m.chats[id]
	p := c.people[u]
	what := fmt.Sprintf("page of %s for %v, error %v", u, x, got.Error)
	switch {
	case x.Begin > x.End:
		o.h.equal(what, got.Error.GetCode(), "invalid_argument")
		return
	case !c.exists:
		o.h.equal(what, got.Error.GetCode(), "not_found")
		return
	}
	visible := c.visible(p)
	asked := slices.DeleteFunc(slices.Clone(visible), func(s int64) bool { return s < x.Begin || s > x.End })
	kept := asked
	num := int(min(x.Num, 1000))
	if num <= 0 {
		num = 100
	}
	if x.Keep == v1.Keep_KEEP_NEAR_BEGIN {
		kept = asked[:min(num, len(asked))]
	} else {
		kept = asked[max(0, len(asked)-num):]
	}
	kept = o.fit(kept, x, got, limit)

	want := &v1.PullPage{Conversation: x.Conversation}
	want.MinSeq, want.MaxSeq = c.edges(p)
	up, down := x.Begin, x.End // what lies beyond is not told of
	if len(kept) > 0 {
		up, down = kept[len(kept)-1]+1, kept[0]-1
		want.Covered = &v1.Range{Begin: kept[0], End: kept[len(kept)-1]}
	}
	if left := asked[len(kept):]; len(left) > 0 {
		if x.Keep != v1.Keep_KEEP_NEAR_BEGIN {
			left = asked[:len(asked)-len(kept)]
		}
		want.Rest = &v1.Range{Begin: left[0], End: left[len(left)-1]}
	}
	beyond := func(s int64) bool { return s >= up }
	if x.Order == v1.Order_ORDER_DESC {
		beyond = func(s int64) bool { return s <= down }
		slices.Reverse(kept)
	}
	want.IsEnd = want.Rest == nil && !slices.ContainsFunc(visible, beyond)
	var texts, served []string
	for _, s := range kept {
		texts = append(texts, o.text(c, c.peer(id, u), s))
	}
	for _, m := range got.Messages {
		served = append(served, fmt.Sprintf("%d %s/%s %q revoked %v read %v", m.Seq, m.Sender, m.ClientMessageId, m.GetText(), m.Revoked, m.IsRead))
	}
	o.h.equal(what, served, texts)
	rest := proto.CloneOf(got)
	rest.Messages = nil
	if !proto.Equal(rest, want) {
		o.h.r.Fatalf("%s: visible %v, got %v, want %v", what, visible, rest, want)
	}
}

// text is a message as the reader should see it.
func (o *oracle) text(c *chat, peer *person, s int64) string {
	m := &c.rows[s-1]
	body, revoked := string(m.Body), c.revoked[int(s)-1]
	if revoked {
		body = ""
	}
	read := peer != nil && s <= int64(peer.receipt) && peer.can[s-1]
	return fmt.Sprintf("%d %s/%s %q revoked %v read %v", s, m.Sender, m.ClientID, body, revoked, read)
}

// fit cuts what does not go into the answer: the first message always does.
func (o *oracle) fit(kept []int64, x *v1.PullRange, got *v1.PullPage, limit int) []int64 {
	if limit == 0 {
		return slices.Clone(kept)
	}
	size := make(map[int64]int)
	for _, m := range got.Messages {
		size[m.Seq] = proto.Size(m) + 6
	}
	// Nobody knows the size of what was not served; none is smaller than that of
	// the smallest message there is.
	smallest := 60
	used, n := 0, 0
	walk := slices.Clone(kept)
	if x.Keep != v1.Keep_KEEP_NEAR_BEGIN {
		slices.Reverse(walk)
	}
	for _, s := range walk {
		if bytes, served := size[s]; served {
			used += bytes
			if used > limit && n > 0 {
				o.h.r.Fatalf("%d bytes in an answer of at most %d", used, limit)
			}
		} else {
			if used+smallest <= limit && n == 0 {
				o.h.r.Fatalf("nothing served of %v", kept)
			}
			if used+4*smallest <= limit {
				o.h.r.Fatalf("%d bytes served of %d, and %d is not among them", used, limit, s)
			}
			break
		}
		n++
	}
	if x.Keep == v1.Keep_KEEP_NEAR_BEGIN {
		return slices.Clone(kept[:n])
	}
	return slices.Clone(kept[len(kept)-n:])
}

func (o *oracle) watermarks() {
	r := o.h.r
	u := rapid.SampledFrom(users).Draw(r, "user")
	names := rapid.SliceOfN(rapid.SampledFrom([]string{string(advance), string(keep), string(single), "group:nowhere", "bad"}), 1, 5).Draw(r, "conversations")
	var res *v1.GetWatermarksResponse
	o.h.check(o.run(func() (err error) {
		res, err = o.d.service.GetWatermarks(context.Background(), &v1.GetWatermarksRequest{User: string(u), Conversations: names})
		return err
	}))
	for i, name := range names {
		o.numbers(u, name, res.Watermarks[i])
	}
}

// numbers holds a user's numbers against the lists.
func (o *oracle) numbers(u watermark.UserID, name string, got *v1.Watermarks) {
	id := watermark.ConversationID(name)
	c := o.h.m.chats[id]
	what := fmt.Sprintf("watermarks of %s in %s", u, name)
	switch {
	case name == "bad":
		o.h.equal(what, got.Error.GetCode(), "invalid_argument")
		return
	case c == nil, !id.Admits(u):
		o.h.equal(what, got.Error.GetCode(), "not_found")
		return
	case !c.exists:
		o.h.equal(what, got.Error.GetCode(), "not_found")
		return
	}
	p := c.people[u]
	want := &v1.Watermarks{
		Conversation: name, ReadSeq: p.read(), Unread: c.unread(p), Membership: p.stays, Member: p.in && (p.known || id.Single()),
	}
	want.MinSeq, want.MaxSeq = c.edges(p)
	if peer := c.peer(id, u); peer != nil {
		want.PeerReceiptSeq = int64(peer.receipt)
		if !p.in { // nor by how far the peer has read
			want.PeerReceiptSeq = max(0, min(want.PeerReceiptSeq, want.MaxSeq))
		}
	}
	for i := range c.rows {
		if p.in { // who left does not learn that it went on
			want.LastTimeMs = max(want.LastTimeMs, c.rows[i].RecordTime)
		}
	}
	var visible []int64
	for _, x := range got.Visible {
		for s := x.Begin; s <= x.End; s++ {
			visible = append(visible, s)
		}
	}
	o.h.equal("visible in "+what, visible, c.visible(p))
	rest := proto.CloneOf(got)
	rest.Visible = nil
	if !proto.Equal(rest, want) {
		o.h.r.Fatalf("%s: got %v, want %v", what, rest, want)
	}
}

// list walks over a user's conversations.
func (o *oracle) list() {
	r := o.h.r
	u := rapid.SampledFrom(users).Draw(r, "user")
	req := &v1.GetWatermarksRequest{User: string(u), PageSize: rapid.Int64Range(0, 3).Draw(r, "page size")}
	var got, want []string
	for range 9 {
		var res *v1.GetWatermarksResponse
		o.h.check(o.run(func() (err error) {
			res, err = o.d.service.GetWatermarks(context.Background(), req)
			return err
		}))
		for _, w := range res.Watermarks {
			got = append(got, w.Conversation)
			o.numbers(u, w.Conversation, w)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
	}
	at := make(map[string]int64)
	for id, c := range o.h.m.chats {
		if p := c.people[u]; p != nil && p.row {
			want = append(want, string(id))
			for i := range c.rows {
				at[string(id)] = max(at[string(id)], c.rows[i].RecordTime)
			}
		}
	}
	slices.SortFunc(want, func(a, b string) int {
		if at[a] != at[b] {
			return int(at[b] - at[a])
		}
		return strings.Compare(a, b)
	})
	o.h.equal(fmt.Sprintf("list of %s", u), got, want)
	o.changes(u)
	o.follow(u)
}

// follow brings a device up to date: it takes what it has not had, and of what
// it has had what the list says was revoked. Then it must show what stands.
func (o *oracle) follow(u watermark.UserID) {
	f := o.shown[u]
	if f == nil {
		f = &follower{gone: make(map[watermark.ConversationID]map[int64]bool)}
		if o.shown == nil {
			o.shown = make(map[watermark.UserID]*follower)
		}
		o.shown[u] = f
	}
	if rapid.IntRange(0, 9).Draw(o.h.r, "version") == 0 {
		f.version = "" // it is lost
	}
	req := &v1.SyncConversationsRequest{User: string(u), Version: f.version, PageSize: rapid.Int64Range(0, 3).Draw(o.h.r, "page size")}
	for {
		var res *v1.SyncConversationsResponse
		o.h.check(o.run(func() (err error) {
			res, err = o.d.service.SyncConversations(context.Background(), req)
			return err
		}))
		for _, e := range res.Changed {
			f.take(o.h.m.chats[watermark.ConversationID(e.Watermarks.Conversation)], e)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			f.version = res.Version
			break
		}
	}
	for id, c := range o.h.m.chats {
		p := c.people[u]
		if p == nil || !p.row || !p.in || !p.known && !id.Single() {
			continue
		}
		for _, s := range c.visible(p) {
			o.h.equal(fmt.Sprintf("%s shows a tombstone at %s/%d", u, id, s), f.gone[id][int64(s)], c.revoked[int(s)-1])
		}
	}
}

func (f *follower) take(c *chat, e *v1.ConversationEntry) {
	id := watermark.ConversationID(e.Watermarks.Conversation)
	had := f.gone[id]
	if had == nil {
		had = make(map[int64]bool)
		f.gone[id] = had
	}
	again := slices.Clone(e.Revoked)
	for _, r := range e.Watermarks.Visible {
		for s := r.Begin; s <= r.End; s++ {
			if _, ok := had[s]; !ok {
				again = append(again, s)
			}
		}
	}
	for _, s := range again {
		had[s] = c.revoked[int(s)-1]
	}
}

// changes reads all that SyncConversations tells a device that knows nothing.
func (o *oracle) changes(u watermark.UserID) {
	req := &v1.SyncConversationsRequest{User: string(u), PageSize: rapid.Int64Range(0, 3).Draw(o.h.r, "page size")}
	got := make(map[string]bool)
	for req.Version == "" {
		var res *v1.SyncConversationsResponse
		o.h.check(o.run(func() (err error) {
			res, err = o.d.service.SyncConversations(context.Background(), req)
			return err
		}))
		for _, e := range slices.Concat(res.Changed, res.Removed) {
			w := e.Watermarks
			got[w.Conversation] = w.Member
			o.numbers(u, w.Conversation, w)
			o.last(watermark.ConversationID(w.Conversation), e)
		}
		req.PageToken, req.Version = res.NextPageToken, res.Version
	}
	for id, c := range o.h.m.chats {
		p := c.people[u]
		if p == nil || !p.row || !p.in || !p.known && !id.Single() {
			continue
		}
		if !got[string(id)] {
			o.h.r.Fatalf("%s is not in the list of %s", id, u)
		}
	}
}

// last holds the last message that an entry shows against the rows.
func (o *oracle) last(id watermark.ConversationID, e *v1.ConversationEntry) {
	w := e.Watermarks
	if len(w.Visible) == 0 {
		o.h.equal("last message where none can be seen", e.Last == nil, true)
		return
	}
	c, seq := o.h.m.chats[id], w.Visible[len(w.Visible)-1].End
	o.h.equal(fmt.Sprintf("seq of the last message of %s", id), e.Last.GetSeq(), seq)
	for i := range c.rows {
		if m := &c.rows[i]; int64(m.Seq) == seq {
			o.h.equal(fmt.Sprintf("the last message of %s", id), []any{e.Last.GetClientMessageId(), e.Last.GetRevoked()}, []any{m.ClientID, c.revoked[i]})
		}
	}
}

// mark makes one of the three calls that mark.
func (o *oracle) mark(tells bool, call func(ctx context.Context, user, conv string, seqs []int64) (*v1.ReadResponse, error)) {
	id, u, c, p := o.whoever()
	n := int64(len(c.rows))
	seqs := rapid.SliceOfN(rapid.SampledFrom([]int64{1, 2, n/2 + 1, n + 1, n + 2, 1 << 62}), 1, 4).Draw(o.h.r, "seqs")
	group := false
	var res *v1.ReadResponse
	err := o.run(func() (err error) {
		res, err = call(context.Background(), string(u), string(id), seqs)
		group = connect.CodeOf(err) == connect.CodeFailedPrecondition
		return err
	})
	what := fmt.Sprintf("mark of %s in %s at %v", u, id, seqs)
	switch {
	case group && !id.Single():
		return // MarkMessagesRead, which is for single conversations
	case !c.exists:
		o.h.equal(what, connect.CodeOf(err).String(), connect.CodeNotFound.String())
		return
	}
	o.h.check(err)
	for _, s := range c.visible(p) {
		if s <= slices.Max(seqs) {
			p.row = true
			p.marks = max(p.marks, watermark.Seq(s))
			if tells && id.Single() {
				p.receipt = max(p.receipt, watermark.Seq(s))
			}
		}
	}
	want := &v1.ReadResponse{ReadSeq: p.read(), ReceiptSeq: int64(p.receipt), Unread: c.unread(p)}
	if !proto.Equal(res, want) {
		o.h.r.Fatalf("%s: got %v, want %v", what, res, want)
	}
}
