package syncapi

import (
	"context"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// party is a field of a request that names a user who acts.
type party struct {
	field string
	value *string
	// deployment: left empty by an administrator it means the deployment itself.
	deployment bool
}

// rule says who may call a method.
type rule struct {
	// admin: administrators only.
	admin bool
	// parties gives the fields that must name the caller, or nobody, which
	// means the caller; administrators may name anybody.
	parties func(req any) []party
}

// rules has every method. One that is missing is for administrators only, so
// that a new one is closed until somebody has thought about it.
var rules = map[string]rule{
	"Send": {parties: func(req any) []party {
		m := req.(*v1.SendRequest).GetMessage()
		if m == nil {
			return nil // refused later
		}
		return []party{{field: "message.sender", value: &m.Sender}}
	}},
	"Pull":                 userIs(func(r *v1.PullRequest) *string { return &r.User }),
	"SyncConversations":    userIs(func(r *v1.SyncConversationsRequest) *string { return &r.User }),
	"WhoHasRead":           userIs(func(r *v1.WhoHasReadRequest) *string { return &r.User }),
	"GetWatermarks":        userIs(func(r *v1.GetWatermarksRequest) *string { return &r.User }),
	"SetReadSeq":           userIs(func(r *v1.SetReadSeqRequest) *string { return &r.User }),
	"MarkMessagesRead":     userIs(func(r *v1.MarkMessagesReadRequest) *string { return &r.User }),
	"MarkConversationRead": userIs(func(r *v1.MarkConversationReadRequest) *string { return &r.User }),
	"Clear":                userIs(func(r *v1.ClearRequest) *string { return &r.User }),

	"RegisterDevice":   userIs(func(r *v1.RegisterDeviceRequest) *string { return &r.User }),
	"UnregisterDevice": userIs(func(r *v1.UnregisterDeviceRequest) *string { return &r.User }),

	"SetConversationAttributes": userIs(func(r *v1.SetConversationAttributesRequest) *string { return &r.User }),

	"Leave": {parties: func(req any) []party {
		r := req.(*v1.LeaveRequest)
		return []party{{field: "user", value: &r.User}, {field: "actor", value: &r.Actor, deployment: true}}
	}},
	"Revoke": {parties: func(req any) []party {
		return []party{{field: "actor", value: &req.(*v1.RevokeRequest).Actor, deployment: true}}
	}},
	"Join":            {admin: true},
	"RaiseMinSeq":     {admin: true},
	"SetUnreadPolicy": {admin: true},
}

// userIs is the rule of a request whose user acts.
func userIs[R any](user func(*R) *string) rule {
	return rule{parties: func(req any) []party { return []party{{field: "user", value: user(req.(*R))}} }}
}

// permit decides by the request alone whether caller may make it, so that the
// answer tells nothing of what is stored; and fills in the caller where the
// request names nobody.
func permit(method string, caller Caller, req any) error {
	r, known := rules[method]
	if (r.admin || !known) && !caller.Admin {
		return refuse(connect.CodePermissionDenied, reasonAdminRequired, "%s needs the administrator's scope", method)
	}
	if r.parties == nil {
		return nil
	}
	for _, p := range r.parties(req) {
		switch {
		case *p.value == "" && !(p.deployment && caller.Admin):
			*p.value = string(caller.User)
		case *p.value != string(caller.User) && !caller.Admin:
			return refuse(connect.CodePermissionDenied, reasonOtherUser, "%s: the token speaks for another user", p.field)
		}
	}
	return nil
}

// authorize is the interceptor that every decoded request passes.
func (s *Service) authorize() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if err := decodeFault(req.Any()); err != nil {
				return nil, err
			}
			caller := s.callerOf(ctx)
			if err := permit(methodOf(req.Spec().Procedure), caller, req.Any()); err != nil {
				return nil, err
			}
			res, err := next(ctx, req)
			if m, ok := answerOf(res); ok && !caller.Admin {
				s.limits.spend(caller.User, proto.Size(m))
			}
			return res, err
		}
	}
}

func answerOf(res connect.AnyResponse) (proto.Message, bool) {
	if res == nil {
		return nil, false
	}
	m, ok := res.Any().(proto.Message)
	return m, ok
}

// maySend refuses a user who has no open window: at once, where the owner's
// refusal would reach nobody unless it is waited for. A group that is not there
// and one that the user never was in are answered alike. Who is trusted is left
// to the owner.
func (s *Service) maySend(ctx context.Context, conv watermark.ConversationID, sender watermark.UserID) error {
	if s.callerOf(ctx).Admin {
		return nil
	}
	v, err := s.lookOne(ctx, sender, conv)
	switch {
	case isUnknown(err) && conv.Single() && conv.Admits(sender):
		return nil // its first message
	case err != nil:
		return err
	case !v.Member.Open():
		return fault.New(fault.Poison, watermark.ReasonNotMember, errNotMember)
	}
	return nil
}

// mayCommand refuses a user's command in a conversation that the user cannot
// see: the owner's answer would tell that it is there.
func (s *Service) mayCommand(ctx context.Context, in watermark.Input) error {
	if s.callerOf(ctx).Admin || !slices.Contains([]watermark.Act{watermark.ActLeave, watermark.ActClear, watermark.ActSetAttributes}, in.Act) {
		return nil
	}
	_, err := s.lookOne(ctx, in.User, in.Conversation)
	return err
}

// boundsFor gives the bounds of a conversation that the caller is told after a
// command: a user's own, as Pull gives them, so that whose window is closed does
// not learn how far the conversation went on.
func (s *Service) boundsFor(ctx context.Context, a watermark.Answer, m *watermark.Member) (first, last watermark.Seq) {
	first, last = max(a.Min, 1), a.Seq
	if s.callerOf(ctx).Admin || m == nil {
		return first, last
	}
	own := sight{View: watermark.View{Member: *m}, visible: m.Visible(a.Min, a.Seq)}
	own.Min, own.Max = a.Min, a.Seq
	return own.edges()
}
