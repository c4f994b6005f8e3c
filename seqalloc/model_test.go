package seqalloc_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/seqtest"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// store is what the scripts and their model have in common.
type store interface {
	Malloc(context.Context, []watermark.Batch) ([]watermark.Allocation, error)
	Begin(context.Context, []watermark.ConversationID) ([]string, error)
	Install(context.Context, []watermark.Loaded) ([]bool, error)
	MergeMembers(context.Context, []watermark.MemberLoad) ([]bool, error)
	RaiseReads(context.Context, []watermark.MemberRow) error
	Views(context.Context, []watermark.Ask) ([]watermark.View, error)
	Messages(context.Context, []watermark.Span) ([][]watermark.Message, error)
	Readers(context.Context, watermark.ConversationID, watermark.Seq, watermark.Reader, int) (watermark.Readership, error)
}

// scripts are the real ones, on the fixture's Redis.
type scripts struct {
	*seqalloc.Allocator
	*hot.Hot
}

// pair lets the scripts and the model do the same, one call after another, and
// folds what comes of it as the sequenced log would.
type pair struct {
	x      *fixture
	r      *rapid.T
	real   store
	model  *seqtest.Redis
	fold   *watermark.State
	policy watermark.UnreadPolicy
	boots  int
	tokens map[string]string // a token of the scripts -> that of the model
	begun  []string          // the scripts' tokens, the latest one last
}

const modelHotLog = 40

var people = []watermark.UserID{"alice", "bob", "carol"}

func newPair(x *fixture, r *rapid.T) *pair {
	p := &pair{
		x: x, r: r, model: seqtest.New(), tokens: map[string]string{"": ""},
		policy: watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(r, "policy")),
	}
	x.conv = rapid.SampledFrom([]watermark.ConversationID{group, single}).Draw(r, "conversation")
	x.offset, p.fold = 0, watermark.NewState(x.conv)
	// In the middle of a long conversation the horizon is near.
	if base := watermark.Seq(rapid.SampledFrom([]int{0, 2000}).Draw(r, "base")); base > 0 {
		p.fold.Max, p.fold.Sent = base, make(map[watermark.SentKey]watermark.Sent)
		p.fold.MergeMember(watermark.Member{User: "alice", Read: base})
		for i := range watermark.Seq(31) {
			m := x.send("alice", fmt.Sprint("m", i)).Message
			p.fold.Sent[watermark.SentKey{Sender: "alice", ClientID: m.ClientID}] = watermark.Sent{
				Seq: base - watermark.DedupeHorizon - 15 + i, Hash: m.Hash,
			}
		}
	}
	p.boot()
	return p
}

// boot makes the server another incarnation, where that is the tests' to say.
func (p *pair) boot() {
	space, n := p.x.space, 0
	if p.x.server != nil {
		p.boots, n = p.boots+1, modelHotLog
		space.Incarnation = fmt.Sprint("boot-", p.boots)
		p.model.Restart()
	}
	a, err := seqalloc.New(seqalloc.Config{Redis: p.x.client, Space: space, Append: wire.AppendMessage, HotLog: n})
	p.check(err)
	h, err := hot.New(hot.Config{Redis: p.x.client, Space: space, Decode: wire.DecodeMessage})
	p.check(err)
	p.real, p.model.HotLog = scripts{a, h}, max(n, seqalloc.DefaultHotLog*(1-min(n, 1)))
}

func (p *pair) check(err error) {
	if err != nil {
		p.r.Fatal(err)
	}
}

func (p *pair) same(what string, real, model any) {
	if d := cmp.Diff(model, real, cmpopts.EquateEmpty()); d != "" {
		p.r.Fatalf("%s (-model +scripts):\n%s", what, d)
	}
}

func (p *pair) begin() {
	ids := []watermark.ConversationID{p.x.conv}
	real, err := p.real.Begin(p.x.ctx, ids)
	p.check(err)
	model, err := p.model.Begin(p.x.ctx, ids)
	p.check(err)
	p.begun = append(p.begun, real[0])
	p.tokens[real[0]] = model[0]
}

