package syncapi

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/watermark"
)

// strictJSON reads JSON requests and refuses fields that it does not know, as
// producers' JSON is read: a misspelt field that is passed over in silence would
// cost an idempotency key or a limit. Answers are read by clients, not here.
type strictJSON struct{ name string }

// Name implements connect.Codec.
func (c strictJSON) Name() string { return c.name }

// Marshal implements connect.Codec.
func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	return protojson.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", message)
	}
	if len(data) == 0 {
		return errors.New("an empty body is not JSON; send {} for a request without fields")
	}
	return protojson.Unmarshal(data, m)
}

// codecs take the place of the library's: JSON is read strictly, and what cannot
// be decoded is told with its reason like every other fault.
func codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(telling{strictJSON{"json"}}), connect.WithCodec(telling{strictJSON{"json; charset=utf-8"}}),
		connect.WithCodec(telling{protoBinary{}}),
	)
}

// protoBinary is the protobuf codec.
type protoBinary struct{}

// Name implements connect.Codec.
func (protoBinary) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (protoBinary) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	return proto.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (protoBinary) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", message)
	}
	return proto.Unmarshal(data, m)
}

// telling leaves a note in a request that cannot be decoded instead of failing:
// the library would answer by itself then, before any interceptor, and without
// details. The note is an unknown field with a number that no message can have,
// since protobuf keeps it for itself. A caller who sends one is told that its
// request cannot be decoded.
type telling struct{ connect.Codec }

const noteField = protowire.FirstReservedNumber

// Unmarshal implements connect.Codec.
func (c telling) Unmarshal(data []byte, message any) error {
	err := c.Codec.Unmarshal(data, message)
	m, ok := message.(proto.Message)
	if err == nil || !ok {
		return err
	}
	proto.Reset(m)
	note := protowire.AppendTag(nil, noteField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(note, err.Error()))
	return nil
}

// decodeFault reads the note.
func decodeFault(message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	for b := m.ProtoReflect().GetUnknown(); len(b) > 0; {
		num, typ, tag := protowire.ConsumeTag(b)
		n := protowire.ConsumeFieldValue(num, typ, b[max(tag, 0):])
		if tag < 0 || n < 0 {
			return nil // it was decoded, so it cannot be
		}
		if num == noteField && typ == protowire.BytesType {
			text, _ := protowire.ConsumeString(b[tag:])
			return refuse(connect.CodeInvalidArgument, watermark.ReasonInvalid, "the request cannot be decoded: %s", strings.ToValidUTF8(text, "?"))
		}
		b = b[tag+n:]
	}
	return nil
}
