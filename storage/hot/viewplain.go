package hot

import (
	"context"
	"slices"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// viewPlain reads the views that todo names by transactions of plain commands,
// each of as many conversations as a script call would have. It gives those that
// the script is to be asked for: all of a transaction of which anything is not as
// expected, so that there is one way only to what is wrong.
func (h *Hot) viewPlain(ctx context.Context, asks []Ask, todo []int, views []watermark.View, take func(i int, p place, outcome string)) (left []int, err error) {
	replies, token, usable, err := h.viewReads(ctx, asks, todo).Run(ctx, h.space.Incarnation)
	if err != nil {
		return nil, failed("view", asks[todo[0]].Conversation, err)
	}
	if !usable {
		return todo, nil
	}
	var places [viewsTogether]place
	var outcomes [viewsTogether]string
	var some int
	for part := range slices.Chunk(todo, viewsTogether) {
		r := &replies[some]
		some++
		var damaged error
		for k, i := range part {
			peer, _ := asks[i].Conversation.Peer(asks[i].User)
			said := readPlain(r, token, string(asks[i].User), string(peer))
			if damaged = r.Err(); damaged != nil {
				break
			}
			if places[k], outcomes[k], damaged = said.view(&asks[i], &views[i]); damaged != nil {
				break
			}
		}
		own, _ := r.Text()
		if damaged == nil {
			damaged = r.End()
		}
		if damaged != nil || own != "0" {
			left = append(left, part...)
			continue
		}
		for k, i := range part {
			take(i, places[k], outcomes[k])
		}
	}
	if len(left) > 0 {
		h.scripted.Store(scriptedNext)
	}
	return left, nil
}

// scriptedNext is how many pipelines go to the script at once after one of which
// it had to be asked for something: where there are many own messages, or something
// between here and Redis knows no transactions, hardly anybody asks twice.
const scriptedNext = 16

// plainNext tells whether to try the plain way for the next pipeline.
func (h *Hot) plainNext() bool {
	if !h.plainly {
		return false
	}
	for {
		n := h.scripted.Load()
		if n == 0 {
			return true
		}
		if h.scripted.CompareAndSwap(n, n-1) {
			return false
		}
	}
}

// The words that all views have in common.
var (
	wordsOfMeta = []any{"inc", "st", "tok", "min", "max", "lt", "pol", "bt", "rn", "rf", "full"}
	hmget       = any("hmget")
	zmscore     = any("zmscore")
	zscore      = any("zscore")
	exists      = any("exists")
)

// viewReads gives the transactions for the asks that todo names. In each stand the
// commands of readPlain for each of its asks, and at the end one that asks whether
// there are any own messages.
//
// Words that are not the same for all are pointed to, since a word by value costs
// an allocation.
func (h *Hot) viewReads(ctx context.Context, asks []Ask, todo []int) *keyspace.Reads {
	keys, peers := h.viewKeys(asks, todo)
	keysOf := func(k int) []string { return keys[k*len(viewParts) : (k+1)*len(viewParts)] }
	reads := h.runner.Reads(ctx)
	for first := 0; first < len(todo); first += viewsTogether {
		last := min(first+viewsTogether, len(todo))
		for k := first; k < last; k++ {
			user, peer := (*string)(&asks[todo[k]].User), &peers[k]
			key := keysOf(k)
			reads.Words(hmget, &key[0])
			reads.Words(wordsOfMeta...)
			reads.Command()
			if *peer != "" {
				reads.Words(hmget, &key[1], user, peer)
				reads.Command()
				reads.Words(zmscore, &key[3], user, peer)
				reads.Command()
			} else if *user != "" {
				reads.Words(hmget, &key[1], user)
				reads.Command()
			}
			if *user != "" {
				reads.Words(zscore, &key[2], user)
				reads.Command()
			}
		}
		reads.Words(exists)
		for k := first; k < last; k++ {
			reads.Words(&keysOf(k)[4])
		}
		reads.Command()
		reads.Transaction(ctx)
	}
	return reads
}

// readPlain reads what was answered to the commands of viewReads for one ask.
// What it makes of it is what view.lua does where there are no own messages.
func readPlain(r *keyspace.Reply, token, user, peer string) (said viewSaid) {
	r.ListOf(len(wordsOfMeta))
	inc, hasInc := r.Text()
	state, hasState := r.Text()
	for _, field := range []*string{&said.token, &said.min, &said.max, &said.time, &said.policy, &said.place} {
		*field, _ = r.Text()
	}
	var repaired bool
	said.repair, repaired = r.Text()
	said.from, _ = r.Text()
	if !repaired || said.repair == "0" {
		said.from = ""
	}
	full, _ := r.Text()
	known := true
	if peer != "" {
		r.ListOf(2)
		said.member, _ = r.Text()
		said.peer, _ = r.Text()
		known = said.member != "" && said.peer != ""
		r.ListOf(2)
		said.receipt, _ = r.Text()
		said.peerReceipt, _ = r.Text()
	} else if user != "" {
		r.ListOf(1)
		said.member, known = r.Text()
	}
	if user != "" {
		said.read, _ = r.Text()
	}
	said.status = statusWarm
	switch {
	case !hasInc || !hasState:
		said.status, said.why = statusCold, stateAbsent
	case inc != token:
		said.status, said.why = statusCold, stateIncarnation
	case state != keyspace.StateWarm:
		said.status, said.why = statusCold, state
	case !known && full != "1":
		said.status = statusPartial
	}
	return said
}
