// Package client is a Tidemark client in Go: it keeps a user's conversations
// complete on one device.
//
// It keeps the version of the user's list, and three numbers for each
// conversation: the highest seq up to which everything visible has been
// delivered, the read watermark, and the repair number. From these it promises:
//   - Every visible message is handed to OnMessage once and in seq order for
//     each conversation, whatever order pushes arrive in, however often, and
//     however long the device was away. Gaps are filled by pulling.
//   - After a reconnect it asks what changed in the list since its version, and
//     pulls only where a watermark is ahead of its own.
//   - Whichever of these a device loses, the next sync brings it again: a number
//     that is gone is asked for, and a list that is shorter than the server's is
//     read anew.
//   - What Send took is sent, each message once and a conversation's in order,
//     however often it is tried and whenever the device dies.
//   - When a conversation was repaired on the server, the messages from the
//     repaired point on are handed over again, with Update.Again set.
//   - When a message is revoked that the device has had, its tombstone is handed
//     over with Update.Again set, also if the device was away or the push was lost.
//
// A number is saved after the message that it covers was handed over, so a
// process that dies in between hands that message over once more after its
// restart: OnMessage should be idempotent by conversation and seq. The version is
// saved after everything that it covers. Package sqlite keeps all of it in a file.
//
// Pushes may be lost without a trace, as when the gateway's broker drops one and
// nothing follows in the conversation. So a device that is connected asks every
// Config.Recheck what changed: nothing is missing for longer than that.
//
// What is not handed over: other events of the time when the device was not
// connected. What was revoked of a conversation that is not in the user's list,
// one that it left or a group that it wrote to without joining, is not told
// either, before it is in the list again: who shows old messages of it pulls them
// again. And what a later join opens below what was delivered already, as when a
// user joins a group without its history, leaves, and joins it with all of it: a
// number cannot go back. Who shows older messages pulls them when it shows them.
//
// Run owns everything; callbacks come from its one goroutine. The methods that
// call the server are safe for concurrent use. A failing server is tried again
// with a growing pause, for as long as Run lives; only a failing callback or
// store ends it.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// Service is the part of the sync query service that a client needs. The
// generated Connect client is one.
type Service interface {
	Pull(context.Context, *tidemarkv1.PullRequest) (*tidemarkv1.PullResponse, error)
	GetWatermarks(context.Context, *tidemarkv1.GetWatermarksRequest) (*tidemarkv1.GetWatermarksResponse, error)
	SyncConversations(context.Context, *tidemarkv1.SyncConversationsRequest) (*tidemarkv1.SyncConversationsResponse, error)
	SetReadSeq(context.Context, *tidemarkv1.SetReadSeqRequest) (*tidemarkv1.ReadResponse, error)
	MarkConversationRead(context.Context, *tidemarkv1.MarkConversationReadRequest) (*tidemarkv1.ReadResponse, error)
	Send(context.Context, *tidemarkv1.SendRequest) (*tidemarkv1.SendResponse, error)
}

// Live is a stream of push events. Stream blocks until ctx ends; it calls
// connected after every time that the stream was (re)opened, before the first
// event that follows, and reconnects by itself. WebSocket makes one.
type Live interface {
	Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error
}

// Passer is a Live that passes on what is only worth telling now.
type Passer interface {
	Pass(ctx context.Context, conversation, kind string, data json.RawMessage) error
}

// Numbers is what a client keeps of one conversation.
type Numbers struct {
	// Seq: every visible message up to it has been delivered.
	Seq int64
	// Read is the highest read watermark that is known.
	Read int64
	// Repair is the repair number up to which the device is right.
	Repair int64
	// Listed: the conversation stands in the user's list, so what happens in it
	// shows there.
	Listed bool
}

// Store keeps the numbers over restarts. Calls come one at a time.
type Store interface {
	Load(ctx context.Context) (map[string]Numbers, error)
	Save(ctx context.Context, conversation string, n Numbers) error
}

// ListStore keeps the version of the user's list over restarts. It may be lost
// at any time; without the numbers of a Store beside it it is worth nothing.
// Calls come one at a time.
type ListStore interface {
	LoadVersion(ctx context.Context) (string, error)
	SaveVersion(ctx context.Context, version string) error
}

// Update is a message that the device has not had.
type Update struct {
	Message *tidemarkv1.Message
	// Again: the server repaired the conversation, or the message is revoked, and
	// this may replace what was delivered at the same seq before.
	Again bool
}

