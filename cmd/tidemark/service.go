package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

// service is a stack with the operator's port beside it.
type service struct {
	stack *stack.Stack
	admin net.Listener // nil: none

	stopAdmin  context.CancelFunc
	adminEnded chan struct{} // closed when it has, adminErr is set then
	adminErr   error
	ran        bool // and told what became of the port
}

// openService takes every port and connects to everything; no role runs yet. The
// operator's port answers from the start: what is waited for must be seen.
func openService(ctx context.Context, cfg config.Config, roles []stack.Role, logger *slog.Logger, level *slog.LevelVar) (_ *service, err error) {
	s := &service{stopAdmin: func() {}, adminEnded: make(chan struct{})}
	registry, health := telemetry.NewRegistry(), &telemetry.Health{}
	if cfg.Admin.Listen != "" {
		var lc net.ListenConfig
		if s.admin, err = lc.Listen(ctx, "tcp", cfg.Admin.Listen); err != nil {
			return nil, fmt.Errorf("admin.listen: %w", err)
		}
		names := make([]string, len(roles))
		for i, r := range roles {
			names[i] = string(r)
		}
		handler, err := telemetry.AdminHandler(telemetry.AdminConfig{
			Registry: registry, Health: health, Level: level, Version: thisBuild().String(), Roles: names, Debug: cfg.Admin.Debugs(),
		})
		if err != nil {
			return nil, errors.Join(err, s.admin.Close())
		}
		s.serveAdmin(context.WithoutCancel(ctx), handler)
	}
	s.stack, err = stack.Open(ctx, stack.Config{Config: cfg, Roles: roles, Logger: logger, Registry: registry, Health: health, Version: thisBuild().String()})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *service) serveAdmin(ctx context.Context, h http.Handler) {
	ctx, s.stopAdmin = context.WithCancel(ctx)
	go func() {
		defer close(s.adminEnded)
		s.adminErr = telemetry.Serve(ctx, s.admin, h, time.Second)
	}()
}

// run runs the roles until ctx ends or one of them fails. The operator's port
// stays open until they have stopped, so that draining can be watched.
func (s *service) run(ctx context.Context) error {
	if s.admin == nil {
		return s.stack.Run(ctx)
	}
	roles, stopRoles := context.WithCancel(ctx)
	defer stopRoles()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.adminEnded:
			stopRoles()
		case <-roles.Done():
		}
	}()
	s.ran = true
	err := s.stack.Run(roles)
	stopRoles()
	<-watched
	return errors.Join(err, s.endAdmin())
}

func (s *service) endAdmin() error {
	if s.admin == nil {
		return nil
	}
	s.stopAdmin()
	<-s.adminEnded
	return s.adminErr
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
	if err := s.endAdmin(); err != nil && !s.ran {
		errs = append(errs, err)
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
	add("console", s.stack.ConsoleURL())
	if s.admin != nil {
		add("admin", "http://"+s.admin.Addr().String())
	}
	return out
}

type address struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}
