package syncapi

import (
	"sync"
	"time"
)

// throttle lets one event a second pass. Its zero value is ready.
type throttle struct {
	mu   sync.Mutex
	next time.Time
}

func (t *throttle) allow(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.next) {
		return false
	}
	t.next = now.Add(time.Second)
	return true
}
