package stack

import (
	"context"
	"time"
)

// Part is a part of a process, for tests.
type Part struct {
	Name string
	Run  func(context.Context) error
}

// RunParts runs parts as a stack does.
func RunParts(ctx context.Context, timeout time.Duration, parts ...Part) error {
	var out []*part
	for _, p := range parts {
		out = append(out, newPart(p.Name, p.Run))
	}
	return runParts(ctx, out, timeout)
}
