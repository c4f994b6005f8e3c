package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/centrifugal/centrifuge"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Reach says whom a Delivery goes to.
type Reach int

const (
	// ToUsers is to the devices of each of Users.
	ToUsers Reach = iota
	// ToCrowd is to the devices of all who sit in the crowd of the conversation,
	// as far as their window contains the event's seq.
	ToCrowd
	// Change is to nodes: the window in Event has changed. To the member's own
	// devices goes an event besides.
	Change
	// Seat is to nodes: Users are in the crowd of the conversation.
	Seat
	// Dissolve is to nodes: the conversation has no crowd any more.
	Dissolve
)

// Place is how far the windows of a conversation have come on the sequenced
// log. It lets a node tell whether it has heard of all changes.
type Place struct {
	// Log names the log.
	Log string
	// Changed is the offset plus 1 of the last change of a window up to the
	// delivery, itself included. 0: none.
	Changed int64
	// Before is, for a Change, what Changed was before it.
	Before int64
}

// Delivery is one event for some users.
type Delivery struct {
	Reach Reach
	// Users is for ToUsers and Seat.
	Users []watermark.UserID
	// Event always names the conversation.
	Event *tidemarkv1.PushEvent
	// Place is for ToCrowd and Change.
	Place Place
	// ExceptUser and ExceptDevice name the device that caused the event and
	// does not need it. Without a device every device of the user gets it.
	ExceptUser   watermark.UserID
	ExceptDevice string
}

// The tags of what goes over the broker. Devices see tagSeq and tagExcept of
// what goes to a crowd, since they are filtered by.
const (
	tagKind    = "k" // absent: an event for devices
	tagLog     = "l"
	tagChanged = "c"
	tagBefore  = "p"
	tagSeq     = "s" // decides whether a window contains the event
	tagExcept  = "x" // digest of the user and device that do not need it

	kindSeat     = "s"
	kindChange   = "w"
	kindDissolve = "d"
	kindPassing  = "t" // of which it does not matter much whom it reaches
)

// deliverWays is how many publications of a Deliver are under way at once. Those
// of one channel are not: each waits for the one before it.
const deliverWays = 16

type publication struct {
	channel string
	data    []byte
	tags    map[string]string
}

// Deliver hands events to the broker, those for one user and those for one
// crowd in order. An error is transient: the caller delivers the same again, and
// devices ignore seqs that they know.
func (g *Gateway) Deliver(ctx context.Context, deliveries []Delivery) error {
	if g.shard == nil && g.life.Load() == nil {
		// The broker in memory has nobody to tell before its node runs.
		return fault.New(fault.Transient, "broker", errors.New("gateway: does not run yet"))
	}
	ways := make([][]publication, g.bucket)
	add := func(p publication) {
		w := hashOf(p.channel) % uint32(len(ways))
		ways[w] = append(ways[w], p)
	}
	for i := range deliveries {
		if err := deliveries[i].publications(add); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, way := range ways {
		if len(way) > 0 {
			group.Go(func() error { return g.publish(ctx, way) })
		}
	}
	return group.Wait()
}

// Reachable gives those of users who may hear what is delivered to them now. Where
// all nodes share a Redis that is everybody; where this node is alone, who has a device on
// it: for the others nothing need be made.
func (g *Gateway) Reachable(users []watermark.UserID) []watermark.UserID {
	if g.shard != nil {
		return users
	}
	hub := g.node.Hub()
	there := make([]watermark.UserID, 0, len(users))
	for _, u := range users {
		if hub.NumSubscribers(userChannel(u)) > 0 {
			there = append(there, u)
		}
	}
	return there
}

func (g *Gateway) publish(ctx context.Context, way []publication) error {
	for _, p := range way {
		if err := ctx.Err(); err != nil {
			return err
		}
		var opts []centrifuge.PublishOption
		if len(p.tags) > 0 {
			opts = append(opts, centrifuge.WithTags(p.tags))
		}
		if _, err := g.node.Publish(p.channel, p.data, opts...); err != nil {
			g.m.published.WithLabelValues("error").Inc()
			return fault.New(fault.Transient, "broker", fmt.Errorf("gateway: publish: %w", err))
		}
		g.m.published.WithLabelValues("ok").Inc()
	}
	return nil
}

// publications gives what is to be published for d.
func (d *Delivery) publications(add func(publication)) error {
	conv := d.Event.GetConversation()
	if d.Reach == Seat {
		for _, u := range d.Users {
			add(publication{userChannel(u), []byte(conv), map[string]string{tagKind: kindSeat}})
		}
		return nil
	}
	data, err := proto.Marshal(d.Event)
	if err != nil {
		return fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("gateway: encode event of %s: %w", conv, err))
	}
	if d.Reach == ToUsers {
		for _, u := range d.Users {
			p := publication{userChannel(u), data, nil}
			if u == d.ExceptUser && d.ExceptDevice != "" {
				p.tags = map[string]string{tagExcept: digest(u, d.ExceptDevice)}
			}
			add(p)
		}
		return nil
	}
	add(publication{crowdPrefix + conv, data, d.crowdTags()})
	return nil
}

func (d *Delivery) crowdTags() map[string]string {
	tags := make(map[string]string, 5)
	switch d.Reach {
	case Dissolve:
		tags[tagKind] = kindDissolve
		return tags
	case Change:
		tags[tagKind] = kindChange
		tags[tagBefore] = strconv.FormatInt(d.Place.Before, 10)
	}
	if d.ExceptDevice != "" {
		tags[tagExcept] = digest(d.ExceptUser, d.ExceptDevice)
	}
	if d.Event.GetTransient() != nil {
		tags[tagKind] = kindPassing
		return tags
	}
	tags[tagLog], tags[tagChanged] = d.Place.Log, strconv.FormatInt(d.Place.Changed, 10)
	if m := d.Event.GetMessage(); m != nil {
		tags[tagSeq] = strconv.FormatInt(m.GetSeq(), 10)
	} else if r := d.Event.GetRevoked(); r != nil {
		tags[tagSeq] = strconv.FormatInt(r.GetSeq(), 10)
	}
	return tags
}

// digest stands for a device where others see it.
func digest(u watermark.UserID, device string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(u) + "/" + device)) // it never fails
	return strconv.FormatUint(h.Sum64(), 36)
}

// except lets everything pass but what its own device caused.
func except(who Identity) *centrifuge.FilterNode {
	return &centrifuge.FilterNode{Key: tagExcept, Cmp: "neq", Val: digest(who.User, who.Device)}
}
