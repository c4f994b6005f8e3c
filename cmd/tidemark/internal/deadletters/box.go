// Package deadletters lists dead letters, replays them, and drops them.
//
// A dead letter is a record that could not be accepted, on a topic of its own.
// Nothing is ever taken away from there: retention does that. What was done
// about a letter stands behind it as a mark, a record on the same topic, and the
// last mark of a letter counts. Letters of one record, which a worker that died
// between its steps may write twice, are one.
//
// Replay promises:
//   - The record is appended to the topic that it came from, as it was. It is a
//     new input there, since at its first place it was decided already, but the
//     same message: its client message id or op id does not change, also where it
//     follows from the first place.
//   - No letter is replayed twice, however often Replay is called and wherever
//     it is killed: a mark says before that a letter is being replayed, and from
//     which offsets on its record will stand; another says afterwards that it
//     does. Where the second is missing, the next call looks for the record.
//     Two calls at the same time are kept apart by the message's id alone.
//   - Letters of one key are appended in the order in which they stand.
//   - What comes back is another letter, with one try more. It stands behind what
//     a call looks at, so no call goes round in circles.
//
// Memory is a page of letters, and a bit for each letter that has a mark; the
// topic is read twice.
package deadletters

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Log reads topics.
type Log interface {
	// Scan gives a topic's records from the offsets of from, nil: the start, up to
	// below those of to. Where the log has given up the first ones it gives an
	// error that wraps pipeline.ErrLogStart.
	Scan(ctx context.Context, topic string, from, to map[int32]int64) iter.Seq2[wire.Record, error]
	// Ends gives where the next record of each partition will stand.
	Ends(ctx context.Context, topic string) (map[int32]int64, error)
}

// Appender appends records and returns when they are acknowledged.
type Appender interface {
	Append(ctx context.Context, outs []wire.Out) error
}

// Config says where the letters are.
type Config struct {
	Log      Log
	Appender Appender
	// Topic is that of the dead letters. Required.
	Topic string
	// Input and Sequenced are the topics that letters are replayed to. Required.
	Input, Sequenced string
	// Offline is that of notifications, to which letters are replayed too. Empty:
	// there is none.
	Offline string
	// Now gives the time. nil: time.Now.
	Now func() time.Time
}

// Box is all dead letters of a deployment.
type Box struct{ cfg Config }

