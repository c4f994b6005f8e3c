package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// maxLine is more than the largest message takes as JSON.
const maxLine = 8 << 20

// barAfter is how long sending must take before progress is shown.
const barAfter = time.Second

// sentLine is what is printed for a line that was sent.
type sentLine struct {
	Line            int    `json:"line"`
	Conversation    string `json:"conversation"`
	ClientMessageID string `json:"clientMessageId"`
	Seq             int64  `json:"seq,string"`
	Duplicate       bool   `json:"duplicate"`
}

// numbered is a message with the number of its line.
type numbered struct {
	line int
	m    *tidemarkv1.SendMessage
}

// bulk sends the lines of a file. Each worker has its share of the
// conversations, so that the messages of one are sent in order.
type bulk struct {
	a       *app
	send    sendFunc
	timeout time.Duration
	wait    bool

	mu           sync.Mutex
	bar          *progress
	sent, failed int
}

func (a *app) sendLines(ctx context.Context, f sendFlags, send sendFunc) error {
	in, err := a.open(f.input)
	if err != nil {
		return fmt.Errorf("--input: %w", err)
	}
	b := &bulk{a: a, send: send, timeout: f.timeout, wait: f.wait, bar: newProgress(a.errOut, in)}
	err = errors.Join(b.run(ctx, in, f.concurrency), in.Close())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.finish()
	if a.output != "json" {
		fmt.Fprintf(a.out, "sent %d, failed %d\n", b.sent, b.failed)
	}
	if b.failed > 0 {
		err = errors.Join(fmt.Errorf("%d of %d messages failed", b.failed, b.sent+b.failed), err)
	}
	return err
}

func (b *bulk) run(ctx context.Context, in io.Reader, workers int) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	queues := make([]chan numbered, workers)
	var running sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan numbered, 64)
		running.Go(func() {
			for n := range queues[i] {
				b.one(ctx, stop, n)
			}
		})
	}
	err := b.share(ctx, in, queues)
	for _, q := range queues {
		close(q)
	}
	running.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// share reads the lines and gives each to the worker of its conversation.
func (b *bulk) share(ctx context.Context, in io.Reader, queues []chan numbered) error {
	lines, failed := make(chan numbered), make(chan error, 1)
	// It may be in a Read of a terminal that nothing breaks off, so it is not
	// waited for when ctx ends.
	go func() {
		defer close(lines)
		failed <- b.read(ctx, in, lines)
	}()
	seed, last := maphash.MakeSeed(), 0
	stopped := func() error {
		return fmt.Errorf("stopped after line %d, what follows was not sent: %w", last, context.Cause(ctx))
	}
	for {
		select {
		case <-ctx.Done():
			return stopped()
		case n, ok := <-lines:
			if !ok {
				return <-failed
			}
			select {
			case <-ctx.Done():
				return stopped()
			case queues[maphash.String(seed, n.m.GetConversation())%uint64(len(queues))] <- n:
				last = n.line
			}
		}
	}
}

// read parses the lines and reports those that are no messages.
func (b *bulk) read(ctx context.Context, in io.Reader, lines chan<- numbered) error {
	r := bufio.NewReaderSize(in, 256<<10)
	for line := 1; ; line++ {
		text, long, err := readLine(r)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("--input: line %d: %w", line, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		end := err != nil
		b.step(len(text))
		switch m := (&tidemarkv1.SendMessage{}); {
		case long:
			b.fail(line, fmt.Errorf("is longer than %d bytes", maxLine))
		case len(text) == 0:
		default:
			if err := protojson.Unmarshal(text, m); err != nil {
				b.fail(line, notMessage(err))
				break
			}
			m.ClientMessageId = newID(m.GetClientMessageId())
			select {
			case <-ctx.Done():
				return nil
			case lines <- numbered{line, m}:
			}
		}
		if end {
			return nil
		}
	}
}

// place is how the JSON decoder names a place in its input, which is one line.
var place = regexp.MustCompile(`\(line 1:(\d+)\)`)

func notMessage(err error) error {
	_, text, _ := strings.Cut(err.Error(), "proto:")
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	return fmt.Errorf("is not a message: %s", place.ReplaceAllString(text, "(column $1)"))
}

// readLine reads a line without its end and surrounding blanks. Of one that is
// too long only the fact is given. io.EOF comes with the last line.
func readLine(r *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxLine; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return trimBlanks(line), long, err
		}
	}
}

func trimBlanks(b []byte) []byte {
	blank := func(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
	for len(b) > 0 && blank(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	for len(b) > 0 && blank(b[0]) {
		b = b[1:]
	}
	return b
}

// one sends a message. When the other side cannot be reached for as long as one
// call may take, all is stopped, since the rest would fail alike.
func (b *bulk) one(ctx context.Context, stop context.CancelCauseFunc, n numbered) {
	if ctx.Err() != nil {
		return
	}
	res, err := b.persist(ctx, n.m)
	if err != nil {
		if ctx.Err() == nil && (connect.CodeOf(err) == connect.CodeUnavailable || errors.Is(err, context.DeadlineExceeded)) {
			stop(errors.New("the other side cannot be reached"))
		}
		b.fail(n.line, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent++
	if b.a.output == "json" {
		b.a.emit(sentLine{n.line, n.m.GetConversation(), res.GetClientMessageId(), res.GetSeq(), res.GetDuplicate()}, nil)
	}
}

// persist repeats a send that met a passing fault. The message has its id, so
// that it is not sent twice.
func (b *bulk) persist(ctx context.Context, m *tidemarkv1.SendMessage) (*tidemarkv1.SendResponse, error) {
	return backoff.Retry(ctx, func() (*tidemarkv1.SendResponse, error) {
		res, err := b.send(ctx, m)
		if err != nil && connect.CodeOf(err) != connect.CodeUnavailable {
			err = backoff.Permanent(err)
		}
		return res, err
	}, backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxElapsedTime(b.timeout))
}

func (b *bulk) fail(line int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed++
	b.bar.clear()
	b.a.complain(fmt.Errorf("line %d: %w", line, err))
}

func (b *bulk) step(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.step(bytes)
}

// progress is a bar on a terminal, shown once it has taken long. A nil one is
// for where there is no terminal.
type progress struct {
	begun time.Time
	done  int
	size  int64 // -1: not known
	w     io.Writer
	bar   *progressbar.ProgressBar // nil: not shown yet
}

func newProgress(w io.Writer, in io.Reader) *progress {
	tty, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return nil
	}
	p := &progress{begun: time.Now(), size: -1, w: w}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			p.size = info.Size()
		}
	}
	return p
}

func (p *progress) step(bytes int) {
	if p == nil {
		return
	}
	p.done += bytes + 1
	if p.bar == nil {
		if time.Since(p.begun) < barAfter {
			return
		}
		p.bar = progressbar.NewOptions64(p.size, progressbar.OptionSetWriter(p.w), progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetDescription("sending"),
			progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
	}
	// What cannot be drawn is not worth a word.
	_ = p.bar.Set(p.done)
}

func (p *progress) clear() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}

func (p *progress) finish() {
	if p != nil && p.bar != nil {
		_ = p.bar.Finish()
	}
}
