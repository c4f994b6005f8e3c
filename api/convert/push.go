package convert

import (
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// PushEvent gives what a device reads of an event. Of a run of messages it
// takes the first; the caller makes one event for each.
func PushEvent(c watermark.ConversationID, e watermark.Event) *v1.PushEvent {
	out := &v1.PushEvent{Conversation: string(c)}
	if run, ok := e.(watermark.MessagesSequenced); ok {
		if len(run.Messages) > 0 {
			out.Kind = &v1.PushEvent_Message{Message: MessageToAPI(c, &run.Messages[0])}
		}
		return out
	}
	switch k := EventToAPI(e).GetKind().(type) {
	case *v1.Event_Window:
		out.Kind = &v1.PushEvent_Window{Window: k.Window}
	case *v1.Event_MinSeq:
		out.Kind = &v1.PushEvent_MinSeq{MinSeq: k.MinSeq}
	case *v1.Event_Revoked:
		out.Kind = &v1.PushEvent_Revoked{Revoked: k.Revoked}
	case *v1.Event_Read:
		out.Kind = &v1.PushEvent_Read{Read: k.Read}
	case *v1.Event_Repaired:
		out.Kind = &v1.PushEvent_Repaired{Repaired: k.Repaired}
	case *v1.Event_Policy:
		out.Kind = &v1.PushEvent_Policy{Policy: k.Policy}
	}
	return out
}
