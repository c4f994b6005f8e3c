package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// Outbox keeps messages until the server has them, over restarts. It is safe
// for concurrent use.
type Outbox interface {
	// Put keeps m, whose conversation and client message id are set. What is
	// kept under the same two stays as it is.
	Put(ctx context.Context, m *tidemarkv1.SendMessage) error
	// Waiting gives what is kept, in the order in which it was put.
	Waiting(ctx context.Context) ([]*tidemarkv1.SendMessage, error)
	// Remove forgets a message; one that is not kept is none.
	Remove(ctx context.Context, conversation, clientMessageID string) error
}

// Sent tells what became of a message of Send.
type Sent struct {
	Message *tidemarkv1.SendMessage
	// Seq is what it got; 0 when it was refused.
	Seq int64
	// Err is why the server refused it for good; it is then forgotten. nil: it
	// has its seq.
	Err error
}

// outKey names a message of the outbox.
type outKey struct{ conversation, id string }

func keyOf(m *tidemarkv1.SendMessage) outKey {
	return outKey{m.GetConversation(), m.GetClientMessageId()}
}

// Send takes a message to be sent: when it returns, the outbox has it, and Run
// sends it as soon as the server can be reached, after the conversation's earlier
// ones. Sender, device, client message id and time are filled in where they are
// missing; the id is returned. OnSent tells what became of it.
//
// It has one seq in the end, however often it is tried and whenever the device
// dies: what may have arrived is looked for before it is sent again, and beyond
// that the server recognises the id within its last 1,000 messages.
func (c *Client) Send(ctx context.Context, m *tidemarkv1.SendMessage) (clientMessageID string, err error) {
	m = proto.CloneOf(m)
	if m.GetSender() == "" {
		m.Sender = string(c.cfg.User)
	}
	if m.GetDevice() == "" {
		m.Device = c.cfg.Device
	}
	if m.GetClientMessageId() == "" {
		m.ClientMessageId = uuid.NewString()
	}
	if m.GetSendTimeMs() == 0 {
		m.SendTimeMs = time.Now().UnixMilli()
	}
	if m.GetSender() != string(c.cfg.User) {
		return "", fmt.Errorf("client: send: the sender is %q, this is a device of %q", m.GetSender(), c.cfg.User)
	}
	if _, _, err := convert.SendToMessage(m, convert.Limits{MaxBody: convert.HardMaxBody}); err != nil {
		return "", fmt.Errorf("client: send: %w", err)
	}
	c.mu.Lock()
	c.pending[keyOf(m)] = m
	c.mu.Unlock()
	if err := c.cfg.Outbox.Put(ctx, m); err != nil {
		c.mu.Lock()
		delete(c.pending, keyOf(m))
		c.mu.Unlock()
		return "", fmt.Errorf("client: put a message for %s into the outbox: %w", m.GetConversation(), err)
	}
	c.poke()
	return m.GetClientMessageId(), nil
}

// poke tells the sender that there is something in the outbox.
func (c *Client) poke() {
	select {
	case c.outgoing <- struct{}{}:
	default:
	}
}

// sendAll sends what is in the outbox until ctx ends or, with once, until there
// is nothing. Whatever concerns the device's state it has done by Run.
func (c *Client) sendAll(ctx context.Context, once bool) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	synced := false
	for {
		msgs, err := c.cfg.Outbox.Waiting(ctx)
		if err != nil {
			return fmt.Errorf("client: read the outbox: %w", err)
		}
		if len(msgs) == 0 && !once {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.outgoing:
				continue
			}
		}
		if !synced {
			// What an earlier life sent and did not live to note comes with the list.
			if !once {
				c.requestSync() // the gateway, which would ask for it, may be away
			}
			if err := c.afterSync(ctx); err != nil {
				return err
			}
			synced = true
			continue
		}
		if len(msgs) == 0 {
			return nil
		}
		failed, err := c.sendRound(ctx, msgs)
		if err != nil {
			return err
		}
		if !failed {
			wait.Reset()
			continue
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// afterSync waits until the list was synced in this life.
func (c *Client) afterSync(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.synced:
		return nil
	}
}

