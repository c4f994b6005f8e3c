package syncapi

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Devices keeps where users can be notified.
type Devices interface {
	// PutDevice registers a device: its token is nobody else's from then on.
	PutDevice(ctx context.Context, user watermark.UserID, d watermark.Device) error
	// DropDevice ends the registration of user under id, whatever its token where
	// that is empty, and tells whether there was one.
	DropDevice(ctx context.Context, user watermark.UserID, id, token string) (dropped bool, err error)
}

// platforms are those that a device can be of.
var platforms = map[v1.Platform]watermark.Platform{v1.Platform_PLATFORM_FCM: watermark.FCM, v1.Platform_PLATFORM_APNS: watermark.APNs}

// RegisterDevice says where a user can be notified while not connected.
func (s *Service) RegisterDevice(ctx context.Context, req *v1.RegisterDeviceRequest) (*v1.RegisterDeviceResponse, error) {
	user, err := userIn(req.GetUser())
	d := watermark.Device{ID: req.GetDevice(), Token: req.GetToken(), RegisteredAt: s.cfg.Now().UnixMilli()}
	platform, known := platforms[req.GetPlatform()]
	d.Platform = platform
	var errs []error
	if !known {
		errs = append(errs, inField("platform", fmt.Errorf("%s is none of PLATFORM_FCM, PLATFORM_APNS", req.GetPlatform())))
	}
	errs = append(errs, err, inField("device", watermark.CheckKey("device", d.ID)), inField("token", d.CheckToken()))
	if err := errors.Join(errs...); err != nil {
		return nil, fault.New(fault.Poison, watermark.ReasonInvalid, err)
	}
	if err := s.cfg.Devices.PutDevice(ctx, user, d); err != nil {
		return nil, err
	}
	return &v1.RegisterDeviceResponse{}, nil
}

// UnregisterDevice ends a registration.
func (s *Service) UnregisterDevice(ctx context.Context, req *v1.UnregisterDeviceRequest) (*v1.UnregisterDeviceResponse, error) {
	user, err := userIn(req.GetUser())
	if err := errors.Join(err, inField("device", watermark.CheckKey("device", req.GetDevice()))); err != nil {
		return nil, err
	}
	dropped, err := s.cfg.Devices.DropDevice(ctx, user, req.GetDevice(), "")
	if err != nil {
		return nil, err
	}
	return &v1.UnregisterDeviceResponse{Removed: dropped}, nil
}
