package wire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxCause bounds the cause of a dead letter, in bytes.
const maxCause = 1024

// DeadLetter is a record that could not be accepted, and why.
type DeadLetter struct {
	Record Record
	Reason string // one word
	Cause  string // a sentence for people; the first KiB is kept
	First  time.Time
	Last   time.Time
	Tries  int
	// Omitted is how large the value was, if the record is without value and
	// headers because Kafka did not take it whole (see WithoutContent).
	Omitted int
}

// EncodeDeadLetter gives a dead letter as a record: key, value and headers are
// those of the record, and two headers more tell the rest. It is at most 8 KiB
// larger than the record, and its time is that of the last try: retention of
// the dead letters counts from there. The dead letter of a replayed record
// counts the tries of those before it, and keeps the first time.
func EncodeDeadLetter(d DeadLetter) (Out, error) {
	d = d.withHistory()
	api := &v1.DeadLetter{
		Topic: d.Record.Topic, Partition: d.Record.Partition, Offset: d.Record.Offset,
		Reason:      strings.ToValidUTF8(d.Reason[:min(len(d.Reason), watermark.MaxIDLen)], "?"),
		Cause:       strings.ToValidUTF8(d.Cause[:min(len(d.Cause), maxCause)], "?"),
		FirstTimeMs: timeMs(d.First), LastTimeMs: timeMs(d.Last),
		Tries: int32(min(max(d.Tries, 0), 1<<31-1)),
	}
	value, err := protojson.Marshal(api)
	if err != nil {
		return Out{}, fault.New(fault.Fatal, ReasonUnencodable, fmt.Errorf("encode dead letter: %w", err))
	}
	place := first{d.Record.Place(), timeMs(d.Record.Time)}
	headers := append(without(d.Record.Headers, HeaderDeadLetter, HeaderDeadLetterPlace, HeaderDeadLetterOmitted, HeaderDeadLetterMark),
		Header{HeaderDeadLetter, value}, Header{HeaderDeadLetterPlace, []byte(place.String())})
	if d.Omitted > 0 {
		headers = append(headers, Header{HeaderDeadLetterOmitted, []byte(strconv.Itoa(d.Omitted))})
	}
	return Out{Partition: -1, Key: string(d.Record.Key), Value: d.Record.Value, Headers: headers, Time: d.Last}, nil
}

// DeadLetterReasons lists the reasons that a dead letter may have, as far as
// they are told apart; others come from Kafka and the stores.
func DeadLetterReasons() []string {
	return []string{
		watermark.ReasonNotMember, watermark.ReasonNotParticipant, watermark.ReasonIDReused,
		watermark.ReasonNoSuchSeq, watermark.ReasonWindowFull, watermark.ReasonAttributesFull, watermark.ReasonSeqsExhausted,
		watermark.ReasonUndecodable, watermark.ReasonInvalid, watermark.ReasonTooLarge, watermark.ReasonWrongPartition,
	}
}

// DeadLetterCause tells of an encoded dead letter which topic its record stood
// in and why it was set aside; false when out is none.
func DeadLetterCause(out *Out) (topic, reason string, ok bool) {
	value, ok := (&Record{Headers: out.Headers}).Header(HeaderDeadLetter)
	if !ok {
		return "", "", false
	}
	api := new(v1.DeadLetter)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, api); err != nil {
		return "", "", false
	}
	return api.GetTopic(), api.GetReason(), true
}

// DecodeDeadLetter reads a record of the deadLetter topic. Record is the
// record as it was, at its own place. The error is a fault.Poison.
func DecodeDeadLetter(r Record) (DeadLetter, error) {
	value, ok := r.Header(HeaderDeadLetter)
	if !ok {
		return DeadLetter{}, undecodable(fmt.Errorf("dead letter: header %s is missing", HeaderDeadLetter))
	}
	api := new(v1.DeadLetter)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, api); err != nil {
		return DeadLetter{}, undecodable(fmt.Errorf("dead letter: header %s: %s", HeaderDeadLetter, jsonCause(err)))
	}
	if err := checkDeadLetter(api); err != nil {
		return DeadLetter{}, invalid(fmt.Errorf("dead letter: %w", err))
	}
	d := DeadLetter{
		Record: Record{
			Topic: api.GetTopic(), Partition: api.GetPartition(), Offset: api.GetOffset(),
			Key: r.Key, Value: r.Value, Headers: without(r.Headers, HeaderDeadLetter, HeaderDeadLetterPlace, HeaderDeadLetterOmitted),
		},
		Reason: api.GetReason(), Cause: api.GetCause(), Tries: int(api.GetTries()),
		First: timeOf(api.GetFirstTimeMs()), Last: timeOf(api.GetLastTimeMs()),
	}
	if v, ok := r.Header(HeaderDeadLetterPlace); ok {
		f, err := parsePlace(string(v))
		if err != nil {
			return DeadLetter{}, undecodable(fmt.Errorf("dead letter: header %s: %w", HeaderDeadLetterPlace, err))
		}
		d.Record.TopicID, d.Record.Time = f.origin.Partition.TopicID, timeOf(f.timeMs)
	}
	if v, ok := r.Header(HeaderDeadLetterOmitted); ok {
		n, err := number("bytes", string(v), 1<<31-1)
		if err != nil {
			return DeadLetter{}, undecodable(fmt.Errorf("dead letter: header %s: %w", HeaderDeadLetterOmitted, err))
		}
		d.Omitted = int(n)
	}
	return d, nil
}

func checkDeadLetter(d *v1.DeadLetter) error {
	switch {
	case d.GetPartition() < 0 || d.GetOffset() < 0:
		return fmt.Errorf("partition %d, offset %d: neither may be negative", d.GetPartition(), d.GetOffset())
	case d.GetFirstTimeMs() < 0 || d.GetLastTimeMs() < 0:
		return errors.New("a time is negative")
	case d.GetTries() < 0:
		return fmt.Errorf("tries: %d is negative", d.GetTries())
	}
	return nil
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func without(headers []Header, names ...string) []Header {
	var out []Header
	for _, h := range headers {
		if !slices.Contains(names, h.Key) {
			out = append(out, h)
		}
	}
	return out
}
