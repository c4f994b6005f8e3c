package client

import (
	"context"
	"errors"
	"fmt"
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
		case <-c.resync:
			err = c.syncAll(ctx)
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
	case m == nil:
		return c.other(ctx, e)
	case m.GetSeq() <= n.Seq:
		return nil
	case m.GetSeq() == n.Seq+1 && n.Seq > 0:
		return c.deliver(ctx, m, false)
	}
	return c.retry(ctx, func() error { return c.syncSome(ctx, []string{conv}) })
}

func (c *Client) other(ctx context.Context, e *tidemarkv1.PushEvent) error {
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

// syncAll compares all watermarks of the user and pulls where they are ahead.
func (c *Client) syncAll(ctx context.Context) error {
	var token string
	for {
		var res *tidemarkv1.GetWatermarksResponse
		err := c.retry(ctx, func() (err error) {
			res, err = c.cfg.Service.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: string(c.cfg.User), PageToken: token})
			return err
		})
		if err != nil {
			return err
		}
		for _, w := range res.GetWatermarks() {
			if err := c.retry(ctx, func() error { return c.catchUp(ctx, w) }); err != nil {
				return err
			}
		}
		if token = res.GetNextPageToken(); token == "" {
			return nil
		}
	}
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
		res, err := c.cfg.Service.Pull(ctx, &tidemarkv1.PullRequest{User: string(c.cfg.User), Ranges: []*tidemarkv1.PullRange{{
			Conversation: conv, Begin: begin, End: end, Num: c.cfg.PageSize,
			Order: tidemarkv1.Order_ORDER_ASC, Keep: tidemarkv1.Keep_KEEP_NEAR_BEGIN,
		}}})
		if err != nil {
			return fmt.Errorf("client: pull %s %d..%d: %w", conv, begin, end, err)
		}
		if len(res.GetPages()) != 1 {
			return fmt.Errorf("client: pull %s: %w: %d pages for one range", conv, errTryAgain, len(res.GetPages()))
		}
		page := res.GetPages()[0]
		if e := page.GetError(); e != nil {
			return fmt.Errorf("client: pull %s %d..%d: %w: %s", conv, begin, end, errTryAgain, e.GetMessage())
		}
		for _, m := range page.GetMessages() {
			if err := c.deliver(ctx, m, again); err != nil {
				return err
			}
		}
		rest := page.GetRest()
		if rest == nil {
			return nil
		}
		if rest.GetBegin() <= begin && len(page.GetMessages()) == 0 {
			return fmt.Errorf("client: pull %s %d..%d: %w: the page did not move on", conv, begin, end, errTryAgain)
		}
		begin = rest.GetBegin()
	}
}

// deliver hands a message over, then remembers it.
func (c *Client) deliver(ctx context.Context, m *tidemarkv1.Message, again bool) error {
	n := c.Numbers(m.GetConversation())
	if err := c.cfg.OnMessage(ctx, Update{Message: m, Again: again}); err != nil {
		return local{fmt.Errorf("client: message callback: %w", err)}
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
