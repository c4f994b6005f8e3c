package simulation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Places of the processes. A new one takes over from the one before it, which
// goes on for a while as a zombie: it may end what it does, and what it has
// fetched, but commits nothing.
const (
	ownerNow = iota
	ownerBefore
	mongoNow
	mongoBefore
	reader1
	reader2
	desks
)

// newDesks makes the parts of all processes, once for all histories.
func newDesks(t testing.TB) (out [desks]*desk) {
	t.Helper()
	for i := range out {
		out[i] = newDesk(t)
	}
	return out
}

// history is one run of the world.
type history struct {
	r     *rapid.T
	w     *world
	m     *model
	desks [desks]*desk

	owners [2]*ownerProcess
	mongos [2]*mongoProcess
	reads  [2]*query
	// silent lets Redis fall back without becoming another incarnation, which
	// nothing promises to survive unharmed.
	silent bool
	talks  int // how many of the conversations there are
	sent   []sentMessage
	ops    int
	served map[string]string // conversation and seq -> message, as served
	marked map[string]watermark.Seq
}

type sentMessage struct {
	conv           watermark.ConversationID
	user           watermark.UserID
	clientID, text string
}

type ownerProcess struct {
	stage *toredis.Stage
	at    int64
	batch []wire.Record
	split bool // Redis has lost seqs that it holds
}

type mongoProcess struct {
	stage    *tomongo.Stage
	at       int64
	batch    []wire.Record // nil: a flush
	flushing bool
}

func newHistory(r *rapid.T, d [desks]*desk, silent bool) *history {
	h := &history{
		r: r, w: newWorld(), m: newModel(), desks: d, silent: silent,
		served: make(map[string]string), marked: make(map[string]watermark.Seq),
	}
	h.w.redis.KeepUndo = 12
	h.w.note = r.Logf
	h.talks = rapid.IntRange(1, len(conversations)).Draw(r, "conversations")
	h.w.large = rapid.Bool().Draw(r, "large")
	for _, d := range h.desks {
		d.w = h.w
		d.hire()
	}
	h.newOwner()
	h.newMongo()
	return h
}

// end leaves no goroutine behind.
func (h *history) end() {
	for _, d := range h.desks {
		d.actor.kill()
	}
}

func (h *history) busy(i int) bool { return h.desks[i].actor.pending != nil }

// swap lets the process at desk i go on as a zombie at desk i+1, and makes room
// for a new one.
func (h *history) swap(i int) {
	h.desks[i+1].actor.kill()
	h.desks[i], h.desks[i+1] = h.desks[i+1], h.desks[i]
	h.desks[i].hire()
}

func (h *history) newOwner() {
	h.swap(ownerNow)
	if h.owners[1] = h.owners[0]; h.owners[1] != nil && h.owners[1].split {
		h.desks[ownerBefore].actor.kill()
	}
	s, err := h.desks[ownerNow].sequencer.Stage(0)
	h.check(err)
	h.desks[ownerNow].actor.name = fmt.Sprint("owner at ", h.w.owned)
	h.owners[0] = &ownerProcess{stage: s, at: h.w.owned}
}

func (h *history) newMongo() {
	h.swap(mongoNow)
	h.mongos[1] = h.mongos[0]
	s, err := h.desks[mongoNow].projector.Stage(0)
	h.check(err)
	h.desks[mongoNow].actor.name = fmt.Sprint("toMongo at ", h.w.projected)
	h.mongos[0] = &mongoProcess{stage: s, at: h.w.projected}
}

func (h *history) check(err error) {
	if err != nil {
		h.r.Fatal(err)
	}
}

// stepOwner lets an owner go on by one call, which ends as told.
func (h *history) stepOwner(i int, e ending, size int) {
	p, d := h.owners[i], h.desks[ownerNow+i]
	if p == nil || d.actor.dead {
		if i == 0 {
			h.newOwner() // somebody takes over from the dead
		}
		return
	}
	var ended bool
	if d.actor.pending == nil {
		if p.batch == nil {
			rest := h.w.input[min(p.at, int64(len(h.w.input))):]
			if len(rest) == 0 {
				return
			}
			p.batch = rest[:min(size, len(rest))]
		}
		ended = d.actor.start(func() (err error) {
			p.at, err = p.stage.Handle(context.Background(), p.batch)
			return err
		})
	} else {
		ended = d.actor.step(e)
	}
	if !ended {
		return
	}
	d.holds, p.split = false, false
	if err := d.actor.err; err != nil {
		h.tolerate(err)
		return // the same records are handed in again
	}
	p.batch = nil
	if i == 0 {
		h.w.owned = max(h.w.owned, p.at)
	}
}

