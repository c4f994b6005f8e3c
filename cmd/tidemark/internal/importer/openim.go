package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	openIMBlock   = 100 // messages of a document
	openIMDeleted = 4   // the status of a message whose content is gone
	// openIMHoles is the longest run of seqs without a message that is taken for
	// lost messages, and not for a broken export.
	openIMHoles = 1_000_000
	// openIMLost is the sender of what stands for a message that was lost.
	openIMLost = "import"
)

// OpenIMFiles are the exports of three collections, as JSON lines.
type OpenIMFiles struct {
	Messages string // msg
	Seq      string // seq
	SeqUser  string // seq_user; empty: nobody has marks
	Limits   convert.Limits
	// Step is told of each line; nil: nobody is.
	Step func()
}

func (f *OpenIMFiles) names() []string { return []string{f.Messages, f.Seq, f.SeqUser} }

// OpenIM reads the exports of OpenIM's collections, in any order, and sorts them
// into temporary files, which Close removes.
func OpenIM(ctx context.Context, files OpenIMFiles) (_ *Sorted, err error) {
	s, err := newSorter()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	ids := make(openIMIDs)
	for i, path := range files.names() {
		if i != 1 && path != "" {
			if err := ids.learn(ctx, path, files.Step); err != nil {
				return nil, err
			}
		}
	}
	for i, path := range files.names() {
		if path == "" {
			continue
		}
		err := s.addFile(ctx, path, int64(i), files.Step, func(n int64, text []byte) string { return ids.key(i, n, text) })
		if err != nil {
			return nil, err
		}
	}
	parse := func() func(record) []*entry {
		p := &openIMParser{files: files.names(), limits: files.Limits, ids: ids}
		return p.record
	}
	return &Sorted{sorter: s, parse: parse}, s.done()
}

// number is an integer as mongoexport writes it, relaxed or canonical.
type number int64

func (n *number) UnmarshalJSON(b []byte) error {
	var wrapped struct {
		Long string `json:"$numberLong"`
		Int  string `json:"$numberInt"`
	}
	text := string(b)
	if b[0] == '{' {
		if err := json.Unmarshal(b, &wrapped); err != nil {
			return err
		}
		text = wrapped.Long + wrapped.Int
	}
	if text == "null" {
		return nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s is not an integer", b)
	}
	*n = number(v)
	return nil
}

type openIMMsg struct {
	SendID      string   `json:"send_id"`
	RecvID      string   `json:"recv_id"`
	ClientMsgID string   `json:"client_msg_id"`
	ServerMsgID string   `json:"server_msg_id"`
	ContentType number   `json:"content_type"`
	Content     string   `json:"content"`
	Seq         number   `json:"seq"`
	SendTime    number   `json:"send_time"`
	CreateTime  number   `json:"create_time"`
	Status      number   `json:"status"`
	At          []string `json:"at_user_id_list"`
	Ex          string   `json:"ex"`
}

type openIMDoc struct {
	DocID string `json:"doc_id"`
	Msgs  []*struct {
		Msg    *openIMMsg `json:"msg"`
		Revoke *struct {
			UserID string `json:"user_id"`
			Time   number `json:"time"`
		} `json:"revoke"`
		DelList []string `json:"del_list"`
		IsRead  bool     `json:"is_read"`
	} `json:"msgs"`
}

func (d *openIMDoc) place() (conv string, block int64, err error) {
	i := strings.LastIndexByte(d.DocID, ':')
	if i <= 0 {
		return "", 0, fmt.Errorf("doc_id %q is not conversation:block", d.DocID)
	}
	block, err = strconv.ParseInt(d.DocID[i+1:], 10, 64)
	if err != nil || block < 0 || block > int64(watermark.MaxSeq)/openIMBlock {
		return "", 0, fmt.Errorf("doc_id %q has no number of a block", d.DocID)
	}
	return d.DocID[:i], block, nil
}

type openIMRow struct {
	Conversation string `json:"conversation_id"`
	User         string `json:"user_id"`
	Min          number `json:"min_seq"`
	Max          number `json:"max_seq"`
	Read         number `json:"read_seq"`
}

// openIMIDs are the single conversations whose two users the id alone does not
// tell, since a user id has an underscore.
type openIMIDs map[string]watermark.ConversationID

// learn reads who the users of such conversations are.
func (ids openIMIDs) learn(ctx context.Context, path string, step func()) error {
	return eachLine(ctx, path, step, func(_ int64, text []byte) error {
		if bytes.Contains(text, []byte(`si_`)) {
			ids.learnLine(text)
		}
		return nil
	})
}

