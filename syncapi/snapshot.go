package syncapi

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// snapshotItems bounds the conversations of all snapshots of a process, at
	// about 80 bytes each.
	snapshotItems = 200_000
	// snapshotAge is how long a walk may pause and still go on over the same
	// snapshot.
	snapshotAge = 10 * time.Minute
)

// snapshot is a user's list as it stood at the first page of a walk: what it
// goes over and in which order. What is served of a conversation is read anew
// for each page.
type snapshot struct {
	id    uint64
	user  watermark.UserID
	items []snapshotItem // the latest first
	total listTotals
	made  time.Time
	ordered
}

// size is what it counts among the bound of all.
func (s *snapshot) size() int { return len(s.items) + len(s.all) + len(s.known.Ends)/8 + 1 }

type snapshotItem struct {
	conv watermark.ConversationID
	time int64
	// revokedFrom is from where on revokes are told, as in watermark.Peek.
	revokedFrom int64
}

// listTotals sums up a whole list.
type listTotals struct {
	conversations, unread, unmuted int64
}

func (t *listTotals) add(l *watermark.Listed) {
	if !l.InList() {
		return
	}
	t.conversations++
	visible := l.Member.Visible(l.Conversation.Min, l.Conversation.Max)
	n := watermark.Unread(visible, l.Member.Read, l.Member.Own)
	t.unread += n
	if l.Member.Attributes[watermark.AttributeMuted] == "" {
		t.unmuted += n
	}
}

// after gives the items that follow the place of w.
func (s *snapshot) after(w *listWalk) []snapshotItem {
	return s.behind(w.time, w.conv)
}

// behind gives the items that follow the one of a time and a conversation; all
// of them where no conversation is named.
func (s *snapshot) behind(time int64, conv watermark.ConversationID) []snapshotItem {
	if conv == "" {
		return s.items
	}
	at := snapshotItem{conv: conv, time: time}
	i, found := slices.BinarySearchFunc(s.items, at, laterItem)
	if found {
		i++
	}
	return s.items[i:]
}

// snapshots keeps those that a walk may still go on over. A walk whose snapshot
// is gone, or that comes to another process, goes on over a new one.
type snapshots struct {
	now func() time.Time

	mu    sync.Mutex
	lru   *simplelru.LRU[uint64, *snapshot]
	items int
}

func newSnapshots(now func() time.Time) *snapshots {
	// Each has an item, so the bound by items bites first.
	lru, err := simplelru.NewLRU[uint64, *snapshot](snapshotItems, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &snapshots{now: now, lru: lru}
}

func (c *snapshots) get(id uint64, user watermark.UserID) *snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.lru.Get(id)
	if !ok || s.user != user || c.now().Sub(s.made) > snapshotAge {
		return nil
	}
	return s
}

// put keeps s, under a name that it is given.
func (c *snapshots) put(s *snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.id != 0 || s.size() > snapshotItems {
		return
	}
	s.id = rand.Uint64()
	s.made = c.now()
	c.lru.Add(s.id, s)
	c.items += s.size()
	for c.items > snapshotItems && c.lru.Len() > 1 {
		c.dropLocked()
	}
	for {
		_, old, ok := c.lru.GetOldest()
		if !ok || s.made.Sub(old.made) <= snapshotAge {
			return
		}
		c.dropLocked()
	}
}

func (c *snapshots) dropLocked() {
	_, s, _ := c.lru.RemoveOldest()
	c.items -= s.size()
}

// drop lets a snapshot go that no walk goes on over.
func (c *snapshots) drop(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.lru.Peek(id); ok {
		c.lru.Remove(id)
		c.items -= s.size()
	}
}
