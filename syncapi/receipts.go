package syncapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	defaultReaders = 100
	maxReaders     = 1000
	// exactReaders is up to how many read marks the windows of all readers are
	// looked at to count them.
	exactReaders = 10_000
	// readerRounds bounds how many pages of read marks one page of readers is
	// made of: of those who joined after a message all have read beyond it, and
	// none saw it.
	readerRounds = 10
	// maxRosters is how many rosters are read at once.
	maxRosters = 2

	readersFormat = 3
)

// WhoHasRead tells how many have read a message, and who.
func (s *Service) WhoHasRead(ctx context.Context, req *v1.WhoHasReadRequest) (*v1.WhoHasReadResponse, error) {
	user, err := userIn(req.GetUser())
	if err != nil {
		return nil, err
	}
	conv, err := conversationIn(req.GetConversation())
	if err != nil {
		return nil, err
	}
	seq := watermark.Seq(req.GetSeq())
	var after watermark.Reader
	if token := req.GetPageToken(); token != "" {
		if after, err = decodeReader(token, conv, seq); err != nil {
			return nil, invalid("page_token", "it was not made by WhoHasRead for this message")
		}
	}
	v, err := s.lookOne(ctx, user, conv)
	if err != nil {
		return nil, err
	}
	if !v.Member.Open() {
		// How far others read tells how far it went on.
		return nil, fault.New(fault.Poison, watermark.ReasonNotMember, errNotMember)
	}
	if !v.visible.Contains(seq) {
		return nil, refuse(connect.CodeFailedPrecondition, watermark.ReasonNoSuchSeq, "no message %d in %s for this user", seq, conv)
	}
	if peer, ok := conv.Peer(user); ok {
		return whetherPeer(peer, v, seq), nil
	}
	size := req.GetPageSize()
	if size <= 0 {
		size = defaultReaders
	}
	r := &readers{s: s, conv: conv, seq: seq, size: int(min(size, maxReaders)), res: new(v1.WhoHasReadResponse)}
	return r.res, r.read(ctx, v, after)
}

// whetherPeer answers for a single conversation from what the peer tells.
func whetherPeer(peer watermark.UserID, v *sight, seq watermark.Seq) *v1.WhoHasReadResponse {
	if v.PeerReceipt < seq || !v.PeerWindow.Contains(seq) {
		return new(v1.WhoHasReadResponse)
	}
	return &v1.WhoHasReadResponse{Count: 1, Readers: []*v1.Reader{{User: string(peer), ReadSeq: int64(v.PeerReceipt)}}}
}

// readers is one call of WhoHasRead about a group.
type readers struct {
	s        *Service
	conv     watermark.ConversationID
	seq      watermark.Seq
	size     int
	res      *v1.WhoHasReadResponse
	counting bool
	last     watermark.Reader // the last one that was looked at and is on the page, or no reader
}

// read asks Redis, where it knows all members, and the truth otherwise.
func (r *readers) read(ctx context.Context, v *sight, after watermark.Reader) error {
	known, err := r.fromHot(ctx, after)
	if err != nil || known {
		return err
	}
	r.res.Reset()
	return r.fromTruth(ctx, v, after)
}

// fromHot walks over the read marks from after on: until the page is full, or,
// where they are to be counted, over all of them.
func (r *readers) fromHot(ctx context.Context, after watermark.Reader) (known bool, err error) {
	r.counting, r.last = after.User == "", after
	for round := 0; ; round++ {
		page, err := r.s.cfg.Hot.Readers(ctx, r.conv, r.seq, after, maxReaders)
		if err != nil || !page.Known {
			return false, err
		}
		if round == 0 && r.counting && page.Count > exactReaders {
			r.counting, r.res.Count, r.res.CountAtMost = false, page.Count, true
		}
		r.take(page.Readers)
		switch {
		case len(page.Readers) < maxReaders:
			return true, nil
		case r.counting:
			// Marks rise meanwhile, but there are only so many members.
		case r.res.NextPageToken != "":
			return true, nil
		case round+1 == readerRounds:
			r.res.NextPageToken = r.token()
			return true, nil
		}
		after = page.Readers[len(page.Readers)-1]
	}
}

// take counts those of list who see the message, and puts as many on the page
// as it has room for.
func (r *readers) take(list []watermark.Reader) {
	for _, x := range list {
		switch {
		case !x.Window.Contains(r.seq):
		case len(r.res.Readers) < r.size:
			r.res.Readers = append(r.res.Readers, &v1.Reader{User: string(x.User), ReadSeq: int64(x.Read)})
		case r.res.NextPageToken == "":
			r.res.NextPageToken = r.token()
		}
		if r.counting && x.Window.Contains(r.seq) {
			r.res.Count++
		}
		r.last = x
	}
}

// fromTruth reads the whole roster. What it brings is told to Redis, where the
// conversation is warm, so that the next call finds it there.
func (r *readers) fromTruth(ctx context.Context, v *sight, after watermark.Reader) error {
	select {
	case r.s.rosters <- struct{}{}:
		defer func() { <-r.s.rosters }()
	case <-ctx.Done():
		return ctx.Err()
	}
	states, err := r.s.cfg.Truth.Load(ctx, []watermark.Want{{Conversation: r.conv, Roster: true}})
	if err != nil {
		return err
	}
	st := states[0]
	if v.Temperature != watermark.Cold {
		r.s.tell(ctx, []watermark.MemberLoad{{
			Conversation: r.conv, Token: v.Token, Complete: st.Complete, Members: slices.Collect(maps.Values(st.Members)),
		}})
	}
	r.counting, r.last = after.User == "", after
	var list []watermark.Reader
	for u, m := range st.Members {
		x := watermark.Reader{User: u, Read: m.Read, Window: m.Window()}
		if m.Read >= r.seq && byRead(x, after) > 0 {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, byRead)
	r.take(list)
	return nil
}

func byRead(a, b watermark.Reader) int {
	return cmp.Or(cmp.Compare(a.Read, b.Read), cmp.Compare(a.User, b.User))
}

// token says that the page ends with the last reader that was looked at.
func (r *readers) token() string {
	b := append([]byte{readersFormat}, messageMark(r.conv, r.seq)...)
	b = binary.AppendUvarint(b, uint64(r.last.Read))
	return base64.RawURLEncoding.EncodeToString(append(b, r.last.User...))
}

func decodeReader(s string, conv watermark.ConversationID, seq watermark.Seq) (watermark.Reader, error) {
	mark := messageMark(conv, seq)
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if len(s) > maxToken || err != nil || len(b) < 1+len(mark) || b[0] != readersFormat || !bytes.Equal(b[1:1+len(mark)], mark) {
		return watermark.Reader{}, errToken
	}
	b = b[1+len(mark):]
	read, n := binary.Uvarint(b)
	if n <= 0 || read > uint64(watermark.MaxSeq) {
		return watermark.Reader{}, errToken
	}
	user, err := watermark.ParseUserID(string(b[n:]))
	if err != nil {
		return watermark.Reader{}, errToken
	}
	return watermark.Reader{User: user, Read: watermark.Seq(read)}, nil
}

// messageMark keeps a token from being used for another message by mistake.
func messageMark(conv watermark.ConversationID, seq watermark.Seq) []byte {
	return userMark(watermark.UserID(string(conv) + "/" + seq.String()))
}
