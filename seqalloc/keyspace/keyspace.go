// Package keyspace is what everybody who speaks to Redis shares: the names of
// a conversation's keys, the text encodings of what stands in them, the Lua
// prelude with the one test of whether they may be believed, a runner for many
// script calls, or transactions of plain commands, in one round trip, and the
// sorting of Redis errors into fault classes.
//
// It promises:
//   - All keys of a conversation carry one hash tag, so a script over them runs
//     on a Redis Cluster.
//   - Every encoding is written and read alike in Go and in Lua, and exact for
//     every seq up to watermark.MaxSeq.
//   - redis.Nil never leaves the package; every error that does has a class.
//
// It does not know what the scripts do, and keeps no state but the client: all
// types are safe for concurrent use, but for Reads and Reply.
package keyspace

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultExpiry is how long an idle conversation stays in Redis when nobody
// says.
const DefaultExpiry = 24 * time.Hour

// Part names one key of a conversation.
type Part string

// The parts of a conversation. Part.String gives what stands in the name.
const (
	Meta     Part = "meta" // hash: see MetaFields, and "in:<partition>" per input partition
	Log      Part = "log"  // stream: entry "<seq>-0", fields h and b
	Read     Part = "read" // zset: user -> read watermark
	Receipt  Part = "rcpt" // zset: user -> receipt
	Members  Part = "mem"  // hash: user -> MemberText, or NoWindow
	IDs      Part = "ids0" // hash: sent id -> hash and seq, the young generation
	OldIDs   Part = "ids1" // the old generation
	Own      Part = "own"  // zset, all scores 0: OwnMember
	Revoked  Part = "rev"  // hash: seq -> Tombstone
	Refused  Part = "ref"  // hash: input -> what became of it, last batch only
	pushPart Part = "push"
	crowded  Part = "crowd"
	ansPart  Part = "ans"
)

// NoWindow stands among the members for a user who is known never to have had
// a window.
const NoWindow = "-"

// The states of a conversation's meta.
const (
	StateWarming = "warming"
	StateWarm    = "warm"
)

// Space is how the keys of one deployment are named and how long they last.
// The zero value is a deployment alone on its Redis.
type Space struct {
	// Prefix stands before every key. Empty: none. It must not hold '{'.
	Prefix string
	// Expiry is how long an idle conversation stays. 0: DefaultExpiry. It is
	// rounded up to whole seconds.
	Expiry time.Duration
	// Incarnation stands for the server's own token where the server has none
	// (an embedded Redis). Empty: the server is asked inside each script.
	Incarnation string
}

// Validate reports everything that is wrong with s.
func (s Space) Validate() error {
	var errs []error
	if strings.ContainsAny(s.Prefix, "{}") {
		errs = append(errs, fmt.Errorf("key prefix %q must not hold '{' or '}'", s.Prefix))
	}
	if s.Expiry < 0 {
		errs = append(errs, fmt.Errorf("expiry %s is negative", s.Expiry))
	}
	return errors.Join(errs...)
}

// Key names one key of a conversation.
func (s Space) Key(conv watermark.ConversationID, p Part) string {
	return s.Prefix + keyStart + string(conv) + keyEnd + string(p)
}

// Keys names several keys of a conversation, in the order of parts.
func (s Space) Keys(conv watermark.ConversationID, parts ...Part) []string {
	return s.AllKeys([]watermark.ConversationID{conv}, parts)[0]
}

// AllKeys names the same keys of several conversations. It allocates three
// times, however many they are.
func (s Space) AllKeys(convs []watermark.ConversationID, parts []Part) [][]string {
	keys := s.FlatKeys(convs, parts)
	out := make([][]string, len(convs))
	for i := range convs {
		from, to := i*len(parts), (i+1)*len(parts)
		out[i] = keys[from:to:to]
	}
	return out
}

// FlatKeys gives the same keys in one list, those of a conversation after those
// of the one before.
func (s Space) FlatKeys(convs []watermark.ConversationID, parts []Part) []string {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	total := 0
	for _, c := range convs {
		total += size + len(parts)*(len(s.Prefix)+len(keyStart)+len(c)+len(keyEnd))
	}
	var b strings.Builder
	b.Grow(total)
	keys := make([]string, 0, len(convs)*len(parts))
	for _, c := range convs {
		for _, p := range parts {
			at := b.Len()
			b.WriteString(s.Prefix)
			b.WriteString(keyStart)
			b.WriteString(string(c))
			b.WriteString(keyEnd)
			b.WriteString(string(p))
			keys = append(keys, b.String()[at:])
		}
	}
	return keys
}

// What stands before and after a conversation's id in its keys.
const keyStart, keyEnd = "tm:{", "}:"

// AnswerKey names the key under which an answer is handed over.
func (s Space) AnswerKey(k watermark.AnswerKey) string {
	return s.Key(k.Conversation, ansPart) + ":" + escape(k.Caller) + ":" + escape(k.OpID)
}

// SettledKey names the sorted set of the places up to which each partition's
// batches stand in the sequenced log: PlaceName -> number.
func (s Space) SettledKey() string { return s.Prefix + "tm:settled" }

// PlaceName names a partition of toRedis among the settled places, and in the
// meta of the conversations that it has.
func PlaceName(p watermark.Partition) string {
	return p.TopicID + "/" + strconv.FormatInt(int64(p.Number), 10)
}

