package gateway

import (
	"context"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/centrifugal/centrifuge"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// The channels of the broker. Clients cannot subscribe to any by themselves.
// Devices that want binary events listen under binaryPrefix to what the broker
// has once.
const (
	userPrefix   = "user:"
	crowdPrefix  = "crowd:"
	binaryPrefix = "b."
)

func userChannel(u watermark.UserID) string { return userPrefix + string(u) }

func crowdChannel(c watermark.ConversationID) string { return crowdPrefix + string(c) }

// relay stands between the node and its broker. Over the broker go events in
// binary protobuf, once for all; here they become what each kind of device
// reads, and what is meant for nodes and not for devices is taken out.
//
// A channel of the broker is held while anybody wants it: the devices that read
// JSON, those that read binary, and the crowd.
type relay struct {
	centrifuge.Broker
	g    *Gateway
	node centrifuge.BrokerEventHandler

	stripes [64]sync.Mutex // one call of the broker at a time for each channel
	mu      sync.Mutex
	holds   map[string]int
}

func newRelay(g *Gateway, b centrifuge.Broker) *relay {
	return &relay{Broker: b, g: g, holds: make(map[string]int)}
}

// RegisterBrokerEventHandler implements centrifuge.Broker.
func (r *relay) RegisterBrokerEventHandler(h centrifuge.BrokerEventHandler) error {
	r.node = h
	return r.Broker.RegisterBrokerEventHandler(r)
}

// Close implements centrifuge.Closer.
func (r *relay) Close(ctx context.Context) error {
	if c, ok := r.Broker.(centrifuge.Closer); ok {
		return c.Close(ctx)
	}
	return nil
}

// Subscribe implements centrifuge.Broker.
func (r *relay) Subscribe(channels ...string) error {
	for i, ch := range channels {
		if err := r.hold(strings.TrimPrefix(ch, binaryPrefix)); err != nil {
			_ = r.Unsubscribe(channels[:i]...) // the first error is the one that counts
			return err
		}
	}
	return nil
}

// Unsubscribe implements centrifuge.Broker.
func (r *relay) Unsubscribe(channels ...string) error {
	var first error
	for _, ch := range channels {
		if err := r.release(strings.TrimPrefix(ch, binaryPrefix)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// hold begins to listen to a channel of the broker, unless somebody does.
func (r *relay) hold(ch string) error {
	stripe := r.stripe(ch)
	stripe.Lock()
	defer stripe.Unlock()
	if r.count(ch, 1) > 1 {
		return nil
	}
	err := r.Broker.Subscribe(ch)
	if err != nil {
		r.count(ch, -1)
	}
	return err
}

// release ends one hold.
func (r *relay) release(ch string) error {
	stripe := r.stripe(ch)
	stripe.Lock()
	defer stripe.Unlock()
	if r.count(ch, -1) > 0 {
		return nil
	}
	return r.Broker.Unsubscribe(ch)
}

func (r *relay) count(ch string, by int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.holds[ch] + by
	if n > 0 {
		r.holds[ch] = n
	} else {
		delete(r.holds, ch)
	}
	return n
}

func (r *relay) stripe(ch string) *sync.Mutex { return &r.stripes[hashOf(ch)%uint32(len(r.stripes))] }

func hashOf(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum32()
}

// HandlePublication implements centrifuge.BrokerEventHandler: it is called for
// what comes over a channel, in order.
func (r *relay) HandlePublication(ch string, pub *centrifuge.Publication, _ centrifuge.StreamPosition, _ bool, _ *centrifuge.Publication) error {
	if id, ok := strings.CutPrefix(ch, crowdPrefix); ok {
		r.g.crowds.publication(watermark.ConversationID(id), pub)
		return nil
	}
	if id, ok := strings.CutPrefix(ch, userPrefix); ok && pub.Tags[tagKind] == kindSeat {
		r.g.crowds.seat(watermark.UserID(id), watermark.ConversationID(pub.Data))
		return nil
	}
	return r.broadcast(ch, pub)
}

// HandleJoin implements centrifuge.BrokerEventHandler.
func (r *relay) HandleJoin(ch string, info *centrifuge.ClientInfo) error {
	return r.node.HandleJoin(ch, info)
}

// HandleLeave implements centrifuge.BrokerEventHandler.
func (r *relay) HandleLeave(ch string, info *centrifuge.ClientInfo) error {
	return r.node.HandleLeave(ch, info)
}

// broadcast gives an event to all devices that listen to a channel here.
func (r *relay) broadcast(ch string, pub *centrifuge.Publication) error {
	hub := r.g.node.Hub()
	tags := forDevices(pub.Tags)
	if hub.NumSubscribers(binaryPrefix+ch) > 0 {
		out := &centrifuge.Publication{Data: pub.Data, Tags: tags, Time: pub.Time}
		if err := r.node.HandlePublication(binaryPrefix+ch, out, centrifuge.StreamPosition{}, false, nil); err != nil {
			return err
		}
	}
	if hub.NumSubscribers(ch) == 0 {
		return nil
	}
	event := &tidemarkv1.PushEvent{}
	if err := proto.Unmarshal(pub.Data, event); err != nil {
		return err
	}
	data, err := protojson.Marshal(event)
	if err != nil {
		return err
	}
	return r.node.HandlePublication(ch, &centrifuge.Publication{Data: data, Tags: tags, Time: pub.Time}, centrifuge.StreamPosition{}, false, nil)
}

// forDevices leaves of an event's tags what filters ask for.
func forDevices(tags map[string]string) map[string]string {
	var out map[string]string
	for _, t := range []string{tagSeq, tagExcept} {
		if v, ok := tags[t]; ok {
			if out == nil {
				out = make(map[string]string, 2)
			}
			out[t] = v
		}
	}
	return out
}