// Config says whose device it is and where what arrives goes.
type Config struct {
	// User is required.
	User watermark.UserID
	// Device names this device; its own messages are not pushed back to it.
	// Empty: they are.
	Device string
	// Service is required.
	Service Service
	// Live brings pushes. nil: the client pulls and sends once, and Run ends.
	Live Live
	// Store keeps the numbers. nil: in memory.
	Store Store
	// List keeps the version of the list. nil: in memory.
	List ListStore
	// Outbox keeps what Send took. nil: in memory.
	Outbox Outbox
	// OnMessage is required. An error ends Run with it.
	OnMessage func(context.Context, Update) error
	// OnConversation, if set, sees each entry of the list that changed, whole;
	// listed tells whether it stands in the list. An entry may come again.
	OnConversation func(ctx context.Context, e *tidemarkv1.ConversationEntry, listed bool) error
	// OnEvent, if set, sees every other event: reads, revokes, windows, and what
	// Typing and SendTransient of others pass on.
	OnEvent func(context.Context, *tidemarkv1.PushEvent) error
	// OnSent, if set, sees what became of a message of Send, once, or again after
	// a restart. It may come before or after the message itself.
	OnSent func(context.Context, Sent) error
	// Newest bounds how many messages of a conversation that the device never
	// had are delivered: the newest ones. 0: all that can be seen.
	Newest int64
	// PageSize is the number of messages of one pull. 0: 100.
	PageSize int64
	// Recheck is after how long a connected device asks what changed since it
	// last did, give or take a tenth, which finds pushes that were lost. 0: 5
	// minutes. At least a second.
	Recheck time.Duration
	// Logger is required.
	Logger *slog.Logger
}

// Client is a device of a user.
type Client struct {
	cfg    Config
	events chan *tidemarkv1.PushEvent
	resync chan struct{} // holds one token: the list must be synced

	outgoing chan struct{}                    // holds one token: look into the outbox
	tasks    chan func(context.Context) error // what the sender has Run do
	synced   chan struct{}                    // closed when the list was synced once

	version    string // of the list; Run's goroutine only, as the next ones
	syncedOnce bool
	recheck    *time.Timer // fires when the list was not synced for long

	mu      sync.Mutex
	numbers map[string]Numbers                 // guarded by mu; written by Run's goroutine only
	pending map[outKey]*tidemarkv1.SendMessage // guarded by mu; what the outbox has
}

// New checks cfg.
func New(cfg Config) (*Client, error) {
	var errs []error
	if _, err := watermark.ParseUserID(string(cfg.User)); err != nil {
		errs = append(errs, fmt.Errorf("client: User: %w", err))
	}
	if cfg.Service == nil {
		errs = append(errs, errors.New("client: Service is missing"))
	}
	if cfg.OnMessage == nil {
		errs = append(errs, errors.New("client: OnMessage is missing"))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("client: Logger is missing"))
	}
	if cfg.Newest < 0 || cfg.PageSize < 0 {
		errs = append(errs, fmt.Errorf("client: Newest is %d and PageSize %d, neither may be negative", cfg.Newest, cfg.PageSize))
	}
	if cfg.Recheck != 0 && cfg.Recheck < time.Second {
		errs = append(errs, fmt.Errorf("client: Recheck is %v, at least 1s is allowed", cfg.Recheck))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Recheck == 0 {
		cfg.Recheck = 5 * time.Minute
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = watermark.DefaultPage
	}
	if cfg.Store == nil {
		cfg.Store = memory{}
	}
	if cfg.List == nil {
		cfg.List = memory{}
	}
	if cfg.Outbox == nil {
		cfg.Outbox = new(memoryOutbox)
	}
	return &Client{
		cfg: cfg,
		// A burst that does not fit costs a pull, nothing else.
		events: make(chan *tidemarkv1.PushEvent, 256),
		resync: make(chan struct{}, 1),

		outgoing: make(chan struct{}, 1),
		tasks:    make(chan func(context.Context) error),
		synced:   make(chan struct{}),
		pending:  make(map[outKey]*tidemarkv1.SendMessage),
	}, nil
}

// Run brings the device up to date and, with a Live, keeps it so until ctx
// ends. It returns nil then, and an error when a callback or the store fails. A
// Client runs once.
func (c *Client) Run(ctx context.Context) error {
	numbers, err := c.cfg.Store.Load(ctx)
	if err != nil {
		return fmt.Errorf("client: load numbers: %w", err)
	}
	if c.version, err = c.cfg.List.LoadVersion(ctx); err != nil {
		return fmt.Errorf("client: load the version of the list: %w", err)
	}
	if len(numbers) == 0 {
		// What the version says was taken in is not there any more.
		c.version = ""
	}
	waiting, err := c.cfg.Outbox.Waiting(ctx)
	if err != nil {
		return fmt.Errorf("client: read the outbox: %w", err)
	}
	c.mu.Lock()
	c.numbers = make(map[string]Numbers, len(numbers))
	maps.Copy(c.numbers, numbers)
	for _, m := range waiting {
		c.pending[keyOf(m)] = m
	}
	c.mu.Unlock()
	c.recheck = time.NewTimer(c.untilRecheck())
	defer c.recheck.Stop()
	return c.settled(ctx, c.runAll(ctx))
}

