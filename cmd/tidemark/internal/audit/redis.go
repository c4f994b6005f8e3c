package audit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Redis is what an audit reads of Redis. Of a conversation that Redis may not
// be believed about it says that it is not warm, and nothing else.
type Redis interface {
	Heads(ctx context.Context, convs []watermark.ConversationID) ([]Head, error)
	// Conversations gives those that Redis holds anything of, page by page; one
	// may come twice.
	Conversations(ctx context.Context) iter.Seq2[[]watermark.ConversationID, error]
	// Entries gives the entries and tombstones of the hot log within in, at most
	// pageRows of them, ascending.
	Entries(ctx context.Context, conv watermark.ConversationID, in watermark.Interval) (entries []Entry, warm bool, err error)
	Known(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (known []Known, warm bool, err error)
	// Users gives a page of the users whose windows are held, and where to go
	// on; 0: nowhere. A user may come twice.
	Users(ctx context.Context, conv watermark.ConversationID, cursor uint64) (users []watermark.UserID, next uint64, err error)
}

// Head is what Redis holds of a conversation itself.
type Head struct {
	Warm     bool
	Complete bool // every member that exists is known
	Min, Max watermark.Seq
	Repair   int64
	Policy   watermark.UnreadPolicy
	Override watermark.PolicyChanged
	// First and Last are the ends of the hot log, 0 when it is empty.
	First, Last watermark.Seq
}

// Entry is one seq of a hot log: a message, or a tombstone of which only the
// seq is known.
type Entry struct {
	Seq     watermark.Seq
	Message watermark.Message
	Revoked bool
	// Damaged says why the message cannot be read.
	Damaged error
}

// Known is what Redis holds of one user.
type Known struct {
	// Known tells whether the user's windows are known, also that there are
	// none. Where they are not, marks may be there all the same.
	Known  bool
	Member watermark.Member
	// Max is the conversation's maximum at that moment.
	Max watermark.Seq
}

//go:embed look.lua
var lookSource string

var lookScript = keyspace.NewScript("audit_look", lookSource)

var lookParts = []keyspace.Part{keyspace.Meta, keyspace.Log, keyspace.Revoked, keyspace.Members, keyspace.Read, keyspace.Receipt}

// Server reads a real Redis.
type Server struct {
	Runner *keyspace.Runner
	Client redis.UniversalClient // the same Redis
	Space  keyspace.Space
	// Decode reads a message as the hot log holds it.
	Decode func(seq watermark.Seq, header, body []byte) (watermark.Message, error)
}

func (s Server) call(conv watermark.ConversationID, what string, args ...any) keyspace.Call {
	return keyspace.Call{
		Script: lookScript, Keys: s.Space.Keys(conv, lookParts...),
		Args: append([]any{s.Space.Incarnation, what}, args...), Asks: true,
	}
}

func (s Server) look(ctx context.Context, conv watermark.ConversationID, what string, args ...any) (*texts, bool, error) {
	value, err := s.Runner.One(ctx, s.call(conv, what, args...))
	if err != nil {
		return nil, false, fmt.Errorf("%s of %s: %w", what, conv, err)
	}
	return newTexts(value)
}

// Heads implements Redis.
func (s Server) Heads(ctx context.Context, convs []watermark.ConversationID) ([]Head, error) {
	calls := make([]keyspace.Call, len(convs))
	for i, c := range convs {
		calls[i] = s.call(c, "head")
	}
	heads := make([]Head, len(convs))
	for i, res := range s.Runner.Run(ctx, calls) {
		err := res.Err
		if err == nil {
			heads[i], err = readHead(res.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("head of %s: %w", convs[i], err)
		}
	}
	return heads, nil
}

func readHead(value any) (Head, error) {
	t, warm, err := newTexts(value)
	if err != nil || !warm {
		return Head{}, err
	}
	t.next() // the token
	h := Head{Warm: true, Complete: t.next() == "1", Min: t.seq(), Max: t.seq(), Repair: t.number()}
	h.Policy = watermark.UnreadPolicy(t.number())
	h.Override = watermark.PolicyFromCode(t.number())
	h.First, h.Last = t.id(), t.id()
	return h, t.err
}

// Entries implements Redis.
func (s Server) Entries(ctx context.Context, conv watermark.ConversationID, in watermark.Interval) ([]Entry, bool, error) {
	in = in.Intersect(everything)
	if in.Empty() {
		return nil, true, nil
	}
	t, warm, err := s.look(ctx, conv, "entries", int64(in.First), int64(in.Last), pageRows)
	if err != nil || !warm {
		return nil, false, err
	}
	var out, gone []Entry
	for t.more() {
		kind, seq, header, body := t.next(), t.id(), t.next(), t.next()
		if kind == "t" {
			gone = append(gone, Entry{Seq: seq, Revoked: true})
			continue
		}
		e := Entry{Seq: seq}
		e.Message, e.Damaged = s.Decode(seq, []byte(header), []byte(body))
		out = append(out, e)
	}
	return mergeEntries(out, gone), true, t.err
}

// mergeEntries puts tombstones among messages; a tombstone wins over an entry.
func mergeEntries(messages, gone []Entry) []Entry {
	out := make([]Entry, 0, len(messages)+len(gone))
	for len(messages) > 0 || len(gone) > 0 {
		if len(gone) == 0 || (len(messages) > 0 && messages[0].Seq < gone[0].Seq) {
			out, messages = append(out, messages[0]), messages[1:]
			continue
		}
		if len(messages) > 0 && messages[0].Seq == gone[0].Seq {
			messages = messages[1:]
		}
		out, gone = append(out, gone[0]), gone[1:]
	}
	return out
}

// Known implements Redis.
func (s Server) Known(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) ([]Known, bool, error) {
	args := make([]any, len(users))
	for i, u := range users {
		args[i] = string(u)
	}
	t, warm, err := s.look(ctx, conv, "members", args...)
	if err != nil || !warm {
		return nil, false, err
	}
	complete, top := t.next() == "1", t.seq()
	out := make([]Known, len(users))
	for i, u := range users {
		text := t.next()
		k := Known{Known: complete || text != "", Max: top, Member: watermark.Member{User: u}}
		if text != "" {
			if k.Member, err = keyspace.ParseMember(u, text); err != nil {
				return nil, false, fmt.Errorf("member %s of %s: %w", u, conv, err)
			}
		}
		k.Member.Read, k.Member.Receipt = t.seq(), t.seq()
		out[i] = k
	}
	return out, true, t.err
}

// Users implements Redis.
func (s Server) Users(ctx context.Context, conv watermark.ConversationID, cursor uint64) ([]watermark.UserID, uint64, error) {
	t, warm, err := s.look(ctx, conv, "users", strconv.FormatUint(cursor, 10), pageMembers)
	if err != nil || !warm {
		return nil, 0, err
	}
	next, err := strconv.ParseUint(t.next(), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("users of %s: %w: cursor: %w", conv, errReply, err)
	}
	var out []watermark.UserID
	for t.more() {
		out = append(out, watermark.UserID(t.next()))
	}
	return out, next, t.err
}

var errReply = errors.New("unexpected reply of redis")

// texts walks through a reply, which is all text, and keeps the first thing
// that is not as it should be.
type texts struct {
	items []any
	at    int
	err   error
}

func newTexts(value any) (t *texts, warm bool, err error) {
	items, _ := value.([]any)
	t = &texts{items: items}
	switch status := t.next(); {
	case t.err != nil:
		return nil, false, t.err
	case status == "warm":
		return t, true, nil
	case status == "cold":
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("%w: status %.20q", errReply, status)
	}
}

func (t *texts) more() bool { return t.err == nil && t.at < len(t.items) }

func (t *texts) next() string {
	if !t.more() {
		if t.err == nil {
			t.err = fmt.Errorf("%w: only %d items", errReply, len(t.items))
		}
		return ""
	}
	t.at++
	s, ok := t.items[t.at-1].(string)
	if !ok {
		t.err = fmt.Errorf("%w: item %d is a %T", errReply, t.at, t.items[t.at-1])
	}
	return s
}

// number reads a whole number as Redis writes it: nothing for 0, digits, or a
// score, which may come in exponent form.
func (t *texts) number() int64 {
	s := t.next()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n
	}
	f, err := strconv.ParseFloat(s, 64)
	if (err != nil || f != float64(int64(f))) && t.err == nil {
		t.err = fmt.Errorf("%w: %.40q is not a whole number", errReply, s)
	}
	return int64(f)
}

func (t *texts) seq() watermark.Seq { return watermark.Seq(t.number()) }

// id reads the id of an entry of the hot log, "<seq>-0", or a seq.
func (t *texts) id() watermark.Seq {
	s := t.next()
	if s == "" {
		return 0
	}
	digits, rest, _ := strings.Cut(s, "-")
	n, err := strconv.ParseInt(digits, 10, 64)
	if (err != nil || (rest != "" && rest != "0")) && t.err == nil {
		t.err = fmt.Errorf("%w: %.40q is not the id of an entry", errReply, s)
	}
	return watermark.Seq(n)
}