func (h *history) stepMongo(i int, e ending, size int, flush bool) {
	p, d := h.mongos[i], h.desks[mongoNow+i]
	if p == nil || d.actor.dead {
		if i == 0 {
			h.newMongo()
		}
		return
	}
	var durable int64
	var ended bool
	if d.actor.pending == nil {
		if p.batch == nil {
			rest := h.w.log[min(p.at, int64(len(h.w.log))):]
			for _, x := range rest[:min(size, len(rest))] {
				p.batch = append(p.batch, x.Record)
			}
		}
		p.flushing = flush || p.batch == nil
		ended = d.actor.start(func() (err error) {
			if p.flushing {
				durable, err = p.stage.Flush(context.Background())
			} else {
				durable, err = p.stage.Handle(context.Background(), p.batch)
			}
			h.projected(i, durable, err)
			return err
		})
	} else {
		ended = d.actor.step(e)
	}
	if !ended {
		return
	}
	if err := d.actor.err; err != nil {
		h.tolerate(err)
		return
	}
	if !p.flushing {
		p.at, p.batch = p.batch[len(p.batch)-1].Offset+1, nil
	}
}

// projected commits what toMongo calls durable, if it may.
func (h *history) projected(i int, durable int64, err error) {
	if i == 0 && err == nil {
		h.w.projected = max(h.w.projected, durable)
	}
}

// tolerate ends the history at an error that no fault explains.
func (h *history) tolerate(err error) {
	if errors.Is(err, errDied) || errors.Is(err, errFailed) || fault.ClassOf(err) == fault.Transient {
		return
	}
	h.r.Fatalf("a stage gave up: %v", err)
}

// draws one ending of a call that does not go well.
func (h *history) misfortune() ending {
	e := ending{fails: true, dies: rapid.Bool().Draw(h.r, "dies")}
	switch rapid.IntRange(0, 2).Draw(h.r, "how much") {
	case 1:
		e.done = rapid.IntRange(1, 4).Draw(h.r, "done")
	case 2:
		e.done = all
	}
	return e
}

// events are what can happen next; the frequent ones stand several times.
var events = strings.Fields(`send send send send resend command command
	owner owner owner owner owner owner owner! owner! zombie zombie
	mongo mongo mongo mongo mongo! mongomb flush
	ownerfails newowner mongofails newmongo
	ask ask read read read read read start
	flushall restart undo stop start readfails`)

// silentEvents are those of histories with a Redis that falls back in silence.
var silentEvents = strings.Fields(`send send send send
	owner owner owner owner owner! owner! owner! zombie zombie
	mongo mongo mongo! mongomb flush ownerfails newowner mongofails newmongo ask read read
	readfails stop start start flushall restart undo fallback fallback`)

func (h *history) step() {
	r := h.r
	h.w.now = h.w.now.Add(100 * time.Millisecond)
	size := func() int { return rapid.IntRange(1, 6).Draw(r, "batch") }
	list := events
	if h.silent {
		list = silentEvents
	}
	switch event := rapid.SampledFrom(list).Draw(r, "event"); event {
	case "send":
		h.send()
	case "resend":
		h.resend()
	case "command":
		h.command()
	case "owner":
		h.stepOwner(0, well, h.sizeIf(ownerNow, size))
	case "owner!":
		for range rapid.IntRange(1, 12).Draw(r, "calls") {
			h.stepOwner(0, well, 6)
		}
	case "mongo!":
		for range rapid.IntRange(1, 12).Draw(r, "calls") {
			h.stepMongo(0, well, 6, false)
		}
	case "zombie":
		h.stepOwner(1, well, h.sizeIf(ownerBefore, size))
	case "ownerfails":
		if h.busy(ownerNow) {
			h.stepOwner(0, h.misfortune(), 0)
		}
	case "newowner":
		h.newOwner()
	case "mongo":
		h.stepMongo(0, well, h.sizeIf(mongoNow, size), false)
	case "mongomb":
		h.stepMongo(1, well, h.sizeIf(mongoBefore, size), false)
	case "flush":
		h.stepMongo(0, well, 1, true)
	case "mongofails":
		if h.busy(mongoNow) {
			h.stepMongo(0, h.misfortune(), 0, false)
		}
	case "newmongo":
		h.newMongo()
	case "ask":
		h.ask(rapid.IntRange(0, 1).Draw(r, "reader"))
	case "read":
		for i := range h.reads {
			h.stepRead(i, well)
		}
	case "readfails":
		i := rapid.IntRange(0, 1).Draw(r, "reader")
		if h.busy(reader1 + i) {
			h.stepRead(i, h.misfortune())
		}
	case "stop", "start":
		h.w.stopped = event == "stop"
	case "flushall":
		h.w.redis.FlushAll()
	case "restart":
		h.w.redis.Restart()
	case "undo":
		h.w.redis.Undo(rapid.IntRange(1, 12).Draw(r, "lost writes"))
		h.w.redis.Restart()
	case "fallback":
		h.fallBack()
	}
}

