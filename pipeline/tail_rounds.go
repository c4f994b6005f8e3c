package pipeline

import (
	"context"
	"sync"
)

// rounds coalesces questions without ever giving an answer that is older than
// its question: who comes while a round is under way is not served by it, but
// by the next one, which begins when this one is done. However many ask at
// once, at most two rounds answer them all.
type rounds[K comparable, A any] struct {
	// ask answers for all keys; it may leave keys out.
	ask func(keys []K, round int64) (map[K]A, error)
	// spawn runs f on a goroutine of the owner; it fails once the owner is
	// closing.
	spawn func(f func()) error

	mu      sync.Mutex
	running bool
	last    int64 // number of the newest round that has begun
	next    *round[K, A]
}

type round[K comparable, A any] struct {
	keys    map[K]struct{}
	done    chan struct{}
	answers map[K]A
	err     error
}

// get asks about keys and waits for a round that begins after the call. The
// map is shared: it may answer for more keys and must not be changed.
func (r *rounds[K, A]) get(ctx context.Context, keys ...K) (map[K]A, error) {
	mine, err := r.join(keys)
	if err != nil {
		return nil, err
	}
	select {
	case <-mine.done:
		return mine.answers, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *rounds[K, A]) join(keys []K) (*round[K, A], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &round[K, A]{keys: make(map[K]struct{}, len(keys)), done: make(chan struct{})}
	}
	mine := r.next
	for _, k := range keys {
		mine.keys[k] = struct{}{}
	}
	if !r.running {
		if err := r.spawn(r.run); err != nil {
			return nil, err
		}
		r.running = true
	}
	return mine, nil
}

func (r *rounds[K, A]) run() {
	for {
		mine, number := r.begin()
		if mine == nil {
			return
		}
		keys := make([]K, 0, len(mine.keys))
		for k := range mine.keys {
			keys = append(keys, k)
		}
		mine.answers, mine.err = r.ask(keys, number)
		close(mine.done)
	}
}

func (r *rounds[K, A]) begin() (*round[K, A], int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.next
	r.next = nil
	if mine == nil {
		r.running = false
		return nil, 0
	}
	r.last++
	return mine, r.last
}
