package convert

import (
	"errors"
	"fmt"
	"unicode/utf8"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// DefaultKind is the kind of a message that names none.
	DefaultKind = "text"
	// DefaultMaxBody is the body limit where Limits does not say, in bytes.
	DefaultMaxBody = 64 << 10
	// HardMaxBody is the highest body limit that can be configured, in bytes.
	HardMaxBody = 1 << 20
	// MaxKind is the longest kind, in bytes.
	MaxKind = 32
	// MaxMentions is the most users that a message mentions.
	MaxMentions = 100
	// MaxAttributes, MaxAttributeKey and MaxAttributeValue bound a message's
	// attributes in number and in bytes.
	MaxAttributes     = 32
	MaxAttributeKey   = 64
	MaxAttributeValue = 1024
	// MaxJSONDepth is how deep a JSON body may nest. An object costs three
	// levels of protobuf nesting and protobuf runtimes other than Go's read no
	// more than 100, a page of messages around it included.
	MaxJSONDepth = 32
)

// Limits are the deployment's choices about messages.
type Limits struct {
	// MaxBody is the largest body in bytes, of JSON in its canonical form;
	// 0 means DefaultMaxBody, more than HardMaxBody means HardMaxBody.
	MaxBody int
}

func (l Limits) maxBody() int {
	if l.MaxBody <= 0 {
		return DefaultMaxBody
	}
	return min(l.MaxBody, HardMaxBody)
}

// SendToMessage checks what a producer sent and gives it as a message without
// a seq, its hash filled in. The client message id may be empty: who reads it
// from Kafka derives one, who answers a call makes one. Kind is filled in when
// empty, send time is left at 0.
//
// A message without content means nothing to anybody and is refused: an empty
// or absent body needs attributes, or a kind other than "text" that says what
// it is.
func SendToMessage(s *v1.SendMessage, l Limits) (watermark.ConversationID, watermark.Message, error) {
	var f faults
	if s == nil {
		f.addf("message", "it is missing")
		return "", watermark.Message{}, f.err("send")
	}
	raw := Send{
		Conversation: s.GetConversation(), Sender: s.GetSender(), ClientID: s.GetClientMessageId(), Kind: s.GetKind(), Device: s.GetDevice(),
		SendTime: s.GetSendTimeMs(), Mentions: s.GetMentions(), Attributes: s.GetAttributes(),
	}
	switch b := s.GetBody().(type) {
	case *v1.SendMessage_Data:
		raw.BodyType, raw.Body = watermark.BodyData, b.Data
	case *v1.SendMessage_Text:
		raw.BodyType, raw.Body = watermark.BodyText, []byte(b.Text)
	case *v1.SendMessage_Json:
		canonical, err := canonicalJSON(b.Json)
		f.add("json", err)
		raw.BodyType, raw.Body, raw.unreadable = watermark.BodyJSON, canonical, err != nil
	}
	return raw.message(&f, l)
}

// Send is a SendMessage field by field, for those who read one by themselves. A
// body in JSON is in its canonical form.
type Send struct {
	Conversation, Sender, ClientID, Kind, Device string

	SendTime   int64
	Mentions   []string
	Attributes map[string]string
	BodyType   watermark.BodyType // BodyNone: it has none
	Body       []byte

	unreadable bool // it is said already what is wrong with the body
}

// Message is SendToMessage for a Send.
func (s *Send) Message(l Limits) (watermark.ConversationID, watermark.Message, error) {
	return s.message(new(faults), l)
}

func (s *Send) message(f *faults, l Limits) (watermark.ConversationID, watermark.Message, error) {
	conv := f.conversation(s.Conversation)
	m := watermark.Message{
		Sender:     f.party("sender", s.Sender, conv),
		ClientID:   f.keyOrNone("client_message_id", s.ClientID),
		Kind:       f.kind(s.Kind),
		SendTime:   f.time("send_time_ms", s.SendTime),
		Mentions:   f.mentions(s.Mentions),
		Attributes: f.attributes(s.Attributes),
		Device:     f.keyOrNone("device", s.Device),
		BodyType:   s.BodyType,
		Body:       s.Body,
	}
	f.body(&m, s, l.maxBody())
	if err := f.err("send"); err != nil {
		return "", watermark.Message{}, err
	}
	m.Hash = m.SumHash()
	return conv, m, nil
}

func (f *faults) kind(s string) string {
	if s == "" {
		return DefaultKind
	}
	if len(s) > MaxKind {
		f.addf("kind", "%d bytes, at most %d are allowed", len(s), MaxKind)
		return s
	}
	for i := range len(s) {
		if !kindByte(s[i]) {
			f.addf("kind", "%s has a byte that is not of [A-Za-z0-9._-]", clip(s))
			break
		}
	}
	return s
}

func kindByte(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		return true
	}
	return false
}

func (f *faults) mentions(users []string) []watermark.UserID {
	if len(users) == 0 {
		return nil
	}
	if len(users) > MaxMentions {
		f.addf("mentions", "%d users, at most %d are allowed", len(users), MaxMentions)
		return nil
	}
	out := make([]watermark.UserID, len(users))
	for i, s := range users {
		u, err := watermark.ParseUserID(s)
		if err != nil {
			f.addf("mentions", "entry %d: %w", i, err)
			return nil
		}
		out[i] = u
	}
	return out
}

func (f *faults) attributes(attrs map[string]string) map[string]string {
	if len(attrs) == 0 {
		return nil
	}
	if len(attrs) > MaxAttributes {
		f.addf("attributes", "%d of them, at most %d are allowed", len(attrs), MaxAttributes)
		return nil
	}
	for k, v := range attrs {
		if err := checkAttribute(k, v); err != nil {
			f.add("attributes", err)
			return nil
		}
	}
	return attrs
}

func checkAttribute(k, v string) error {
	switch {
	case k == "":
		return errors.New("a key is empty")
	case len(k) > MaxAttributeKey:
		return fmt.Errorf("key %s has %d bytes, at most %d are allowed", clip(k), len(k), MaxAttributeKey)
	case len(v) > MaxAttributeValue:
		return fmt.Errorf("the value of %s has %d bytes, at most %d are allowed", clip(k), len(v), MaxAttributeValue)
	case !utf8.ValidString(k):
		return fmt.Errorf("key %s is not valid UTF-8", clip(k))
	case !utf8.ValidString(v):
		return fmt.Errorf("the value of %s is not valid UTF-8", clip(k))
	}
	return nil
}

// bodyFields names the fields of the body's kinds.
var bodyFields = map[watermark.BodyType]string{
	watermark.BodyNone: "body", watermark.BodyData: "data", watermark.BodyText: "text", watermark.BodyJSON: "json",
}

func (f *faults) body(m *watermark.Message, s *Send, limit int) {
	if s.unreadable {
		return
	}
	if m.BodyType == watermark.BodyText && !utf8.Valid(m.Body) {
		f.addf("text", "not valid UTF-8")
	}
	if n := len(m.Body); n > limit {
		f.because(watermark.ReasonTooLarge, bodyFields[m.BodyType], fmt.Errorf("%d bytes, at most %d are allowed", n, limit))
	}
	if len(m.Body) > 0 {
		return
	}
	m.Body = nil
	if m.Kind == DefaultKind && len(s.Attributes) == 0 {
		f.addf(bodyFields[m.BodyType], "empty, which only a message with attributes or of a kind other than %q may be", DefaultKind)
	}
}
