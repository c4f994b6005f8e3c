package convert

import (
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// EventToAPI gives an event of the log; nil for nil.
func EventToAPI(e watermark.Event) *v1.Event {
	switch e := e.(type) {
	case watermark.MessagesSequenced:
		run := &v1.MessagesSequenced{Policy: PolicyToAPI(e.Policy)}
		for i := range e.Messages {
			run.Messages = append(run.Messages, LoggedFromMessage(&e.Messages[i]))
		}
		return &v1.Event{Kind: &v1.Event_Messages{Messages: run}}
	case watermark.WindowChanged:
		return &v1.Event{Kind: &v1.Event_Window{Window: &v1.WindowChanged{Member: MemberToAPI(&e.Member), Cause: e.Cause, Actor: string(e.Actor)}}}
	case watermark.MinSeqRaised:
		return &v1.Event{Kind: &v1.Event_MinSeq{MinSeq: &v1.MinSeqRaised{MinSeq: int64(e.Min)}}}
	case watermark.Revoked:
		return &v1.Event{Kind: &v1.Event_Revoked{Revoked: &v1.Revoked{Seq: int64(e.Seq), By: string(e.By), TimeMs: e.Time}}}
	case watermark.ReadAdvanced:
		return &v1.Event{Kind: &v1.Event_Read{Read: &v1.ReadAdvanced{User: string(e.User), ReadSeq: int64(e.Read), ReceiptSeq: int64(e.Receipt), Device: e.Device}}}
	case watermark.Repaired:
		return &v1.Event{Kind: &v1.Event_Repaired{Repaired: &v1.Repaired{Number: e.Number, From: int64(e.From)}}}
	case watermark.PolicyChanged:
		return &v1.Event{Kind: &v1.Event_Policy{Policy: &v1.PolicyChanged{Version: e.Version, Policy: ChoiceToAPI(e.Choice)}}}
	}
	return nil
}

// EventFromAPI is the way back. An event of no known kind is refused.
func EventFromAPI(e *v1.Event) (watermark.Event, error) {
	var f faults
	var out watermark.Event
	switch k := e.GetKind().(type) {
	case *v1.Event_Messages:
		out = f.run(k.Messages)
	case *v1.Event_Window:
		m, err := MemberFromAPI(k.Window.GetMember())
		f.nest("member", err)
		f.text("cause", k.Window.GetCause(), maxLabel)
		out = watermark.WindowChanged{Member: m, Cause: k.Window.GetCause(), Actor: f.userOrNone("actor", k.Window.GetActor())}
	case *v1.Event_MinSeq:
		out = watermark.MinSeqRaised{Min: f.bound("min_seq", k.MinSeq.GetMinSeq())}
	case *v1.Event_Revoked:
		out = watermark.Revoked{Seq: f.seq("seq", k.Revoked.GetSeq()), By: f.userOrNone("by", k.Revoked.GetBy()), Time: f.time("time_ms", k.Revoked.GetTimeMs())}
	case *v1.Event_Read:
		f.text("device", k.Read.GetDevice(), maxLabel)
		out = watermark.ReadAdvanced{
			User: f.user("user", k.Read.GetUser()), Device: k.Read.GetDevice(),
			Read: f.bound("read_seq", k.Read.GetReadSeq()), Receipt: f.bound("receipt_seq", k.Read.GetReceiptSeq()),
		}
	case *v1.Event_Repaired:
		f.within("number", k.Repaired.GetNumber(), 0, maxCount)
		out = watermark.Repaired{Number: k.Repaired.GetNumber(), From: f.bound("from", k.Repaired.GetFrom())}
	case *v1.Event_Policy:
		choice, err := ChoiceFromAPI(k.Policy.GetPolicy())
		f.nest("policy", err)
		f.within("version", k.Policy.GetVersion(), 1, watermark.MaxPolicyVersion)
		out = watermark.PolicyChanged{Version: k.Policy.GetVersion(), Choice: choice}
	default:
		f.addf("kind", "it is missing or not known")
	}
	if err := f.err("event"); err != nil {
		return nil, err
	}
	return out, nil
}

func (f *faults) run(r *v1.MessagesSequenced) watermark.Event {
	policy, err := PolicyFromAPI(r.GetPolicy())
	f.nest("policy", err)
	out := watermark.MessagesSequenced{Policy: policy}
	if n := len(r.GetMessages()); n > 0 {
		out.Messages = make([]watermark.Message, 0, n)
	}
	for _, l := range r.GetMessages() {
		m, err := MessageFromLogged(l)
		if err != nil {
			f.nest("messages", err)
			return out
		}
		out.Messages = append(out.Messages, m)
	}
	f.nest("messages", CheckRun(out.Messages))
	return out
}
