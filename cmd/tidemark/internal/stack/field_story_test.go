package stack_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	asc       = tidemarkv1.Order_ORDER_ASC
	desc      = tidemarkv1.Order_ORDER_DESC
	nearEnd   = tidemarkv1.Keep_KEEP_NEAR_END
	nearBegin = tidemarkv1.Keep_KEEP_NEAR_BEGIN
)

// story is a case that is told in steps, with users and conversations of its
// own. What is answered must not depend on where it comes from, so a story is
// told several times, with something done to the stores between every two
// steps.
type story struct {
	*rig
	t       *testing.T
	a, b    string // users
	c, g    string // their single conversation, and a group
	between func()
}

// tell tells a story
//   - warm: Redis keeps what it has;
//   - flushed: Redis is emptied between every two steps, and between every third
//     two history catches up before that;
//   - untold: Redis is emptied between every two steps while nothing writes
//     history, so that all comes from the tail.
//
// The roles that answer run; a step may stop and start others. Stories mostly
// wait for commits, so several are told at once.
func tell(t *testing.T, change func(*config.Config), steps func(s *story)) {
	t.Parallel()
	r := newRig(t, change)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	for i, mode := range []string{"warm", "flushed", "untold"} {
		t.Run(mode, func(t *testing.T) {
			own := *r
			own.t = t
			n := fmt.Sprint(i)
			s := &story{rig: &own, t: t, a: "A" + n, b: "B" + n, c: "single:A" + n + ":B" + n, g: "group:g" + n}
			switch mode {
			case "warm":
				s.between = func() {}
			case "flushed":
				n := 0
				s.between = func() {
					if n++; n%3 == 0 {
						s.settle()
					}
					s.flush()
				}
			case "untold":
				s.rig.stop(stack.ToMongo)
				s.between = s.flush
			}
			steps(s)
		})
	}
}

// written tells whether this telling has a writer of history.
func (s *story) written() bool { return s.roles[stack.ToMongo] != nil }

func (s *story) send(conv, sender, id string) int64 {
	s.t.Helper()
	defer s.between()
	return s.rig.send(conv, sender, id)
}

// say lets sender say the seqs from..to, all but the last as an outside
// producer does.
func (s *story) say(conv, sender string, from, to int64) {
	s.t.Helper()
	defer s.between()
	s.rig.say(conv, sender, from, to)
}

func (r *rig) say(conv, sender string, from, to int64) {
	r.t.Helper()
	var lines []string
	for n := from; n < to; n++ {
		lines = append(lines, line(conv, sender, fmt.Sprint("m", n), fmt.Sprint("text of m", n)))
	}
	if len(lines) > 0 {
		r.produce(conv, lines...)
	}
	if seq := r.send(conv, sender, fmt.Sprint("m", to)); seq != to {
		r.t.Fatalf("seq of the last message = %d, want %d", seq, to)
	}
}

func (s *story) pull(user string, p *tidemarkv1.PullRange) *tidemarkv1.PullPage {
	s.t.Helper()
	defer s.between()
	return s.rig.pull(user, p)
}

func (s *story) pullAll(user, conv string, begin, end int64) []*tidemarkv1.Message {
	s.t.Helper()
	defer s.between()
	return s.rig.pullAll(user, conv, begin, end)
}

func (s *story) marks(user, conv string) *tidemarkv1.Watermarks {
	s.t.Helper()
	defer s.between()
	return s.rig.marks(user, conv)
}

func (s *story) read(user, conv string, seq int64) *tidemarkv1.ReadResponse {
	s.t.Helper()
	defer s.between()
	return s.rig.read(user, conv, seq)
}

func (s *story) join(conv, user string, h tidemarkv1.History) *tidemarkv1.CommandResponse {
	s.t.Helper()
	defer s.between()
	return s.rig.join(conv, user, h)
}

func (s *story) leave(conv, user string) *tidemarkv1.CommandResponse {
	s.t.Helper()
	defer s.between()
	return s.rig.leave(conv, user)
}

func (s *story) clear(conv, user string) *tidemarkv1.CommandResponse {
	s.t.Helper()
	defer s.between()
	return s.rig.clear(conv, user)
}

// wantMarks checks what a user is told of a conversation.
func (s *story) wantMarks(when, user, conv string, maxSeq, read, unread int64) *tidemarkv1.Watermarks {
	s.t.Helper()
	w := s.marks(user, conv)
	if w.GetMaxSeq() != maxSeq || w.GetReadSeq() != read || w.GetUnread() != unread {
		s.t.Errorf("%s: max %d, read %d, unread %d; want %d, %d, %d", when, w.GetMaxSeq(), w.GetReadSeq(), w.GetUnread(), maxSeq, read, unread)
	}
	return w
}

