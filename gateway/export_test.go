package gateway

// LimitWaiting bounds the bytes of what waits while members of crowds are read.
func (g *Gateway) LimitWaiting(n int64) { g.crowds.most.Store(n) }

// Waiting are the bytes of it.
func (g *Gateway) Waiting() int64 { return g.crowds.waits.Load() }

// What a node holds at most.
const (
	MaxCalls  = maxCalls
	MaxCrowds = maxCrowds
)
