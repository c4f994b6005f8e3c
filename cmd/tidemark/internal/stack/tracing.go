package stack

import (
	"context"
	"time"

	"github.com/tidemark-im/tidemark/internal/tracing"
)

// openTracing begins to send spans, where that is configured.
func (s *Stack) openTracing(ctx context.Context) (err error) {
	roles := make([]string, len(s.cfg.Roles))
	for i, r := range s.cfg.Roles {
		roles[i] = string(r)
	}
	s.tracing, err = tracing.Start(ctx, tracing.Config{
		Endpoint: s.cfg.Tracing.Endpoint, Ratio: s.cfg.Tracing.Ratio, Roles: roles, Version: s.cfg.Version, Logger: s.cfg.Logger,
	})
	if err != nil || s.tracing == nil {
		return err
	}
	s.kafka.Tracer = s.tracing.Tracer()
	s.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// What a collector that is away does not take is no fault of the roles.
		if err := s.tracing.Close(ctx); err != nil {
			s.cfg.Logger.Warn("the last spans are lost", "err", err)
		}
		return nil
	})
	return nil
}
