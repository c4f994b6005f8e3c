package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// errTryAgain is returned when the server said that a page may be had later.
var errTryAgain = errors.New("not to be had at the moment")

// local wraps an error of a callback or the store: trying again is not for the
// client to decide.
type local struct{ error }

func (l local) Unwrap() error { return l.error }

func (c *Client) loop(ctx context.Context) error {
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.recheck.C:
			c.requestSync()
		case <-c.resync:
			if err = c.syncAll(ctx); err == nil && !c.syncedOnce {
				c.syncedOnce = true
				close(c.synced)
			}
			c.recheck.Reset(c.untilRecheck())
		case do := <-c.tasks:
			err = unwrapped(do(ctx))
		case e := <-c.events:
			err = c.apply(ctx, e)
		}
		if err != nil {
			return err
		}
	}
}

// apply takes one pushed event. A message with the next seq is delivered at
// once, a known one ignored, and one beyond a gap makes the client pull.
func (c *Client) apply(ctx context.Context, e *tidemarkv1.PushEvent) error {
	conv := e.GetConversation()
	n := c.Numbers(conv)
	if e.GetRepairNumber() > n.Repair {
		// Whatever the event says, the repaired part comes first.
		return c.retry(ctx, func() error { return c.syncSome(ctx, []string{conv}) })
	}
	m := e.GetMessage()
	switch {
	case e.GetKind() == nil:
		// There is more than a push tells; 0: perhaps.
		if e.GetMaxSeq() > 0 && e.GetMaxSeq() <= n.Seq {
			return nil
		}
	case m == nil:
		if err := c.other(ctx, e); err != nil || e.GetMaxSeq() <= n.Seq {
			return err
		}
	case m.GetSeq() <= n.Seq:
		return nil
	case m.GetSeq() == n.Seq+1 && n.Seq > 0:
		return unwrapped(c.deliver(ctx, m, false))
	}
	return c.retry(ctx, func() error { return c.syncSome(ctx, []string{conv}) })
}

func (c *Client) other(ctx context.Context, e *tidemarkv1.PushEvent) error {
	if r := e.GetRevoked(); r != nil && r.GetSeq() <= c.Numbers(e.GetConversation()).Seq {
		err := c.retry(ctx, func() error { return c.pullSeqs(ctx, e.GetConversation(), []int64{r.GetSeq()}) })
		if err != nil {
			return err
		}
	}
	if r := e.GetRead(); r != nil && r.GetUser() == string(c.cfg.User) {
		n := c.Numbers(e.GetConversation())
		if r.GetReadSeq() > n.Read {
			n.Read = r.GetReadSeq()
			if err := c.save(ctx, e.GetConversation(), n); err != nil {
				return err
			}
		}
	}
	if c.cfg.OnEvent == nil {
		return nil
	}
	if err := c.cfg.OnEvent(ctx, e); err != nil {
		return local{fmt.Errorf("client: event callback: %w", err)}
	}
	return nil
}

// givenUp is after how many failures in a row a walk over the list starts
// again: the server may not know any more where it stood.
const givenUp = 3

// syncAll asks what changed in the user's list and pulls where it is ahead. The
// version is saved after all that it covers, so whatever ends this in between,
// the next one brings the same again.
func (c *Client) syncAll(ctx context.Context) error {
	if total, err := c.walk(ctx); err != nil {
		return err
	} else if total >= 0 && total != int64(len(c.known(func(n Numbers) bool { return n.Listed }))) {
		// The device lost some of its numbers, and not the version that says that
		// it has them. (Or the list changed during the walk, which costs one more.)
		c.version = ""
		if _, err := c.walk(ctx); err != nil {
			return err
		}
	}
	return c.syncUnlisted(ctx)
}

// walk reads what changed in the list, and gives how many conversations the
// server has in it, or -1 where it brought all of them anyway.
func (c *Client) walk(ctx context.Context) (total int64, err error) {
	req := &tidemarkv1.SyncConversationsRequest{User: string(c.cfg.User), Version: c.version}
	seen := make(map[string]bool)
	for {
		res, err := c.listPage(ctx, req)
		if err != nil {
			return 0, err
		}
		for _, e := range res.GetChanged() {
			if err := c.entry(ctx, e, true, seen); err != nil {
				return 0, err
			}
		}
		for _, e := range res.GetRemoved() {
			if err := c.entry(ctx, e, false, seen); err != nil {
				return 0, err
			}
		}
		if req.PageToken = res.GetNextPageToken(); req.PageToken != "" {
			continue
		}
		if res.GetFullResync() {
			if err := c.unlist(ctx, seen); err != nil {
				return 0, err
			}
		}
		if err := c.cfg.List.SaveVersion(ctx, res.GetVersion()); err != nil {
			return 0, fmt.Errorf("client: save the version of the list: %w", err)
		}
		c.version = res.GetVersion()
		if res.GetFullResync() {
			return -1, nil
		}
		return res.GetTotalConversations(), nil
	}
}

