package syncapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// retryAfter is when a call that met a passing fault should be tried again.
const retryAfter = time.Second

// refusal is an error that was made for the caller to read. Its reason is one
// word, for programs.
type refusal struct {
	code   connect.Code
	reason string
	text   string
	retry  time.Duration
	fields []*errdetails.BadRequest_FieldViolation
}

func (r *refusal) Error() string { return r.text }

// Unwrap lets connect.CodeOf tell the code also when the service is called
// without HTTP in between.
func (r *refusal) Unwrap() error { return r.connectError() }

func refuse(code connect.Code, reason, format string, args ...any) error {
	return &refusal{code: code, reason: reason, text: fmt.Sprintf(format, args...)}
}

// invalid is a field of a request that breaks its rule.
func invalid(field, format string, args ...any) error {
	return inField(field, refuse(connect.CodeInvalidArgument, watermark.ReasonInvalid, format, args...))
}

var errNotMember = errors.New("the user's window in this conversation is closed")

func isUnknown(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.reason == reasonUnknown
}

// unavailable is a passing lack; text must say nothing of what lies behind.
func unavailable(reason, text string) error {
	return &refusal{code: connect.CodeUnavailable, reason: reason, text: text, retry: retryAfter}
}

// errUnknown answers for a conversation that is not there and for one that the
// user may not see alike, so that nobody can find out which conversations are.
func errUnknown(conv watermark.ConversationID) error {
	return refuse(connect.CodeNotFound, reasonUnknown, "no conversation %s for this user", conv)
}

// refusalOf is the one place where an error becomes what the caller is told.
// Errors that were not made for callers keep their text to themselves; internal
// tells that such a one is to be logged.
func refusalOf(ctx context.Context, err error) (r *refusal, internal bool) {
	if r, ok := errors.AsType[*refusal](err); ok {
		if fields := violationsOf(err); len(fields) > 0 {
			r = &refusal{code: r.code, reason: r.reason, text: err.Error(), retry: r.retry, fields: fields}
		}
		return r, false
	}
	// A store's own time limit is not the caller's: only the call's context
	// tells whose time is up.
	if cause := ctx.Err(); cause != nil {
		if errors.Is(cause, context.DeadlineExceeded) {
			return &refusal{code: connect.CodeDeadlineExceeded, reason: reasonDeadline, text: "the call's deadline has passed"}, false
		}
		return &refusal{code: connect.CodeCanceled, reason: reasonCanceled, text: "the call was canceled"}, false
	}
	if errors.Is(err, watermark.ErrBadID) || errors.Is(err, watermark.ErrRange) {
		return &refusal{code: connect.CodeInvalidArgument, reason: watermark.ReasonInvalid, text: err.Error(), fields: violationsOf(err)}, false
	}
	switch fault.ClassOf(err) {
	case fault.Poison:
		reason := fault.ReasonOf(err)
		return &refusal{code: codeOf(reason), reason: reason, text: err.Error(), fields: violationsOf(err)}, false
	case fault.Fatal:
		return &refusal{code: connect.CodeInternal, reason: reasonInternal, text: "internal error"}, true
	default:
		return &refusal{
			code: connect.CodeUnavailable, reason: reasonStore,
			text: "a store cannot be reached at the moment", retry: retryAfter,
		}, true
	}
}

// codeOf sorts the reasons for which an owner, or the check before it, refuses.
func codeOf(reason string) connect.Code {
	switch reason {
	case watermark.ReasonNotMember, watermark.ReasonNotParticipant:
		return connect.CodePermissionDenied
	case watermark.ReasonIDReused:
		return connect.CodeAlreadyExists
	case watermark.ReasonInvalid, watermark.ReasonTooLarge, watermark.ReasonUndecodable:
		return connect.CodeInvalidArgument
	default:
		return connect.CodeFailedPrecondition
	}
}

// connectError makes r a Connect error, with its reason, its fields and the time
// to try again as details, and the latter as a header too.
func (r *refusal) connectError() *connect.Error {
	out := connect.NewError(r.code, errors.New(r.text))
	details := []proto.Message{&errdetails.ErrorInfo{Reason: r.reason, Domain: ErrorDomain}}
	if len(r.fields) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: r.fields})
	}
	if r.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
		out.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.retry.Seconds()))))
	}
	if r.code == connect.CodeUnauthenticated {
		out.Meta().Set("Www-Authenticate", "Bearer")
	}
	for _, d := range details {
		// It fails only for what cannot be encoded; text of others was cut to
		// UTF-8 when it was taken in.
		if detail, err := connect.NewErrorDetail(d); err == nil {
			out.AddDetail(detail)
		}
	}
	return out
}

func (r *refusal) entry() *v1.EntryError {
	return &v1.EntryError{Code: r.code.String(), Reason: r.reason, Message: r.text, RetryAfterMs: r.retry.Milliseconds()}
}

// entryError is what the entry of a call is told that fails alone.
func (s *Service) entryError(ctx context.Context, err error) *v1.EntryError {
	r, internal := refusalOf(ctx, err)
	if internal {
		s.logFault("entry", err)
	}
	return r.entry()
}

// logFault logs an error whose journey ends here, at most one a second.
func (s *Service) logFault(procedure string, err error) {
	if s.faults.allow(s.cfg.Now()) {
		s.log.Error("call failed", "procedure", procedure, "class", fault.ClassOf(err).String(), "error", err)
	}
}

// mapErrors is the interceptor through which every call's error passes.
func (s *Service) mapErrors() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			procedure := req.Spec().Procedure
			method := methodOf(procedure)
			start := time.Now()
			res, err := next(ctx, req)
			code := "ok"
			if err != nil {
				r, internal := refusalOf(ctx, err)
				if internal {
					s.logFault(procedure, err)
				}
				err, code = r.connectError(), r.code.String()
			}
			s.metrics.calls.WithLabelValues(method, code).Inc()
			s.metrics.duration.WithLabelValues(method).Observe(time.Since(start).Seconds())
			if err != nil {
				return nil, err
			}
			return res, nil
		}
	}
}
