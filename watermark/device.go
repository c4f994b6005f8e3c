package watermark

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a Device.
const (
	// MaxDevices is how many devices of a user are kept: the ones registered
	// last.
	MaxDevices = 20
	// MaxTokenLen bounds a token, in bytes.
	MaxTokenLen = 4096
)

// Platform says which vendor notifies a device.
type Platform string

// The platforms.
const (
	FCM  Platform = "fcm"
	APNs Platform = "apns"
)

// Device is where a user can be notified.
type Device struct {
	// ID names the device, as in a message's Device: 1-64 bytes.
	ID       string
	Platform Platform
	// Token is the vendor's name of the application on that device.
	Token string
	// RegisteredAt is when it was registered last, in milliseconds since 1970.
	RegisteredAt int64
}

// CheckToken reports what is wrong with d's token.
func (d *Device) CheckToken() error {
	switch {
	case d.Token == "" || len(d.Token) > MaxTokenLen:
		return fmt.Errorf("it has %d bytes, must have 1..%d", len(d.Token), MaxTokenLen)
	case !utf8.ValidString(d.Token) || strings.ContainsFunc(d.Token, unicode.IsControl):
		return errors.New("it has a control character or is not valid UTF-8")
	}
	return nil
}

// DeviceKey names a token of a platform: 32 bytes, which tell nothing of it.
type DeviceKey [sha256.Size]byte

// Key names d's token.
func (d *Device) Key() DeviceKey {
	return sha256.Sum256([]byte(string(d.Platform) + "\x00" + d.Token))
}

// DeviceRow is a device with its user.
type DeviceRow struct {
	User   UserID
	Device Device
}

// SurplusDevices gives those of a user's devices that are not to be kept: of
// several tokens under one id all but the one registered last, and beyond
// MaxDevices those registered longest ago. The order of devices is changed.
func SurplusDevices(devices []Device) (surplus []Device) {
	slices.SortFunc(devices, func(a, b Device) int {
		ka, kb := a.Key(), b.Key()
		return cmp.Or(cmp.Compare(b.RegisteredAt, a.RegisteredAt), slices.Compare(ka[:], kb[:]))
	})
	kept := make(map[string]bool)
	for _, d := range devices {
		if kept[d.ID] || len(kept) == MaxDevices {
			surplus = append(surplus, d)
			continue
		}
		kept[d.ID] = true
	}
	return surplus
}
