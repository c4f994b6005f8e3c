package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// rosterFor is how long it is believed who is in a conversation, of what is
	// only worth telling now.
	rosterFor   = 5 * time.Second
	maxRosters  = 10_000
	maxPassing  = 1 << 10 // bytes of a transient event
	maxKindSize = 32
	// maxCalls bounds the calls of all clients that are under way: while members
	// cannot be read they would gather, some from each connection in each second.
	maxCalls = 1000
)

// What a client is answered that asks for something over its connection.
var (
	errInvalid   = &centrifuge.Error{Code: 400, Message: "invalid"}
	errNotMember = &centrifuge.Error{Code: 403, Message: "not a member of the conversation"}
	errTooMany   = &centrifuge.Error{Code: 429, Message: "too many, slow down", Temporary: true}
	errNotNow    = &centrifuge.Error{Code: 503, Message: "not available at the moment", Temporary: true}

	errNoPresence = errors.New("gateway: presence is not kept here")
)

var kindPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

// rpc answers what a client asks over its connection: "transient" passes
// something on to the other members, "presence" tells of the peer of a single
// conversation.
func (g *Gateway) rpc(c *conn, e centrifuge.RPCEvent, answer centrifuge.RPCCallback) {
	if !c.budget.Allow() {
		g.m.transient.WithLabelValues("limited").Inc()
		answer(centrifuge.RPCReply{}, errTooMany)
		return
	}
	select {
	case g.calls <- struct{}{}:
	default:
		if e.Method == "transient" {
			g.m.transient.WithLabelValues("limited").Inc()
		}
		answer(centrifuge.RPCReply{}, errNotNow)
		return
	}
	life := g.life.Load()
	g.spawn(func() {
		data, err := g.call(life, c, e)
		<-g.calls
		if e.Method == "transient" {
			g.m.transient.WithLabelValues(outcome(err)).Inc()
		}
		var told *centrifuge.Error
		if err != nil && !errors.As(err, &told) {
			g.cfg.Logger.Warn("call of a client failed", "method", e.Method, "user", c.who.User, "error", err)
			err = errNotNow
		}
		answer(centrifuge.RPCReply{Data: data}, err)
	})
}

func outcome(err error) string {
	var told *centrifuge.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &told):
		return "refused"
	}
	return "error"
}

