package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// The messages of the log are written and read here field by field, since
// every message of every conversation passes three times. The layout is that of
// tidemarkv1.LoggedMessage; tests hold it against the generated code.
const (
	fieldSeq        protowire.Number = 1
	fieldSender     protowire.Number = 2
	fieldClientID   protowire.Number = 3
	fieldHash       protowire.Number = 4
	fieldKind       protowire.Number = 5
	fieldSendTime   protowire.Number = 6
	fieldRecordTime protowire.Number = 7
	fieldMentions   protowire.Number = 8
	fieldAttributes protowire.Number = 9
	fieldDevice     protowire.Number = 10
	fieldBodyType   protowire.Number = 11
	fieldBody       protowire.Number = 12

	// Fields 1 to 15 have tags of one byte.
	tagSize = 1
)

// EncodeMessage gives a message as two byte strings, its seq left out: what
// stays when it is revoked, and its content. Put together they are a
// serialized tidemarkv1.LoggedMessage. The header is never empty.
func EncodeMessage(m *watermark.Message) (header, body []byte) {
	return appendHeader(make([]byte, 0, headerSize(m)), m), appendContent(make([]byte, 0, contentSize(m)), m)
}

// AppendMessage appends what EncodeMessage gives, the one behind the other, and
// tells how long the header is.
func AppendMessage(b []byte, m *watermark.Message) (out []byte, header int) {
	out = appendHeader(b, m)
	return appendContent(out, m), len(out) - len(b)
}

// DecodeMessage is the way back. An absent body gives the message without
// content, as a revoked one is stored; Revoked is the caller's to set. The
// error is a fault.Poison.
func DecodeMessage(seq watermark.Seq, header, body []byte) (watermark.Message, error) {
	var d decoder
	var m watermark.Message
	err := d.message(&m, header)
	if err == nil {
		err = d.message(&m, body)
	}
	if err != nil {
		return watermark.Message{}, undecodable(fmt.Errorf("message %d: %w", seq, err))
	}
	m.Seq = seq
	if err := d.check(&m); err != nil {
		return watermark.Message{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("message %d: %w", seq, err))
	}
	return m, nil
}

func appendHeader(b []byte, m *watermark.Message) []byte {
	b = appendString(b, fieldSender, string(m.Sender))
	b = appendString(b, fieldClientID, m.ClientID)
	b = protowire.AppendTag(b, fieldHash, protowire.BytesType)
	b = protowire.AppendBytes(b, m.Hash[:])
	b = appendString(b, fieldKind, m.Kind)
	b = appendInt(b, fieldSendTime, m.SendTime)
	b = appendInt(b, fieldRecordTime, m.RecordTime)
	return appendString(b, fieldDevice, m.Device)
}

func headerSize(m *watermark.Message) int {
	return stringSize(string(m.Sender)) + stringSize(m.ClientID) +
		tagSize + protowire.SizeBytes(len(m.Hash)) + stringSize(m.Kind) +
		intSize(m.SendTime) + intSize(m.RecordTime) + stringSize(m.Device)
}

func appendContent(b []byte, m *watermark.Message) []byte {
	for _, u := range m.Mentions {
		b = protowire.AppendTag(b, fieldMentions, protowire.BytesType)
		b = protowire.AppendString(b, string(u))
	}
	if len(m.Attributes) > 0 {
		b = appendAttributes(b, m.Attributes)
	}
	b = appendInt(b, fieldBodyType, int64(convert.BodyTypeToAPI(m.BodyType)))
	if len(m.Body) > 0 {
		b = protowire.AppendTag(b, fieldBody, protowire.BytesType)
		b = protowire.AppendBytes(b, m.Body)
	}
	return b
}

func contentSize(m *watermark.Message) int {
	n := intSize(int64(convert.BodyTypeToAPI(m.BodyType)))
	for _, u := range m.Mentions {
		n += tagSize + protowire.SizeBytes(len(u))
	}
	for k, v := range m.Attributes {
		n += tagSize + protowire.SizeBytes(attributeSize(k, v))
	}
	if len(m.Body) > 0 {
		n += tagSize + protowire.SizeBytes(len(m.Body))
	}
	return n
}

