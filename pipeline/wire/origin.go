package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxTopicID bounds the topic id that a header may name; Kafka's have 22
// bytes.
const maxTopicID = 64

// first is where and when a record first stood.
type first struct {
	origin watermark.Origin
	timeMs int64
}

// firstOf gives the place that identifies a record: the one its forwarder
// noted, else its own.
//
// Anybody who may produce may write the header, and an owner that believed it
// would raise the input mark of a partition that the record never stood in:
// everything below would be taken for decided, and be lost. So a note counts
// only where a forwarder can have made it: it moves records inside one topic,
// and never to the partition that they come from.
func firstOf(r *Record) (first, error) {
	if v, ok := r.Header(HeaderOrigin); ok {
		f, err := parsePlace(string(v))
		if err == nil && f.origin.Partition.TopicID == "" {
			err = errors.New("the topic id is empty")
		}
		if err != nil {
			return first{}, undecodable(fmt.Errorf("header %s: %w", HeaderOrigin, err))
		}
		switch p := f.origin.Partition; {
		case p.TopicID != r.TopicID:
			return first{}, invalid(fmt.Errorf("header %s: no forwarder wrote it: it names topic id %s, and the record stands in %s", HeaderOrigin, clip(p.TopicID, maxTopicID), clip(r.TopicID, maxTopicID)))
		case p.Number == r.Partition:
			return first{}, invalid(fmt.Errorf("header %s: no forwarder wrote it: it names partition %d, where the record stands", HeaderOrigin, p.Number))
		}
		return f, nil
	}
	if id := r.TopicID; id == "" || len(id) > maxTopicID || strings.Contains(id, "/") {
		return first{}, fault.New(fault.Fatal, ReasonUnencodable, fmt.Errorf("record of topic %s: its topic id %s must be 1..%d bytes without '/'", r.Topic, clip(id, 80), maxTopicID))
	}
	if r.Offset < 0 || r.Partition < 0 {
		return first{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("record at partition %d, offset %d: neither may be negative", r.Partition, r.Offset))
	}
	return first{r.Place(), timeMs(r.Time)}, nil
}

// timeMs gives a record's time in milliseconds since 1970. Kafka lets a
// producer write any time; one that no calendar has is drawn to the nearest
// that is accepted, since it is for display.
func timeMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return min(max(t.UnixMilli(), 0), convert.MaxTime)
}

// String gives the header form: topic id, partition, offset and time.
func (f first) String() string {
	p := f.origin.Partition
	return p.TopicID + "/" + strconv.Itoa(int(p.Number)) + "/" + strconv.FormatInt(f.origin.Offset, 10) + "/" + strconv.FormatInt(f.timeMs, 10)
}

func parsePlace(s string) (first, error) {
	parts := strings.Split(s[:min(len(s), 256)], "/")
	if len(s) > 256 || len(parts) != 4 {
		return first{}, errors.New("must be \"topic id/partition/offset/time\"")
	}
	if len(parts[0]) > maxTopicID {
		return first{}, fmt.Errorf("the topic id has %d bytes, at most %d are allowed", len(parts[0]), maxTopicID)
	}
	partition, err := number("partition", parts[1], 1<<31-1)
	if err != nil {
		return first{}, err
	}
	offset, err := number("offset", parts[2], 1<<63-1)
	if err != nil {
		return first{}, err
	}
	ms, err := number("time", parts[3], convert.MaxTime)
	if err != nil {
		return first{}, err
	}
	return first{
		origin: watermark.Origin{Partition: watermark.Partition{TopicID: parts[0], Number: int32(partition)}, Offset: offset},
		timeMs: ms,
	}, nil
}

func number(what, s string, limit int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > limit {
		return 0, fmt.Errorf("%s %s is not a number within 0..%d", what, clip(s, 32), limit)
	}
	return n, nil
}

// clientID derives the client message id of a message without one. A
// redelivery has the same first place and so the same id; another incarnation
// of the topic has another topic id.
func (f first) clientID() string {
	p := f.origin.Partition
	b := make([]byte, 0, len(p.TopicID)+24)
	b = append(b, p.TopicID...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(p.Number))
	b = binary.BigEndian.AppendUint64(b, uint64(f.origin.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(f.timeMs))
	sum := sha256.Sum256(b)
	return "auto-" + hex.EncodeToString(sum[:16])
}

// IsForwarded tells whether r was forwarded already. A second hop would mean
// that two workers disagree about a conversation's partition.
func (r *Record) IsForwarded() bool {
	_, ok := r.Header(HeaderOrigin)
	return ok
}

// From gives the place where r says that it was forwarded from. It is false where
// r says none, or says what no forwarder can have written: DecodeInput tells
// which.
func (r *Record) From() (watermark.Origin, bool) {
	if !r.IsForwarded() {
		return watermark.Origin{}, false
	}
	f, err := firstOf(r)
	return f.origin, err == nil
}

// IsForwardOf tells whether r is what Forward makes of from: it names the place
// and the time of from, and says the same. Keys are not compared: a forwarder
// sets its own, and DecodeInput does not look at them.
func (r *Record) IsForwardOf(from *Record) bool {
	f, err := firstOf(r)
	if err != nil || from.IsForwarded() || f.origin.Partition.Number != from.Partition || f.origin.Offset != from.Offset || f.timeMs != timeMs(from.Time) {
		return false
	}
	for _, name := range []string{HeaderContentType, HeaderType, HeaderCaller, HeaderReplay} {
		x, inR := r.Header(name)
		y, inFrom := from.Header(name)
		if inR != inFrom || !bytes.Equal(x, y) {
			return false
		}
	}
	return bytes.Equal(r.Value, from.Value)
}

// Unforwarded gives r as if nobody had forwarded it: an input of its own place.
func (r Record) Unforwarded() Record {
	r.Headers = without(r.Headers, HeaderOrigin)
	return r
}

// Hops counts how often r was forwarded.
func (r *Record) Hops() int {
	n := 0
	for _, h := range r.Headers {
		if h.Key == HeaderOrigin {
			n++
		}
	}
	return n
}

// Forward gives a misrouted record as it is produced again to the same topic,
// keyed by its conversation. Its value stays as it is. The place where it first
// stood goes along, and fixes its client message id, if it has none of its own,
// and its times: DecodeInput gives the same input there as here.
//
// A record that was forwarded before is refused as fatal, reason
// wrong_partition.
func Forward(r Record, conv watermark.ConversationID) (Out, error) {
	if r.IsForwarded() {
		return Out{}, fault.New(fault.Fatal, watermark.ReasonWrongPartition,
			fmt.Errorf("forward %s, partition %d, offset %d: it was forwarded before and stands on a wrong partition again", conv, r.Partition, r.Offset))
	}
	f, err := firstOf(&r)
	if err != nil {
		return Out{}, err
	}
	return Out{
		Topic:     r.Topic,
		Partition: -1,
		Key:       string(conv),
		Value:     r.Value,
		Headers:   append(slices.Clone(r.Headers), Header{HeaderOrigin, []byte(f.String())}),
		Time:      r.Time,
	}, nil
}

// clip shows at most n bytes of what somebody sent.
func clip(s string, n int) string {
	if len(s) > n {
		return fmt.Sprintf("%q...", s[:n])
	}
	return fmt.Sprintf("%q", s)
}
