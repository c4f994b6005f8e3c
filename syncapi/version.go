package syncapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	versionFormat = 2
	walkFormat    = 3
	// bareFormat is that of a version without joined, unjoinedFormat of a walk, as
	// processes of the version before make them.
	bareFormat     = 1
	unjoinedFormat = 2
	// maxVersion bounds the text of a version and of a list's page token. Both
	// grow with the partitions of the log, by at most 10 bytes for each offset.
	maxVersion = 512 << 10
	// maxPartitions is what they may name.
	maxPartitions = 10_000
	logMarkLen    = 8
)

// listVersion is what a device knows of a user's list: everything below an
// offset of each partition of one sequenced log.
type listVersion struct {
	log     [logMarkLen]byte
	offsets []int64
	// joined is the sum over the list of how often the user became a member. It
	// differs where that happened since; unknownJoins: nobody knows.
	joined int64
}

const unknownJoins = -1

// joinsOf gives that sum.
func joinsOf(list *watermark.List) (n int64) {
	for i := range list.Entries {
		n += int64(list.Entries[i].Member.LastMembership)
	}
	return n
}

// markOfLog keeps offsets of two logs apart.
func markOfLog(log string) (m [logMarkLen]byte) {
	sum := sha256.Sum256([]byte(log))
	copy(m[:], sum[:])
	return m
}

// fits tells whether changes since v can be told from a list of log with the
// given ends. They cannot where another log was meant, where conversations
// stand on other partitions by now, and where the log is shorter than it was.
func (v *listVersion) fits(log [logMarkLen]byte, ends []int64) bool {
	if v == nil || v.log != log || len(v.offsets) != len(ends) {
		return false
	}
	for i, off := range v.offsets {
		if off > ends[i] {
			return false
		}
	}
	return true
}

func (v *listVersion) encode(user watermark.UserID) string {
	b := append([]byte{versionFormat}, userMark(user)...)
	b = append(b, v.log[:]...)
	b = binary.AppendVarint(b, v.joined)
	return base64.RawURLEncoding.EncodeToString(appendOffsets(b, v.offsets))
}

// decodeVersion reads a version of user's list; nil where s is none. Whoever
// hands it in is then served the whole list, which heals whatever is wrong with
// what the device kept.
func decodeVersion(s string, user watermark.UserID) *listVersion {
	r := newTextReader(s, user, versionFormat, bareFormat)
	v := &listVersion{joined: unknownJoins}
	copy(v.log[:], r.bytes(logMarkLen))
	if r.format == versionFormat {
		v.joined = r.varint()
	}
	v.offsets = r.offsets()
	if !r.done() {
		return nil
	}
	return v
}

// listWalk is where a walk over a list goes on.
type listWalk struct {
	// base is what the device knew before; nil: nothing.
	base []int64
	// pin is what it will know after the walk. nil: the walk has not begun.
	pin []int64
	// baseJoined and pinJoined are listVersion.joined of the two.
	baseJoined, pinJoined int64

	log [logMarkLen]byte
	// full is said on every page: the device is to forget what no page brings.
	full bool
	// walks counts those before this one.
	walks byte
	// snapshot names the list that the walk goes over, where it is still kept.
	snapshot uint64
	// time and conv are those of the last conversation served; the ones after it
	// come next.
	time int64
	conv watermark.ConversationID
}

const (
	flagFull = 1 << iota
	flagBase
	flagPin
)

func (w *listWalk) encode(user watermark.UserID) string {
	var flags byte
	if w.full {
		flags |= flagFull
	}
	if w.base != nil {
		flags |= flagBase
	}
	if w.pin != nil {
		flags |= flagPin
	}
	b := append([]byte{walkFormat}, userMark(user)...)
	b = append(b, w.log[:]...)
	b = append(b, flags, w.walks)
	b = binary.BigEndian.AppendUint64(b, w.snapshot)
	if w.base != nil {
		b = appendOffsets(binary.AppendVarint(b, w.baseJoined), w.base)
	}
	if w.pin != nil {
		b = appendOffsets(binary.AppendVarint(b, w.pinJoined), w.pin)
	}
	b = binary.AppendVarint(b, w.time)
	return base64.RawURLEncoding.EncodeToString(append(b, w.conv...))
}

func decodeWalk(s string, user watermark.UserID) (*listWalk, error) {
	r := newTextReader(s, user, walkFormat, unjoinedFormat)
	w := &listWalk{}
	joined := func() int64 {
		if r.format != walkFormat {
			return unknownJoins
		}
		return r.varint()
	}
	copy(w.log[:], r.bytes(logMarkLen))
	flags := r.byte()
	w.walks = r.byte()
	if id := r.bytes(8); id != nil {
		w.snapshot = binary.BigEndian.Uint64(id)
	}
	w.full = flags&flagFull != 0
	if flags&flagBase != 0 {
		w.baseJoined, w.base = joined(), r.offsets()
	}
	if flags&flagPin != 0 {
		w.pinJoined, w.pin = joined(), r.offsets()
	}
	w.time = r.varint()
	if rest := r.rest(); len(rest) > 0 && !r.bad {
		var err error
		if w.conv, err = watermark.ParseConversationID(string(rest)); err != nil {
			return nil, errToken
		}
	}
	// A walk over changes has a base; one that goes on has a pin and a place.
	if r.bad || flags > flagFull|flagBase|flagPin || (w.base == nil && w.pin == nil) || (w.pin != nil) != (w.conv != "") {
		return nil, errToken
	}
	return w, nil
}

func appendOffsets(b []byte, offsets []int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(offsets)))
	for _, off := range offsets {
		b = binary.AppendUvarint(b, uint64(off))
	}
	return b
}

// textReader reads what a version or a token is made of. The first thing that
// is not as it should be makes it bad.
type textReader struct {
	format byte
	b      []byte
	bad    bool
}

// newTextReader begins with what is of one of the formats and of user.
func newTextReader(s string, user watermark.UserID, formats ...byte) *textReader {
	if len(s) > maxVersion {
		return &textReader{bad: true}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 1+markLen || !slices.Contains(formats, b[0]) || !bytes.Equal(b[1:1+markLen], userMark(user)) {
		return &textReader{bad: true}
	}
	return &textReader{format: b[0], b: b[1+markLen:]}
}

func (r *textReader) done() bool { return !r.bad && len(r.b) == 0 }

func (r *textReader) rest() []byte { return r.b }

func (r *textReader) bytes(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *textReader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *textReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *textReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *textReader) offsets() []int64 {
	n := r.uvarint()
	if r.bad || n == 0 || n > maxPartitions {
		r.bad = true
		return nil
	}
	out := make([]int64, n)
	for i := range out {
		v := r.uvarint()
		if v > 1<<62 {
			r.bad = true
		}
		out[i] = int64(v)
	}
	return out
}
