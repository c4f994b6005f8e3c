package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// barEvery is how often progress is told where there is no terminal to draw on.
const barEvery = 30 * time.Second

// bar tells how far a long command is: as a bar on a terminal, as a line now
// and then elsewhere. It says nothing about what is done within barAfter.
type bar struct {
	w     io.Writer
	what  string
	total int64 // about; 0: not known
	begun time.Time
	told  time.Time
	done  int64
	drawn *progressbar.ProgressBar // nil: not shown yet
	tty   bool
}

func newBar(w io.Writer, what string, total int64) *bar {
	f, ok := w.(*os.File)
	now := time.Now()
	return &bar{w: w, what: what, total: total, begun: now, told: now, tty: ok && term.IsTerminal(int(f.Fd()))}
}

func (b *bar) step(n int64) {
	b.done += n
	// The clock is asked for one step of many: a step may be a single row.
	if b.done%64 >= n && n < 64 {
		return
	}
	now := time.Now()
	switch {
	case !b.tty && now.Sub(b.told) >= barEvery:
		b.told = now
		if b.total > 0 {
			fmt.Fprintf(b.w, "tidemark: %s: %d of about %d\n", b.what, b.done, b.total)
			return
		}
		fmt.Fprintf(b.w, "tidemark: %s: %d\n", b.what, b.done)
	case b.tty && now.Sub(b.begun) >= barAfter:
		if b.drawn == nil {
			total := b.total
			if total <= 0 {
				total = -1
			}
			b.drawn = progressbar.NewOptions64(total, progressbar.OptionSetWriter(b.w), progressbar.OptionShowCount(),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetDescription(b.what),
				progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
		}
		done := b.done
		if b.total > 0 {
			done = min(done, b.total) // the total is about right
		}
		_ = b.drawn.Set64(done) // what cannot be drawn is not worth a word
	}
}

// finish takes the bar away.
func (b *bar) finish() {
	if b.drawn != nil {
		_ = b.drawn.Finish() // as above
		_ = b.drawn.Clear()
	}
}