// appendAttributes writes in the order of the keys, so that a message sent
// again has the same bytes.
func appendAttributes(b []byte, attrs map[string]string) []byte {
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		v := attrs[k]
		b = protowire.AppendTag(b, fieldAttributes, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(attributeSize(k, v)))
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendString(b, k)
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendString(b, v)
	}
	return b
}

func attributeSize(k, v string) int {
	return 2*tagSize + protowire.SizeBytes(len(k)) + protowire.SizeBytes(len(v))
}

// appendLogged writes a whole LoggedMessage.
func appendLogged(b []byte, m *watermark.Message) []byte {
	return appendContent(appendHeader(appendInt(b, fieldSeq, int64(m.Seq)), m), m)
}

func loggedSize(m *watermark.Message) int {
	return intSize(int64(m.Seq)) + headerSize(m) + contentSize(m)
}

// messageSize is the most that a message takes in a run, whatever its seq.
func messageSize(m *watermark.Message) int {
	return tagSize + protowire.SizeBytes(tagSize+protowire.SizeVarint(uint64(watermark.MaxSeq))+headerSize(m)+contentSize(m))
}

func appendString(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func stringSize(s string) int {
	if s == "" {
		return 0
	}
	return tagSize + protowire.SizeBytes(len(s))
}

func appendInt(b []byte, n protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

func intSize(v int64) int {
	if v == 0 {
		return 0
	}
	return tagSize + protowire.SizeVarint(uint64(v))
}

// decoder reads messages. It remembers the last sender, kind and device, which
// the messages of one record mostly share.
type decoder struct {
	sender, kind, device string
	hashLen              int
}

// again gives b as a string, the last one if it is the same.
func again(last *string, b []byte) string {
	if *last != string(b) {
		*last = string(b)
	}
	return *last
}

// message reads the fields of a LoggedMessage into m, over those that are
// there, as protobuf merges. Unknown fields are passed over.
func (d *decoder) message(m *watermark.Message, b []byte) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			if err := intField(m, num, v); err != nil {
				return err
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			if err := d.bytesField(m, num, v); err != nil {
				return err
			}
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
		}
	}
	return nil
}

func intField(m *watermark.Message, num protowire.Number, v uint64) error {
	switch num {
	case fieldSeq:
		m.Seq = watermark.Seq(v)
	case fieldSendTime:
		m.SendTime = int64(v)
	case fieldRecordTime:
		m.RecordTime = int64(v)
	case fieldBodyType:
		// Protobuf keeps the low 32 bits of an enum. 4 and above, or below 0,
		// are refused by the check that follows.
		m.BodyType = watermark.BodyType(int32(v))
	}
	return nil
}

func (d *decoder) bytesField(m *watermark.Message, num protowire.Number, v []byte) error {
	switch num {
	case fieldSender:
		m.Sender = watermark.UserID(again(&d.sender, v))
	case fieldClientID:
		m.ClientID = string(v)
	case fieldHash:
		d.hashLen = len(v)
		m.Hash = watermark.Hash{}
		copy(m.Hash[:], v)
	case fieldKind:
		m.Kind = again(&d.kind, v)
	case fieldDevice:
		m.Device = again(&d.device, v)
	case fieldMentions:
		m.Mentions = append(m.Mentions, watermark.UserID(v))
	case fieldAttributes:
		return attribute(m, v)
	case fieldBody:
		m.Body = nil
		if len(v) > 0 {
			m.Body = slices.Clone(v)
		}
	}
	return nil
}

func attribute(m *watermark.Message, b []byte) error {
	var key, value string
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.BytesType || num > 2 {
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
		if !utf8.Valid(v) {
			return errors.New("an attribute is not valid UTF-8")
		}
		if num == 1 {
			key = string(v)
		} else {
			value = string(v)
		}
	}
	if m.Attributes == nil {
		m.Attributes = make(map[string]string)
	}
	m.Attributes[key] = value
	return nil
}

func (d *decoder) check(m *watermark.Message) error {
	if n := d.hashLen; n != len(m.Hash) {
		return fmt.Errorf("hash: %d bytes, must be %d", n, len(m.Hash))
	}
	d.hashLen = 0
	if err := convert.CheckMessage(m); err != nil {
		return err
	}
	return convert.RequireSeq(m)
}