// fallBack lets Redis lose its last writes in silence.
//
// Seqs that are given and not yet appended are nowhere but in Redis and in their
// owner's memory. Where a new owner, which believes a Redis that has lost them,
// and a zombie, which appends them all the same, are at work together, a message
// can get two free seqs: that is a split brain, and DESIGN.md of toredis says why
// nobody could tell. So no zombie lives on that has such seqs.
func (h *history) fallBack() {
	if h.desks[ownerBefore].holds {
		return
	}
	n := h.w.redis.Undo(rapid.IntRange(1, h.w.redis.KeepUndo).Draw(h.r, "lost writes"))
	h.r.Logf("Redis falls back by %d writes", n)
	h.owners[0].split = h.desks[ownerNow].holds
	// The owner of before knows what it gave; a new one does not.
	if rapid.Bool().Draw(h.r, "rebalance") {
		h.newOwner()
	}
}

// sizeIf draws a batch size where it matters.
func (h *history) sizeIf(i int, size func() int) int {
	if h.busy(i) {
		return 0
	}
	return size()
}

func (h *history) conversation() (watermark.ConversationID, watermark.UserID) {
	id := rapid.SampledFrom(conversations[:h.talks]).Draw(h.r, "conversation")
	if id.Single() {
		return id, rapid.SampledFrom(users[:2]).Draw(h.r, "user")
	}
	return id, rapid.SampledFrom(users).Draw(h.r, "user")
}

func (h *history) send() {
	id, u := h.conversation()
	h.ops++
	s := sentMessage{id, u, fmt.Sprint("m", h.ops), fmt.Sprint("text ", h.ops)}
	h.sent = append(h.sent, s)
	h.put(s)
}

func (h *history) put(s sentMessage) {
	h.r.Logf("input %d: %s/%s says %q in %s", len(h.w.input), s.user, s.clientID, s.text, s.conv)
	h.w.send(s.conv, s.user, s.clientID, s.text)
	h.m.take(h.w.input[len(h.w.input)-1])
}

// resend is a producer that did not hear of the acknowledgement, or one that
// uses an id twice.
func (h *history) resend() {
	if len(h.sent) == 0 {
		return
	}
	s := rapid.SampledFrom(h.sent).Draw(h.r, "sent before")
	if rapid.IntRange(0, 3).Draw(h.r, "other content") == 3 {
		s.text = "other text"
	}
	h.put(s)
}

func (h *history) command() {
	id, u := h.conversation()
	h.ops++
	c := h.m.chats[id]
	in := watermark.Input{Conversation: id, OpID: fmt.Sprint("op", h.ops)}
	if rapid.IntRange(0, 5).Draw(h.r, "op again") == 5 && len(c.people[u].ops) > 0 {
		in.OpID = rapid.SampledFrom(c.people[u].ops).Draw(h.r, "op")
	}
	seq := func(label string) watermark.Seq {
		return watermark.Seq(rapid.IntRange(1, len(c.rows)+2).Draw(h.r, label))
	}
	switch rapid.SampledFrom(strings.Fields("join join leave leave clear revoke min")).Draw(h.r, "command") {
	case "join":
		in.Act, in.User = watermark.ActJoin, u
		if in.History = watermark.History(rapid.IntRange(0, 2).Draw(h.r, "shown")); in.History == watermark.HistoryFrom {
			in.Seq = seq("from")
		}
	case "leave":
		in.Act, in.User = watermark.ActLeave, u
	case "clear":
		in.Act, in.User = watermark.ActClear, u
	case "revoke":
		in.Act, in.Seq = watermark.ActRevoke, seq("revoked")
		if rapid.Bool().Draw(h.r, "by somebody") {
			in.Actor = u
		}
	case "min":
		in.Act, in.Seq = watermark.ActRaiseMin, (seq("min")+1)/2
	}
	h.r.Logf("input %d: act %d of %s%s in %s, %s, history %d, seq %d", len(h.w.input), in.Act, in.User, in.Actor, id, in.OpID, in.History, in.Seq)
	h.w.command(in)
	h.m.take(h.w.input[len(h.w.input)-1])
}

