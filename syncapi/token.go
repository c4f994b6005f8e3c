package syncapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/tidemark-im/tidemark/watermark"
)

// pageToken is where a list of conversations goes on. The list is walked with
// the latest first, in the order that it had at the first page. Where that is
// not kept any more the list is read anew, and a conversation that got a message
// meanwhile has jumped over those that are still to come; so a walk that took
// more than one page is followed by one over what is newer than its start, until
// a walk fits on one page.
type pageToken struct {
	// snapshot names the order that the walk goes over, where it is still kept.
	snapshot uint64
	time     int64 // of the last conversation served; those after it come next
	conv     watermark.ConversationID
	floor    int64 // this walk is about conversations later than floor
	top      int64 // the latest time when this walk began
	// print tells the order apart from one that was read later, where the
	// snapshot is not kept any more; walk is how many walks there were before.
	print uint64
	walk  int64
}

const (
	tokenVersion = 3
	// Those of processes of older versions: snapshotVersion has neither print nor
	// walk, plainVersion no snapshot either.
	snapshotVersion = 2
	plainVersion    = 1
	maxToken        = 512 // bytes of text; a longer one was not made here
)

var errToken = errors.New("page token")

// encode binds the token to user.
func (t pageToken) encode(user watermark.UserID) string {
	b := []byte{tokenVersion}
	b = append(b, userMark(user)...)
	b = binary.BigEndian.AppendUint64(b, t.snapshot)
	b = binary.BigEndian.AppendUint64(b, t.print)
	for _, n := range []int64{t.time, t.floor, t.top, t.walk} {
		b = binary.AppendVarint(b, n)
	}
	b = append(b, t.conv...)
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodeToken(s string, user watermark.UserID) (pageToken, error) {
	var t pageToken
	if len(s) > maxToken {
		return t, errToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 1+markLen || !bytes.Equal(b[1:1+markLen], userMark(user)) {
		return t, errToken
	}
	version, b := b[0], b[1+markLen:]
	switch {
	case version == plainVersion:
	case version == snapshotVersion && len(b) >= 8:
		t.snapshot, b = binary.BigEndian.Uint64(b), b[8:]
	case version == tokenVersion && len(b) >= 16:
		t.snapshot, t.print, b = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[16:]
	default:
		return t, errToken
	}
	numbers := []*int64{&t.time, &t.floor, &t.top, &t.walk}
	if version != tokenVersion {
		numbers, t.walk = numbers[:3], maxAgain // it has no print that could be compared
	}
	for _, p := range numbers {
		v, n := binary.Varint(b)
		if n <= 0 {
			return t, errToken
		}
		*p, b = v, b[n:]
	}
	// A walk that has just begun has served nothing.
	if len(b) > 0 {
		if t.conv, err = watermark.ParseConversationID(string(b)); err != nil {
			return t, errToken
		}
	}
	return t, nil
}

const markLen = 6

// userMark keeps a token from being used for another user by mistake. It
// protects nothing: a token tells only where in the caller's list to go on.
func userMark(user watermark.UserID) []byte {
	sum := sha256.Sum256([]byte(user))
	return sum[:markLen]
}
