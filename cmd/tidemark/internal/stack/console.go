package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/tidemark-im/tidemark/console"
	"github.com/tidemark-im/tidemark/internal/access"
)

// gatewayPath is where a gateway takes WebSockets.
const gatewayPath = "/connection/websocket"

// console gives the page; nil where it is not served.
func (s *Stack) console() (http.Handler, error) {
	conf := s.cfg.Sync.Console
	if !conf.Enabled {
		return nil, nil
	}
	live, err := s.consoleLive()
	if err != nil {
		return nil, fmt.Errorf("sync.console.gateway: %w", err)
	}
	c, err := console.New(console.Config{
		Gatherer: s.cfg.Registry, Report: s.cfg.Health.Report, Processes: conf.Processes,
		Admit: s.operators(), Live: live, Logger: s.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return c.Handler(), nil
}

// ConsoleURL gives the URL of the console; empty when it is not served.
func (s *Stack) ConsoleURL() string {
	if s.syncListener == nil || !s.cfg.Sync.Console.Enabled {
		return ""
	}
	return s.SyncURL() + console.Path
}

// consoleLive gives the way to the gateway: the page reaches nothing but the
// port that it came from. nil: there is no gateway.
func (s *Stack) consoleLive() (http.Handler, error) {
	if s.cfg.Sync.Console.Gateway == "" {
		if !s.runs(Gateway) {
			return nil, nil
		}
		gateway := s.gateway.Handler()
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = gatewayPath, ""
			gateway.ServeHTTP(w, r)
		}), nil
	}
	to, err := url.Parse(s.cfg.Sync.Console.Gateway)
	if err != nil {
		return nil, err
	}
	to.Scheme = strings.Replace(to.Scheme, "ws", "http", 1)
	return &httputil.ReverseProxy{
		// The gateway compares the browser's Origin with the host that was asked
		// for, which is the console's.
		Rewrite: func(p *httputil.ProxyRequest) {
			host := p.In.Host
			p.Out.URL, p.Out.Host = new(*to), host
			p.SetXForwarded()
		},
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			s.cfg.Logger.Warn("the console cannot reach the gateway", "url", s.cfg.Sync.Console.Gateway, "error", err)
			http.Error(w, "the gateway cannot be reached", http.StatusBadGateway)
		},
	}, nil
}

// operators tells the console who is an administrator; nil when nobody is asked.
func (s *Stack) operators() func(context.Context, string) error {
	if s.verifier == nil {
		return nil
	}
	return func(ctx context.Context, token string) error {
		c, err := s.verifier.Verify(ctx, token)
		switch {
		case err == nil && c.Admin:
			return nil
		case err == nil:
			return fmt.Errorf("%w: the token is good, but has not the scope %s", console.ErrNotAdmin, s.cfg.Auth.AdminScope)
		case errors.Is(err, access.ErrMissing), errors.Is(err, access.ErrInvalid), errors.Is(err, access.ErrExpired):
			return fmt.Errorf("%w: %w", console.ErrNoToken, err)
		}
		return err
	}
}

// showServing lets readiness tell whether a server takes calls.
func (s *Stack) showServing(r Role, p *part) {
	var state atomic.Pointer[string]
	set := func(why string) { state.Store(&why) }
	set("it has not begun to serve")
	s.cfg.Health.Add(string(r), func() error {
		if why := *state.Load(); why != "" {
			return errors.New(why)
		}
		return nil
	})
	run := p.run
	p.run = func(ctx context.Context) error {
		set("")
		stop := context.AfterFunc(ctx, func() { set("it is stopping") })
		defer stop()
		defer set("it is stopping")
		return run(ctx)
	}
}
