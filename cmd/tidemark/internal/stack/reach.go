package stack

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// sayEvery is how often it is said that a service is still waited for.
const sayEvery = 10 * time.Second

// reach calls check until a service has answered. Roles wait for one that
// cannot be reached, as they do while they run: services restart more often
// than workers, and all of a machine start at once. Whoever has no role wants
// to know at once. What does not heal by waiting is returned.
func (s *Stack) reach(ctx context.Context, what string, check func(context.Context) error) error {
	if len(s.cfg.Roles) == 0 {
		return check(ctx)
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, 2*time.Second
	var said time.Time
	for tries := 1; ; tries++ {
		err := check(ctx)
		if err == nil || fault.ClassOf(err) != fault.Transient {
			return err
		}
		if time.Since(said) >= sayEvery {
			said = time.Now()
			s.cfg.Logger.Warn(what+" is not reachable, trying again", "tries", tries, "reason", fault.ReasonOf(err), "err", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pauses.NextBackOff()):
		}
	}
}
