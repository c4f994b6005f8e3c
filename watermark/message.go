package watermark

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
)

// DedupeHorizon is how far back, in seqs, a producer's resend is recognised:
// it counts as one iff its seq lies within the last DedupeHorizon of the
// conversation at the moment of the resend, whatever is cached.
const DedupeHorizon = 1000

// MaxOwn bounds the list of own unread messages of a member (KeepOnSend).
const MaxOwn = 1000

// UnreadPolicy says what sending does to the sender's unread count.
type UnreadPolicy int

const (
	AdvanceOnSend UnreadPolicy = iota // sending marks everything read
	KeepOnSend                        // own messages just do not count
)

// BodyType says what the bytes of a body are.
type BodyType int

const (
	BodyNone BodyType = iota
	BodyData
	BodyText // UTF-8
	BodyJSON // compact, keys sorted
)

// Hash is over everything that makes a message's content, so that one client
// message id with two contents can be told from a resend.
type Hash [16]byte

// Message is a message of a conversation. Seq is 0 until it has one.
type Message struct {
	Seq        Seq
	Sender     UserID
	ClientID   string
	Hash       Hash
	Kind       string
	SendTime   int64 // milliseconds since 1970, as the sender says
	RecordTime int64 // milliseconds since 1970, of the Kafka record
	Mentions   []UserID
	Attributes map[string]string
	Device     string
	BodyType   BodyType
	Body       []byte
	// Revoked is set on a tombstone: the body, mentions and attributes are gone.
	Revoked *Revoked
}

// SumHash computes the hash of m's content: kind, body, mentions, attributes.
// Times and devices are left out, since a producer that tries again may fill
// them anew.
func (m *Message) SumHash() Hash {
	h := sha256.New()
	writeField(h, m.Kind)
	writeField(h, string(rune('0'+m.BodyType)))
	writeField(h, string(m.Body))
	writeCount(h, len(m.Mentions))
	for _, u := range m.Mentions {
		writeField(h, string(u))
	}
	for _, k := range slices.Sorted(maps.Keys(m.Attributes)) {
		writeField(h, k)
		writeField(h, m.Attributes[k])
	}
	return Hash(h.Sum(nil)[:16])
}

// SameAs tells whether m and o are the same message, judged as a replay is:
// by sender, client message id and content hash.
func (m *Message) SameAs(o *Message) bool {
	return m.Sender == o.Sender && m.ClientID == o.ClientID && m.Hash == o.Hash
}

// Tombstone gives m with its content gone.
func (m Message) Tombstone(r Revoked) Message {
	m.BodyType, m.Body, m.Mentions, m.Attributes = BodyNone, nil, nil, nil
	m.Revoked = &r
	return m
}

func writeField(h hash.Hash, s string) {
	writeCount(h, len(s))
	h.Write([]byte(s))
}

func writeCount(h hash.Hash, n int) {
	h.Write(binary.AppendUvarint(nil, uint64(n)))
}
