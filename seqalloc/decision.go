package seqalloc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// plainTogether is how many conversations one call of plain.lua has where all
	// keys are on one server. What a call costs by itself, some 8 us of Redis, is
	// a small part then; and Redis serves nobody else for a millisecond at most.
	plainTogether = 32
	// plainMessages bounds the messages of a batch that plain.lua takes: Lua hands
	// a command no more than some thousand words.
	plainMessages = 500
)

// decision is one call of Malloc.
type decision struct {
	*Allocator
	batches  []watermark.Batch
	allocs   []watermark.Allocation
	outcomes [][]watermark.Outcome // where those of each batch go
	turned   []int                 // what plain.lua left to malloc.lua
	errs     []error
}

func (a *Allocator) newDecision(batches []watermark.Batch) *decision {
	inputs := 0
	for i := range batches {
		inputs += len(batches[i].Inputs)
	}
	all := make([]watermark.Outcome, inputs)
	d := &decision{
		Allocator: a, batches: batches, allocs: make([]watermark.Allocation, len(batches)),
		outcomes: make([][]watermark.Outcome, len(batches)),
	}
	for i := range batches {
		n := len(batches[i].Inputs)
		d.outcomes[i], all = all[:n:n], all[n:]
	}
	return d
}

// calls says which batches are put to which script: those of one call of
// plain.lua stand together, each of the others has a call of malloc.lua.
type calls struct {
	short [][]int
	long  []int
}

// all gives every batch that has a call.
func (c *calls) all() []int { return append(slices.Concat(c.short...), c.long...) }

// sort tells which batches may be plain. Batches of a conversation that has
// several go to malloc.lua, in order: plain.lua might turn down the first only.
func (d *decision) sort() (c calls) {
	together := 1
	if d.runner.Together() {
		together = plainTogether
	}
	several := d.several()
	var open []int // the last group, while it takes more
	for i := range d.batches {
		b := &d.batches[i]
		if several[b.Conversation] || !plain(b) {
			c.long = append(c.long, i)
			continue
		}
		if len(open) > 0 {
			o := &d.batches[open[0]]
			if len(open) == together || o.Place != b.Place || o.Inputs[0].Origin.Partition != b.Inputs[0].Origin.Partition {
				c.short, open = append(c.short, open), nil
			}
		}
		if open == nil {
			open = make([]int, 0, min(together, len(d.batches)-i))
		}
		open = append(open, i)
	}
	if len(open) > 0 {
		c.short = append(c.short, open)
	}
	return c
}

// several gives the conversations that have more than one batch.
func (d *decision) several() map[watermark.ConversationID]bool {
	if len(d.batches) == 1 {
		return nil
	}
	seen := make(map[watermark.ConversationID]bool, len(d.batches))
	var out map[watermark.ConversationID]bool
	for i := range d.batches {
		id := d.batches[i].Conversation
		if seen[id] {
			if out == nil {
				out = make(map[watermark.ConversationID]bool)
			}
			out[id] = true
		}
		seen[id] = true
	}
	return out
}

// plain tells whether a batch is what plain.lua may take: messages of one
// partition in the order of their offsets, bound to no warm-up.
func plain(b *watermark.Batch) bool {
	if len(b.Inputs) == 0 || len(b.Inputs) > plainMessages || b.Token != "" || b.Policy != watermark.AdvanceOnSend {
		return false
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		if in.Act != watermark.ActSend || unfit(b.Conversation, in) != "" {
			return false
		}
		if i > 0 && (in.Origin.Partition != b.Inputs[0].Origin.Partition || in.Origin.Offset <= b.Inputs[i-1].Origin.Offset) {
			return false
		}
	}
	return true
}

// run puts batches to the scripts, all in one pipeline, and takes what they say.
func (d *decision) run(ctx context.Context, c calls) {
	calls, args := d.scripts(c)
	results := d.runner.Run(ctx, calls)
	args.spare() // Run has written them
	for g, group := range c.short {
		d.tookShort(group, results[g])
	}
	for k, i := range c.long {
		d.tookLong(i, results[len(c.short)+k])
	}
}

