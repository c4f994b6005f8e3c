package pipeline

import (
	"container/list"
	"sync"

	"github.com/tidemark-im/tidemark/watermark"
)

// tailCache keeps the messages of records that were read lately, bounded by
// bytes. It is shared by all partitions.
type tailCache struct {
	budget  int64
	metrics *tailMetrics

	mu    sync.Mutex
	bytes int64
	order *list.List // of *tailCached, latest use first
	index map[tailPlace]*list.Element
}

// tailPlace is a record's place on the sequenced log.
type tailPlace struct {
	partition int32
	offset    int64
}

type tailCached struct {
	place    tailPlace
	messages []watermark.Message
	bytes    int64
}

func newTailCache(budget int64, m *tailMetrics) *tailCache {
	return &tailCache{budget: budget, metrics: m, order: list.New(), index: make(map[tailPlace]*list.Element)}
}

// put keeps messages, which must not be changed any more, unless they alone are
// beyond the budget.
func (c *tailCache) put(at tailPlace, messages []watermark.Message) {
	size := messagesSize(messages)
	if len(messages) == 0 || size > c.budget {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.index[at]; ok {
		c.removeLocked(el)
	}
	c.index[at] = c.order.PushFront(&tailCached{at, messages, size})
	c.bytes += size
	for c.bytes > c.budget {
		c.removeLocked(c.order.Back())
	}
	c.metrics.cacheBytes.Set(float64(c.bytes))
}

// get gives the messages of a record; ok is false when they are not kept.
func (c *tailCache) get(at tailPlace) (messages []watermark.Message, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.index[at]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(el)
	return el.Value.(*tailCached).messages, true
}

func (c *tailCache) removeLocked(el *list.Element) {
	e := c.order.Remove(el).(*tailCached)
	delete(c.index, e.place)
	c.bytes -= e.bytes
}

// messagesSize estimates what messages cost in memory.
func messagesSize(messages []watermark.Message) int64 {
	var n int64
	for i := range messages {
		m := &messages[i]
		n += 256 + int64(len(m.Body)+len(m.Sender)+len(m.ClientID)+len(m.Kind)+len(m.Device))
		for _, u := range m.Mentions {
			n += 16 + int64(len(u))
		}
		for k, v := range m.Attributes {
			n += 64 + int64(len(k)+len(v))
		}
	}
	return n
}