func (g *Gateway) call(ctx context.Context, c *conn, e centrifuge.RPCEvent) ([]byte, error) {
	var ask struct {
		Conversation string          `json:"conversation"`
		Kind         string          `json:"kind"`
		Data         json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(e.Data, &ask); err != nil {
		return nil, invalid("data is not a JSON object: %v", err)
	}
	conv, err := watermark.ParseConversationID(ask.Conversation)
	if err != nil {
		return nil, invalid("conversation: %v", err)
	}
	switch e.Method {
	case "transient":
		if !kindPattern.MatchString(ask.Kind) {
			return nil, invalid("kind must be 1 to %d bytes of A-Z a-z 0-9 . _ -", maxKindSize)
		}
		if len(ask.Data) > maxPassing {
			return nil, invalid("data has %d bytes, at most %d are allowed", len(ask.Data), maxPassing)
		}
		return []byte("{}"), g.pass(ctx, c, conv, &tidemarkv1.Transient{User: string(c.who.User), Kind: ask.Kind, Data: ask.Data})
	case "presence":
		return g.peerPresence(ctx, c, conv)
	}
	return nil, invalid("no method %.40q", e.Method)
}

func invalid(format string, args ...any) error {
	return &centrifuge.Error{Code: errInvalid.Code, Message: fmt.Sprintf(format, args...)}
}

// pass hands a transient event to the other members who are connected.
func (g *Gateway) pass(ctx context.Context, c *conn, conv watermark.ConversationID, t *tidemarkv1.Transient) error {
	r, err := g.roster(ctx, conv, c.who.User)
	if err != nil {
		return err
	}
	if !r.has(conv, c.who.User) {
		return errNotMember
	}
	d := Delivery{Reach: ToCrowd, Event: &tidemarkv1.PushEvent{Conversation: string(conv), Kind: &tidemarkv1.PushEvent_Transient{Transient: t}}}
	if r.complete {
		d.Reach, d.Users = ToUsers, r.others(conv, c.who.User)
	} else if c.who.Device != "" {
		d.ExceptUser, d.ExceptDevice = c.who.User, c.who.Device
	}
	return g.Deliver(ctx, []Delivery{d})
}

func (g *Gateway) peerPresence(ctx context.Context, c *conn, conv watermark.ConversationID) ([]byte, error) {
	peer, ok := conv.Peer(c.who.User)
	if !ok {
		return nil, errNotMember
	}
	r, err := g.roster(ctx, conv, c.who.User)
	if err != nil {
		return nil, err
	}
	if !r.has(conv, c.who.User) || !r.has(conv, peer) {
		return nil, errNotMember
	}
	where, err := g.UserPresence(ctx, []watermark.UserID{peer})
	if err != nil {
		return nil, err
	}
	var said struct {
		User     watermark.UserID `json:"user"`
		Online   bool             `json:"online"`
		LastSeen int64            `json:"lastSeenMs,omitempty"`
	}
	said.User, said.Online = peer, len(where[0].Devices) > 0
	if !where[0].LastSeen.IsZero() {
		said.LastSeen = where[0].LastSeen.UnixMilli()
	}
	return json.Marshal(said)
}

// roster is who is in a conversation, as it was a moment ago.
type roster struct {
	until    time.Time
	complete bool
	members  map[watermark.UserID]watermark.Member
}

// has tells whether u is a member now. Both users of a single conversation are,
// unless their window was closed.
func (r *roster) has(conv watermark.ConversationID, u watermark.UserID) bool {
	m, ok := r.members[u]
	if !ok || !m.Known() {
		_, is := conv.Peer(u)
		return is
	}
	return m.Open()
}

func (r *roster) others(conv watermark.ConversationID, u watermark.UserID) []watermark.UserID {
	if peer, ok := conv.Peer(u); ok {
		if r.has(conv, peer) {
			return []watermark.UserID{peer}
		}
		return nil
	}
	var out []watermark.UserID
	for o := range r.members {
		if o != u && r.has(conv, o) {
			out = append(out, o)
		}
	}
	return out
}

// rosters keeps those that were asked for lately.
type rosters struct {
	rosterMu sync.Mutex
	recent   *simplelru.LRU[rosterKey, *roster]
}

// rosterKey names a small conversation, or a member of a large one.
type rosterKey struct {
	conv watermark.ConversationID
	user watermark.UserID
}

func (r *rosters) init() (err error) {
	r.recent, err = simplelru.NewLRU[rosterKey, *roster](maxRosters, nil)
	return err
}

func (r *rosters) find(keys ...rosterKey) *roster {
	r.rosterMu.Lock()
	defer r.rosterMu.Unlock()
	for _, k := range keys {
		if found, ok := r.recent.Get(k); ok && time.Now().Before(found.until) {
			return found
		}
	}
	return nil
}

// roster gives who is in conv: all of a small one, u of a large one.
func (g *Gateway) roster(ctx context.Context, conv watermark.ConversationID, u watermark.UserID) (*roster, error) {
	whole, one := rosterKey{conv: conv}, rosterKey{conv, u}
	if r := g.find(whole, one); r != nil {
		return r, nil
	}
	if g.cfg.Members == nil {
		return nil, errNotNow
	}
	select {
	case g.loads <- struct{}{}:
		defer func() { <-g.loads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	members, complete, err := g.cfg.Members.Members(ctx, conv, []watermark.UserID{u})
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	r := &roster{until: time.Now().Add(rosterFor), complete: complete, members: members}
	key := one
	if complete {
		key = whole
	}
	g.rosterMu.Lock()
	defer g.rosterMu.Unlock()
	g.recent.Add(key, r)
	return r, nil
}
