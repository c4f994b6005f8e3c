package syncapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxWalks bounds a sequence of pages: a walk of more than one page is
	// followed by one over what changed meanwhile. What changes during the last
	// one comes next time.
	maxWalks = 8
	// pageTime is after how long a page ends early.
	pageTime = 2 * time.Second
)

// SyncConversations tells what changed in a user's list since a version.
//
// A walk begins with one read of the whole list, with the offset of the last
// change of everything in it and the ends of the log that it covers: the pin.
// What changed since the version is walked over, the latest first; each page
// reads the conversations that it serves anew. The version that the last page
// gives is the pin, so a change that a page is too early for is above it and
// comes again.
func (s *Service) SyncConversations(ctx context.Context, req *v1.SyncConversationsRequest) (*v1.SyncConversationsResponse, error) {
	user, err := userIn(req.GetUser())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetVersion()); n > maxVersion {
		return nil, invalid("version", "%d bytes, no version has more than %d", n, maxVersion)
	}
	w := &listWalk{}
	if token := req.GetPageToken(); token != "" {
		if w, err = decodeWalk(token, user); err != nil {
			return nil, invalid("page_token", "it was not made by SyncConversations for this user")
		}
	}
	first := w.base == nil && w.pin == nil
	snap := s.lists.get(w.snapshot, user)
	if snap == nil || w.conv == "" {
		list, err := s.cfg.Truth.List(ctx, user)
		if err != nil {
			return nil, err
		}
		if first {
			w.begin(decodeVersion(req.GetVersion(), user), &list)
		} else if err := w.resume(&list); err != nil {
			return nil, err
		}
		snap = w.snapshotOf(user, &list)
	}
	size := req.GetPageSize()
	if size <= 0 {
		size = defaultListPage
	}
	p := &listPage{s: s, user: user, first: w.full && w.walks == 0, res: &v1.SyncConversationsResponse{
		FullResync: w.full, TotalConversations: snap.total.conversations,
		TotalUnread: snap.total.unread, TotalUnreadUnmuted: snap.total.unmuted,
	}}
	ahead := snap.after(w)
	served, err := p.fill(ctx, ahead[:min(int64(len(ahead)), size, maxListPage)])
	if err != nil {
		return nil, err
	}
	s.goOn(p.res, user, w, snap, ahead, served)
	return p.res, nil
}

// begin starts the first walk of a sequence.
func (w *listWalk) begin(known *listVersion, list *watermark.List) {
	w.log = markOfLog(list.Log)
	w.pin, w.pinJoined = list.Ends, joinsOf(list)
	if w.full = !known.fits(w.log, list.Ends); !w.full {
		w.base, w.baseJoined = known.offsets, known.joined
	}
}

// resume checks that the walk can go on over a list that was read anew, and
// pins it where it has only begun.
func (w *listWalk) resume(list *watermark.List) error {
	since := &listVersion{log: w.log, offsets: cmpOr(w.pin, w.base)}
	if !since.fits(markOfLog(list.Log), list.Ends) {
		return refuse(connect.CodeAborted, reasonListMoved, "page_token: the list has moved to another log; start again without it")
	}
	if w.pin == nil {
		w.pin, w.pinJoined = list.Ends, joinsOf(list)
	}
	return nil
}

func cmpOr(a, b []int64) []int64 {
	if a != nil {
		return a
	}
	return b
}

// snapshotOf gives what w goes over. Of a list that was read later than the
// pin, what changed above the pin is left out: nobody can tell any more whether
// it was served, and it comes with the next walk. What the user has left comes
// last: that it goes on there is no change for the user, so it must not move
// before the place of a walk, where none would meet it.
func (w *listWalk) snapshotOf(user watermark.UserID, list *watermark.List) *snapshot {
	snap := &snapshot{user: user}
	// Who joined above the pin is left out, like all that changed there.
	joined := w.baseJoined == unknownJoins || w.baseJoined != w.pinJoined
	for i := range list.Entries {
		l := &list.Entries[i]
		snap.total.add(l)
		p := l.Partition
		if w.base != nil && !l.Changed(w.base[p]) || w.conv != "" && l.Changed(w.pin[p]) {
			continue
		}
		item := snapshotItem{conv: l.Conversation.ID}
		if l.InList() {
			item.time = l.Conversation.LastTime
			item.revokedFrom = w.revokedFrom(l, joined)
		}
		snap.items = append(snap.items, item)
	}
	slices.SortFunc(snap.items, laterItem)
	return snap
}

