package watermark

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
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
	buf := hashed.Get().(*[]byte)
	b := appendField((*buf)[:0], m.Kind)
	b = appendField(b, string(rune('0'+m.BodyType)))
	b = append(binary.AppendUvarint(b, uint64(len(m.Body))), m.Body...)
	b = binary.AppendUvarint(b, uint64(len(m.Mentions)))
	for _, u := range m.Mentions {
		b = appendField(b, string(u))
	}
	if len(m.Attributes) > 0 {
		for _, k := range slices.Sorted(maps.Keys(m.Attributes)) {
			b = appendField(appendField(b, k), m.Attributes[k])
		}
	}
	sum := sha256.Sum256(b)
	if cap(b) <= maxHashed {
		*buf = b
	}
	hashed.Put(buf)
	return Hash(sum[:16])
}

// hashed keeps what is hashed in one piece, which costs a copy and spares an
// allocation for each field. Large ones are not kept.
var hashed = sync.Pool{New: func() any { return new([]byte) }}

const maxHashed = 64 << 10

func appendField(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
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
