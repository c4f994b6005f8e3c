package watermark

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxIDLen is the longest user, group, client message or op id, in bytes.
const MaxIDLen = 64

// ErrBadID is returned when an id is not of its form; the error's text says
// which id and why.
var ErrBadID = errors.New("bad id")

// UserID names a user: 1-64 bytes of [A-Za-z0-9._~@-].
type UserID string

// ConversationID names a conversation: "single:<a>:<b>" with a < b by bytes,
// or "group:<id>". Its parts are of a set that holds neither ':' nor '{', so
// two conversations never share a name or a Redis hash tag.
type ConversationID string

// ParseUserID checks a user id. The error wraps ErrBadID.
func ParseUserID(s string) (UserID, error) {
	if err := checkID("user", s); err != nil {
		return "", err
	}
	return UserID(s), nil
}

// ParseConversationID checks a conversation id. The error wraps ErrBadID.
func ParseConversationID(s string) (ConversationID, error) {
	kind, rest, ok := strings.Cut(s, ":")
	switch {
	case ok && kind == "group":
		if err := checkID("group", rest); err != nil {
			return "", err
		}
		return ConversationID(s), nil
	case ok && kind == "single":
		a, b, ok := strings.Cut(rest, ":")
		if !ok {
			return "", fmt.Errorf("%w: conversation %s: a single conversation is \"single:<user>:<user>\"", ErrBadID, quote(s))
		}
		if err := errors.Join(checkID("user", a), checkID("user", b)); err != nil {
			return "", err
		}
		if a >= b {
			return "", fmt.Errorf("%w: conversation %s: its users must be two and in byte order: \"single:%s:%s\"", ErrBadID, quote(s), min(a, b), max(a, b))
		}
		return ConversationID(s), nil
	default:
		return "", fmt.Errorf("%w: conversation %s: must be \"single:<user>:<user>\" or \"group:<id>\"", ErrBadID, quote(s))
	}
}

// CheckKey checks a client message id or op id: 1-64 bytes of UTF-8 without
// control characters. what names it in the error, which wraps ErrBadID.
func CheckKey(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: %s is empty", ErrBadID, what)
	case len(s) > MaxIDLen:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrBadID, what, len(s), MaxIDLen)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not valid UTF-8", ErrBadID, what)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%w: %s has a control character", ErrBadID, what)
	}
	return nil
}

// SingleOf gives the single conversation of two users.
func SingleOf(a, b UserID) ConversationID {
	return ConversationID("single:" + string(min(a, b)) + ":" + string(max(a, b)))
}

// GroupOf gives the conversation of a group.
func GroupOf(id string) ConversationID { return ConversationID("group:" + id) }

// Single tells whether c is a single conversation.
func (c ConversationID) Single() bool { return strings.HasPrefix(string(c), "single:") }

// Users gives the two users of a single conversation; ok is false for a group.
func (c ConversationID) Users() (a, b UserID, ok bool) {
	rest, ok := strings.CutPrefix(string(c), "single:")
	if !ok {
		return "", "", false
	}
	x, y, ok := strings.Cut(rest, ":")
	return UserID(x), UserID(y), ok
}

// Peer gives the other user of a single conversation; ok is false when c is a
// group or u is not one of its users.
func (c ConversationID) Peer(u UserID) (peer UserID, ok bool) {
	a, b, ok := c.Users()
	switch {
	case ok && u == a:
		return b, true
	case ok && u == b:
		return a, true
	}
	return "", false
}

// Admits tells whether u can be a member of c at all: anybody of a group, its
// two users of a single conversation.
func (c ConversationID) Admits(u UserID) bool {
	if !c.Single() {
		return true
	}
	_, ok := c.Peer(u)
	return ok
}

func checkID(what, s string) error {
	if s == "" {
		return fmt.Errorf("%w: %s id is empty", ErrBadID, what)
	}
	if len(s) > MaxIDLen {
		return fmt.Errorf("%w: %s id has %d bytes, at most %d are allowed", ErrBadID, what, len(s), MaxIDLen)
	}
	for i := range len(s) {
		if !idByte(s[i]) {
			return fmt.Errorf("%w: %s id %s has a byte that is not of [A-Za-z0-9._~@-]", ErrBadID, what, quote(s))
		}
	}
	return nil
}

func idByte(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		return true
	}
	return strings.IndexByte("._~@-", b) >= 0
}

// quote shows at most 80 bytes of what somebody sent.
func quote(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q...", s[:80])
	}
	return fmt.Sprintf("%q", s)
}
