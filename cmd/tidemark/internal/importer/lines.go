package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// MaxLine is the longest line of an input, in bytes. It is more than the
// largest message takes as JSON, and what a block of OpenIM can hold.
const MaxLine = 64 << 20

// Lines reads JSON lines of a file, sorted by conversation.
func Lines(path string, l convert.Limits) Source { return &lineSource{path, l} }

type lineSource struct {
	path   string
	limits convert.Limits
}

func (s *lineSource) open() (feed, error) {
	r, err := openLines(s.path)
	if err != nil {
		return nil, err
	}
	return &lineFeed{r, s.limits}, nil
}

type lineFeed struct {
	*lineReader
	limits convert.Limits
}

func (f *lineFeed) next() (*entry, error) {
	text, err := f.line()
	if err != nil {
		return nil, err
	}
	return parseLine(fmt.Sprintf("line %d", f.n), text, f.limits), nil
}

// lineReader reads the lines of a file that are not blank.
type lineReader struct {
	f *os.File
	r *bufio.Reader
	n int64 // of the line that was read last, from 1
}

func openLines(path string) (*lineReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &lineReader{f: f, r: bufio.NewReaderSize(f, 1<<20)}, nil
}

// eachLine calls f with every line of a file, and step after each. nil: nothing
// is to be called.
func eachLine(ctx context.Context, path string, step func(), f func(n int64, text []byte) error) (err error) {
	r, err := openLines(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for ctx.Err() == nil {
		text, err := r.line()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(r.n, text); err != nil {
			return err
		}
		if step != nil {
			step()
		}
	}
	return context.Cause(ctx)
}

func (r *lineReader) close() error { return r.f.Close() }

func (r *lineReader) line() ([]byte, error) {
	for {
		var line []byte
		r.n++
		for {
			part, err := r.r.ReadSlice('\n')
			if len(line)+len(part) > MaxLine {
				return nil, fmt.Errorf("%s: line %d is longer than %d bytes", r.f.Name(), r.n, MaxLine)
			}
			line = append(line, part...)
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			line = bytes.TrimSpace(line)
			if errors.Is(err, io.EOF) && len(line) == 0 {
				return nil, io.EOF
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%s: line %d: %w", r.f.Name(), r.n, err)
			}
			break
		}
		if len(line) > 0 {
			return line, nil
		}
	}
}

// order sorts the messages of a system without dense seqs: numbers as numbers,
// texts by their bytes.
type order struct {
	text   string
	number int64
	isText bool
}

func (o order) String() string {
	if o.isText {
		return fmt.Sprintf("%q", o.text)
	}
	return fmt.Sprint(o.number)
}

func (o order) compare(p order) (n int, comparable bool) {
	if o.isText != p.isText {
		return 0, false
	}
	return cmp.Or(cmp.Compare(o.number, p.number), cmp.Compare(o.text, p.text)), true
}

func (o *order) UnmarshalJSON(b []byte) error {
	if o.isText = b[0] == '"'; o.isText {
		return json.Unmarshal(b, &o.text)
	}
	if err := json.Unmarshal(b, &o.number); err != nil {
		return fmt.Errorf("order must be an integer of 64 bits or a text: %s", b)
	}
	return nil
}

// derivedID is the client message id of a message that has none: the same for
// the same place, whatever else is exported beside it.
func derivedID(conv watermark.ConversationID, e *entry) string {
	place := "seq " + e.msg.Seq.String()
	if e.order != nil {
		place = "order " + e.order.String()
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(conv), string(e.msg.Sender), place}, "\x00")))
	return "import-" + hex.EncodeToString(sum[:16])
}

// parseLine reads a line of the format of its own. The message is the one of
// SendMessage, so what is checked there is checked here.
func parseLine(at string, text []byte, l convert.Limits) *entry {
	e := &entry{at: at}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		e.fault = fmt.Errorf("is not a JSON object: %w", err)
		return e
	}
	var what string
	if e.fault = errors.Join(take(fields, "type", &what), peek(fields, "conversation", &e.conv)); e.fault != nil {
		return e
	}
	if e.conv == "" || strings.Contains(e.conv, "\x00") {
		e.conv, e.fault = "", errors.New("names no conversation")
		return e
	}
	switch what {
	case "conversation":
		e.kind, e.fault = headEntry, parseHead(e, fields)
	case "message":
		e.kind, e.fault = messageEntry, parseMessage(e, fields, l)
	case "member":
		e.kind, e.fault = memberEntry, parseMember(e, fields)
	default:
		e.fault = fmt.Errorf("type must be conversation, message or member, is %q", what)
	}
	return e
}

