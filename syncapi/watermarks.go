package syncapi

import (
	"context"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	defaultListPage = 500
	maxListPage     = 1000
)

// GetWatermarks tells a user's numbers in given or in all conversations.
func (s *Service) GetWatermarks(ctx context.Context, req *v1.GetWatermarksRequest) (*v1.GetWatermarksResponse, error) {
	user, err := userIn(req.GetUser())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetConversations()); n > maxEntries {
		return nil, invalid("conversations", "%d of them, at most %d are allowed", n, maxEntries)
	} else if n > 0 {
		return s.givenWatermarks(ctx, user, req.GetConversations())
	}
	return s.allWatermarks(ctx, user, req)
}

func (s *Service) givenWatermarks(ctx context.Context, user watermark.UserID, names []string) (*v1.GetWatermarksResponse, error) {
	var convs []watermark.ConversationID
	faults := make(map[string]error)
	known := make(map[string]bool, len(names))
	for _, name := range names {
		if known[name] {
			continue
		}
		known[name] = true
		c, err := watermark.ParseConversationID(name)
		if err != nil {
			faults[name] = err
			continue
		}
		convs = append(convs, c)
	}
	seen, err := s.look(ctx, user, convs)
	if err != nil {
		return nil, err
	}
	res := &v1.GetWatermarksResponse{Watermarks: make([]*v1.Watermarks, len(names))}
	for i, name := range names {
		if err := faults[name]; err != nil {
			res.Watermarks[i] = &v1.Watermarks{Conversation: name, Error: s.entryError(ctx, err)}
			continue
		}
		res.Watermarks[i] = s.watermarksOf(ctx, seen[watermark.ConversationID(name)], watermark.ConversationID(name))
	}
	return res, nil
}

func (s *Service) allWatermarks(ctx context.Context, user watermark.UserID, req *v1.GetWatermarksRequest) (*v1.GetWatermarksResponse, error) {
	at := pageToken{time: math.MaxInt64, floor: math.MinInt64}
	if req.GetPageToken() != "" {
		var err error
		if at, err = decodeToken(req.GetPageToken(), user); err != nil {
			return nil, invalid("page_token", "it was not made by this service for this user")
		}
	}
	size := req.GetPageSize()
	if size <= 0 {
		size = defaultListPage
	}
	o, err := s.order(ctx, at, user)
	if err != nil {
		return nil, err
	}
	return s.orderPage(ctx, at, o, int(min(size, maxListPage)))
}

// orderPage answers with the next size conversations of o, or with as many of
// them as an answer carries.
func (s *Service) orderPage(ctx context.Context, at pageToken, o *snapshot, size int) (*v1.GetWatermarksResponse, error) {
	ahead := o.behind(at.time, at.conv)
	page := ahead[:min(size, len(ahead))]
	convs := make([]watermark.ConversationID, len(page))
	for i, l := range page {
		convs[i] = l.conv
	}
	seen, err := s.look(ctx, o.user, convs)
	if err != nil {
		return nil, err
	}
	res := &v1.GetWatermarksResponse{Watermarks: make([]*v1.Watermarks, 0, len(page))}
	bytes, served := 0, 0
	for _, l := range page {
		v := seen[l.conv]
		if isUnknown(v.err) {
			served++ // a closed group in which the user only sent
			continue
		}
		w := s.watermarksOf(ctx, v, l.conv)
		// Redis may not know the time, and the truth not the newest one.
		if w.LastTimeMs > 0 {
			w.LastTimeMs = max(w.LastTimeMs, l.time)
		}
		bytes += proto.Size(w)
		if bytes > s.cfg.PageBytes && len(res.Watermarks) > 0 {
			break
		}
		res.Watermarks = append(res.Watermarks, w)
		served++
	}
	next, err := s.after(ctx, at, o, ahead, served)
	if err != nil {
		return nil, err
	}
	res.NextPageToken = next.encodeIfMore(o.user)
	return res, nil
}

func (t *pageToken) encodeIfMore(user watermark.UserID) string {
	if t == nil {
		return ""
	}
	return t.encode(user)
}

// watermarksOf makes what a client is told of one conversation.
func (s *Service) watermarksOf(ctx context.Context, v *sight, conv watermark.ConversationID) *v1.Watermarks {
	out := &v1.Watermarks{Conversation: string(conv)}
	if v.err != nil {
		out.Error = s.entryError(ctx, v.err)
		return out
	}
	first, last := v.edges()
	out.MinSeq, out.MaxSeq = int64(first), int64(last)
	out.ReadSeq = int64(v.Member.Read)
	out.Unread = watermark.Unread(v.visible, v.Member.Read, v.Member.Own)
	out.PeerReceiptSeq = int64(v.PeerReceipt)
	if !v.Member.Open() { // how far the peer reads afterwards tells that it goes on
		out.PeerReceiptSeq = int64(max(0, min(v.PeerReceipt, last)))
	}
	out.RepairNumber, out.RepairFrom = v.Repair.Number, int64(v.Repair.From)
	if v.Member.Open() { // who left does not learn that it went on
		out.LastTimeMs = v.LastTime
	}
	out.Visible = convert.RangesToAPI(v.visible)
	out.Membership = v.Member.LastMembership
	out.Member = v.Member.Listed(conv)
	return out
}
