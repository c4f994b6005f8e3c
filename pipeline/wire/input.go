package wire

import (
	"errors"
	"fmt"
	"mime"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultMaxRecord is the limit of a sequenced record where Codec does not
// say: Kafka's default for a batch, 1,048,588 bytes, less what the batch, the
// key and the record's own header take.
const DefaultMaxRecord = 1_000_000

// handedBackMargin is what a record may take beside a message that was handed
// back.
const handedBackMargin = 8 << 10

// Codec reads the input topic. Its zero value has the default limits.
type Codec struct {
	// Limits are the deployment's choices about messages.
	Limits convert.Limits
	// MaxRecord is the largest value in bytes that the sequenced topic takes;
	// 0 means DefaultMaxRecord. A message that would not fit is refused here,
	// before it can be given a seq that could then never be appended.
	MaxRecord int
}

// DecodeInput reads one record of the toRedis topic: a SendMessage or a
// Command. The key is not looked at. The error is a fault.Poison, or a
// fault.Fatal where the reader did not fill in the topic id.
//
// The input's origin is the record's first place: where a forwarded record
// stood before. From there come the time, the send time of a message that
// names none, and the client message id of a message without one. A record that
// replays a dead letter is an input of its own, at its own place; only the
// message's id and send time are those of the record that it repeats.
func (c Codec) DecodeInput(r Record) (watermark.Input, error) {
	f, err := firstOf(&r)
	if err != nil {
		return watermark.Input{}, err
	}
	id, err := identityOf(&r, f)
	if err != nil {
		return watermark.Input{}, err
	}
	var in watermark.Input
	switch kind, ok := r.Header(HeaderType); {
	case !ok || len(kind) == 0:
		in, err = c.decodeSend(&r, f, id)
	case string(kind) == typeCommand:
		in, err = decodeCommand(r.Value)
	default:
		err = undecodable(fmt.Errorf("header %s: %s is not known", HeaderType, clip(string(kind), 32)))
	}
	if err != nil {
		return watermark.Input{}, err
	}
	if err := c.checkSize(&in); err != nil {
		return watermark.Input{}, err
	}
	in.Origin, in.Time = f.origin, f.timeMs
	return in, nil
}

// checkSize refuses what could be given a seq and then never be
// appended, be it sent or handed back to be sequenced anew.
func (c Codec) checkSize(in *watermark.Input) error {
	if in.Message == nil {
		return nil
	}
	n := recordOverhead + inputSize + eventOverhead + messageSize(in.Message)
	if in.Act != watermark.ActSend {
		// It was not bounded by the limits of a message that is sent, so it may
		// be near the record's: leave room for the key and for more inputs.
		n += handedBackMargin
	}
	limit := c.MaxRecord
	if limit <= 0 {
		limit = DefaultMaxRecord
	}
	if n <= limit {
		return nil
	}
	return fault.New(fault.Poison, watermark.ReasonTooLarge,
		fmt.Errorf("message: %d bytes in the sequenced log, whose records take at most %d", n, limit))
}

func (c Codec) decodeSend(r *Record, f, id first) (watermark.Input, error) {
	conv, m, err := c.readSend(r)
	if err != nil {
		return watermark.Input{}, err
	}
	if m.ClientID == "" {
		m.ClientID = id.clientID()
	}
	if m.SendTime == 0 {
		m.SendTime = id.timeMs
	}
	m.RecordTime = f.timeMs
	in := watermark.Input{Conversation: conv, Act: watermark.ActSend, Actor: m.Sender, Message: &m}
	if caller, ok := r.Header(HeaderCaller); ok && len(caller) > 0 {
		in.Caller = string(caller)
		if err := watermark.CheckKey("it", in.Caller); err != nil {
			return watermark.Input{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("header %s: %w", HeaderCaller, err))
		}
	}
	return in, nil
}

func (c Codec) readSend(r *Record) (watermark.ConversationID, watermark.Message, error) {
	if len(r.Value) > 0 {
		asJSON, err := isJSON(r)
		if err == nil && !asJSON {
			if s, ok := quickSend(r.Value); ok {
				return s.Message(c.Limits)
			}
		}
	}
	s, err := unmarshalSend(r)
	if err != nil {
		return "", watermark.Message{}, undecodable(err)
	}
	return convert.SendToMessage(s, c.Limits)
}

func unmarshalSend(r *Record) (*v1.SendMessage, error) {
	if len(r.Value) == 0 {
		return nil, errors.New("the value is empty")
	}
	asJSON, err := isJSON(r)
	if err != nil {
		return nil, err
	}
	s := new(v1.SendMessage)
	if asJSON {
		if err := protojson.Unmarshal(r.Value, s); err != nil {
			return nil, fmt.Errorf("not a SendMessage in JSON: %s", jsonCause(err))
		}
		return s, nil
	}
	if err := proto.Unmarshal(r.Value, s); err != nil {
		return nil, fmt.Errorf("not a SendMessage in binary protobuf, and not marked as JSON: %w", err)
	}
	return s, nil
}

// isJSON tells how a SendMessage is written: as its content type says, else by
// its first byte. '{' begins no SendMessage in protobuf: it would be a group
// numbered 15.
func isJSON(r *Record) (bool, error) {
	v, ok := r.Header(HeaderContentType)
	if !ok || len(v) == 0 {
		return r.Value[0] == '{', nil
	}
	if string(v) == contentProtobuf { // what EncodeSend writes
		return false, nil
	}
	kind, _, err := mime.ParseMediaType(string(v))
	switch {
	case err == nil && kind == contentJSON:
		return true, nil
	case err == nil && (kind == contentProtobuf || kind == "application/x-protobuf"):
		return false, nil
	}
	return false, fmt.Errorf("header %s: %s is neither %s nor %s", HeaderContentType, clip(string(v), 64), contentJSON, contentProtobuf)
}

// jsonCause gives protojson's complaint with its place, without the piece of
// the value that it shows: that may be somebody's message. protojson puts a
// no-break space into its texts at random, so that nobody relies on them.
func jsonCause(err error) string {
	s := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	s = strings.TrimPrefix(s, "proto: ")
	for _, mark := range []string{"unexpected token", "invalid value"} {
		at := strings.Index(s, mark)
		if at < 0 {
			continue
		}
		end := at + len(mark)
		if colon := strings.Index(s[end:], ": "); strings.HasPrefix(s[end:], " for ") && colon >= 0 {
			end += colon
		}
		s = s[:end]
	}
	return strings.ToValidUTF8(s[:min(len(s), 300)], "?")
}

func decodeCommand(value []byte) (watermark.Input, error) {
	if len(value) == 0 {
		return watermark.Input{}, undecodable(errors.New("the value is empty"))
	}
	cmd := new(v1.Command)
	if err := proto.Unmarshal(value, cmd); err != nil {
		return watermark.Input{}, undecodable(fmt.Errorf("not a Command in binary protobuf: %w", err))
	}
	return convert.CommandToInput(cmd)
}

func undecodable(err error) error {
	return fault.New(fault.Poison, watermark.ReasonUndecodable, err)
}

// EncodeSend gives a message as a record of the toRedis topic. caller names
// who waits for the seq, empty for nobody; whoever waits must know the client
// message id that the answer is filed under, so it must be set.
//
// The message is not checked: DecodeInput's limits are the owner's.
func EncodeSend(s *v1.SendMessage, caller string) (Out, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return Out{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("encode send: %w", err))
	}
	out := Out{
		Partition: -1,
		Key:       s.GetConversation(),
		Value:     value,
		Headers:   []Header{{HeaderContentType, []byte(contentProtobuf)}},
	}
	if caller == "" {
		return out, nil
	}
	if err := watermark.CheckKey("caller", caller); err != nil {
		return Out{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("encode send: %w", err))
	}
	if s.GetClientMessageId() == "" {
		return Out{}, fault.New(fault.Poison, watermark.ReasonInvalid, errors.New("encode send: client_message_id: a caller that waits must set it"))
	}
	out.Headers = append(out.Headers, Header{HeaderCaller, []byte(caller)})
	return out, nil
}

// EncodeCommand gives a command as a record of the toRedis topic.
func EncodeCommand(c *v1.Command) (Out, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		return Out{}, fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("encode command: %w", err))
	}
	return Out{
		Partition: -1,
		Key:       c.GetConversation(),
		Value:     value,
		Headers:   []Header{{HeaderType, []byte(typeCommand)}},
	}, nil
}
