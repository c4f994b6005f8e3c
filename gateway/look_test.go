package gateway_test

import (
	"fmt"
	"testing"
)

// hints gives the highest seq that each event without a kind speaks of.
func (l *listener) hints() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []int64{}
	for _, e := range l.events {
		if e.GetKind() == nil {
			out = append(out, e.GetMaxSeq())
		}
	}
	return out
}

// Between the moment at which a client asks what is new and the one at which it
// has its seat messages may pass. Who came first must look; for who comes later
// the node knows.
func TestWhoIsSeatedIsToldWhatItMayHaveMissed(t *testing.T) {
	w := newWorld()
	w.put(crowd, member("A", 0, 0), member("B", 0, 0), member("C", 0, 0))
	n := withWorld(t, w)
	wait := func(l *listener, want ...int64) {
		t.Helper()
		eventually(t, "hints", func() error {
			if got := l.hints(); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
	}
	a := listen(t, n.url, "A", "", false)
	a.listens(t, 2)
	wait(a, 0)
	b := listen(t, n.url, "B", "", true)
	b.listens(t, 2)
	deliver(t, n.Gateway, push(7, 0))
	b.gets(t, "a member", 7)
	wait(b) // nothing had come
	c := listen(t, n.url, "C", "", true)
	wait(c, 7)
}
