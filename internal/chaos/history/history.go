// Package history is what a chaos run did and was answered, one operation a
// line of JSON. It is all that the checker knows: what went in, what came out
// of the documented calls, and when.
//
// Times are nanoseconds since the run began, by one clock for all operations. An
// operation took place somewhere between T0, when it was asked for, and T1, when
// it was answered. One that was not answered, or with an error, may have taken
// place at any time from T0 on, or never.
//
// A Writer is safe for concurrent use. What it wrote before the process was
// killed can be read, except for the last few lines.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Kind says what an operation is.
type Kind string

// The kinds of operations.
const (
	Produce    Kind = "produce"    // a record put on the toRedis topic
	Send       Kind = "send"       // a call of Send
	Pull       Kind = "pull"       // a range of a call of Pull
	Watermarks Kind = "watermarks" // an entry of a call of GetWatermarks
	Mark       Kind = "mark"       // SetReadSeq or MarkConversationRead
	Join       Kind = "join"       // with history NONE
	Leave      Kind = "leave"
	Clear      Kind = "clear"
	RaiseMin   Kind = "raisemin" // everything below Seq is deleted, for everybody
	Revoke     Kind = "revoke"   // the message at Seq becomes a tombstone
	Follow     Kind = "follow"   // a message that a connected device showed
	Fault      Kind = "fault"    // what the nemesis did; Text says what
	Exit       Kind = "exit"     // a worker ended that nobody had ended
	Stuck      Kind = "stuck"    // the deployment did not come to rest
)

// The phases at the end of a run, when everything is healed and at rest.
const (
	PhaseRest  = "rest"  // as the run left it
	PhaseTool  = "tool"  // by the command line tool
	PhaseEmpty = "empty" // after Redis was emptied, so from history
)

// Op is one operation. Which fields mean something depends on Kind.
type Op struct {
	Kind Kind   `json:"kind"`
	T0   int64  `json:"t0"`
	T1   int64  `json:"t1,omitempty"`
	OK   bool   `json:"ok,omitempty"`
	Err  string `json:"err,omitempty"`
	// Phase is empty while the run is under way.
	Phase string `json:"phase,omitempty"`

	Conversation string `json:"conv,omitempty"`
	User         string `json:"user,omitempty"`

	// Produce and Send. N numbers the messages of a producer from 1. A message
	// is told by its text, which no other has; the same text in a second
	// operation is the same message sent again. Ordered says that the producer
	// keeps the order of its numbers within a conversation.
	Producer  string `json:"producer,omitempty"`
	N         int64  `json:"n,omitempty"`
	Ordered   bool   `json:"ordered,omitempty"`
	ID        string `json:"id,omitempty"`
	Text      string `json:"text,omitempty"`
	Seq       int64  `json:"seq,omitempty"` // the answer's, 0: not told; of Mark, RaiseMin and Revoke: what was asked
	Duplicate bool   `json:"dup,omitempty"`

	// Pull.
	Begin int64  `json:"begin,omitempty"`
	End   int64  `json:"end,omitempty"`
	Desc  bool   `json:"desc,omitempty"`
	Page  *Page  `json:"page,omitempty"`
	Marks *Marks `json:"marks,omitempty"` // Watermarks, and what Mark was answered

	// Commands: the edge that was answered.
	Edge int64 `json:"edge,omitempty"`
}

// Page is an answer of Pull.
type Page struct {
	Min      int64     `json:"min"`
	Max      int64     `json:"max"`
	Messages []Message `json:"messages,omitempty"`
	Covered  *Range    `json:"covered,omitempty"`
	Rest     *Range    `json:"rest,omitempty"`
	IsEnd    bool      `json:"isEnd,omitempty"`
	Repair   int64     `json:"repair,omitempty"`
}

// Message is a message as it was served.
type Message struct {
	Seq    int64  `json:"s"`
	Sender string `json:"u"`
	ID     string `json:"i"`
	Text   string `json:"t"`
	// Revoked says that it is a tombstone: without a text.
	Revoked bool `json:"x,omitempty"`
}

// Range is a closed range of seqs.
type Range struct {
	Begin int64 `json:"b"`
	End   int64 `json:"e"`
}

// Marks are a user's numbers in a conversation.
type Marks struct {
	Min     int64   `json:"min,omitempty"`
	Max     int64   `json:"max,omitempty"`
	Read    int64   `json:"read"`
	Unread  int64   `json:"unread"`
	Receipt int64   `json:"receipt,omitempty"` // of Mark: own; of Watermarks: the peer's
	Repair  int64   `json:"repair,omitempty"`
	Visible []Range `json:"visible,omitempty"`
}

// Writer writes a history.
type Writer struct {
	start time.Time
	mu    sync.Mutex
	file  *os.File
	buf   *bufio.Writer
	err   error
}

// Create begins a history in a new file. Its clock starts now.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &Writer{start: time.Now(), file: f, buf: bufio.NewWriterSize(f, 1<<16)}, nil
}

// Now gives the time on the history's clock.
func (w *Writer) Now() int64 { return int64(time.Since(w.start)) }

// Add writes an operation. Its error shows at Close.
func (w *Writer) Add(op Op) {
	line, err := json.Marshal(op)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		_, err = w.buf.Write(append(line, '\n'))
	}
	w.err = errors.Join(w.err, err)
}

// Close writes what is left.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.err, w.buf.Flush(), w.file.Close()); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Read reads a history. A last line that was cut off is left out.
func Read(r io.Reader) ([]Op, error) {
	var ops []Op
	lines := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return ops, nil
		}
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		var op Op
		if err := json.Unmarshal(line, &op); err != nil {
			return nil, fmt.Errorf("history: line %d: %w", n, err)
		}
		ops = append(ops, op)
	}
}
