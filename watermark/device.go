package watermark

import (
	"fmt"
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

// Check reports what is wrong with d. The error wraps ErrBadID where an id is.
func (d *Device) Check() error {
	if err := CheckKey("device", d.ID); err != nil {
		return err
	}
	switch {
	case d.Platform != FCM && d.Platform != APNs:
		return fmt.Errorf("platform %s is none of fcm, apns", quote(string(d.Platform)))
	case d.Token == "" || len(d.Token) > MaxTokenLen:
		return fmt.Errorf("token has %d bytes, must have 1..%d", len(d.Token), MaxTokenLen)
	case !utf8.ValidString(d.Token) || strings.ContainsFunc(d.Token, unicode.IsControl):
		return fmt.Errorf("token has a control character or is not valid UTF-8")
	}
	return nil
}