func (ids openIMIDs) learnLine(text []byte) {
	var line struct {
		openIMDoc
		openIMRow
	}
	if json.Unmarshal(text, &line) != nil {
		return // told of when it is read again
	}
	conv := line.Conversation
	if line.DocID != "" {
		conv, _, _ = line.place()
	}
	pair, single := strings.CutPrefix(conv, "si_")
	if !single || strings.Count(pair, "_") < 2 || ids[conv] != "" {
		return
	}
	know := func(a, b string) {
		if min(a, b)+"_"+max(a, b) == pair {
			ids[conv] = watermark.SingleOf(watermark.UserID(a), watermark.UserID(b))
		}
	}
	for _, m := range line.Msgs {
		if m != nil && m.Msg != nil {
			know(m.Msg.SendID, m.Msg.RecvID)
		}
	}
	if peer, ok := strings.CutPrefix(pair, line.User+"_"); ok && line.User != "" {
		know(line.User, peer)
	} else if peer, ok := strings.CutSuffix(pair, "_"+line.User); ok && line.User != "" {
		know(line.User, peer)
	}
}

// conversation gives the id that a conversation has here. One that has none
// keeps its own, which is reported as no id.
func (ids openIMIDs) conversation(conv string) string {
	if group, ok := strings.CutPrefix(conv, "sg_"); ok {
		return "group:" + group
	}
	if group, ok := strings.CutPrefix(conv, "g_"); ok {
		return "group:" + group
	}
	if id := ids[conv]; id != "" {
		return string(id)
	}
	if pair, ok := strings.CutPrefix(conv, "si_"); ok && strings.Count(pair, "_") == 1 {
		a, b, _ := strings.Cut(pair, "_")
		return string(watermark.SingleOf(watermark.UserID(a), watermark.UserID(b)))
	}
	return strings.ReplaceAll(conv, "\x00", "")
}

// key is the place of a line; of one that is wrong, before all others.
func (ids openIMIDs) key(file int, n int64, text []byte) string {
	if file == 0 {
		var d struct {
			DocID string `json:"doc_id"`
		}
		_ = json.Unmarshal(text, &d)
		conv, block, err := (&openIMDoc{DocID: d.DocID}).place()
		if err != nil {
			return sortKey("", messageEntry, "", n)
		}
		return sortKey(ids.conversation(conv), messageEntry, numberKey(block), n)
	}
	var r openIMRow
	_ = json.Unmarshal(text, &r)
	if file == 1 {
		return sortKey(ids.conversation(r.Conversation), headEntry, "", n)
	}
	return sortKey(ids.conversation(r.Conversation), memberEntry, r.User, n)
}

func notification(conv string) bool { return strings.HasPrefix(conv, "n_") }

// openIMParser makes entries of sorted lines.
type openIMParser struct {
	files  []string
	limits convert.Limits
	ids    openIMIDs

	conv string
	min  watermark.Seq
	next watermark.Seq // behind the last message
	time int64         // of the last message
	// seen is, by sender of a single conversation, the last message that the
	// other one has read.
	seen map[string]watermark.Seq
}

func (p *openIMParser) record(r record) []*entry {
	at := fmt.Sprintf("%s line %d", p.files[r.file], r.line)
	if r.file == 0 {
		return p.block(at, r.text)
	}
	var row openIMRow
	if err := json.Unmarshal(r.text, &row); err != nil {
		return []*entry{{at: at, fault: fmt.Errorf("is not a row: %w", err)}}
	}
	if row.Conversation == "" {
		return []*entry{{at: at, fault: errors.New("names no conversation")}}
	}
	if notification(row.Conversation) {
		return []*entry{{at: at, skipped: Skipped{Notifications: 1}}}
	}
	p.begin(row.Conversation)
	if r.file == 1 {
		return []*entry{p.head(at, &row)}
	}
	return []*entry{p.member(at, &row)}
}

func (p *openIMParser) begin(openIM string) {
	conv := p.ids.conversation(openIM)
	if conv != p.conv {
		*p = openIMParser{files: p.files, limits: p.limits, ids: p.ids, conv: conv, min: 1, next: 1, seen: make(map[string]watermark.Seq)}
	}
}

func (p *openIMParser) head(at string, row *openIMRow) *entry {
	e := &entry{at: at, conv: p.conv, kind: headEntry}
	if row.Min < 0 || row.Max < 0 || row.Min > number(watermark.MaxSeq) || row.Max > number(watermark.MaxSeq) {
		e.fault = fmt.Errorf("min_seq %d, max_seq %d: not within 0..%d", row.Min, row.Max, watermark.MaxSeq)
		return e
	}
	e.head.min, e.head.given = watermark.Seq(row.Min), watermark.Seq(row.Max)
	p.min = max(e.head.min, 1)
	p.next = p.min
	return e
}