// install brings the fold; of a large conversation some members only.
func (p *pair) install() {
	s := watermark.NewState(p.x.conv)
	s.Merge(p.fold)
	if s.Complete = rapid.Bool().Draw(p.r, "complete"); !s.Complete {
		maps.DeleteFunc(s.Members, func(watermark.UserID, watermark.Member) bool {
			return rapid.Bool().Draw(p.r, "left out")
		})
	}
	real, err := p.real.Install(p.x.ctx, []watermark.Loaded{{Token: p.token(0), State: s}})
	p.check(err)
	model, err := p.model.Install(p.x.ctx, []watermark.Loaded{{Token: p.tokens[p.token(0)], State: s}})
	p.check(err)
	p.same("installed", real, model)
}

// token gives the token of the latest warm-up, or of an older one.
func (p *pair) token(older int) string {
	if i := len(p.begun) - 1 - max(older, 0); i >= 0 {
		return p.begun[i]
	}
	return ""
}

// introduce brings members as the fold has them, under the token that stands or
// an older one.
func (p *pair) introduce(users []watermark.UserID) {
	load := watermark.MemberLoad{Conversation: p.x.conv, Complete: rapid.IntRange(0, 3).Draw(p.r, "complete") == 0}
	if load.Complete {
		users = people
	}
	for _, u := range users {
		if m, ok := p.fold.Members[u]; ok {
			load.Members = append(load.Members, m)
		} else {
			load.Absent = append(load.Absent, u)
		}
	}
	load.Token = p.token(rapid.IntRange(-9, 1).Draw(p.r, "older"))
	real, err := p.real.MergeMembers(p.x.ctx, []watermark.MemberLoad{load})
	p.check(err)
	load.Token = p.tokens[load.Token]
	model, err := p.model.MergeMembers(p.x.ctx, []watermark.MemberLoad{load})
	p.check(err)
	p.same("merged", real, model)
}

// decide puts a batch to both until it is decided, or tells that it is not.
func (p *pair) decide(ins []watermark.Input) bool {
	b := []watermark.Batch{{Conversation: p.x.conv, Policy: p.policy, Inputs: ins}}
	if rapid.IntRange(0, 3).Draw(p.r, "floor") == 0 {
		b[0].Floor = p.fold.Max + watermark.Seq(rapid.IntRange(-1, 1).Draw(p.r, "above"))
	}
	bound := rapid.IntRange(0, 3).Draw(p.r, "bound to a warm-up") == 0
	for range 9 {
		if bound {
			b[0].Token = p.token(rapid.IntRange(-9, 1).Draw(p.r, "older"))
		}
		real, err := p.real.Malloc(p.x.ctx, b)
		p.check(err)
		b[0].Token = p.tokens[b[0].Token]
		model, err := p.model.Malloc(p.x.ctx, b)
		b[0].Token = ""
		p.check(err)
		real[0].Token = p.tokens[real[0].Token] // both have their own names for it
		p.same(fmt.Sprintf("decided of %+v", ins), real, model)
		switch a := real[0]; {
		case a.Temperature == watermark.Warm:
			for i := range ins {
				o := &a.Outcomes[i]
				p.fold.Apply(watermark.Record{Conversation: p.x.conv, Events: o.Events(&ins[i]), Inputs: []watermark.Origin{ins[i].Origin}})
			}
			return true
		case a.Temperature == watermark.Partial:
			p.introduce(a.Unknown)
		case a.Why == "floor":
			return false
		default:
			p.begin()
			p.install()
		}
	}
	return false // the tokens were drawn stale each time
}

func (p *pair) mark() {
	u := rapid.SampledFrom(people).Draw(p.r, "reader")
	if !p.x.conv.Admits(u) || p.fold.Max == 0 {
		return
	}
	e := watermark.ReadAdvanced{User: u, Read: watermark.Seq(rapid.Int64Range(0, int64(p.fold.Max)).Draw(p.r, "read"))}
	if p.x.conv.Single() {
		e.Receipt = watermark.Seq(rapid.Int64Range(0, int64(p.fold.Max)).Draw(p.r, "receipt"))
	}
	p.fold.Apply(watermark.Record{Conversation: p.x.conv, Events: []watermark.Event{e}})
	rows := []watermark.MemberRow{{Conversation: p.x.conv, Member: watermark.Member{User: u, Read: e.Read, Receipt: e.Receipt}}}
	p.check(p.real.RaiseReads(p.x.ctx, rows))
	p.check(p.model.RaiseReads(p.x.ctx, rows))
}

