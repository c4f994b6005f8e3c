package syncapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	connectcors "connectrpc.com/cors"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/rs/cors"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
)

const (
	maxHeader      = 64 << 10 // bytes of its headers
	headerTimeout  = 5 * time.Second
	requestTimeout = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	corsMaxAge     = 2 * time.Hour // the longest that browsers keep to

	// Answers below it go out as they are: packing what fits into one packet costs
	// the server more than it saves anybody.
	compressFrom      = 1024
	defaultMaxRequest = 4 << 20  // bytes of one request, unpacked
	maxProbe          = 64 << 10 // of one for health or reflection
)

// healthState answers health checks: serving, until Serve begins to stop.
type healthState struct{ stopping atomic.Bool }

func newHealthState() *healthState { return new(healthState) }

// Check implements grpchealth.Checker.
func (h *healthState) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && req.Service != tidemarkv1connect.SyncServiceName {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %q", req.Service))
	}
	if h.stopping.Load() {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// Handler serves the service, gRPC health and gRPC reflection (v1 and
// v1alpha), each over gRPC, gRPC-Web and Connect. gRPC needs HTTP/2. What is
// none of them is answered with an error in JSON. Health and reflection say
// nothing of anybody, and need no token. Pages of the Origins may call all of it.
func (s *Service) Handler() http.Handler {
	limit := connect.WithReadMaxBytes(maxProbe)
	mux := http.NewServeMux()
	_, service := tidemarkv1connect.NewSyncServiceHandler(s, connect.WithReadMaxBytes(s.cfg.MaxRequest), codecs(),
		packing(), connect.WithCompressMinBytes(compressFrom),
		connect.WithInterceptors(s.mapErrors(), s.authorize()))
	service = s.guard(service)
	methods := v1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		mux.Handle("/"+tidemarkv1connect.SyncServiceName+"/"+string(methods.Get(i).Name()), service)
	}
	mux.Handle(grpchealth.NewHandler(s.health, limit))
	if !s.cfg.NoReflection {
		reflector := grpcreflect.NewStaticReflector(tidemarkv1connect.SyncServiceName, grpchealth.HealthV1ServiceName)
		mux.Handle(grpcreflect.NewHandlerV1(reflector, limit))
		mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, limit))
	}
	if s.cfg.Console != nil {
		mux.Handle("/console/", s.cfg.Console)
		mux.Handle("/console", s.cfg.Console)
	}
	mux.Handle("/", unknownPath())
	return s.crossOrigin(mux)
}

// crossOrigin tells browsers which pages may call. It keeps nobody else out:
// that is what tokens are for.
func (s *Service) crossOrigin(h http.Handler) http.Handler {
	if len(s.cfg.Origins) == 0 {
		return h
	}
	return cors.New(cors.Options{
		AllowedOrigins: s.cfg.Origins,
		AllowedMethods: connectcors.AllowedMethods(),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "Authorization"),
		ExposedHeaders: append(connectcors.ExposedHeaders(), "Retry-After"),
		MaxAge:         int(corsMaxAge.Seconds()),
	}).Handler(h)
}

// checkOrigin refuses what no browser ever sends as Origin: a path, a wildcard
// within a name, a scheme that pages do not have.
func checkOrigin(s string) error {
	if s == "*" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.ContainsRune(s, '*') || s != u.Scheme+"://"+strings.ToLower(u.Host) {
		return fmt.Errorf("origin %q is not * or scheme://host[:port] in lower case", s)
	}
	return nil
}

// unknownPath answers in the protocol that was spoken, and in JSON where that
// is none.
func unknownPath() http.Handler {
	w := connect.NewErrorWriter()
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && w.IsSupported(r) {
			_ = w.Write(rw, r, (&refusal{code: connect.CodeUnimplemented, reason: reasonUnknownMethod, text: "no such method"}).connectError())
			return
		}
		// What is not spoken gets JSON. An error means that the client is gone.
		_ = w.Write(rw, plain(r), (&refusal{code: connect.CodeNotFound, reason: reasonUnknownPath, text: "no such path"}).connectError())
	})
}

// Serve serves Handler on ln, HTTP/1.1 and HTTP/2, with or without TLS, and runs
// Run, until ctx is done. Then health says "not serving", no more calls are
// taken, those under way may finish within DrainTimeout, and the marks that
// they made are appended. It closes ln and returns nil after a clean stop.
func (s *Service) Serve(ctx context.Context, ln net.Listener) error {
	base := context.WithoutCancel(ctx)
	runCtx, stopRun := context.WithCancel(base)
	defer stopRun()
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(runCtx) })

	handler := s.Handler()
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(handler)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true) // when ln speaks TLS
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		// It also ends calls that are still being served when it is over, so it
		// must leave time for an answer.
		ReadTimeout:    requestTimeout + s.cfg.AnswerTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	wg.Go(func() { served <- server.Serve(ln) })

	var fault error
	select {
	case err := <-served:
		fault = fmt.Errorf("syncapi: serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
		s.health.stopping.Store(true)
		drainCtx, cancel := context.WithTimeout(base, s.cfg.DrainTimeout)
		defer cancel()
		if err := server.Shutdown(drainCtx); err != nil {
			fault = errors.Join(fmt.Errorf("syncapi: calls did not finish within %s: %w", s.cfg.DrainTimeout, err), server.Close())
		}
	}
	stopRun()
	wg.Wait()
	return fault
}

// plain is r as of a client that speaks none of the protocols.
func plain(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	out.Header.Del("Content-Type")
	return out
}