// scripts gives the calls, those of plain.lua first, and what their arguments stand in.
func (d *decision) scripts(c calls) ([]keyspace.Call, *arguments) {
	now := d.now().UnixMilli()
	args := newArguments(d.batches, c.all())
	ends := make([]int, 0, len(c.short)+len(c.long))
	var shortConvs []watermark.ConversationID
	longConvs := make([]watermark.ConversationID, len(c.long))
	for _, group := range c.short {
		args.plain(d.Allocator, d.batches, group, now)
		ends = append(ends, len(args.words))
		for _, i := range group {
			shortConvs = append(shortConvs, d.batches[i].Conversation)
		}
	}
	for k, i := range c.long {
		args.batch(d.Allocator, &d.batches[i], now)
		ends = append(ends, len(args.words))
		longConvs[k] = d.batches[i].Conversation
	}
	args.done()

	out := make([]keyspace.Call, len(ends))
	short, long := d.space.FlatKeys(shortConvs, plainParts), d.space.AllKeys(longConvs, parts)
	from := 0
	for k, end := range ends {
		call := keyspace.Call{Args: args.words[from:end:end], Asks: true}
		if k < len(c.short) {
			n := len(c.short[k]) * len(plainParts)
			call.Script, call.Keys = d.Allocator.plain, short[:n:n]
			short = short[n:]
		} else {
			call.Script, call.Keys = d.malloc, long[k-len(c.short)]
		}
		out[k] = call
		from = end
	}
	return out, args
}

// tookShort takes a reply of plain.lua: counter and minimum of each batch, which
// is turned down where the counter is 0.
func (d *decision) tookShort(group []int, res keyspace.Result) {
	if res.Err != nil {
		d.failed(group[0], res.Err)
		return
	}
	list, _ := res.Value.([]any)
	if len(list) != 2*len(group) {
		d.failed(group[0], unreadable("plain", fmt.Errorf("%d values for %d batches", len(list), len(group))))
		return
	}
	for k, i := range group {
		top, ok := list[2*k].(int64)
		lowest, ok2 := list[2*k+1].(int64)
		out := d.outcomes[i]
		switch {
		case ok && ok2 && top == 0:
			d.turned = append(d.turned, i)
			continue
		case !ok || !ok2 || top < int64(len(out)):
			d.failed(i, unreadable("plain", fmt.Errorf("a run of %d up to %v, %v", len(out), list[2*k], list[2*k+1])))
			continue
		}
		seq := watermark.Seq(top) - watermark.Seq(len(out))
		for j := range out {
			seq++
			out[j].Seq, out[j].Min = seq, watermark.Seq(lowest)
		}
		d.allocs[i] = watermark.Allocation{Max: watermark.Seq(top), Outcomes: out}
		d.metrics.count(&d.allocs[i])
	}
}

// tookLong takes a reply of malloc.lua.
func (d *decision) tookLong(i int, res keyspace.Result) {
	err := res.Err
	if err == nil {
		d.allocs[i], err = decodeReply(&d.batches[i], res.Value, d.outcomes[i])
	}
	if err != nil {
		d.failed(i, err)
		return
	}
	d.metrics.count(&d.allocs[i])
}

func (d *decision) failed(i int, err error) {
	b := &d.batches[i]
	d.errs = append(d.errs, fmt.Errorf("decide %d inputs of %s: %w", len(b.Inputs), b.Conversation, err))
	d.metrics.calls.WithLabelValues("error").Inc()
}

// unreadable is the error of a reply that is the program's fault.
func unreadable(script string, err error) error {
	return fault.New(fault.Fatal, keyspace.ReasonScript, errors.Join(fmt.Errorf("reply of %s", script), err))
}
