package wire

import (
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Names of the topics, before the deployment's prefix.
const (
	TopicToRedis    = "toRedis"
	TopicSequenced  = "sequenced"
	TopicDeadLetter = "deadLetter"
)

// Names of record headers.
const (
	// HeaderContentType says whether a SendMessage is JSON or protobuf.
	HeaderContentType = "content-type"
	// HeaderType tells a Command ("command") from a SendMessage (absent).
	HeaderType = "tidemark-type"
	// HeaderCaller names who waits for the seq of a SendMessage.
	HeaderCaller = "tidemark-caller"
	// HeaderOrigin is the first place of a forwarded record.
	HeaderOrigin = "tidemark-origin"
	// HeaderDeadLetter is the tidemarkv1.DeadLetter of a dead letter, as JSON.
	HeaderDeadLetter = "tidemark-dead-letter"
	// HeaderDeadLetterPlace is the place of the record that became a dead
	// letter, in the form of HeaderOrigin.
	HeaderDeadLetterPlace = "tidemark-dead-letter-place"
	// HeaderDeadLetterOmitted is how many bytes of a dead letter were left out.
	HeaderDeadLetterOmitted = "tidemark-dead-letter-omitted"
	// HeaderDeadLetterMark is a Mark, as JSON.
	HeaderDeadLetterMark = "tidemark-dead-letter-mark"
	// HeaderReplay says which record a replayed one repeats, as JSON.
	HeaderReplay = "tidemark-replay"
)

const (
	typeCommand     = "command"
	contentJSON     = "application/json"
	contentProtobuf = "application/protobuf"
)

// Record is a record as it was read from Kafka.
type Record struct {
	Topic     string
	TopicID   string // Kafka's topic id, never empty for records of toRedis
	Partition int32
	Offset    int64
	Time      time.Time // zero: the record has none
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Header is a record header. Kafka allows a name to stand several times; the
// last one counts here, as in Java's lastHeader.
type Header struct {
	Key   string
	Value []byte
}

// Out is a record to be produced.
type Out struct {
	Topic     string // empty: the producer's own
	Partition int32  // -1: by key
	Key       string
	Value     []byte
	Headers   []Header
	Time      time.Time // zero: now
}

// Header gives the value of a header; ok is false where there is none.
func (r *Record) Header(key string) (value []byte, ok bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// Place is where r stands, whatever its headers say.
func (r *Record) Place() watermark.Origin {
	return watermark.Origin{Partition: watermark.Partition{TopicID: r.TopicID, Number: r.Partition}, Offset: r.Offset}
}
