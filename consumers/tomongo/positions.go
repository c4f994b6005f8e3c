package tomongo

import (
	"github.com/tidemark-im/tidemark/watermark"
)

// positions is what a stage tells history about how far it is.
type positions struct {
	log    watermark.Position // Topic, TopicID and Number, once a record was seen
	next   int64              // the position that history has of this stage
	inputs map[watermark.Partition]input
}

// input is a partition that records of the log came from. History keeps it with
// a position of 0, which says no more than that this topic is the one that it
// was filled from: conversations of one batch are appended in any order, so the
// highest input seen says nothing about those below it.
type input struct {
	topic string
	known bool // it stands in history
}

func newPositions() *positions {
	return &positions{inputs: make(map[watermark.Partition]input)}
}

// saw takes note of where the records of p stand and came from.
func (a *positions) saw(p *piece, inputs string) {
	if p.topic != "" {
		a.log = watermark.Position{Topic: p.topic, Partition: p.partition}
	}
	for _, rec := range p.records {
		for _, o := range rec.Inputs {
			if _, ok := a.inputs[o.Partition]; !ok {
				a.inputs[o.Partition] = input{topic: inputs}
			}
		}
	}
}

// upTo gives what history must learn with everything below end.
func (a *positions) upTo(end int64) []watermark.Position {
	var out []watermark.Position
	if end > a.next && a.log.Topic != "" {
		at := a.log
		at.Next = end
		out = append(out, at)
	}
	for p, in := range a.inputs {
		if !in.known {
			out = append(out, watermark.Position{Topic: in.topic, Partition: p})
		}
	}
	return out
}

// written takes note of what history has learnt.
func (a *positions) written(ps []watermark.Position) {
	for _, p := range ps {
		if p.Topic == a.log.Topic && p.Partition == a.log.Partition {
			a.next = max(a.next, p.Next)
			continue
		}
		in := a.inputs[p.Partition]
		in.known = true
		a.inputs[p.Partition] = in
	}
}
