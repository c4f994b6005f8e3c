package syncapi

import (
	"context"
	"math"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// ordered is what the snapshot of a list's order knows besides.
type ordered struct {
	known watermark.ListOrder // Log and Ends
	// all is the whole list, where the walk goes over a part of it.
	all []snapshotItem
	// late says that it was made when the walk was under way: nobody can tell any
	// more what came to the list since the walk began.
	late bool
	top  int64 // the latest time in the list
}

// order gives what a walk that is at t goes over.
func (t pageToken) order(user watermark.UserID, list *watermark.ListOrder) *snapshot {
	o := &snapshot{user: user}
	o.known = watermark.ListOrder{Log: list.Log, Ends: list.Ends}
	o.items = make([]snapshotItem, len(list.Entries))
	for i, e := range list.Entries {
		o.items[i] = snapshotItem{conv: e.Conversation, time: e.LastTime}
	}
	slices.SortFunc(o.items, laterItem)
	o.top = math.MinInt64
	if len(o.items) > 0 {
		o.top = o.items[0].time
	}
	o.late = t.conv != ""
	if n := newer(o.items, t.floor); n < len(o.items) {
		o.items, o.all = o.items[:n], o.items
	}
	return o
}

// newer tells how many of items, which are sorted, are later than floor.
func newer(items []snapshotItem, floor int64) int {
	n, _ := slices.BinarySearchFunc(items, floor, func(l snapshotItem, floor int64) int {
		if l.time > floor {
			return -1
		}
		return 1
	})
	return n
}

// after gives the token of what follows a page of ahead; nil: nothing does.
//
// A walk of one page is done. One of more is followed by another over what
// changed its place since it began: the order stands still for a walk, so that
// it costs one read of the list however many its pages are, and what is new is
// looked for once, at its end.
func (s *Service) after(ctx context.Context, t pageToken, o *snapshot, ahead []snapshotItem, served int) (*pageToken, error) {
	first := t.conv == ""
	if first {
		t.top = o.top
	}
	if served < len(ahead) {
		last := ahead[served-1]
		t.time, t.conv = last.time, last.conv
		s.orders.put(o)
		t.snapshot = o.id
		return &t, nil
	}
	if first {
		s.orders.drop(o.id)
		return nil, nil
	}
	list, err := s.cfg.Truth.Order(ctx, o.user, o.known)
	if err != nil {
		return nil, err
	}
	s.orders.drop(o.id)
	if list.Same {
		return nil, nil
	}
	next := &pageToken{time: math.MaxInt64, floor: t.top}
	o = o.since(next, pageToken{floor: math.MinInt64}.order(o.user, &list))
	if len(o.items) == 0 {
		return nil, nil
	}
	s.orders.put(o)
	next.snapshot = o.id
	return next, nil
}

// since gives of the list as it is now what a walk over o has not met: what is
// later than the token's floor, and what was not in the list. Of the latter the
// floor says nothing, so there it is taken away.
func (o *snapshot) since(t *pageToken, now *snapshot) *snapshot {
	n := newer(now.items, t.floor)
	now.items, now.all = now.items[:n], now.items
	if o.late {
		return now
	}
	met := make(map[watermark.ConversationID]bool, len(o.whole()))
	for _, l := range o.whole() {
		met[l.conv] = true
	}
	for _, l := range now.all[n:] {
		if !met[l.conv] {
			t.floor = math.MinInt64
			now.items = append(now.items[:len(now.items):len(now.items)], l)
		}
	}
	return now
}

// whole gives the list that o was made of.
func (s *snapshot) whole() []snapshotItem {
	if s.all != nil {
		return s.all
	}
	return s.items
}