// query is a call of a client.
type query struct {
	conv  watermark.ConversationID
	user  watermark.UserID
	kind  string
	least watermark.Seq // what was served of the read watermark before it began
	read  watermark.Seq // what it told of the read watermark; -1: nothing
	pages []*v1.PullPage
}

// ask begins a call.
func (h *history) ask(i int) {
	if h.busy(reader1 + i) {
		return
	}
	d := h.desks[reader1+i]
	d.hire()
	q := &query{read: -1, kind: rapid.SampledFrom(strings.Fields("watermarks mark receipt pull")).Draw(h.r, "ask")}
	q.conv, q.user = h.conversation()
	q.least = h.marked[string(q.conv)+string(q.user)]
	h.reads[i] = q
	d.actor.name = fmt.Sprintf("%s of %s in %s", q.kind, q.user, q.conv)
	p := h.m.chats[q.conv].people[q.user]
	seq := int64(0)
	if q.kind == "mark" || q.kind == "receipt" {
		seq = int64(rapid.IntRange(1, len(p.can)+2).Draw(h.r, "mark"))
		p.asked = max(p.asked, watermark.Seq(seq))
	}
	if d.actor.start(func() error { return d.answer(q, seq) }) {
		h.heard(i)
	}
}

func (d *desk) answer(q *query, seq int64) error {
	ctx := context.Background()
	var res *v1.ReadResponse
	var err error
	switch q.kind {
	case "watermarks":
		var all *v1.GetWatermarksResponse
		all, err = d.service.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: string(q.user), Conversations: []string{string(q.conv)}})
		if err == nil && all.Watermarks[0].Error == nil {
			q.read = watermark.Seq(all.Watermarks[0].ReadSeq)
		}
		return err
	case "mark":
		res, err = d.service.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: string(q.user), Conversation: string(q.conv), ReadSeq: seq})
	case "receipt":
		res, err = d.service.MarkConversationRead(ctx, &v1.MarkConversationReadRequest{User: string(q.user), Conversation: string(q.conv), ReadSeq: seq})
	default:
		var pulled *v1.PullResponse
		pulled, err = d.service.Pull(ctx, &v1.PullRequest{User: string(q.user), Ranges: []*v1.PullRange{{Conversation: string(q.conv), Begin: 1, End: 1 << 40}}})
		q.pages = pulled.GetPages()
		return err
	}
	if err == nil {
		q.read = watermark.Seq(res.ReadSeq)
	}
	return err
}

func (h *history) stepRead(i int, e ending) {
	if h.busy(reader1+i) && h.desks[reader1+i].actor.step(e) {
		h.heard(i)
	}
}

// heard notes what a call was told.
func (h *history) heard(i int) {
	q := h.reads[i]
	key := string(q.conv) + string(q.user)
	if q.read >= 0 && !h.silent {
		if q.read < q.least {
			h.r.Fatalf("%s of %s in %s: read watermark %d, after %d was served", q.kind, q.user, q.conv, q.read, q.least)
		}
		h.marked[key] = max(h.marked[key], q.read)
	}
	if p := h.m.chats[q.conv].people[q.user]; q.read >= 0 && (q.kind == "mark" || q.kind == "receipt") {
		p.acked = max(p.acked, q.read)
	}
	for _, page := range q.pages {
		for _, m := range page.Messages {
			place := fmt.Sprint(q.conv, " ", m.Seq)
			what := m.Sender + "/" + m.ClientMessageId
			if old, ok := h.served[place]; ok && old != what && !h.silent {
				h.r.Fatalf("%s was served as %s and as %s", place, old, what)
			}
			h.served[place] = what
			if !h.silent && !h.m.chats[q.conv].people[q.user].could[int(m.Seq)-1] {
				h.r.Fatalf("%s was served %s, which it never may see", q.user, place)
			}
		}
	}
}