// PushedKey names the push mark of a conversation.
func (s Space) PushedKey(conv watermark.ConversationID) string { return s.Key(conv, pushPart) }

// CrowdKey names the mark of a conversation that its members have on their lists
// of crowds.
func (s Space) CrowdKey(conv watermark.ConversationID) string { return s.Key(conv, crowded) }

// CrowdsKey names the list of crowds of a user, a set of conversations.
func (s Space) CrowdsKey(u watermark.UserID) string { return s.userKey(u, "crowds") }

// OnlineKey names the sorted set of a user's connections: node/device -> when
// it was last told of, in ms.
func (s Space) OnlineKey(u watermark.UserID) string { return s.userKey(u, "on") }

// SeenKey names when a user was last there, in ms.
func (s Space) SeenKey(u watermark.UserID) string { return s.userKey(u, "seen") }

func (s Space) userKey(u watermark.UserID, part string) string {
	return s.Prefix + "tm:u:{" + string(u) + "}:" + part
}

// ExpirySeconds gives Expiry as a script's argument.
func (s Space) ExpirySeconds() int64 {
	d := s.Expiry
	if d <= 0 {
		d = DefaultExpiry
	}
	return int64((d + time.Second - 1) / time.Second)
}

// OwnMember gives the member of Own that stands for an own message. All of a
// user's members sort together, by seq.
func OwnMember(u watermark.UserID, seq watermark.Seq) string {
	return fmt.Sprintf("%s\x00%016x", u, int64(seq))
}

// ParseOwnMember is the inverse of OwnMember.
func ParseOwnMember(s string) (watermark.UserID, watermark.Seq, error) {
	u, h, ok := strings.Cut(s, "\x00")
	b, err := hex.DecodeString(h)
	if !ok || err != nil || len(b) != 8 {
		return "", 0, fmt.Errorf("own message %q is not of the form <user>\\0<16 hex digits>", s)
	}
	n, err := strconv.ParseInt(h, 16, 64)
	if err != nil {
		return "", 0, fmt.Errorf("own message %q: %w", s, err)
	}
	return watermark.UserID(u), watermark.Seq(n), nil
}

// OwnRange gives the bounds of a user's members of Own, for ZLEXCOUNT and
// ZRANGEBYLEX.
func OwnRange(u watermark.UserID) (lo, hi string) {
	return "[" + string(u) + "\x00", "(" + string(u) + "\x01"
}

// Tombstone is what stands in Revoked for a seq that the hot log held.
type Tombstone struct {
	By     watermark.UserID
	Time   int64  // milliseconds since 1970
	Header []byte // the header of the message, as the hot log had it
}

// String gives the text that stands in Redis: "<time>|<by>|<header>".
func (t Tombstone) String() string {
	return strconv.FormatInt(t.Time, 10) + "|" + string(t.By) + "|" + string(t.Header)
}

// ParseTombstone is the inverse of Tombstone.String.
func ParseTombstone(s string) (Tombstone, error) {
	at, rest, ok := strings.Cut(s, "|")
	by, header, ok2 := strings.Cut(rest, "|")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !ok || !ok2 || err != nil {
		return Tombstone{}, fmt.Errorf("tombstone of %d bytes is not of the form <time>|<by>|<header>", len(s))
	}
	return Tombstone{By: watermark.UserID(by), Time: ms, Header: []byte(header)}, nil
}

// MetaFields are the fields of Meta that ParseMeta reads, in its order.
var metaFields = []string{"inc", "st", "tok", "full", "min", "max", "rn", "rf", "pol", "lt"}

// MetaFields gives the fields of Meta that ParseMeta reads, in its order, for
// HMGET.
func MetaFields() []string { return append([]string(nil), metaFields...) }

// MetaRow is what everybody shares of a conversation, as it stands in Redis.
type MetaRow struct {
	Incarnation string
	State       string // StateWarm or StateWarming; empty: the meta is absent
	Token       string
	Complete    bool
	// Conversation lacks Inputs, which only the owner needs.
	Conversation watermark.Conversation
}

// ParseMeta reads the answer of HMGET with MetaFields, whose values are
// strings or nil.
func ParseMeta(conv watermark.ConversationID, values []any) (MetaRow, error) {
	if len(values) != len(metaFields) {
		return MetaRow{}, fmt.Errorf("meta of %s: %d values for %d fields", conv, len(values), len(metaFields))
	}
	var errs []error
	num := func(i int) int64 {
		s, _ := values[i].(string)
		if s == "" {
			return 0
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("meta of %s: field %s: %w", conv, metaFields[i], err))
		}
		return n
	}
	str := func(i int) string { s, _ := values[i].(string); return s }
	row := MetaRow{Incarnation: str(0), State: str(1), Token: str(2), Complete: str(3) == "1"}
	row.Conversation = watermark.Conversation{
		ID: conv, Min: watermark.Seq(num(4)), Max: watermark.Seq(num(5)),
		Repair: watermark.Repaired{Number: num(6), From: watermark.Seq(num(7))},
		Policy: watermark.UnreadPolicy(num(8)), LastTime: num(9),
	}
	return row, errors.Join(errs...)
}
