package webhook

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// DefaultWindow is how old or new a request may be.
const DefaultWindow = 5 * time.Minute

// Errors of Verify. A receiver answers all of them with 401.
var (
	// ErrUnsigned is returned when a header is missing or cannot be read.
	ErrUnsigned = errors.New("not signed as it must be")
	// ErrUnknownKey is returned when the request names a key that is not known.
	ErrUnknownKey = errors.New("unknown key")
	// ErrSignature is returned when no signature is right.
	ErrSignature = errors.New("wrong signature")
	// ErrWindow is returned when the request is too old, or from the future: it
	// may be one that was sent before, by somebody else.
	ErrWindow = errors.New("outside of the time window")
)

// Verifier checks requests on the receiver's side. Within the window a request
// can be repeated by whoever has seen it; a receiver that keeps the ids of what
// it has handled for twice the window is safe from that too, and needs to do so
// anyway, since an attempt whose answer was lost is made again.
type Verifier struct {
	// Keys by their ids; while a key is changed both are in it.
	Keys map[string][]byte
	// Window is how far the timestamp may be from Now. 0: DefaultWindow.
	Window time.Duration
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Verify checks a request by its header and its body as it was received, and
// gives what it says. The error wraps one of those above.
func (v *Verifier) Verify(h http.Header, body []byte) (*Event, error) {
	id, stamp, given := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || given == "" || err != nil {
		return nil, fmt.Errorf("webhook: %w: %s, %s or %s is missing or cannot be read", ErrUnsigned, HeaderID, HeaderTimestamp, HeaderSignature)
	}
	secret, ok := v.Keys[h.Get(HeaderKeyID)]
	if !ok || len(secret) == 0 {
		return nil, fmt.Errorf("webhook: %w %q", ErrUnknownKey, h.Get(HeaderKeyID))
	}
	want, right := sign(secret, id, stamp, body), false
	for s := range strings.FieldsSeq(given) {
		version, b64, _ := strings.Cut(s, ",")
		got, err := base64.StdEncoding.DecodeString(b64)
		if version == "v1" && err == nil && hmac.Equal(want, got) {
			right = true
		}
	}
	if !right {
		return nil, fmt.Errorf("webhook: %w", ErrSignature)
	}
	now, window := time.Now, v.Window
	if v.Now != nil {
		now = v.Now
	}
	if window == 0 {
		window = DefaultWindow
	}
	if age := now().Sub(time.Unix(seconds, 0)); age > window || age < -window {
		return nil, fmt.Errorf("webhook: %w: it is %v old", ErrWindow, age.Round(time.Second))
	}
	e := new(Event)
	if err := json.Unmarshal(body, e); err != nil {
		return nil, fmt.Errorf("webhook: body: %w", err)
	}
	if e.Data.ID != id {
		return nil, fmt.Errorf("webhook: %w: the body has another id", ErrUnsigned)
	}
	return e, nil
}
