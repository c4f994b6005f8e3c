package syncapi

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// Pull reads ranges of several conversations: the bounds of all in one round
// trip, then their rows in one more, the holes from the truth, in waves until
// every range is served or the answer is full.
func (s *Service) Pull(ctx context.Context, req *v1.PullRequest) (*v1.PullResponse, error) {
	user, err := userIn(req.GetUser())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetRanges()); n < 1 || n > maxEntries {
		return nil, invalid("ranges", "%d of them, 1 to %d are allowed", n, maxEntries)
	}
	p := s.newPull(user, req.GetRanges())
	if err := p.plan(ctx, p.entries); err != nil {
		return nil, err
	}
	if err := p.fetch(ctx); err != nil {
		return nil, err
	}
	res := &v1.PullResponse{Pages: make([]*v1.PullPage, len(p.entries))}
	for i, e := range p.entries {
		res.Pages[i] = p.answer(ctx, e)
	}
	return res, nil
}

// pull is one call of Pull.
type pull struct {
	s       *Service
	user    watermark.UserID
	entries []*entry
	left    int // bytes that may still be added
}

// entry is one range of a call.
type entry struct {
	name  string // of the conversation, as it was asked for
	conv  watermark.ConversationID
	req   watermark.PageRequest
	sight *sight
	page  watermark.Page
	err   error

	served  []*v1.Message       // from the kept edge on
	todo    watermark.Intervals // what of the page is not served yet, ascending
	bytes   int
	checked bool // the bounds were read again
	shrank  bool // and fewer seqs could be seen then
	full    bool // no more fits
	gap     bool // a row is nowhere
}

func (s *Service) newPull(user watermark.UserID, ranges []*v1.PullRange) *pull {
	p := &pull{s: s, user: user, entries: make([]*entry, len(ranges)), left: s.cfg.PageBytes}
	for i, r := range ranges {
		e := &entry{name: r.GetConversation()}
		p.entries[i] = e
		if e.err = e.parse(r); e.err == nil {
			s.anomalies.ask(asked{user, e.conv, e.req})
		}
	}
	return p
}

func (e *entry) parse(r *v1.PullRange) (err error) {
	if e.conv, err = watermark.ParseConversationID(r.GetConversation()); err != nil {
		return err
	}
	e.req = watermark.PageRequest{Begin: watermark.Seq(r.GetBegin()), End: watermark.Seq(r.GetEnd()), Num: r.GetNum()}
	if e.req.Order, err = convert.OrderFromAPI(r.GetOrder()); err != nil {
		return err
	}
	if e.req.Keep, err = convert.KeepFromAPI(r.GetKeep()); err != nil {
		return err
	}
	_, err = watermark.PlanPage(nil, e.req) // begin above end, told before any store is asked
	return err
}

// plan reads the bounds of entries and lays out their pages.
func (p *pull) plan(ctx context.Context, entries []*entry) error {
	var convs []watermark.ConversationID
	known := make(map[watermark.ConversationID]bool)
	for _, e := range entries {
		if e.err == nil && !known[e.conv] {
			known[e.conv] = true
			convs = append(convs, e.conv)
		}
	}
	seen, err := p.s.look(ctx, p.user, convs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.err == nil {
			e.see(seen[e.conv])
		}
	}
	return nil
}

func (e *entry) see(v *sight) {
	e.sight = v
	if e.err = v.err; e.err != nil {
		return
	}
	planned := e.page.Spans.Count()
	e.page, e.err = watermark.PlanPage(v.visible, e.req)
	e.shrank = e.checked && e.page.Spans.Count() < planned
	e.todo = slices.Clone(e.page.Spans)
}

// answer makes the page that is sent.
func (p *pull) answer(ctx context.Context, e *entry) *v1.PullPage {
	out := &v1.PullPage{Conversation: e.name}
	key := asked{p.user, e.conv, e.req}
	if e.gap {
		p.s.anomalies.found(anomalyGap, key)
	}
	if e.shrank {
		p.s.anomalies.found(anomalyShrank, key)
	}
	if e.err != nil {
		out.Error = p.s.entryError(ctx, e.err)
		return out
	}
	page := e.page
	if n := int64(len(e.served)); n < page.Spans.Count() {
		page = page.Shrink(n)
	}
	if e.req.Begin > e.sight.Max+1 {
		p.s.anomalies.found(anomalyAhead, key)
	}
	first, last := e.sight.edges()
	out.MinSeq, out.MaxSeq = int64(first), int64(last)
	out.RepairNumber, out.RepairFrom = e.sight.Repair.Number, int64(e.sight.Repair.From)
	out.Covered, out.Rest = convert.RangeToAPI(page.Covered), convert.RangeToAPI(page.Rest)
	out.IsEnd = page.IsEnd
	out.Messages = e.served
	if page.KeptFirst() != (e.req.Order == watermark.Asc) {
		slices.Reverse(out.Messages)
	}
	if len(out.Messages) == 0 && !page.IsEnd && page.Rest == nil {
		p.s.anomalies.found(anomalyEmpty, key)
	}
	return out
}

// message makes what a client sees of a row, and tells its size in an answer.
func (e *entry) message(m *watermark.Message) (*v1.Message, int) {
	out := convert.MessageToAPI(e.conv, m)
	if e.conv.Single() {
		out.IsRead = m.Seq <= e.sight.PeerReceipt && e.sight.PeerWindow.Contains(m.Seq)
	}
	const frame = 6 // tag and length of the field that carries it
	return out, proto.Size(out) + frame
}
