package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// Glance is what can be told of a record that may not be acceptable: as much as
// can be read, checked by nobody, for people and filters.
type Glance struct {
	Kind         string // "send", "command", "sequenced"; empty: it cannot be told
	Conversation string // else the record's key, where that is a conversation
	Sender       string // of a command: who asks for it
	ClientID     string // of a command: its op id
	// Content is the whole message or command; nil where it cannot be read.
	Content proto.Message
}

// GlanceAt reads what it can.
func GlanceAt(r *Record) Glance {
	g := glance(r)
	if g.Conversation == "" {
		if conv, err := watermark.ParseConversationID(string(r.Key)); err == nil {
			g.Conversation = string(conv)
		}
	}
	return g
}

func glance(r *Record) Glance {
	if strings.HasSuffix(r.Topic, TopicSequenced) {
		rec, err := DecodeRecord(*r)
		if err != nil {
			return Glance{}
		}
		return Glance{Kind: "sequenced", Conversation: string(rec.Conversation)}
	}
	if kind, ok := r.Header(HeaderType); ok && len(kind) > 0 {
		c := new(v1.Command)
		if string(kind) != typeCommand || len(r.Value) == 0 || proto.Unmarshal(r.Value, c) != nil {
			return Glance{}
		}
		return Glance{Kind: "command", Conversation: c.GetConversation(), Sender: c.GetActor(), ClientID: c.GetOpId(), Content: c}
	}
	s, err := unmarshalSend(r)
	if err != nil {
		return Glance{}
	}
	return Glance{Kind: "send", Conversation: s.GetConversation(), Sender: s.GetSender(), ClientID: s.GetClientMessageId(), Content: s}
}
