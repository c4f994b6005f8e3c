package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// maxReplayNote bounds what a record may say about the one that it repeats.
const maxReplayNote = 1024

// replayNote is what a replayed record says about the record that became a dead
// letter, in HeaderReplay.
//
// It says nothing about order: a replayed record is an input of its own, at its
// own place, since the owner has decided everything at the first place long ago.
// Only what identifies the message is kept. So whoever writes the header by hand
// gains nothing that a client message id of their choice would not give them.
type replayNote struct {
	// First is where the message first stood, in the form of HeaderOrigin: the
	// client message id of a message without one follows from it.
	First string `json:"first"`
	// Letter is the place of the record whose dead letter was replayed, in the
	// same form. It is First unless that record was forwarded or a replay itself.
	Letter string `json:"letter"`
	// FirstTimeMs is when the first of these records was first refused, Tries how
	// often they were tried together.
	FirstTimeMs int64 `json:"firstTimeMs"`
	Tries       int   `json:"tries"`

	first, letter first
}

// replayOf reads what r says that it repeats; nil where it repeats nothing.
func replayOf(r *Record) (*replayNote, error) {
	v, ok := r.Header(HeaderReplay)
	if !ok {
		return nil, nil
	}
	n := new(replayNote)
	err := errors.New("it is too long")
	if len(v) <= maxReplayNote {
		err = json.Unmarshal(v, n)
	}
	if err == nil {
		n.first, err = parsePlace(n.First)
	}
	if err == nil {
		n.letter, err = parsePlace(n.Letter)
	}
	if err == nil && (n.Tries < 0 || n.FirstTimeMs < 0) {
		err = errors.New("a number is negative")
	}
	if err != nil {
		return nil, undecodable(fmt.Errorf("header %s: %s", HeaderReplay, clip(err.Error(), 200)))
	}
	return n, nil
}

// ReplayedLetter gives the place of the record whose dead letter r replays, as
// DeadLetter.ID gives it; empty where r replays none.
func ReplayedLetter(r *Record) string {
	n, err := replayOf(r)
	if n == nil || err != nil {
		return ""
	}
	return n.letter.id()
}

// identityOf gives the place that identifies the message in r: that of the
// record it repeats, else f, its own.
func identityOf(r *Record, f first) (first, error) {
	n, err := replayOf(r)
	if n == nil || err != nil {
		return f, err
	}
	return n.first, nil
}

// withHistory adds what was told of the records that d's record repeats.
func (d DeadLetter) withHistory() DeadLetter {
	n, err := replayOf(&d.Record)
	if n == nil || err != nil {
		return d // a note that nobody can read says nothing
	}
	d.Tries = min(d.Tries, 1<<30) + min(n.Tries, 1<<30)
	if t := timeOf(n.FirstTimeMs); !t.IsZero() && (d.First.IsZero() || t.Before(d.First)) {
		d.First = t
	}
	return d
}

// Replay gives the record of a dead letter as it is appended to its topic
// again: key, value and headers are the same, but for those that tie it to its
// first place, where it was decided already. A header of its own says which
// message it is: one without a client message id has the same one as at its
// first place, however often it is replayed, and a command keeps its op id.
func (d DeadLetter) Replay() (Out, error) {
	if d.Omitted > 0 {
		return Out{}, fmt.Errorf("replay %s: its %d bytes were too large for the dead letters and were left out", d.ID(), d.Omitted)
	}
	own := first{d.Record.Place(), timeMs(d.Record.Time)}
	of := own
	if n, err := replayOf(&d.Record); n != nil && err == nil {
		of = n.first
	} else if f, err := firstOf(&d.Record); err == nil {
		of = f
	}
	note, err := json.Marshal(replayNote{First: of.String(), Letter: own.String(), FirstTimeMs: timeMs(d.First), Tries: d.Tries})
	if err != nil {
		return Out{}, fmt.Errorf("replay %s: %w", d.ID(), err)
	}
	return Out{
		Topic:     d.Record.Topic,
		Partition: -1,
		Key:       string(d.Record.Key),
		Value:     d.Record.Value,
		Headers: append(without(d.Record.Headers, HeaderOrigin, HeaderCaller, HeaderReplay, HeaderDeadLetter, HeaderDeadLetterPlace, HeaderDeadLetterOmitted),
			Header{HeaderReplay, note}),
	}, nil
}

