package syncapi

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"sync"

	"github.com/tidemark-im/tidemark/watermark"
)

// ordered is what the snapshot of a list's order knows besides.
type ordered struct {
	known watermark.ListOrder // Log and Ends
	// all is the whole list, where the walk goes over a part of it.
	all   []snapshotItem
	top   int64         // the latest time in the list
	floor int64         // the walk is about what is later, and what came to the list
	print func() uint64 // of the whole list, made when it is asked for
}

// printOf tells one order from another: its conversations and their times.
func printOf(list []snapshotItem) uint64 {
	h := fnv.New64a()
	var b []byte
	for i := range list {
		b = binary.BigEndian.AppendUint64(append(b[:0], list[i].conv...), uint64(list[i].time))
		_, _ = h.Write(b) // never fails
	}
	return h.Sum64()
}

// orderOf gives the order of a list, of which a walk goes over what is later
// than floor.
func orderOf(user watermark.UserID, list *watermark.ListOrder, floor int64) *snapshot {
	whole := make([]snapshotItem, len(list.Entries))
	for i, e := range list.Entries {
		whole[i] = snapshotItem{conv: e.Conversation, time: e.LastTime}
	}
	slices.SortFunc(whole, laterItem)
	o := &snapshot{user: user, items: whole}
	o.known = watermark.ListOrder{Log: list.Log, Ends: list.Ends}
	o.print = sync.OnceValue(func() uint64 { return printOf(whole) })
	return o.later(floor)
}

// later gives of the same list what is later than floor.
func (s *snapshot) later(floor int64) *snapshot {
	o := &snapshot{user: s.user, items: s.whole()}
	o.known, o.floor, o.top, o.print = s.known, floor, math.MinInt64, s.print
	if len(o.items) > 0 {
		o.top = o.items[0].time
	}
	n, _ := slices.BinarySearchFunc(o.items, floor, func(l snapshotItem, floor int64) int {
		if l.time > floor {
			return -1
		}
		return 1
	})
	if n < len(o.items) {
		o.items, o.all = o.items[:n:n], o.items
	}
	return o
}

// whole gives the list that o was made of.
func (s *snapshot) whole() []snapshotItem {
	if s.all != nil {
		return s.all
	}
	return s.items
}

// since gives what follows a walk over o: of the list as it is now what is later
// than floor, what was not in it, and what is left of the walk.
func (s *snapshot) since(list *watermark.ListOrder, floor int64, left []snapshotItem) *snapshot {
	now := orderOf(s.user, list, floor)
	met := make(map[watermark.ConversationID]bool, len(s.whole()))
	for _, l := range s.whole() {
		met[l.conv] = true
	}
	for _, l := range left {
		met[l.conv] = false
	}
	for _, l := range now.whole()[len(now.items):] {
		if !met[l.conv] {
			now.items = append(now.items, l)
		}
	}
	return now
}

// order gives what the walk of t goes over: the list as it was when the walk
// began, so that its pages cost one read of it; or, where that is not kept any
// more, as it is now.
//
// What became active before the first page of a walk that follows another is in
// that walk, also when it happened after the page before.
func (s *Service) order(ctx context.Context, t pageToken, user watermark.UserID) (*snapshot, error) {
	o := s.orders.get(t.snapshot, user)
	if o != nil && t.conv != "" {
		return o, nil
	}
	var known watermark.ListOrder
	if o != nil {
		known = o.known
	}
	list, err := s.cfg.Truth.Order(ctx, user, known)
	switch {
	case err != nil:
		return nil, err
	case list.Same:
		return o, nil
	case o != nil:
		return o.since(&list, o.floor, o.items), nil
	}
	return orderOf(user, &list, t.floor), nil
}

// after gives the token of what follows a page of ahead; nil: nothing does.
//
// A walk of one page is done. One of more is followed by another over what is
// later than its start or came to the list since: both are looked for once, at
// its end, and not at all where nothing was appended to the log meanwhile.
//
// Where the order is not the one that the page before went over, because that is gone,
// a conversation may have risen to a time between the walk's place and its top:
// messages come in the order of the log, not of their times. So the walk that
// follows begins at the place, and serves twice what stands above it.
func (s *Service) after(ctx context.Context, t pageToken, o *snapshot, ahead []snapshotItem, served int) (*pageToken, error) {
	first := t.conv == ""
	if first {
		t.top = o.top
	} else if t.walk < maxAgain && o.print() != t.print && t.time > math.MinInt64 {
		t.top = min(t.top, t.time-1)
	}
	if served < len(ahead) {
		last := ahead[served-1]
		t.time, t.conv = last.time, last.conv
		return s.keep(t, o), nil
	}
	s.orders.drop(o.id)
	if first {
		return nil, nil
	}
	list, err := s.cfg.Truth.Order(ctx, o.user, o.known)
	if err != nil {
		return nil, err
	}
	var now *snapshot
	if list.Same {
		now = o.later(t.top) // it may have been read when the walk was under way
	} else {
		now = o.since(&list, t.top, nil)
	}
	if len(now.items) == 0 {
		return nil, nil
	}
	return s.keep(pageToken{time: math.MaxInt64, walk: t.walk + 1}, now), nil
}

// maxAgain is of how many walks in a row the one that follows serves again what the
// loss of their order may have hidden. Where pages go to another process each
// and the list never stands still there would be no end to it; what rises beside
// the place of the last of them comes with the next listing.
const maxAgain = 2

// keep gives t with the name of o, which is kept for the page that it is for. Its
// floor is what counts where that page does not find it: then what came to the
// list cannot be told from what is old, and everything is walked over.
func (s *Service) keep(t pageToken, o *snapshot) *pageToken {
	s.orders.put(o)
	t.snapshot, t.floor, t.print = o.id, o.floor, o.print()
	if n := len(o.items); n > 0 && o.items[n-1].time <= o.floor {
		t.floor = math.MinInt64
	}
	return &t
}
