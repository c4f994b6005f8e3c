package syncapi

import (
	"cmp"
	"context"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// previewText is how many bytes of a text stand in a list, and how large
	// another body may be to stand there at all.
	previewText = 512
	// previewRest is how many bytes mentions and attributes may have together.
	previewRest = 1024
	// maxShownMentions is how far mentions are counted.
	maxShownMentions = 99
)

// preview is an entry whose last message and mentions are to be filled in.
type preview struct {
	sight *sight
	entry *v1.ConversationEntry
	last  *watermark.Message
	// revokedFrom is as in watermark.Peek.
	revokedFrom int64
}

// previewBatch is how many conversations are previewed at once: their last
// messages are held whole until they are cut.
func (s *Service) previewBatch() int {
	body := min(cmp.Or(s.cfg.Limits.MaxBody, convert.DefaultMaxBody), convert.HardMaxBody)
	return min(max(waveBytes/2/body, minWave), loadBatch)
}

// preview fills in last messages, from Redis where it may be believed and has
// them, mentions of what is unread, and what was revoked.
func (s *Service) preview(ctx context.Context, user watermark.UserID, list []*preview) error {
	if err := s.hotPreview(ctx, list); err != nil {
		return err
	}
	var peeks []watermark.Peek
	var of []*preview
	for _, p := range list {
		a := watermark.Peek{Conversation: p.sight.ID, User: user, Mentions: p.unread(), RevokedFrom: p.revokedFrom}
		if edges, ok := p.sight.visible.Edges(); ok && p.last == nil {
			a.Last = edges.Last
		}
		if a.Last > 0 || len(a.Mentions) > 0 || a.RevokedFrom > 0 {
			peeks, of = append(peeks, a), append(of, p)
		}
	}
	if len(peeks) > 0 {
		found, err := s.cfg.Truth.Peek(ctx, peeks)
		if err != nil {
			return err
		}
		for i, p := range of {
			if p.last == nil {
				p.last = found[i].Last
			}
			p.mention(found[i].Mentions)
			p.revoke(found[i].Revoked)
		}
	}
	for _, p := range list {
		p.cut()
	}
	return nil
}

// hotPreview reads last messages in one round trip.
func (s *Service) hotPreview(ctx context.Context, list []*preview) error {
	var spans []Span
	var of []*preview
	for _, p := range list {
		edges, ok := p.sight.visible.Edges()
		if !ok || p.sight.Temperature == watermark.Cold {
			continue
		}
		spans = append(spans, Span{Conversation: p.sight.ID, First: edges.Last, Last: edges.Last})
		of = append(of, p)
	}
	if len(spans) == 0 {
		return nil
	}
	got, err := s.cfg.Hot.Messages(ctx, spans)
	if err != nil {
		return err
	}
	for i, rows := range got {
		if len(rows) > 0 {
			of[i].last = &rows[len(rows)-1]
		}
	}
	return nil
}

// unread gives the seqs among which mentions count: what is unread, where there
// is any.
func (p *preview) unread() watermark.Intervals {
	if !p.entry.Watermarks.Member || p.entry.Watermarks.Unread == 0 {
		return nil
	}
	return p.sight.visible.Clip(watermark.Interval{First: p.sight.Member.Read + 1, Last: watermark.MaxSeq})
}

// mention counts mentions. Own messages do not count as unread, so what they
// mention does not count either.
func (p *preview) mention(seqs []watermark.Seq) {
	n := 0
	for _, seq := range seqs {
		if _, own := slices.BinarySearch(p.sight.Member.Own, seq); !own {
			n++
		}
	}
	p.entry.Mentions = int32(min(n, maxShownMentions))
	p.entry.MoreMentions = n > maxShownMentions
}

// revoke tells what was revoked of that which the member can see.
func (p *preview) revoke(seqs []watermark.Seq) {
	p.entry.MoreRevoked = len(seqs) >= watermark.MaxRevoked
	for _, seq := range seqs {
		if p.sight.visible.Contains(seq) {
			p.entry.Revoked = append(p.entry.Revoked, int64(seq))
		}
	}
}

// cut makes what is shown of the last message.
func (p *preview) cut() {
	if p.last == nil {
		return
	}
	m := convert.MessageToAPI(p.sight.ID, p.last)
	if p.sight.ID.Single() {
		m.IsRead = p.last.Seq <= p.sight.PeerReceipt && p.sight.PeerWindow.Contains(p.last.Seq)
	}
	p.entry.Last = m
	switch b := m.Body.(type) {
	case *v1.Message_Text:
		if len(b.Text) > previewText {
			m.Body, p.entry.LastCut = &v1.Message_Text{Text: cutText(b.Text, previewText)}, true
		}
	case *v1.Message_Data:
		if len(b.Data) > previewText {
			m.Body, p.entry.LastCut = nil, true
		}
	case *v1.Message_Json:
		if proto.Size(b.Json) > previewText {
			m.Body, p.entry.LastCut = nil, true
		}
	}
	if proto.Size(&v1.Message{Mentions: m.Mentions, Attributes: m.Attributes}) > previewRest {
		m.Mentions, m.Attributes, p.entry.LastCut = nil, nil, true
	}
}

// cutText gives the first characters of s that have at most n bytes.
func cutText(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