// New checks cfg.
func New(cfg Config) (*Box, error) {
	if cfg.Log == nil || cfg.Appender == nil || cfg.Topic == "" || cfg.Input == "" || cfg.Sequenced == "" {
		return nil, errors.New("deadletters: Log, Appender, Topic, Input and Sequenced must be set")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Box{cfg}, nil
}

// Letter is a dead letter and what became of it.
type Letter struct {
	wire.DeadLetter
	wire.Glance
	// Partition and Offset are where the letter itself stands.
	Partition int32
	Offset    int64
	// Deed is what was done about it. Empty: nothing yet.
	Deed wire.Deed
	// Mark tells more about that, for the letters that Filter.Places names.
	Mark *wire.Mark
}

// Place names the letter's record for people.
func (l *Letter) Place() string {
	return fmt.Sprintf("%s/%d/%d", l.Record.Topic, l.Record.Partition, l.Record.Offset)
}

// Place is where a record stood that became a dead letter. Of a topic that was
// deleted and made again, several may have stood at one.
type Place struct {
	Topic     string
	Partition int32
	Offset    int64
}

// Filter chooses letters. Its zero value takes all that nothing was done about.
type Filter struct {
	Places                              []Place // empty: any
	Reason, Conversation, Sender, Topic string  // empty: any
	Partition                           *int32  // nil: any
	First, Last                         *int64  // offsets of the record; nil: any
	Since, Until                        time.Time
	Handled                             bool // also letters that were replayed or dropped
}

func (f *Filter) takes(l *Letter) bool {
	r := &l.Record
	switch {
	case len(f.Places) > 0 && !slices.Contains(f.Places, Place{r.Topic, r.Partition, r.Offset}),
		f.Reason != "" && f.Reason != l.Reason,
		f.Conversation != "" && f.Conversation != l.Conversation,
		f.Sender != "" && f.Sender != l.Sender,
		f.Topic != "" && f.Topic != r.Topic,
		f.Partition != nil && *f.Partition != r.Partition,
		f.First != nil && r.Offset < *f.First,
		f.Last != nil && r.Offset > *f.Last,
		!f.Since.IsZero() && l.DeadLetter.Last.Before(f.Since),
		!f.Until.IsZero() && l.DeadLetter.Last.After(f.Until):
		return false
	}
	return f.Handled || l.Deed == "" || l.Deed == wire.Replaying || l.Deed == wire.Released
}

// ledger is what the marks of a topic come to.
type ledger struct {
	ends  map[int32]int64
	done  map[wire.Deed]places           // Replayed and Dropped
	open  map[string]wire.Mark           // Replaying, and nothing behind it
	marks map[watermark.Origin]wire.Mark // of the letters that a filter names
	// Strange counts the records that are neither letters nor marks.
	strange int
}

// read reads all marks that stand now. What comes later is for the next call.
func (b *Box) read(ctx context.Context, f *Filter) (*ledger, error) {
	ends, err := b.cfg.Log.Ends(ctx, b.cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	l := &ledger{
		ends: ends, open: make(map[string]wire.Mark), marks: make(map[watermark.Origin]wire.Mark),
		done: map[wire.Deed]places{wire.Replayed: {}, wire.Dropped: {}},
	}
	for r, err := range b.cfg.Log.Scan(ctx, b.cfg.Topic, nil, ends) {
		if err != nil {
			return nil, fmt.Errorf("read dead letters: %w", err)
		}
		if !wire.IsMark(&r) {
			continue
		}
		m, err := wire.DecodeMark(r)
		if err != nil {
			l.strange++
			continue
		}
		l.note(m, len(f.Places) > 0)
	}
	return l, nil
}

func (l *ledger) note(m wire.Mark, keep bool) {
	at := m.Place()
	delete(l.open, m.Letter)
	for _, p := range l.done {
		p.remove(at)
	}
	switch m.Deed {
	case wire.Replaying:
		l.open[m.Letter] = m
	case wire.Replayed, wire.Dropped:
		l.done[m.Deed].add(at)
	case wire.Released:
	}
	if keep {
		l.marks[at] = m
	}
}

func (l *ledger) deed(d *wire.DeadLetter) wire.Deed {
	if _, ok := l.open[d.ID()]; ok {
		return wire.Replaying
	}
	for deed, p := range l.done {
		if p.has(d.Record.Place()) {
			return deed
		}
	}
	return ""
}

// letters gives what stands below the ledger's ends and f takes, each record
// once.
func (b *Box) letters(ctx context.Context, led *ledger, f *Filter) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		seen := places{}
		for r, err := range b.cfg.Log.Scan(ctx, b.cfg.Topic, nil, led.ends) {
			if err != nil {
				yield(Letter{}, fmt.Errorf("read dead letters: %w", err))
				return
			}
			if wire.IsMark(&r) {
				continue
			}
			d, err := wire.DecodeDeadLetter(r)
			if err != nil {
				led.strange++
				continue
			}
			l := Letter{DeadLetter: d, Glance: wire.GlanceAt(&d.Record), Partition: r.Partition, Offset: r.Offset, Deed: led.deed(&d)}
			if m, ok := led.marks[d.Record.Place()]; ok {
				l.Mark = &m
			}
			if !f.takes(&l) || !seen.add(d.Record.Place()) {
				continue
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

// List gives the letters that f takes, partition by partition, each in the
// order in which they stand. strange is set at the end: the number of records on
// the topic that are no letters.
func (b *Box) List(ctx context.Context, f Filter, strange *int) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		led, err := b.read(ctx, &f)
		if err != nil {
			yield(Letter{}, err)
			return
		}
		for l, err := range b.letters(ctx, led, &f) {
			if !yield(l, err) {
				return
			}
		}
		*strange = led.strange
	}
}

// places is a set of places of records: a bit for each, 64 neighbours together,
// since those of a flood stand side by side.
type places map[watermark.Partition]map[int64]uint64

// add tells whether o was not there.
func (p places) add(o watermark.Origin) bool {
	bits := p[o.Partition]
	if bits == nil {
		bits = make(map[int64]uint64)
		p[o.Partition] = bits
	}
	at, bit := o.Offset>>6, uint64(1)<<(o.Offset&63)
	fresh := bits[at]&bit == 0
	bits[at] |= bit
	return fresh
}

func (p places) remove(o watermark.Origin) {
	bits := p[o.Partition]
	at, bit := o.Offset>>6, uint64(1)<<(o.Offset&63)
	if bits[at]&bit == 0 {
		return
	}
	if bits[at] &^= bit; bits[at] == 0 {
		delete(bits, at)
	}
}

func (p places) has(o watermark.Origin) bool {
	return p[o.Partition][o.Offset>>6]&(uint64(1)<<(o.Offset&63)) != 0
}

// ParsePlace reads "topic/partition/offset", as Letter.Place gives it.
func ParsePlace(s string) (Place, error) {
	var p Place
	parts := strings.Split(s, "/")
	if len(parts) == 3 && parts[0] != "" {
		p.Topic = parts[0]
		if _, err := fmt.Sscanf(parts[1]+" "+parts[2], "%d %d", &p.Partition, &p.Offset); err == nil &&
			p.Partition >= 0 && p.Offset >= 0 && fmt.Sprintf("%s/%d/%d", p.Topic, p.Partition, p.Offset) == s {
			return p, nil
		}
	}
	return Place{}, fmt.Errorf("%q is not topic/partition/offset", s)
}

// sorted gives the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
