package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Fields of tidemarkv1.SequencedRecord, Event and MessagesSequenced.
const (
	fieldConversation protowire.Number = 1
	fieldEvents       protowire.Number = 2
	fieldInputs       protowire.Number = 3
	fieldRun          protowire.Number = 1
	fieldPolicy       protowire.Number = 1
	fieldMessages     protowire.Number = 2
)

// ReasonUnencodable is the reason of a value that breaks the log's own rules,
// which only a fault of the program can make.
const ReasonUnencodable = "unencodable"

// EncodeRecord gives a record of the sequenced log; its key is the
// conversation, its Offset is not part of it. A value that DecodeRecord would
// refuse is a fault.Fatal: it must never reach the log.
func EncodeRecord(rec watermark.Record) ([]byte, error) {
	b, err := encodeRecord(&rec)
	if err != nil {
		return nil, fault.New(fault.Fatal, ReasonUnencodable, fmt.Errorf("encode record of %s: %w", rec.Conversation, err))
	}
	return b, nil
}

func encodeRecord(rec *watermark.Record) ([]byte, error) {
	if _, err := watermark.ParseConversationID(string(rec.Conversation)); err != nil {
		return nil, err
	}
	b := make([]byte, 0, recordSize(rec))
	b = appendString(b, fieldConversation, string(rec.Conversation))
	for _, e := range rec.Events {
		b = protowire.AppendTag(b, fieldEvents, protowire.BytesType)
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			var err error
			if b, err = appendEvent(b, e); err != nil {
				return nil, err
			}
			continue
		}
		if err := checkRun(run.Messages); err != nil {
			return nil, err
		}
		b = appendRun(b, &run)
	}
	for _, o := range rec.Inputs {
		if err := checkOrigin(o); err != nil {
			return nil, err
		}
		b = protowire.AppendTag(b, fieldInputs, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(originSize(o)))
		b = appendString(b, 1, o.Partition.TopicID)
		b = appendInt(b, 2, int64(o.Partition.Number))
		b = appendInt(b, 3, o.Offset)
	}
	return b, nil
}

// appendEvent writes any event but a run through the generated code; they are
// rare.
func appendEvent(b []byte, e watermark.Event) ([]byte, error) {
	api := convert.EventToAPI(e)
	if api == nil {
		return nil, fmt.Errorf("event %T is not known", e)
	}
	if _, err := convert.EventFromAPI(api); err != nil {
		return nil, err
	}
	value, err := proto.Marshal(api)
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(b, value), nil
}