func (c *Client) listPage(ctx context.Context, req *tidemarkv1.SyncConversationsRequest) (res *tidemarkv1.SyncConversationsResponse, err error) {
	failures := 0
	err = c.retry(ctx, func() (err error) {
		if res, err = c.cfg.Service.SyncConversations(ctx, req); err != nil {
			if failures++; failures >= givenUp {
				req.PageToken = ""
			}
			return fmt.Errorf("client: sync conversations: %w", err)
		}
		return nil
	})
	return res, err
}

// entry takes in one entry of the list.
func (c *Client) entry(ctx context.Context, e *tidemarkv1.ConversationEntry, listed bool, seen map[string]bool) error {
	conv := e.GetWatermarks().GetConversation()
	seen[conv] = true
	had := c.Numbers(conv).Seq
	if err := c.retry(ctx, func() error { return c.catchUp(ctx, e.GetWatermarks()) }); err != nil {
		return err
	}
	if err := c.retry(ctx, func() error { return c.revoked(ctx, e, had) }); err != nil {
		return err
	}
	if err := c.list(ctx, conv, listed); err != nil {
		return err
	}
	if c.cfg.OnConversation == nil {
		return nil
	}
	if err := c.cfg.OnConversation(ctx, e, listed); err != nil {
		return fmt.Errorf("client: conversation callback: %w", err)
	}
	return nil
}

// revoked pulls again what an entry says was revoked of the messages up to had;
// the ones above have just come.
func (c *Client) revoked(ctx context.Context, e *tidemarkv1.ConversationEntry, had int64) error {
	conv := e.GetWatermarks().GetConversation()
	if e.GetMoreRevoked() && had > 0 {
		return c.pull(ctx, conv, 1, had, true)
	}
	seqs := e.GetRevoked() // ascending
	n, _ := slices.BinarySearch(seqs, had+1)
	return c.pullSeqs(ctx, conv, seqs[:n])
}

// list notes whether a conversation stands in the list.
func (c *Client) list(ctx context.Context, conv string, listed bool) error {
	n := c.Numbers(conv)
	if n.Listed == listed {
		return nil
	}
	n.Listed = listed
	return unwrapped(c.save(ctx, conv, n))
}

