//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// settle waits until the deployment is at rest and reads all of it, three times:
// over HTTP, by the command line tool, and once more after Redis was emptied.
// What does not come is a finding, and goes into the history.
func (l *load) settle(ctx context.Context, within time.Duration) {
	stuck := func(what string, err error) {
		if err != nil {
			l.c.say("%s: %v", what, err)
			l.c.hist.Add(history.Op{Kind: history.Stuck, T0: l.c.hist.Now(), Err: what + ": " + err.Error()})
		}
	}
	stuck("not ready", l.c.ready(ctx, within))
	_, err := l.c.tool(ctx, "lag", "--until-zero", "--timeout", within.String())
	stuck("lag", err)
	l.c.say("at rest; reading everything")
	stuck("read at rest", l.readAll(ctx, history.PhaseRest))
	for _, d := range l.devices {
		stuck("device", d.caughtUp(ctx, l.tops))
	}
	stuck("read by tool", l.readByTool(ctx))
	_, err = l.c.tool(ctx, "audit")
	stuck("audit", err)
	_, err = l.c.redis[0].says(ctx, "flushall")
	stuck("empty redis", err)
	stuck("read from history", l.readAll(ctx, history.PhaseEmpty))
}

// patience is how long one answer may take when everything is at rest.
const patience = 30 * time.Second

// retrying is what is left of the patience with one conversation: where one
// reader has waited in vain for a seq that is lost, the next need not wait as
// long again.
type retrying struct{ left time.Duration }

// again repeats a read until it works, at least once.
func (r *retrying) again(ctx context.Context, read func() error) error {
	const between = 200 * time.Millisecond
	for {
		began := time.Now()
		err := read()
		if err == nil {
			return nil
		}
		if r.left <= 0 || pause(ctx, between) != nil {
			return err
		}
		r.left -= time.Since(began)
	}
}

// readAll reads every conversation, all at once, as everybody who may.
func (l *load) readAll(ctx context.Context, phase string) error {
	convs := conversations()
	errs := make([]error, len(convs))
	var group sync.WaitGroup
	for i, conv := range convs {
		group.Go(func() { errs[i] = l.readConversation(ctx, phase, conv) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (l *load) readConversation(ctx context.Context, phase, conv string) error {
	readers := []string{watcherOf(conv)}
	users := slices.Concat(markers, []string{"go1", "http1", "http2", "kcat", "java"})
	if two := pairOf(conv); two != nil {
		users = two
	}
	if conv == fanned {
		readers, users = append(readers, fan), append(users, fan)
	}
	if slices.Contains(churned, conv) {
		readers, users = append(readers, members...), append(users, members...)
	}
	r := &retrying{left: patience}
	var errs []error
	for _, user := range readers {
		errs = append(errs, l.readWhole(ctx, r, phase, user, conv))
	}
	for _, user := range users {
		errs = append(errs, r.again(ctx, func() error { return l.api.watermarks(ctx, phase, user, conv) }))
	}
	return errors.Join(errs...)
}

// readWhole follows the pages from the first seq to the last.
func (l *load) readWhole(ctx context.Context, retry *retrying, phase, user, conv string) error {
	r := pullRange{Conversation: conv, Begin: 1, End: 1 << 40, Num: 200, Keep: "KEEP_NEAR_BEGIN"}
	for {
		var page *history.Page
		err := retry.again(ctx, func() error {
			pages, err := l.api.pull(ctx, phase, user, r)
			if err == nil {
				page = pages[0]
				l.see(conv, page.Max)
			}
			return err
		})
		if err != nil || page.Rest == nil {
			return err
		}
		if page.Rest.Begin <= r.Begin {
			return fmt.Errorf("%s: a page of %s leads nowhere: %+v", phase, conv, page)
		}
		r.Begin, r.End = page.Rest.Begin, page.Rest.End
	}
}

// readByTool reads with the command line tool.
func (l *load) readByTool(ctx context.Context) error {
	ws := l.c.ofRole("sync")
	var errs []error
	for _, conv := range conversations() {
		op := history.Op{Kind: history.Pull, Phase: history.PhaseTool, User: watcherOf(conv), Conversation: conv, Begin: 1, End: 1 << 53}
		op.T0 = l.c.hist.Now()
		out, err := l.c.tool(ctx, "pull", "--server", "http://"+ws[0].listen, "--user", op.User, "--conversation", conv, "--all", "--output", "json")
		op.T1 = l.c.hist.Now()
		errs = append(errs, err)
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p pageJSON
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				errs = append(errs, fmt.Errorf("tidemark pull: %w", err))
				break
			}
			op.OK, op.Page = true, p.op()
			l.c.hist.Add(op)
		}
	}
	return errors.Join(errs...)
}
