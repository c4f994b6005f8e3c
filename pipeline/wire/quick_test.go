package wire_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Most messages are read by hand. One with a field that nobody knows is read by
// the generated code, which passes over it: both must come to the same, whatever
// stands there.
func TestMessagesAreReadByHandAsByTheGeneratedCode(t *testing.T) {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "group:g1", "single:a:b", "\xff", "text", "b"}), rapid.StringN(0, 20, 80))
	rapid.Check(t, func(rt *rapid.T) {
		s := &v1.SendMessage{
			Conversation:    rapid.SampledFrom([]string{"group:g1", "single:a:b", "single:b:a", "", "x"}).Draw(rt, "conversation"),
			Sender:          rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(rt, "sender"),
			ClientMessageId: text.Draw(rt, "id"), Kind: text.Draw(rt, "kind"), Device: text.Draw(rt, "device"),
			SendTimeMs: rapid.Int64().Draw(rt, "time"),
		}
		switch rapid.IntRange(0, 3).Draw(rt, "body") {
		case 1:
			s.Body = &v1.SendMessage_Text{Text: text.Draw(rt, "text")}
		case 2:
			s.Body = &v1.SendMessage_Data{Data: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(rt, "data")}
		case 3:
			s.Attributes = map[string]string{"k": "v"}
		}
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
		if err != nil {
			// Text that is no UTF-8 cannot be made by the generated code.
			value = protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), s.ClientMessageId)
		}
		// Damage: a field twice, a piece of it, any bytes behind it.
		switch rapid.IntRange(0, 4).Draw(rt, "damage") {
		case 1:
			value = append(value, value...)
		case 2:
			value = value[:rapid.IntRange(0, len(value)).Draw(rt, "cut")]
		case 3:
			value = append(value, rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(rt, "behind")...)
		}
		unknown := protowire.AppendVarint(protowire.AppendTag(nil, 100, protowire.VarintType), 1)
		read := func(value []byte) (any, string) {
			in, err := wire.Codec{}.DecodeInput(wire.Record{
				Topic: "toRedis", TopicID: "AAAAAAAAAAAAAAAAAAAAAA", Time: time.UnixMilli(1), Value: value,
				Headers: []wire.Header{{Key: wire.HeaderContentType, Value: []byte("application/protobuf")}},
			})
			if err != nil {
				return nil, fault.ReasonOf(err)
			}
			return in, ""
		}
		byHand, reason1 := read(value)
		generated, reason2 := read(append(append([]byte(nil), unknown...), value...))
		if len(value) == 0 {
			return // an empty value is refused before anybody reads it
		}
		if diff := cmp.Diff(generated, byHand); diff != "" || reason1 != reason2 {
			rt.Fatalf("by hand %q, generated %q: %s", reason1, reason2, diff)
		}
	})
}