func peek(fields map[string]json.RawMessage, name string, into any) error {
	raw, ok := fields[name]
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// take reads a field and takes it out.
func take(fields map[string]json.RawMessage, name string, into any) error {
	defer delete(fields, name)
	return peek(fields, name, into)
}

// rest complains about fields that nobody took.
func rest(fields map[string]json.RawMessage) (err error) {
	delete(fields, "conversation")
	for name := range fields {
		err = errors.Join(err, fmt.Errorf("unknown field %q", name))
	}
	return err
}

func parseHead(e *entry, fields map[string]json.RawMessage) error {
	var policy string
	h := &e.head
	err := errors.Join(take(fields, "min", &h.min), take(fields, "max", &h.max), take(fields, "policy", &policy), rest(fields))
	switch policy {
	case "", "advance_on_send":
	case "keep_on_send":
		h.policy = watermark.KeepOnSend
	default:
		err = errors.Join(err, fmt.Errorf("policy must be advance_on_send or keep_on_send, is %q", policy))
	}
	for name, s := range map[string]watermark.Seq{"min": h.min, "max": h.max} {
		if s < 0 || s > watermark.MaxSeq {
			err = errors.Join(err, fmt.Errorf("%s must be within 0..%d, is %d", name, watermark.MaxSeq, s))
		}
	}
	return err
}

// revokedField is true, false, or says who and when.
type revokedField struct {
	is bool
	By watermark.UserID `json:"by"`
	At int64            `json:"timeMs"`
}

func (r *revokedField) UnmarshalJSON(b []byte) error {
	if b[0] != '{' {
		return json.Unmarshal(b, &r.is)
	}
	type plain revokedField
	r.is = true
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(r))
}

func parseMessage(e *entry, fields map[string]json.RawMessage, l convert.Limits) error {
	var time int64
	var revoked revokedField
	_, hasSeq := fields["seq"]
	err := errors.Join(take(fields, "seq", &e.msg.Seq), take(fields, "order", &e.order), take(fields, "timeMs", &time), take(fields, "revoked", &revoked))
	if err != nil {
		return err
	}
	if hasSeq == (e.order != nil) {
		return errors.New("needs a seq or an order, and not both")
	}
	if hasSeq && (e.msg.Seq < 1 || e.msg.Seq >= watermark.MaxSeq) {
		return fmt.Errorf("seq must be within 1..%d, is %d", watermark.MaxSeq-1, e.msg.Seq)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	var send v1.SendMessage
	if err := protojson.Unmarshal(text, &send); err != nil {
		return fmt.Errorf("is not a message: %s", plainly(err))
	}
	return e.setMessage(&send, time, revoked, l)
}

// plainly gives an error of the JSON decoder without the place in a text that
// nobody else has seen, and with the same spaces each time.
func plainly(err error) string {
	_, text, _ := strings.Cut(err.Error(), "proto:")
	_, after, found := strings.Cut(text, "): ")
	if !found {
		after = text
	}
	return strings.Join(strings.Fields(after), " ")
}

// setMessage checks a message as one that is sent, and as one that stands.
func (e *entry) setMessage(send *v1.SendMessage, time int64, revoked revokedField, l convert.Limits) error {
	if time <= 0 {
		return fmt.Errorf("timeMs must be above 0, is %d", time)
	}
	if revoked.is && send.GetBody() == nil && send.GetKind() == "" {
		send.Kind = "revoked" // its content is gone in the other system too
	}
	_, m, err := convert.SendToMessage(send, l)
	if err != nil {
		return err
	}
	m.Seq, m.RecordTime = e.msg.Seq, time
	m.SendTime = cmp.Or(m.SendTime, time)
	if revoked.is {
		if revoked.By != "" {
			if _, err := watermark.ParseUserID(string(revoked.By)); err != nil {
				return fmt.Errorf("revoked: %w", err)
			}
		}
		m = m.Tombstone(watermark.Revoked{By: revoked.By, Time: cmp.Or(revoked.At, time)})
	}
	e.msg = m
	return nil
}

// window is {"from": 1, "to": 4}; without "to" it is open.
type window struct {
	From watermark.Seq  `json:"from"`
	To   *watermark.Seq `json:"to"`
}

func parseMember(e *entry, fields map[string]json.RawMessage) error {
	m := &e.member
	var user string
	var windows []window
	var joined, left *watermark.Seq
	raw, listed := fields["windows"]
	listed = listed && string(raw) != "null"
	err := errors.Join(take(fields, "user", &user), take(fields, "windows", &windows), take(fields, "joined", &joined), take(fields, "left", &left),
		take(fields, "read", &m.read), take(fields, "receipt", &m.receipt), rest(fields))
	u, err2 := watermark.ParseUserID(user)
	m.user = u
	if joined != nil || left != nil {
		if listed {
			err = errors.Join(err, errors.New("has windows, and joined or left too"))
		}
		w := window{From: 1, To: left}
		if joined != nil {
			w.From = *joined
		}
		windows, listed = []window{w}, true
	}
	m.said = listed
	for _, w := range windows {
		in := watermark.Interval{First: w.From}
		if w.To != nil {
			if in.Last = *w.To; in.Last < 1 {
				err = errors.Join(err, fmt.Errorf("a window ends at %d", in.Last))
			}
		}
		m.windows = append(m.windows, in)
	}
	return errors.Join(err, err2)
}