// id gives a place without its time.
func (f first) id() string {
	return fmt.Sprintf("%s/%d/%d", f.origin.Partition.TopicID, f.origin.Partition.Number, f.origin.Offset)
}

// ID names the record of a dead letter: topic id, partition and offset. The
// same record may have several dead letters, which then have one ID.
func (d *DeadLetter) ID() string { return first{origin: d.Record.Place()}.id() }

// WithoutContent gives d as small as it can be, for a topic that does not take
// it as it is. What tells where the record stands is left.
func (d DeadLetter) WithoutContent(err error) DeadLetter {
	d = d.withHistory()
	d.Omitted = max(len(d.Record.Value), 1)
	d.Cause = fmt.Sprintf("%s (its %d bytes are left out: %v)", d.Cause, len(d.Record.Value), err)
	d.Record.Value, d.Record.Headers = nil, nil
	return d
}

// Deed says what was done about a dead letter.
type Deed string

// The deeds. A letter without one is still to be looked at.
const (
	// Replaying: the record will be appended again, or has been. What became of
	// it stands in a later mark; else in Mark.Topic from Mark.Ends on.
	Replaying Deed = "replaying"
	// Replayed: the record was appended again.
	Replayed Deed = "replayed"
	// Released: it was not appended after all.
	Released Deed = "released"
	// Dropped: somebody decided that it is not needed.
	Dropped Deed = "dropped"
)

// Mark is a record on the topic of the dead letters that says what was done
// about one of them. The last mark of a letter counts.
type Mark struct {
	Letter string    `json:"letter"` // DeadLetter.ID
	Deed   Deed      `json:"deed"`
	Why    string    `json:"why,omitempty"` // Dropped: what somebody wrote; Released: what went wrong
	Time   time.Time `json:"time"`
	// Topic and Ends say where the record will stand: at or behind these offsets
	// of that topic. Replaying only.
	Topic string          `json:"topic,omitempty"`
	Ends  map[int32]int64 `json:"ends,omitempty"`
}

// Place gives what Letter names.
func (m *Mark) Place() watermark.Origin {
	f, err := parsePlace(m.Letter + "/0")
	if err != nil {
		return watermark.Origin{Offset: -1} // no letter's
	}
	return f.origin
}

// maxWhy bounds Mark.Why, in bytes.
const maxWhy = 1024

// EncodeMark gives a mark as a record without a value, keyed by its letter, so
// that marks of one letter keep their order.
func EncodeMark(m Mark) (Out, error) {
	m.Why = m.Why[:min(len(m.Why), maxWhy)]
	value, err := json.Marshal(m)
	if err != nil {
		return Out{}, fmt.Errorf("encode mark of dead letter %s: %w", m.Letter, err)
	}
	return Out{Partition: -1, Key: m.Letter, Headers: []Header{{HeaderDeadLetterMark, value}}, Time: m.Time}, nil
}

// IsMark tells a mark from a dead letter.
func IsMark(r *Record) bool {
	_, mark := r.Header(HeaderDeadLetterMark)
	_, letter := r.Header(HeaderDeadLetter)
	return mark && !letter
}

// DecodeMark reads a record that is a mark. The error is a fault.Poison.
func DecodeMark(r Record) (Mark, error) {
	v, ok := r.Header(HeaderDeadLetterMark)
	if !ok {
		return Mark{}, undecodable(fmt.Errorf("dead letter mark: header %s is missing", HeaderDeadLetterMark))
	}
	var m Mark
	if err := json.Unmarshal(v, &m); err != nil {
		return Mark{}, undecodable(fmt.Errorf("dead letter mark: header %s: %w", HeaderDeadLetterMark, err))
	}
	switch m.Deed {
	case Replaying, Replayed, Released, Dropped:
	default:
		return Mark{}, invalid(fmt.Errorf("dead letter mark: deed %s is not known", clip(string(m.Deed), 32)))
	}
	if _, err := parsePlace(m.Letter + "/0"); err != nil {
		return Mark{}, invalid(fmt.Errorf("dead letter mark: letter: %w", err))
	}
	return m, nil
}