// wantEmpty checks that a range holds nothing for a user, and whether that is
// the end.
func (s *story) wantEmpty(when, user string, p *tidemarkv1.PullRange, isEnd bool) {
	s.t.Helper()
	page := s.pull(user, p)
	if page.GetError() != nil || len(page.GetMessages()) != 0 || page.GetCovered() != nil || page.GetRest() != nil || page.GetIsEnd() != isEnd {
		s.t.Errorf("%s: pull %v = %v; want an empty page with is_end = %t", when, p, page, isEnd)
	}
}

// wantPage checks the seqs of a page, in their order, and its end.
func (s *story) wantPage(when, user string, p *tidemarkv1.PullRange, first, last int64, isEnd bool) *tidemarkv1.PullPage {
	s.t.Helper()
	page := s.pull(user, p)
	if page.GetError() != nil {
		s.t.Errorf("%s: pull %v: %v", when, p, page.GetError())
		return page
	}
	msgs, down := page.GetMessages(), first > last
	if down {
		msgs = nil
		for i := len(page.GetMessages()) - 1; i >= 0; i-- {
			msgs = append(msgs, page.GetMessages()[i])
		}
		first, last = last, first
	}
	wantSeqs(s.t, msgs, first, last)
	if c := page.GetCovered(); c.GetBegin() != first || c.GetEnd() != last || page.GetIsEnd() != isEnd {
		s.t.Errorf("%s: pull %v covers %v, is_end = %t; want %d..%d, %t", when, p, c, page.GetIsEnd(), first, last, isEnd)
	}
	return page
}

// logged puts the messages from..to on the sequenced log as their owner would,
// without asking it: a cheap way to a long past.
func (r *rig) logged(conv, sender string, from, to int64) {
	r.t.Helper()
	var recs []watermark.Record
	for n := from; n <= to; n += 200 {
		var run []watermark.Message
		for seq := n; seq <= min(n+199, to); seq++ {
			run = append(run, watermark.Message{
				Seq: watermark.Seq(seq), Sender: watermark.UserID(sender), ClientID: fmt.Sprint("m", seq), Kind: "text",
				SendTime: seq, RecordTime: seq, BodyType: watermark.BodyText, Body: []byte("x"),
			})
		}
		recs = append(recs, watermark.Record{Conversation: watermark.ConversationID(conv), Events: []watermark.Event{
			watermark.MessagesSequenced{Policy: watermark.AdvanceOnSend, Messages: run},
		}})
	}
	r.append(recs...)
}

// append puts a record on the sequenced log, as the query service and owners do.
func (r *rig) append(recs ...watermark.Record) {
	r.t.Helper()
	outs := make([]wire.Out, len(recs))
	for i, rec := range recs {
		value, err := wire.EncodeRecord(rec)
		if err != nil {
			r.t.Fatal(err)
		}
		outs[i] = wire.Out{Topic: r.topic(wire.TopicSequenced), Partition: -1, Key: string(rec.Conversation), Value: value}
	}
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		r.t.Fatal(err)
	}
}

// metric sums a counter or gauge of a role over its labels; pairs of name and
// value pick some of them. A histogram gives its count.
func (r *rig) metric(role stack.Role, name string, labels ...string) float64 {
	r.t.Helper()
	sum, found := r.sum(role, name, labels...)
	if !found {
		r.t.Fatalf("%s has no metric %s", role, name)
	}
	return sum
}

// total is metric, and 0 for a counter that nothing has moved yet.
func (r *rig) total(role stack.Role, name string) float64 {
	r.t.Helper()
	sum, _ := r.sum(role, name)
	return sum
}

func (r *rig) sum(role stack.Role, name string, labels ...string) (sum float64, found bool) {
	r.t.Helper()
	families, err := r.roles[role].registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		found = true
	metrics:
		for _, m := range f.GetMetric() {
			have := prometheus.Labels{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue metrics
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum, found
}

// httpClient speaks HTTP/1.1, or HTTP/2 without TLS, as gRPC does.
func httpClient(t testing.TB, http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// syncClient gives a client of its own, for many calls at once over one
// connection.
func (r *rig) syncClient() tidemarkv1connect.SyncServiceClient {
	return tidemarkv1connect.NewSyncServiceClient(httpClient(r.t, true), r.roles[stack.Sync].stack.SyncURL())
}

// keepOnSend is the policy under which sending does not mark as read.
func keepOnSend(c *config.Config) { c.ToRedis.UnreadPolicy = "keep_on_send" }

// short shows the beginning of a long text.
func short(s string) string { return strings.TrimSpace(s[:min(len(s), 200)]) }