// look compares what readers get, and that with the fold where it is whole.
func (p *pair) look() {
	var asks []watermark.Ask
	for _, u := range rapid.SliceOfNDistinct(rapid.SampledFrom(append(people, "")), 1, 2, rapid.ID).Draw(p.r, "who looks") {
		asks = append(asks, watermark.Ask{Conversation: p.x.conv, User: u})
	}
	views, err := p.real.Views(p.x.ctx, asks)
	p.check(err)
	model, err := p.model.Views(p.x.ctx, asks)
	p.check(err)
	for i := range views {
		views[i].Token = p.tokens[views[i].Token]
	}
	p.same("views", views, model)
	for _, v := range views {
		if v.Temperature != watermark.Warm || v.Member.User == "" {
			continue
		}
		want := p.fold.ViewOf(v.Member.User)
		want.Token, want.Inputs, want.Member.ChangedAt, want.ChangedAt = v.Token, nil, 0, 0
		want.Override = watermark.PolicyChanged{}
		// A resend that is redelivered is appended like what it repeats, with a
		// time of its own.
		want.LastTime = v.LastTime
		// And a redelivered message with the policy that its sender's mark tells,
		// which may have been raised since. No reader asks for it.
		want.Policy = v.Policy
		if d := cmp.Diff(want, v, cmpopts.EquateEmpty()); d != "" {
			p.r.Fatalf("view of %s (-log +scripts):\n%s", v.Member.User, d)
		}
	}
	first := watermark.Seq(rapid.Int64Range(-1, int64(p.fold.Max)+1).Draw(p.r, "first"))
	span := []watermark.Span{{
		Conversation: p.x.conv, First: first, Last: first + watermark.Seq(rapid.IntRange(-1, 60).Draw(p.r, "length")),
		Keep: watermark.Keep(rapid.IntRange(0, 1).Draw(p.r, "keep")),
	}}
	real, err := p.real.Messages(p.x.ctx, span)
	p.check(err)
	told, err := p.model.Messages(p.x.ctx, span)
	p.check(err)
	p.same("messages", real[0], told[0])
	after := watermark.Reader{User: rapid.SampledFrom(append(people, "")).Draw(p.r, "after"), Read: first}
	readers, err := p.real.Readers(p.x.ctx, p.x.conv, first, after, 2)
	p.check(err)
	same, err := p.model.Readers(p.x.ctx, p.x.conv, first, after, 2)
	p.check(err)
	p.same("readers", readers, same)
}

// TestOutcomesAreAFunctionOfTheInputs lets scripts and model decide the same
// random stream: fresh batches, redeliveries from an earlier offset on, losses
// and restarts of Redis in the middle of a load, members and marks from others.
func TestOutcomesAreAFunctionOfTheInputs(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		conv := x.conv
		t.Cleanup(func() { x.conv = conv })
		x.ctx = t.Context()
		rapid.Check(t, func(r *rapid.T) {
			x.del(t, x.ctx)
			p := newPair(x, r)
			var all []watermark.Input
			for step := range rapid.IntRange(1, 10).Draw(r, "steps") {
				var ins []watermark.Input
				switch rapid.SampledFrom(strings.Fields("fresh fresh fresh redeliver redeliver lose begin restart merge mark")).Draw(r, "step") {
				case "lose":
					p.begin()
					p.mark()
					p.install()
				case "begin":
					p.begin()
				case "restart":
					p.boot()
				case "merge":
					p.introduce(rapid.SliceOfNDistinct(rapid.SampledFrom(people), 1, 3, rapid.ID).Draw(r, "users"))
				case "mark":
					p.mark()
				case "redeliver":
					if len(all) > 0 {
						ins = slices.Clone(all[rapid.IntRange(max(0, len(all)-40), len(all)-1).Draw(r, "from"):])
						ins = ins[:rapid.IntRange(1, len(ins)).Draw(r, "to")]
					}
					if end := len(all); end == 0 || len(ins) > 0 && ins[len(ins)-1].Origin == all[end-1].Origin {
						ins = append(ins, p.inputs(step)...)
					}
				case "fresh":
					ins = p.inputs(step)
				}
				if len(ins) > 0 && p.decide(ins) {
					for _, in := range ins {
						if len(all) == 0 || in.Origin.Offset > all[len(all)-1].Origin.Offset {
							all = append(all, in)
						}
					}
				}
				p.look()
			}
		})
	})
}