// revokedFrom gives from where on the device does not know what was revoked: a
// revoke is a change of the conversation, so where that did not change there
// is none. While the user was no member none was told, whatever the device asked
// meanwhile, so where it joined since the version, somewhere, all are told of the
// groups in which anything of the member changed: the one that it joined is among
// them, and a device pulls a tombstone twice at worst.
func (w *listWalk) revokedFrom(l *watermark.Listed, joined bool) int64 {
	known := int64(0)
	if w.base != nil {
		known = w.base[l.Partition]
	}
	if joined && l.Member.LastMembership > 0 && l.Member.ChangedAt > known {
		return 1
	}
	if l.Conversation.ChangedAt <= known {
		return 0
	}
	return known + 1
}

// laterItem sorts the latest first.
func laterItem(a, b snapshotItem) int {
	return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.conv, b.conv))
}

// goOn ends a page: with a token where more is to come, with a version where
// not.
func (s *Service) goOn(res *v1.SyncConversationsResponse, user watermark.UserID, w *listWalk, snap *snapshot, ahead []snapshotItem, served int) {
	if served < len(ahead) {
		s.lists.put(snap)
		next := *w
		last := ahead[served-1]
		next.snapshot, next.time, next.conv = snap.id, last.time, last.conv
		res.NextPageToken = next.encode(user)
		return
	}
	s.lists.drop(snap.id)
	if w.conv != "" && w.walks+1 < maxWalks {
		next := listWalk{base: w.pin, baseJoined: w.pinJoined, log: w.log, full: w.full, walks: w.walks + 1}
		res.NextPageToken = next.encode(user)
		return
	}
	v := listVersion{log: w.log, offsets: w.pin, joined: w.pinJoined}
	res.Version = v.encode(user)
}

// listPage is one page of SyncConversations.
type listPage struct {
	s    *Service
	user watermark.UserID
	// first says that the device has nothing of what is walked over.
	first bool
	res   *v1.SyncConversationsResponse
	bytes int
}

// fill serves as many of items as a page carries, at least one, and tells how
// many.
func (p *listPage) fill(ctx context.Context, items []snapshotItem) (served int, err error) {
	began := time.Now()
	for batch := range slices.Chunk(items, p.s.previewBatch()) {
		if served > 0 && time.Since(began) > pageTime {
			return served, nil
		}
		entries, err := p.s.entries(ctx, p.user, batch)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if !p.add(e) {
				return served, nil
			}
			served++
		}
	}
	return served, nil
}

// add serves e, unless the page is full. A conversation of which there is
// nothing to tell is passed over; on a later walk of the same sequence there is
// that the user has left it, which the first one may have served.
func (p *listPage) add(e *listEntry) bool {
	if e == nil || (p.first && !e.member && len(e.api.Watermarks.Visible) == 0) {
		return true
	}
	size := proto.Size(e.api)
	if p.bytes+size > p.s.cfg.PageBytes && p.bytes > 0 {
		return false
	}
	p.bytes += size
	if e.member {
		p.res.Changed = append(p.res.Changed, e.api)
	} else {
		p.res.Removed = append(p.res.Removed, e.api)
	}
	return true
}

// listEntry is an entry of a list and whether the user is a member now.
type listEntry struct {
	api    *v1.ConversationEntry
	member bool
}

// entries makes the entries of items, in order; nil where the user never was a
// member.
func (s *Service) entries(ctx context.Context, user watermark.UserID, items []snapshotItem) ([]*listEntry, error) {
	convs := make([]watermark.ConversationID, len(items))
	for i, item := range items {
		convs[i] = item.conv
	}
	seen, err := s.lookWhole(ctx, user, convs)
	if err != nil {
		return nil, err
	}
	out := make([]*listEntry, len(items))
	var shown []*preview
	for i, item := range items {
		v := seen[item.conv]
		if isUnknown(v.err) {
			continue
		}
		if v.err != nil {
			return nil, v.err
		}
		if !v.Member.Known() && !item.conv.Single() {
			continue // it sent there, and that is all
		}
		e := &v1.ConversationEntry{Watermarks: s.watermarksOf(ctx, v, item.conv), Attributes: v.Member.Attributes}
		if e.Watermarks.LastTimeMs > 0 { // Redis may not know the time, and the truth not the newest one
			e.Watermarks.LastTimeMs = max(e.Watermarks.LastTimeMs, item.time)
		}
		out[i] = &listEntry{e, e.Watermarks.Member}
		shown = append(shown, &preview{sight: v, entry: e, revokedFrom: item.revokedFrom})
	}
	return out, s.preview(ctx, user, shown)
}
