package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/watermark"
)

// quickSend reads a SendMessage in binary protobuf field by field, with two
// allocations instead of eight. It reads the fields that nearly all have, and is
// false for a message with any other, with one that stands twice, and for
// whatever it cannot read: the generated code then says what is wrong. A test
// holds both against one another.
func quickSend(value []byte) (convert.Send, bool) {
	var s convert.Send
	seen := uint32(0)
	all := string(value) // the texts are pieces of it
	for at := 0; at < len(value); {
		num, typ, n := protowire.ConsumeTag(value[at:])
		if n < 0 || num < 1 || num > sendDevice || seen&(1<<num) != 0 {
			return s, false
		}
		at += n
		seen |= 1 << num
		if num == sendTime {
			v, n := protowire.ConsumeVarint(value[at:])
			if n < 0 || typ != protowire.VarintType {
				return s, false
			}
			s.SendTime = int64(v)
			at += n
			continue
		}
		if typ != protowire.BytesType {
			return s, false
		}
		v, n := protowire.ConsumeBytes(value[at:])
		if n < 0 {
			return s, false
		}
		at += n
		if !quickField(&s, num, v, all[at-len(v):at]) {
			return s, false
		}
	}
	return s, true
}

// The fields of tidemarkv1.SendMessage that are read here.
const (
	sendConversation protowire.Number = 1
	sendSender       protowire.Number = 2
	sendClientID     protowire.Number = 3
	sendKind         protowire.Number = 4
	sendData         protowire.Number = 5
	sendText         protowire.Number = 6
	sendTime         protowire.Number = 8
	sendDevice       protowire.Number = 11
)

// quickField takes one field, as bytes of the record and as text of its own.
func quickField(s *convert.Send, num protowire.Number, v []byte, text string) bool {
	var into *string
	switch num {
	case sendConversation:
		into = &s.Conversation
	case sendSender:
		into = &s.Sender
	case sendClientID:
		into = &s.ClientID
	case sendKind:
		into = &s.Kind
	case sendDevice:
		into = &s.Device
	case sendData, sendText:
		if s.BodyType != watermark.BodyNone || (num == sendText && !utf8.Valid(v)) {
			return false
		}
		s.BodyType = watermark.BodyData
		if num == sendText {
			s.BodyType = watermark.BodyText
		}
		s.Body = append(make([]byte, 0, len(v)), v...)
		return true
	default:
		return false
	}
	*into = text
	return utf8.ValidString(text)
}
