package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

// service is a stack with the operator's port beside it.
type service struct {
	stack    *stack.Stack
	admin    net.Listener // nil: none
	runAdmin func(context.Context) error
}

// openService takes every port and connects to everything; nothing runs yet.
func openService(ctx context.Context, cfg config.Config, roles []stack.Role, logger *slog.Logger) (_ *service, err error) {
	s := &service{}
	registry, health := telemetry.NewRegistry(), &telemetry.Health{}
	if cfg.Admin.Listen != "" {
		var lc net.ListenConfig
		if s.admin, err = lc.Listen(ctx, "tcp", cfg.Admin.Listen); err != nil {
			return nil, fmt.Errorf("admin.listen: %w", err)
		}
		s.runAdmin = func(ctx context.Context) error {
			return telemetry.Serve(ctx, s.admin, telemetry.AdminHandler(registry, health), time.Second)
		}
	}
	s.stack, err = stack.Open(ctx, stack.Config{Config: cfg, Roles: roles, Logger: logger, Registry: registry, Health: health})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// run runs the roles until ctx ends or one of them fails. The operator's port
// stays open until they have stopped, so that draining can be watched.
func (s *service) run(ctx context.Context) error {
	if s.admin == nil {
		return s.stack.Run(ctx)
	}
	roles, stopRoles := context.WithCancel(ctx)
	defer stopRoles()
	admin, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAdmin()
	ended := make(chan error, 1)
	go func() {
		defer stopRoles()
		ended <- s.runAdmin(admin)
	}()
	err := s.stack.Run(roles)
	stopAdmin()
	return errors.Join(err, <-ended)
}

// runReady is run, and calls ready once every role works. An error of ready
// stops the roles. Told to stop before that, it gives errInterrupted.
func (s *service) runReady(parent context.Context, ready func() error) error {
	ctx, stop := context.WithCancel(parent)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- s.run(ctx)
	}()
	err := s.stack.Health().Await(ctx)
	switch {
	case err == nil:
		err = ready()
	case ctx.Err() != nil:
		// Told to stop before it was ready, or what run says is why.
		if err = <-ended; err == nil {
			err = interrupted(parent, context.Cause(ctx))
		}
		return err
	}
	if err != nil {
		stop()
	}
	return errors.Join(err, <-ended)
}

func (s *service) close() error {
	var errs []error
	if s.stack != nil {
		errs = append(errs, s.stack.Close())
	}
	if s.admin != nil {
		if err := s.admin.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// addresses lists what s listens on, by name.
func (s *service) addresses() []address {
	var out []address
	add := func(name, url string) {
		if url != "" {
			out = append(out, address{name, url})
		}
	}
	add("sync", s.stack.SyncURL())
	add("gateway", s.stack.GatewayURL())
	if s.admin != nil {
		add("admin", "http://"+s.admin.Addr().String())
	}
	return out
}

type address struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}