// inputs makes a batch, now and then a large one.
func (p *pair) inputs(step int) (ins []watermark.Input) {
	if rapid.IntRange(0, 300).Draw(p.r, "many") == 300 {
		return p.x.sends("alice", 600)
	}
	for i := range rapid.IntRange(1, 8).Draw(p.r, "inputs") {
		ins = append(ins, p.anyInput(step, i))
	}
	return ins
}

func (p *pair) anyInput(step, i int) watermark.Input {
	r, x := p.r, p.x
	user := rapid.SampledFrom(people).Draw(r, "user")
	op := fmt.Sprintf("op-%d", rapid.IntRange(step*10, step*10+i).Draw(r, "op"))
	seq := watermark.Seq(rapid.Int64Range(max(-1, int64(p.fold.Max)-50), int64(p.fold.Max)+9).Draw(r, "seq"))
	switch rapid.SampledFrom(strings.Fields("send send send send join leave clear min revoke again member warm attributes attributes policy")).Draw(r, "act") {
	case "send":
		return p.send(user)
	case "join":
		return x.join(user, op, watermark.History(rapid.IntRange(0, 2).Draw(r, "history")), seq)
	case "leave":
		return x.leave(user, op, rapid.Int32Range(0, 3).Draw(r, "membership"))
	case "clear":
		return x.clear(user, op)
	case "min":
		return x.raiseMin(seq - 5)
	case "policy":
		in := x.raiseMin(1)
		in.Act, in.Seq, in.Policy = watermark.ActSetPolicy, 0, watermark.PolicyChoice(rapid.IntRange(0, 2).Draw(r, "choice"))
		return in
	case "attributes":
		in := x.clear(user, op)
		in.Act, in.Attributes = watermark.ActSetAttributes, map[string]string{}
		for range rapid.IntRange(1, 9).Draw(r, "attributes") {
			name := fmt.Sprintf("a-%d.", rapid.IntRange(0, 20).Draw(r, "name"))
			in.Attributes[name] = rapid.SampledFrom([]string{"", "1", "é,;|%", "1"}).Draw(r, "value")
		}
		return in
	case "again":
		in := p.send(user)
		in.Act, in.OpID = watermark.ActResequence, op
		in.Seq, in.Repair = max(seq, 0), rapid.Int64Range(0, 9).Draw(r, "repair")
		return in
	case "member":
		m := watermark.Member{User: user, Version: rapid.Int64Range(1, 9).Draw(r, "version")}
		return watermark.Input{
			Conversation: x.conv, Origin: x.origin(), Act: watermark.ActResequence, OpID: op, Member: &m,
			Repair: rapid.Int64Range(0, 9).Draw(r, "repair"),
		}
	case "warm":
		return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActWarm, OpID: op}
	default:
		actor := rapid.SampledFrom([]watermark.UserID{"", user}).Draw(r, "actor")
		return x.revoke(actor, seq)
	}
}

func (p *pair) send(user watermark.UserID) watermark.Input {
	in := p.x.send(user, fmt.Sprint("m", rapid.IntRange(0, 30).Draw(p.r, "id")))
	if rapid.IntRange(0, 9).Draw(p.r, "other content") == 0 {
		in.Message.Kind = "other"
		in.Message.Hash = in.Message.SumHash()
	}
	return in
}