func appendRun(b []byte, run *watermark.MessagesSequenced) []byte {
	n := runSize(run)
	b = protowire.AppendVarint(b, uint64(tagSize+protowire.SizeBytes(n)))
	b = protowire.AppendTag(b, fieldRun, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = appendInt(b, fieldPolicy, int64(convert.PolicyToAPI(run.Policy)))
	for i := range run.Messages {
		m := &run.Messages[i]
		b = protowire.AppendTag(b, fieldMessages, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(loggedSize(m)))
		b = appendLogged(b, m)
	}
	return b
}

func runSize(run *watermark.MessagesSequenced) int {
	n := intSize(int64(convert.PolicyToAPI(run.Policy)))
	for i := range run.Messages {
		n += tagSize + protowire.SizeBytes(loggedSize(&run.Messages[i]))
	}
	return n
}

// recordSize is exact for a record of runs, and a good guess for others.
func recordSize(rec *watermark.Record) int {
	n := stringSize(string(rec.Conversation))
	for _, e := range rec.Events {
		if run, ok := e.(watermark.MessagesSequenced); ok {
			n += tagSize + protowire.SizeBytes(tagSize+protowire.SizeBytes(runSize(&run)))
		} else {
			n += 256
		}
	}
	for _, o := range rec.Inputs {
		n += tagSize + protowire.SizeBytes(originSize(o))
	}
	return n
}

func originSize(o watermark.Origin) int {
	return stringSize(o.Partition.TopicID) + intSize(int64(o.Partition.Number)) + intSize(o.Offset)
}

// checkOrigin checks the place of an input.
func checkOrigin(o watermark.Origin) error {
	switch {
	case o.Partition.TopicID == "" || len(o.Partition.TopicID) > maxTopicID:
		return fmt.Errorf("inputs: a topic id has %d bytes, must be 1..%d", len(o.Partition.TopicID), maxTopicID)
	case o.Partition.Number < 0 || o.Offset < 0:
		return fmt.Errorf("inputs: partition %d, offset %d: neither may be negative", o.Partition.Number, o.Offset)
	}
	return nil
}

func checkRun(run []watermark.Message) error {
	for i := range run {
		if err := convert.CheckMessage(&run[i]); err != nil {
			return err
		}
	}
	return convert.CheckRun(run)
}

// DecodeRecord reads a record of the sequenced log. The error is a
// fault.Poison: what it means that the log holds such a record is the
// reader's to decide.
func DecodeRecord(r Record) (watermark.Record, error) { return new(Decoder).Record(r) }

// Decoder reads records of the sequenced log and remembers what one mostly
// shares with the one before: the topic that inputs come from, sender, kind and
// device. The zero value is ready. It belongs to one goroutine.
type Decoder struct {
	messages decoder
	topicID  string
	inputs   []watermark.Origin // room for the records to come
	used     bool
}

// roomForInputs is how many records have room for their one input made together.
const roomForInputs = 64

// Record does what DecodeRecord does.
func (x *Decoder) Record(r Record) (watermark.Record, error) {
	if r.Offset < 0 {
		return watermark.Record{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("sequenced record: offset %d is negative", r.Offset))
	}
	rec := watermark.Record{Offset: r.Offset}
	if err := x.record(&rec, r.Value); err != nil {
		reason := fault.ReasonOf(err)
		if reason != watermark.ReasonInvalid {
			reason = watermark.ReasonUndecodable
		}
		return watermark.Record{}, fault.New(fault.Poison, reason, fmt.Errorf("sequenced record at partition %d, offset %d: %w", r.Partition, r.Offset, err))
	}
	return rec, nil
}

func (x *Decoder) record(rec *watermark.Record, b []byte) error {
	x.messages.hashLen = 0
	err := eachBytes(b, func(num protowire.Number, v []byte) error {
		switch num {
		case fieldConversation:
			rec.Conversation = watermark.ConversationID(v)
		case fieldEvents:
			e, err := x.messages.event(v)
			if err != nil {
				return err
			}
			rec.Events = append(rec.Events, e)
		case fieldInputs:
			o, err := x.origin(v)
			if err != nil {
				return err
			}
			if rec.Inputs == nil {
				rec.Inputs = x.room()
			}
			rec.Inputs = append(rec.Inputs, o)
			return invalid(checkOrigin(o))
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = watermark.ParseConversationID(string(rec.Conversation))
	return invalid(err)
}

// room gives an empty slice with room for one input.
func (x *Decoder) room() []watermark.Origin {
	if len(x.inputs) == 0 {
		if !x.used { // perhaps there is but one record
			x.used = true
			return make([]watermark.Origin, 0, 1)
		}
		x.inputs = make([]watermark.Origin, roomForInputs)
	}
	out := x.inputs[0:0:1]
	x.inputs = x.inputs[1:]
	return out
}

// origin reads a tidemarkv1.Origin, as the generated code would.
func (x *Decoder) origin(b []byte) (o watermark.Origin, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return o, protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.BytesType:
			v, m := protowire.ConsumeBytes(b)
			if n = m; n >= 0 {
				if !utf8.Valid(v) {
					return o, errors.New("inputs: a topic id is not valid UTF-8")
				}
				o.Partition.TopicID = again(&x.topicID, v)
			}
		case (num == 2 || num == 3) && typ == protowire.VarintType:
			v, m := protowire.ConsumeVarint(b)
			if n = m; n >= 0 && num == 2 {
				o.Partition.Number = int32(v) // protobuf keeps the low 32 bits
			} else if n >= 0 {
				o.Offset = int64(v)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return o, protowire.ParseError(n)
		}
		b = b[n:]
	}
	return o, nil
}

func invalid(err error) error {
	return fault.New(fault.Poison, watermark.ReasonInvalid, err)
}

// event reads a run of messages here and every other event through the
// generated code, also one that is not written as EncodeRecord does.
func (d *decoder) event(b []byte) (watermark.Event, error) {
	if num, typ, n := protowire.ConsumeTag(b); n == tagSize && num == fieldRun && typ == protowire.BytesType {
		if v, m := protowire.ConsumeBytes(b[n:]); m >= 0 && n+m == len(b) {
			return d.run(v)
		}
	}
	api := new(v1.Event)
	if err := proto.Unmarshal(b, api); err != nil {
		return nil, err
	}
	return convert.EventFromAPI(api)
}

func (d *decoder) run(b []byte) (watermark.Event, error) {
	var run watermark.MessagesSequenced
	policy := v1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED
	n, err := countMessages(b, &policy)
	if err != nil {
		return nil, err
	}
	if run.Policy, err = convert.PolicyFromAPI(policy); err != nil {
		return nil, err
	}
	if n > 0 {
		run.Messages = make([]watermark.Message, 0, n)
	}
	err = eachBytes(b, func(num protowire.Number, v []byte) error {
		if num != fieldMessages {
			return nil
		}
		run.Messages = append(run.Messages, watermark.Message{})
		m := &run.Messages[len(run.Messages)-1]
		if err := d.message(m, v); err != nil {
			return err
		}
		return invalid(d.check(m))
	})
	if err != nil {
		return nil, err
	}
	if err := convert.CheckRun(run.Messages); err != nil {
		return nil, err
	}
	return run, nil
}

// countMessages counts the messages of a run that really are there, so that
// they can be allocated at once, and picks up the policy.
func countMessages(b []byte, policy *v1.UnreadPolicy) (int, error) {
	count := 0
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		b = b[n:]
		if num == fieldPolicy && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return 0, protowire.ParseError(n)
			}
			*policy = v1.UnreadPolicy(int32(v))
			b = b[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		b = b[n:]
		if num == fieldMessages && typ == protowire.BytesType {
			count++
		}
	}
	return count, nil
}

// eachBytes calls f for every field of b that holds bytes and passes over the
// others.
func eachBytes(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.BytesType {
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(num, v); err != nil {
			return err
		}
	}
	return nil
}
