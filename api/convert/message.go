package convert

import (
	"fmt"
	"unicode/utf8"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxLabel bounds kinds, devices and causes in the log, in bytes. It is wider
// than what SendToMessage takes.
const maxLabel = 1024

// MessageToAPI gives a message as clients see it. A tombstone has no content
// and says who revoked it. IsRead is the caller's to set.
//
// A stored body that is not what its type says (text that is no UTF-8, JSON
// that does not parse) is handed out as data: one bad row must not make a
// whole answer unencodable.
func MessageToAPI(c watermark.ConversationID, m *watermark.Message) *v1.Message {
	out := &v1.Message{
		Conversation:    string(c),
		Seq:             int64(m.Seq),
		Sender:          string(m.Sender),
		ClientMessageId: m.ClientID,
		Kind:            m.Kind,
		SendTimeMs:      m.SendTime,
		Device:          m.Device,
	}
	if r := m.Revoked; r != nil {
		out.Revoked, out.RevokedBy, out.RevokedTimeMs = true, string(r.By), r.Time
		return out
	}
	out.Mentions = usersToAPI(m.Mentions)
	out.Attributes = m.Attributes
	switch m.BodyType {
	case watermark.BodyData:
		out.Body = &v1.Message_Data{Data: m.Body}
	case watermark.BodyText:
		if utf8.Valid(m.Body) {
			out.Body = &v1.Message_Text{Text: string(m.Body)}
		} else {
			out.Body = &v1.Message_Data{Data: m.Body}
		}
	case watermark.BodyJSON:
		if v, err := parseJSON(m.Body); err == nil {
			out.Body = &v1.Message_Json{Json: v}
		} else {
			out.Body = &v1.Message_Data{Data: m.Body}
		}
	}
	return out
}

// LoggedFromMessage gives a message as it stands in the log. Revoked is not
// part of it.
func LoggedFromMessage(m *watermark.Message) *v1.LoggedMessage {
	return &v1.LoggedMessage{
		Seq:             int64(m.Seq),
		Sender:          string(m.Sender),
		ClientMessageId: m.ClientID,
		Hash:            m.Hash[:],
		Kind:            m.Kind,
		SendTimeMs:      m.SendTime,
		RecordTimeMs:    m.RecordTime,
		Mentions:        usersToAPI(m.Mentions),
		Attributes:      m.Attributes,
		Device:          m.Device,
		BodyType:        BodyTypeToAPI(m.BodyType),
		Body:            m.Body,
	}
}

// MessageFromLogged is the way back. The seq may be 0, for a message that has
// none: where it must have one, see RequireSeq.
func MessageFromLogged(l *v1.LoggedMessage) (watermark.Message, error) {
	var f faults
	m := watermark.Message{
		Seq:        watermark.Seq(l.GetSeq()),
		Sender:     watermark.UserID(l.GetSender()),
		ClientID:   l.GetClientMessageId(),
		Kind:       l.GetKind(),
		SendTime:   l.GetSendTimeMs(),
		RecordTime: l.GetRecordTimeMs(),
		Device:     l.GetDevice(),
	}
	if len(l.GetHash()) == len(m.Hash) {
		copy(m.Hash[:], l.GetHash())
	} else {
		f.addf("hash", "%d bytes, must be %d", len(l.GetHash()), len(m.Hash))
	}
	if users := l.GetMentions(); len(users) > 0 {
		m.Mentions = make([]watermark.UserID, len(users))
		for i, u := range users {
			m.Mentions[i] = watermark.UserID(u)
		}
	}
	if len(l.GetAttributes()) > 0 {
		m.Attributes = l.GetAttributes()
	}
	t, err := BodyTypeFromAPI(l.GetBodyType())
	f.add("body_type", err)
	m.BodyType = t
	if len(l.GetBody()) > 0 {
		m.Body = l.GetBody()
	}
	f.add("content", CheckMessage(&m))
	if err := f.err("logged message"); err != nil {
		return watermark.Message{}, err
	}
	return m, nil
}

// CheckMessage checks the rules that hold for every message in the log, with
// or without a seq. It allocates nothing when they do.
//
// It is wider than SendToMessage: limits that may be widened one day are not
// checked again, so that an older reader can live with a newer writer.
func CheckMessage(m *watermark.Message) error {
	var f faults
	f.bound("seq", int64(m.Seq))
	f.user("sender", string(m.Sender))
	f.key("client_message_id", m.ClientID)
	f.text("kind", m.Kind, maxLabel)
	f.text("device", m.Device, maxLabel)
	f.time("send_time_ms", m.SendTime)
	f.time("record_time_ms", m.RecordTime)
	for _, u := range m.Mentions {
		f.user("mentions", string(u))
	}
	for k, v := range m.Attributes {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			f.addf("attributes", "%s is not valid UTF-8", clip(k))
		}
	}
	if m.BodyType < watermark.BodyNone || m.BodyType > watermark.BodyJSON {
		f.addf("body_type", "the value %d is not known", m.BodyType)
	}
	if m.BodyType == watermark.BodyNone && len(m.Body) > 0 {
		f.addf("body", "%d bytes of no type", len(m.Body))
	}
	return f.err("message")
}

// RequireSeq checks that a message has its place.
func RequireSeq(m *watermark.Message) error {
	if m.Seq >= 1 && m.Seq <= watermark.MaxSeq {
		return nil
	}
	var f faults
	f.seq("seq", int64(m.Seq))
	return f.err("message")
}

// CheckRun checks that a run of messages has ascending seqs.
func CheckRun(run []watermark.Message) error {
	var last watermark.Seq
	for i := range run {
		if err := RequireSeq(&run[i]); err != nil {
			return err
		}
		if run[i].Seq <= last {
			var f faults
			f.add("seq", fmt.Errorf("%d follows %d in one run", run[i].Seq, last))
			return f.err("messages")
		}
		last = run[i].Seq
	}
	return nil
}

func usersToAPI(users []watermark.UserID) []string {
	if len(users) == 0 {
		return nil
	}
	out := make([]string, len(users))
	for i, u := range users {
		out[i] = string(u)
	}
	return out
}
