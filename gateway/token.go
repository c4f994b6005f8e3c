package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// connectData is what a client says of itself.
type connectData struct {
	User   string `json:"user"`
	Device string `json:"device"`
}

func readData(data []byte) (connectData, error) {
	var who connectData
	if len(data) > 0 {
		if err := json.Unmarshal(data, &who); err != nil {
			return who, fmt.Errorf("%w: connect data is not JSON with user and device: %w", ErrRefused, err)
		}
	}
	if len(who.Device) > watermark.MaxIDLen {
		return who, fmt.Errorf("%w: device has %d bytes, at most %d are allowed", ErrRefused, len(who.Device), watermark.MaxIDLen)
	}
	return who, nil
}

// Verify tells whose token it is, and until when it is good. Its errors are
// those of Authenticate.
type Verify func(ctx context.Context, token string) (user watermark.UserID, expires time.Time, err error)

// Tokens takes the user from the token. The connect data may name the device,
// and the user only when it is the token's: each user is connected as itself,
// whatever else its token allows.
func Tokens(verify Verify) Authenticate {
	return func(ctx context.Context, token string, data []byte) (Identity, error) {
		who, err := readData(data)
		if err != nil {
			return Identity{}, err
		}
		user, expires, err := verify(ctx, token)
		switch {
		case err != nil:
			return Identity{}, err
		case user == "":
			return Identity{}, fmt.Errorf("%w: the token names no user", ErrRefused)
		case who.User != "" && who.User != string(user):
			return Identity{}, fmt.Errorf("%w: the token speaks for another user", ErrRefused)
		}
		return Identity{User: user, Device: who.Device, Expires: expires}, nil
	}
}
