package syncapi_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestDevicesAreRegistered(t *testing.T) {
	h := storagetest.NewMemory()
	now := time.UnixMilli(1700000000000)
	s := newService(t, newWorld(), func(c *syncapi.Config) { c.Devices, c.Now = h, func() time.Time { return now } })
	register := func(user, device, token string, p v1.Platform) error {
		_, err := s.RegisterDevice(t.Context(), &v1.RegisterDeviceRequest{User: user, Device: device, Platform: p, Token: token})
		return err
	}
	has := func(user watermark.UserID, want ...watermark.Device) {
		t.Helper()
		got, err := h.DevicesOf(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("devices of %s (-want +got):\n%s", user, d)
		}
	}
	if err := register("A", "phone", "t1", v1.Platform_PLATFORM_APNS); err != nil {
		t.Fatal(err)
	}
	has("A", watermark.Device{ID: "phone", Platform: watermark.APNs, Token: "t1", RegisteredAt: now.UnixMilli()})
	now = now.Add(time.Second)
	if err := register("B", "x", "t1", v1.Platform_PLATFORM_APNS); err != nil {
		t.Fatal(err)
	}
	has("A")
	for removed := range 2 { // the second time there is none
		res, err := s.UnregisterDevice(t.Context(), &v1.UnregisterDeviceRequest{User: "B", Device: "x"})
		if err != nil || res.GetRemoved() != (removed == 0) {
			t.Errorf("%v, %v", res, err)
		}
	}
	has("B")
}

func TestAllFaultsOfADeviceAreNamed(t *testing.T) {
	c := clients(t, newService(t, newWorld(), nil))["json"]
	_, err := c.RegisterDevice(t.Context(), &v1.RegisterDeviceRequest{User: "a b", Platform: 9, Token: strings.Repeat("t", 5000)})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("err = %v", err)
	}
	for _, field := range []string{"user", "device", "platform", "token"} {
		if !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	if _, err := c.UnregisterDevice(t.Context(), &v1.UnregisterDeviceRequest{User: "A"}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("err = %v", err)
	}
}