func (p *openIMParser) block(at string, text []byte) (out []*entry) {
	var d openIMDoc
	// A field of a wrong type does not keep doc_id from being read.
	broken := json.Unmarshal(text, &d)
	conv, block, err := d.place()
	if err != nil {
		return []*entry{{at: at, fault: errors.Join(broken, err)}}
	}
	if notification(conv) {
		n := int64(0)
		for _, m := range d.Msgs {
			if m != nil && m.Msg != nil {
				n++
			}
		}
		return []*entry{{at: at, skipped: Skipped{Notifications: n}}}
	}
	p.begin(conv)
	if broken != nil {
		return []*entry{{at: at, conv: p.conv, kind: messageEntry, fault: fmt.Errorf("is not a block of messages: %w", broken)}}
	}
	if len(d.Msgs) > openIMBlock {
		return []*entry{{at: at, conv: p.conv, kind: messageEntry, fault: fmt.Errorf("%d messages in a block, at most %d are known", len(d.Msgs), openIMBlock)}}
	}
	for i, m := range d.Msgs {
		if m == nil || m.Msg == nil {
			continue // a hole, if a message follows
		}
		seq := watermark.Seq(block*openIMBlock + int64(i) + 1)
		place := fmt.Sprintf("%s msgs[%d]", at, i)
		if seq < p.min {
			out = append(out, &entry{at: place, skipped: Skipped{BelowMin: 1}})
			continue
		}
		e := &entry{at: place, conv: p.conv, kind: messageEntry}
		e.skipped.DeletedForOne = int64(len(m.DelList))
		e.msg.Seq = seq
		var revoked revokedField
		if m.Revoke != nil {
			revoked = revokedField{true, watermark.UserID(m.Revoke.UserID), int64(m.Revoke.Time)}
		} else if m.Msg.Status == openIMDeleted {
			revoked.is = true
		}
		e.fault = p.message(e, m.Msg, revoked)
		if m.IsRead && strings.HasPrefix(p.conv, "single:") {
			p.seen[m.Msg.SendID] = seq
		}
		out = append(out, p.holes(e)...)
		out = append(out, e)
		p.next, p.time = max(p.next, seq+1), max(int64(m.Msg.SendTime), p.time)
	}
	return out
}

func (p *openIMParser) message(e *entry, m *openIMMsg, revoked revokedField) error {
	if watermark.Seq(m.Seq) != e.msg.Seq {
		return fmt.Errorf("the message says seq %d, its place is that of %d", m.Seq, e.msg.Seq)
	}
	send := &v1.SendMessage{
		Conversation: p.conv, Sender: m.SendID, ClientMessageId: m.ClientMsgID, Kind: fmt.Sprintf("openim.%d", m.ContentType),
		Body: &v1.SendMessage_Text{Text: m.Content}, Mentions: m.At, SendTimeMs: int64(m.CreateTime), Attributes: map[string]string{},
	}
	for name, value := range map[string]string{"openim.server_msg_id": m.ServerMsgID, "openim.ex": m.Ex} {
		if value != "" {
			send.Attributes[name] = value
		}
	}
	return e.setMessage(send, int64(m.SendTime), revoked, p.limits)
}

// holes gives what stands for the messages that are missing before e.
func (p *openIMParser) holes(e *entry) (out []*entry) {
	if e.msg.Seq-p.next > openIMHoles {
		e.fault = errors.Join(e.fault, fmt.Errorf("seqs %d to %d are missing: more than %d at once are taken for a broken export", p.next, e.msg.Seq-1, openIMHoles))
		return nil
	}
	for seq := p.next; seq < e.msg.Seq; seq++ {
		m := watermark.Message{Seq: seq, Sender: openIMLost, ClientID: fmt.Sprintf("hole-%d", seq), Kind: "hole", SendTime: p.time, RecordTime: p.time}
		m.Hash = m.SumHash()
		out = append(out, &entry{at: e.at, conv: e.conv, kind: messageEntry, hole: true, skipped: Skipped{Holes: 1}, msg: m.Tombstone(watermark.Revoked{Seq: seq})})
	}
	return out
}

// member makes a member of what a user has in a conversation. What lies above
// the last message is lowered to it: the seqs there were set aside for messages
// that never came.
func (p *openIMParser) member(at string, row *openIMRow) *entry {
	e := &entry{at: at, conv: p.conv, kind: memberEntry}
	u, err := watermark.ParseUserID(row.User)
	e.member.user = u
	if row.Min < 0 || row.Max < 0 || row.Read < 0 {
		err = errors.Join(err, fmt.Errorf("min_seq %d, max_seq %d, read_seq %d: one is below 0", row.Min, row.Max, row.Read))
	}
	e.fault = err
	last := p.next - 1
	lower := func(n number, bound watermark.Seq) watermark.Seq {
		if watermark.Seq(n) > bound {
			e.skipped.Lowered++
			return bound
		}
		return watermark.Seq(n)
	}
	e.member.read = lower(row.Read, last)
	for sender, seq := range p.seen {
		if sender != row.User {
			e.member.receipt = max(e.member.receipt, seq)
		}
	}
	if row.Min > 0 || row.Max > 0 {
		e.member.said = true
		w := watermark.Interval{First: max(lower(row.Min, last+1), 1), Last: lower(row.Max, last)}
		if row.Max == 0 || w.First <= w.Last {
			e.member.windows = watermark.Intervals{w}
		}
	}
	return e
}