// sendRound tries each message once, a conversation's in order. Then the
// conversations are brought up to date: own messages take their place, and of
// those whose answer was lost the ones that arrived are found.
func (c *Client) sendRound(ctx context.Context, msgs []*tidemarkv1.SendMessage) (failed bool, err error) {
	var touched []string
	blocked := map[string]bool{}
	for _, m := range msgs {
		conv := m.GetConversation()
		if blocked[conv] || !c.isPending(keyOf(m)) {
			continue
		}
		if !slices.Contains(touched, conv) {
			touched = append(touched, conv)
		}
		res, err := c.cfg.Service.Send(ctx, &tidemarkv1.SendRequest{Message: m, WaitForSeq: true})
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil:
			err = c.inRun(ctx, func(ctx context.Context) error { return c.settle(ctx, keyOf(m), res.GetSeq(), nil) })
		case refused(err):
			err = c.inRun(ctx, func(ctx context.Context) error { return c.settle(ctx, keyOf(m), 0, err) })
		default:
			c.cfg.Logger.Warn("message is not sent yet, trying again", "conversation", conv, "error", err)
			blocked[conv], failed, err = true, true, nil
		}
		if err != nil {
			return false, err
		}
	}
	for convs := range slices.Chunk(touched, maxGiven) {
		err := c.inRun(ctx, func(ctx context.Context) error {
			return c.retry(ctx, func() error { return c.syncSome(ctx, convs) })
		})
		if err != nil {
			return false, err
		}
	}
	return failed, nil
}

// refused tells whether the server will say the same however often it is asked.
func refused(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeAlreadyExists, connect.CodeFailedPrecondition:
		return true
	}
	return false
}

func (c *Client) isPending(k outKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending[k] != nil
}

// settle takes a message out of the outbox and says what became of it, once.
func (c *Client) settle(ctx context.Context, k outKey, seq int64, refusal error) error {
	c.mu.Lock()
	m := c.pending[k]
	c.mu.Unlock()
	if m == nil {
		return nil
	}
	if c.cfg.OnSent != nil {
		if err := c.cfg.OnSent(ctx, Sent{Message: m, Seq: seq, Err: refusal}); err != nil {
			return local{fmt.Errorf("client: sent callback: %w", err)}
		}
	} else if refusal != nil {
		c.cfg.Logger.Error("message was refused", "conversation", k.conversation, "id", k.id, "error", refusal)
	}
	if err := c.cfg.Outbox.Remove(ctx, k.conversation, k.id); err != nil {
		return local{fmt.Errorf("client: remove a message for %s from the outbox: %w", k.conversation, err)}
	}
	c.mu.Lock()
	delete(c.pending, k)
	c.mu.Unlock()
	return nil
}

// inRun has Run do something between two events, and waits until it is done.
func (c *Client) inRun(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	select {
	case c.tasks <- func(ctx context.Context) error {
		err := do(ctx)
		done <- err
		return err
	}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// memoryOutbox is the outbox of a client that keeps nothing over restarts.
type memoryOutbox struct {
	mu   sync.Mutex
	msgs []*tidemarkv1.SendMessage // guarded by mu
}

func (o *memoryOutbox) Put(_ context.Context, m *tidemarkv1.SendMessage) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.ContainsFunc(o.msgs, func(x *tidemarkv1.SendMessage) bool { return keyOf(x) == keyOf(m) }) {
		o.msgs = append(o.msgs, m)
	}
	return nil
}

func (o *memoryOutbox) Waiting(context.Context) ([]*tidemarkv1.SendMessage, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.msgs), nil
}

func (o *memoryOutbox) Remove(_ context.Context, conversation, id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.msgs = slices.DeleteFunc(o.msgs, func(x *tidemarkv1.SendMessage) bool { return keyOf(x) == outKey{conversation, id} })
	return nil
}

// errFinished ends a Run without a Live when there is nothing left to do.
var errFinished = errors.New("finished")
