package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
)

// auditPrinter prints findings as they come, and how far the audit is where
// somebody watches.
type auditPrinter struct {
	a     *app
	begun time.Time
	bar   *progressbar.ProgressBar // nil: not shown yet
}

func newAuditPrinter(a *app) *auditPrinter { return &auditPrinter{a: a, begun: time.Now()} }

// progress gives what shows how far the audit is; nil where nobody watches.
func (p *auditPrinter) progress() func(done, total int64) {
	tty, ok := p.a.errOut.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return nil
	}
	return func(done, total int64) {
		if p.bar == nil {
			if time.Since(p.begun) < barAfter {
				return
			}
			p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(tty), progressbar.OptionShowCount(),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetDescription("auditing"),
				progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
		}
		// What cannot be drawn is not worth a word.
		_ = p.bar.Set64(done)
	}
}

func (p *auditPrinter) clear() {
	if p.bar != nil {
		_ = p.bar.Clear() // as above
	}
}

func (p *auditPrinter) done() {
	if p.bar != nil {
		_ = p.bar.Finish() // as above
	}
}

// auditLine is a line of JSON: a finding or, as the last one, the report.
type auditLine struct {
	Finding *audit.Finding `json:"finding,omitempty"`
	Report  *audit.Report  `json:"report,omitempty"`
	Clean   bool           `json:"clean"`
}

func (p *auditPrinter) finding(f audit.Finding) {
	p.clear()
	p.a.emit(auditLine{Finding: &f}, func() {
		fmt.Fprintf(p.a.out, "%s %s: %s\n", f.Kind, f.Conversation, oneLine(f.Detail))
		if f.Mended != "" {
			fmt.Fprintf(p.a.out, "  mended: %s\n", f.Mended)
		} else {
			fmt.Fprintf(p.a.out, "  to do: %s\n", f.Step)
		}
	})
}

// report prints what came of it, and gives the error that it amounts to.
func (p *auditPrinter) report(rep *audit.Report) error {
	p.a.emit(auditLine{Report: rep, Clean: rep.Clean()}, func() {
		fmt.Fprintf(p.a.out, "%s, %s, %s, %s warm in Redis\n", count(rep.Conversations, "conversation"), count(rep.Messages, "message"),
			count(rep.Members, "member"), count(rep.Warm, "conversation"))
		if rep.Refused > 0 {
			fmt.Fprintf(p.a.out, "%s of the log cannot be decoded: dead letters\n", count(rep.Refused, "record"))
		}
		for _, k := range slices.Sorted(maps.Keys(rep.Findings)) {
			fmt.Fprintf(p.a.out, "%s: %d\n", k, rep.Findings[k])
		}
		for _, n := range slices.Sorted(maps.Keys(rep.Behind)) {
			fmt.Fprintf(p.a.out, "undecided: %s\n", oneLine(rep.Behind[n]))
		}
		if rep.Clean() {
			fmt.Fprintln(p.a.out, "clean")
		}
	})
	switch {
	case rep.Found() > 0:
		return exitError{exitFailed, fmt.Errorf("the audit is not clean: %s, %d of them mended", count(rep.Found(), "finding"), rep.Mended)}
	case rep.Undecided > 0:
		return exitError{exitUnfinished, fmt.Errorf("the audit could not decide: %s", count(rep.Undecided, "suspicion"))}
	}
	return nil
}
