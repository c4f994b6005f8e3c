package convert

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// MaxTime is the latest time in milliseconds since 1970 that is accepted: the
// end of the year 9999. A producer that counts in microseconds is above it and
// so learns of its mistake.
const MaxTime = 253402300799999

// maxCount is the highest version and repair number: scripts in Redis count in
// IEEE 754 doubles, and what they cannot count nobody could read any more.
const maxCount = int64(watermark.MaxSeq)

// FieldError says which field of what somebody sent breaks its rule, and how.
type FieldError struct {
	Field string
	Err   error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap gives the rule that is broken.
func (e *FieldError) Unwrap() error { return e.Err }

// faults gathers what is wrong with one message, so that its sender learns of
// everything at once.
type faults struct {
	errs   []error
	reason string
}

// add notes that a field breaks its rule. Nil errors are passed over.
func (f *faults) add(field string, err error) {
	f.because(watermark.ReasonInvalid, field, err)
}

func (f *faults) addf(field, format string, args ...any) {
	f.add(field, fmt.Errorf(format, args...))
}

func (f *faults) because(reason, field string, err error) {
	if err == nil {
		return
	}
	if f.reason == "" {
		f.reason = reason
	}
	if f.reason != reason {
		// Several reasons at once: the broad one covers them.
		f.reason = watermark.ReasonInvalid
	}
	f.errs = append(f.errs, &FieldError{Field: field, Err: err})
}

// nest takes over the faults of a part, keeping their reason.
func (f *faults) nest(field string, err error) {
	if err != nil {
		f.because(fault.ReasonOf(err), field, err)
	}
}

func (f *faults) err(what string) error {
	if len(f.errs) == 0 {
		return nil
	}
	return fault.New(fault.Poison, f.reason, fmt.Errorf("%s: %w", what, errors.Join(f.errs...)))
}

func (f *faults) conversation(s string) watermark.ConversationID {
	c, err := watermark.ParseConversationID(s)
	f.add("conversation", err)
	return c
}

func (f *faults) user(field, s string) watermark.UserID {
	u, err := watermark.ParseUserID(s)
	f.add(field, err)
	return u
}

func (f *faults) userOrNone(field, s string) watermark.UserID {
	if s == "" {
		return ""
	}
	return f.user(field, s)
}

// party checks a user id and that the user can be a member of c.
func (f *faults) party(field, s string, c watermark.ConversationID) watermark.UserID {
	u := f.user(field, s)
	if u != "" && c != "" && !c.Admits(u) {
		f.because(watermark.ReasonNotParticipant, field, fmt.Errorf("%s is not one of the two users of %s", u, c))
	}
	return u
}

func (f *faults) key(field, s string) string {
	f.add(field, watermark.CheckKey("it", s))
	return s
}

func (f *faults) keyOrNone(field, s string) string {
	if s == "" {
		return ""
	}
	return f.key(field, s)
}

// within checks that n lies in lo..hi.
func (f *faults) within(field string, n, lo, hi int64) {
	if n < lo || n > hi {
		f.addf(field, "%d is not within %d..%d", n, lo, hi)
	}
}

// seq checks a seq that must be set.
func (f *faults) seq(field string, n int64) watermark.Seq {
	f.within(field, n, 1, int64(watermark.MaxSeq))
	return watermark.Seq(n)
}

// bound checks a seq that may be 0 for "not set".
func (f *faults) bound(field string, n int64) watermark.Seq {
	f.within(field, n, 0, int64(watermark.MaxSeq))
	return watermark.Seq(n)
}

func (f *faults) time(field string, ms int64) int64 {
	f.within(field, ms, 0, MaxTime)
	return ms
}

// text checks a free text of at most limit bytes.
func (f *faults) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		f.addf(field, "%d bytes, at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		f.addf(field, "not valid UTF-8")
	}
}

// clip shows at most 80 bytes of what somebody sent.
func clip(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q...", s[:80])
	}
	return fmt.Sprintf("%q", s)
}
