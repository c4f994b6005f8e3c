package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// ErrNotAdmin is returned by Config.Admin, wrapped, for a good token that is not
// an administrator's.
var ErrNotAdmin = errors.New("administrators only")

// maxAsked bounds the users of one question for presence.
const maxAsked = 1000

// admin implements GatewayService.
type admin struct{ g *Gateway }

func adminOptions() []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithReadMaxBytes(1 << 20)}
}

// allowed tells whether the caller may.
func (a admin) allowed(ctx context.Context) error {
	if a.g.cfg.Admin == nil {
		return nil
	}
	info, _ := connect.CallInfoForHandlerContext(ctx)
	token, _ := strings.CutPrefix(info.RequestHeader().Get("Authorization"), "Bearer ")
	switch err := a.g.cfg.Admin(ctx, token); {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotAdmin):
		return connect.NewError(connect.CodePermissionDenied, ErrNotAdmin)
	case errors.Is(err, ErrRefused), errors.Is(err, ErrExpired):
		return connect.NewError(connect.CodeUnauthenticated, err)
	default:
		a.g.cfg.Logger.Error("authentication failed", "error", err)
		return connect.NewError(connect.CodeUnavailable, errors.New("it cannot be told now who calls"))
	}
}

// Presence implements GatewayService.
func (a admin) Presence(ctx context.Context, req *tidemarkv1.PresenceRequest) (*tidemarkv1.PresenceResponse, error) {
	if err := a.allowed(ctx); err != nil {
		return nil, err
	}
	if n := len(req.GetUsers()); n > maxAsked {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("users: %d, at most %d are allowed", n, maxAsked))
	}
	users := make([]watermark.UserID, len(req.GetUsers()))
	for i, u := range req.GetUsers() {
		var err error
		if users[i], err = watermark.ParseUserID(u); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("users: %w", err))
		}
	}
	where, err := a.g.UserPresence(ctx, users)
	switch {
	case errors.Is(err, errNoPresence):
		return nil, connect.NewError(connect.CodeUnimplemented, err)
	case err != nil:
		a.g.cfg.Logger.Warn("presence not read", "error", err)
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("presence cannot be read now"))
	}
	res := &tidemarkv1.PresenceResponse{Users: make([]*tidemarkv1.UserPresence, len(users))}
	for i, p := range where {
		slices.Sort(p.Devices)
		res.Users[i] = &tidemarkv1.UserPresence{User: string(users[i]), Online: len(p.Devices) > 0, Devices: p.Devices}
		if !p.LastSeen.IsZero() {
			res.Users[i].LastSeenMs = p.LastSeen.UnixMilli()
		}
	}
	return res, nil
}

// DisconnectUser implements GatewayService.
func (a admin) DisconnectUser(ctx context.Context, req *tidemarkv1.DisconnectUserRequest) (*tidemarkv1.DisconnectUserResponse, error) {
	if err := a.allowed(ctx); err != nil {
		return nil, err
	}
	user, err := watermark.ParseUserID(req.GetUser())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("user: %w", err))
	}
	if len(req.GetDevice()) > watermark.MaxIDLen {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("device: %d bytes, at most %d are allowed", len(req.GetDevice()), watermark.MaxIDLen))
	}
	if err := a.g.DisconnectUser(user, req.GetDevice(), req.GetMayReturn()); err != nil {
		a.g.cfg.Logger.Warn("nodes not told to end connections", "user", user, "error", err)
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("not all nodes could be told"))
	}
	return &tidemarkv1.DisconnectUserResponse{}, nil
}