// unlist takes out of the list what a whole one did not bring.
func (c *Client) unlist(ctx context.Context, seen map[string]bool) error {
	for _, conv := range c.known(func(n Numbers) bool { return n.Listed }) {
		if !seen[conv] {
			if err := c.list(ctx, conv, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// syncUnlisted compares the watermarks of conversations that the list does not
// speak of: groups that the user wrote to without having joined them, and at
// first those of which a number is gone.
func (c *Client) syncUnlisted(ctx context.Context) error {
	ask := func(n Numbers) bool { return !n.Listed || !c.syncedOnce && (n.Seq == 0 || n.Read == 0) }
	for convs := range slices.Chunk(c.known(ask), maxGiven) {
		if err := c.retry(ctx, func() error { return c.syncSome(ctx, convs) }); err != nil {
			return err
		}
	}
	return nil
}

// maxGiven is how many conversations one call may name.
const maxGiven = 500

// known gives the conversations whose numbers are such, in order.
func (c *Client) known(such func(Numbers) bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for conv, n := range c.numbers {
		if such(n) {
			out = append(out, conv)
		}
	}
	slices.Sort(out)
	return out
}

// unwrapped gives the error of a callback or store as it is told to the caller
// of Run, where no retry does so.
func unwrapped(err error) error {
	if l, ok := errors.AsType[local](err); ok {
		return l.error
	}
	return err
}

func (c *Client) syncSome(ctx context.Context, convs []string) error {
	res, err := c.cfg.Service.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: string(c.cfg.User), Conversations: convs})
	if err != nil {
		return fmt.Errorf("client: get watermarks: %w", err)
	}
	for _, w := range res.GetWatermarks() {
		if err := c.catchUp(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// catchUp pulls what a conversation's watermarks say is missing.
func (c *Client) catchUp(ctx context.Context, w *tidemarkv1.Watermarks) error {
	if e := w.GetError(); e != nil {
		if e.GetRetryAfterMs() > 0 {
			return fmt.Errorf("client: watermarks of %s: %w: %s", w.GetConversation(), errTryAgain, e.GetMessage())
		}
		return nil // not ours to see
	}
	conv := w.GetConversation()
	n := c.Numbers(conv)
	if w.GetRepairNumber() > n.Repair {
		if from := w.GetRepairFrom(); n.Seq > 0 && from <= n.Seq {
			if err := c.pull(ctx, conv, from, n.Seq, true); err != nil {
				return err
			}
		}
		n = c.Numbers(conv)
		n.Repair = w.GetRepairNumber()
		if err := c.save(ctx, conv, n); err != nil {
			return err
		}
	}
	if w.GetReadSeq() > n.Read {
		n.Read = w.GetReadSeq()
		if err := c.save(ctx, conv, n); err != nil {
			return err
		}
	}
	if w.GetMaxSeq() <= n.Seq {
		return nil
	}
	begin := n.Seq + 1
	if n.Seq == 0 && c.cfg.Newest > 0 {
		begin = max(w.GetMinSeq(), w.GetMaxSeq()-c.cfg.Newest+1)
	}
	if err := c.pull(ctx, conv, begin, w.GetMaxSeq(), false); err != nil {
		return err
	}
	// Everything up to the maximum is accounted for, also where a window ends
	// below it or has a gap.
	if n = c.Numbers(conv); w.GetMaxSeq() > n.Seq {
		n.Seq = w.GetMaxSeq()
		return c.save(ctx, conv, n)
	}
	return nil
}

// pull delivers begin..end, oldest first, following rest until it is absent.
func (c *Client) pull(ctx context.Context, conv string, begin, end int64, again bool) error {
	for {
		rest, err := c.pullSome(ctx, conv, []*tidemarkv1.Range{{Begin: begin, End: end}}, again)
		if err != nil || rest == nil {
			return err
		}
		begin = rest.GetBegin()
	}
}

// pullSeqs delivers messages again.
func (c *Client) pullSeqs(ctx context.Context, conv string, seqs []int64) error {
	var spans []*tidemarkv1.Range
	for _, s := range seqs {
		if n := len(spans); n > 0 && spans[n-1].End == s-1 {
			spans[n-1].End = s
		} else {
			spans = append(spans, &tidemarkv1.Range{Begin: s, End: s})
		}
	}
	for len(spans) > 0 {
		part := spans[:min(len(spans), maxGiven)]
		rest, err := c.pullSome(ctx, conv, part, true)
		if err != nil {
			return err
		}
		spans = spans[len(part):]
		if rest != nil {
			// What follows the span that was cut may have come: it comes again.
			i := slices.IndexFunc(part, func(r *tidemarkv1.Range) bool { return r.End >= rest.Begin })
			spans = slices.Concat([]*tidemarkv1.Range{{Begin: rest.Begin, End: part[i].End}}, part[i+1:], spans)
		}
	}
	return nil
}

// pullSome delivers what one answer has of spans, ascending, and gives what it
// left of the first that was cut.
func (c *Client) pullSome(ctx context.Context, conv string, spans []*tidemarkv1.Range, again bool) (*tidemarkv1.Range, error) {
	req := &tidemarkv1.PullRequest{User: string(c.cfg.User)}
	for _, r := range spans {
		req.Ranges = append(req.Ranges, &tidemarkv1.PullRange{
			Conversation: conv, Begin: r.Begin, End: r.End, Num: c.cfg.PageSize,
			Order: tidemarkv1.Order_ORDER_ASC, Keep: tidemarkv1.Keep_KEEP_NEAR_BEGIN,
		})
	}
	res, err := c.cfg.Service.Pull(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("client: pull %s from %d: %w", conv, spans[0].Begin, err)
	}
	if len(res.GetPages()) != len(spans) {
		return nil, fmt.Errorf("client: pull %s: %w: %d pages for %d ranges", conv, errTryAgain, len(res.GetPages()), len(spans))
	}
	for i, page := range res.GetPages() {
		if e := page.GetError(); e != nil {
			return nil, fmt.Errorf("client: pull %s %d..%d: %w: %s", conv, spans[i].Begin, spans[i].End, errTryAgain, e.GetMessage())
		}
		for _, m := range page.GetMessages() {
			if err := c.deliver(ctx, m, again); err != nil {
				return nil, err
			}
		}
		rest := page.GetRest()
		if rest == nil {
			continue
		}
		if rest.GetBegin() <= spans[i].Begin && len(page.GetMessages()) == 0 {
			return nil, fmt.Errorf("client: pull %s %d..%d: %w: the page did not move on", conv, spans[i].Begin, spans[i].End, errTryAgain)
		}
		return rest, nil
	}
	return nil, nil
}

// deliver hands a message over, then remembers it. An own one leaves the outbox
// before its seq is saved: afterwards it would not come again.
func (c *Client) deliver(ctx context.Context, m *tidemarkv1.Message, again bool) error {
	n := c.Numbers(m.GetConversation())
	if err := c.cfg.OnMessage(ctx, Update{Message: m, Again: again}); err != nil {
		return local{fmt.Errorf("client: message callback: %w", err)}
	}
	if m.GetSender() == string(c.cfg.User) {
		if err := c.settle(ctx, outKey{m.GetConversation(), m.GetClientMessageId()}, m.GetSeq(), nil); err != nil {
			return err
		}
	}
	if m.GetSeq() <= n.Seq {
		return nil
	}
	n.Seq = m.GetSeq()
	return c.save(ctx, m.GetConversation(), n)
}

func (c *Client) save(ctx context.Context, conv string, n Numbers) error {
	if err := c.cfg.Store.Save(ctx, conv, n); err != nil {
		return local{fmt.Errorf("client: save numbers of %s: %w", conv, err)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers[conv] = n
	return nil
}

// retry repeats what the server failed, until ctx ends.
func (c *Client) retry(ctx context.Context, do func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := do()
		if l, ok := errors.AsType[local](err); ok {
			return struct{}{}, backoff.Permanent(l.error)
		}
		if err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("server call failed, trying again", "error", err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err
}