// runAll runs the loop and, beside it, the stream and the sender.
func (c *Client) runAll(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	if c.cfg.Live == nil {
		c.requestSync()
	} else {
		beside.Go(func() {
			if err := c.cfg.Live.Stream(ctx, c.requestSync, c.offer); err != nil && ctx.Err() == nil {
				c.cfg.Logger.Error("live stream ended", "error", err)
			}
		})
	}
	beside.Go(func() {
		err := c.sendAll(ctx, c.cfg.Live == nil)
		if err == nil {
			err = errFinished
		}
		stop(err)
	})
	err := c.loop(ctx)
	stop(err)
	beside.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errFinished) {
		return nil
	} else if errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// Numbers gives what the device knows of a conversation now.
func (c *Client) Numbers(conversation string) Numbers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.numbers[conversation]
}

// MarkRead raises the user's read watermark in a conversation on the server,
// and gives the watermark and unread count that stand.
func (c *Client) MarkRead(ctx context.Context, conversation string, seq int64) (read, unread int64, err error) {
	res, err := c.cfg.Service.SetReadSeq(ctx, &tidemarkv1.SetReadSeqRequest{
		User: string(c.cfg.User), Conversation: conversation, ReadSeq: seq, Device: c.cfg.Device,
	})
	if err != nil {
		return 0, 0, fmt.Errorf("client: mark %s read: %w", conversation, err)
	}
	return res.GetReadSeq(), res.GetUnread(), nil
}

// Acknowledge marks a conversation read up to seq like MarkRead, and in a
// single conversation tells the peer.
func (c *Client) Acknowledge(ctx context.Context, conversation string, seq int64) (read, unread int64, err error) {
	res, err := c.cfg.Service.MarkConversationRead(ctx, &tidemarkv1.MarkConversationReadRequest{
		User: string(c.cfg.User), Conversation: conversation, ReadSeq: seq, Device: c.cfg.Device,
	})
	if err != nil {
		return 0, 0, fmt.Errorf("client: acknowledge %s: %w", conversation, err)
	}
	return res.GetReadSeq(), res.GetUnread(), nil
}

// KindTyping is the kind of transient event that says that somebody types.
const KindTyping = "typing"

// Typing tells the other members of a conversation who are connected that the
// user types. Say it again every few seconds while it is so: nothing is kept of
// it, it may be lost, and it comes to them as an event of KindTyping.
func (c *Client) Typing(ctx context.Context, conversation string) error {
	return c.SendTransient(ctx, conversation, KindTyping, nil)
}

// SendTransient passes an event on to the other members of a conversation who
// are connected. kind is 1 to 32 bytes of A-Z a-z 0-9 . _ -, data at most 1 KiB of
// JSON, or nil. It returns ErrNotConnected, wrapped, while there is no connection;
// nothing is tried again, since it would come too late.
func (c *Client) SendTransient(ctx context.Context, conversation, kind string, data json.RawMessage) error {
	p, ok := c.cfg.Live.(Passer)
	if !ok {
		return fmt.Errorf("client: pass %s to %s: %w", kind, conversation, ErrNotConnected)
	}
	if err := p.Pass(ctx, conversation, kind, data); err != nil {
		return fmt.Errorf("client: pass %s to %s: %w", kind, conversation, err)
	}
	return nil
}

// settled turns the end of ctx into a clean end.
func (c *Client) settled(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// untilRecheck spreads devices that connected together.
func (c *Client) untilRecheck() time.Duration {
	d := c.cfg.Recheck
	return d - d/10 + rand.N(d/5)
}

// requestSync asks Run to sync the list.
func (c *Client) requestSync() {
	select {
	case c.resync <- struct{}{}:
	default:
	}
}

// offer hands an event to Run. One that does not fit is dropped and replaced
// by a sync of the list, which finds whatever it would have said.
func (c *Client) offer(e *tidemarkv1.PushEvent) {
	select {
	case c.events <- e:
	default:
		c.requestSync()
	}
}

// memory is the store of a client that keeps nothing.
type memory struct{}

func (memory) Load(context.Context) (map[string]Numbers, error) { return nil, nil }

func (memory) Save(context.Context, string, Numbers) error { return nil }

func (memory) LoadVersion(context.Context) (string, error) { return "", nil }

func (memory) SaveVersion(context.Context, string) error { return nil }
