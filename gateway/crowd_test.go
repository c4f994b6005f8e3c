package gateway_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	centrifugo "github.com/centrifugal/centrifuge-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

const crowd = watermark.ConversationID("group:g")

// listener is a connected device that keeps what it gets.
type listener struct {
	client *centrifugo.Client
	mu     sync.Mutex
	events []*tidemarkv1.PushEvent
	subs   int // channels that it was put on
	ends   []string
	ended  uint32
}

// listen connects a device and waits until it is.
func listen(t testing.TB, url, user, device string, binary bool) *listener {
	t.Helper()
	l := &listener{}
	cfg := centrifugo.Config{
		Data:              fmt.Appendf(nil, `{"user":%q,"device":%q}`, user, device),
		MinReconnectDelay: time.Millisecond, MaxReconnectDelay: 100 * time.Millisecond,
	}
	if l.client = centrifugo.NewJsonClient(url, cfg); binary {
		l.client = centrifugo.NewProtobufClient(url+"?cf_protocol=protobuf", cfg)
	}
	l.client.OnSubscribed(func(centrifugo.ServerSubscribedEvent) { l.note(func() { l.subs++ }) })
	l.client.OnUnsubscribed(func(centrifugo.ServerUnsubscribedEvent) { l.note(func() { l.subs-- }) })
	l.client.OnConnecting(func(e centrifugo.ConnectingEvent) {
		l.note(func() { l.ends, l.ended, l.subs = append(l.ends, e.Reason), e.Code, 0 })
	})
	l.client.OnDisconnected(func(e centrifugo.DisconnectedEvent) {
		l.note(func() { l.ends, l.ended, l.subs = append(l.ends, e.Reason), e.Code, 0 })
	})
	l.client.OnPublication(func(e centrifugo.ServerPublicationEvent) {
		ev := &tidemarkv1.PushEvent{}
		read := protojson.Unmarshal
		if binary {
			read = proto.Unmarshal
		}
		if err := read(e.Data, ev); err != nil {
			t.Errorf("decode event: %v", err)
		}
		l.note(func() { l.events = append(l.events, ev) })
	})
	if err := l.client.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Close)
	eventually(t, "connection", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.subs == 0 {
			return fmt.Errorf("not there yet, ended %q", l.ends)
		}
		return nil
	})
	return l
}

func (l *listener) note(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// listens waits until the device is on n channels.
func (l *listener) listens(t testing.TB, n int) {
	t.Helper()
	eventually(t, "channels of a device", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return isSeq(int64(n), int64(l.subs))
	})
}

// seqs gives those of the messages that have come.
func (l *listener) seqs() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []int64{}
	for _, e := range l.events {
		if m := e.GetMessage(); m != nil {
			out = append(out, m.GetSeq())
		}
	}
	return out
}

func (l *listener) gets(t testing.TB, who string, want ...int64) {
	t.Helper()
	eventually(t, who, func() error {
		if got := l.seqs(); !slices.Equal(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// push gives a message for the crowd.
func push(seq int64, changed int64) gateway.Delivery {
	return gateway.Delivery{Reach: gateway.ToCrowd, Event: message(seq), Place: gateway.Place{Log: "log", Changed: changed}}
}

// moved gives a change of a window that stands at offset at-1.
func moved(m watermark.Member, before, at int64) gateway.Delivery {
	return gateway.Delivery{
		Reach: gateway.Change, Event: convert.PushEvent(crowd, watermark.WindowChanged{Member: m, Cause: "leave"}),
		Place: gateway.Place{Log: "log", Before: before, Changed: at},
	}
}

func deliver(t testing.TB, g *gateway.Gateway, ds ...gateway.Delivery) {
	t.Helper()
	if err := g.Deliver(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
}

func left(m watermark.Member, last watermark.Seq) watermark.Member {
	out, _ := m.Leave("out", last, 0)
	return out
}

// withWorld gives a node of its own world.
func withWorld(t testing.TB, w *world) *node {
	t.Helper()
	return startNode(t, func(c *gateway.Config) { c.Members, c.Crowds, c.Presence = w, w, w })
}

func TestACrowdHearsWhatItsWindowsContain(t *testing.T) {
	w := newWorld()
	late := member("L", 5, 0)
	twice := watermark.Member{User: "T", Version: 3, LastMembership: 2, Memberships: []watermark.Membership{{Number: 1, Lower: 1, Upper: 2}, {Number: 2, Lower: 4}}}
	w.put(crowd, member("A", 0, 0), late, twice, left(member("K", 0, 0), 3), watermark.Member{User: "U"})
	n := withWorld(t, w)
	phone, web := listen(t, n.url, "A", "phone", false), listen(t, n.url, "A", "web", true)
	l, tw, k, u := listen(t, n.url, "L", "", false), listen(t, n.url, "T", "", true), listen(t, n.url, "K", "", false), listen(t, n.url, "U", "", false)
	for _, x := range []*listener{phone, web, l, tw, u} {
		x.listens(t, 2)
	}
	for seq := int64(4); seq <= 6; seq++ {
		d := push(seq, 0)
		if seq == 5 {
			d.ExceptUser, d.ExceptDevice = "A", "phone"
		}
		deliver(t, n.Gateway, d)
	}
	revoke := push(0, 0)
	revoke.Event = &tidemarkv1.PushEvent{Conversation: string(crowd), Kind: &tidemarkv1.PushEvent_Revoked{Revoked: &tidemarkv1.Revoked{Seq: 3}}}
	raise := push(0, 0)
	raise.Event = &tidemarkv1.PushEvent{Conversation: string(crowd), Kind: &tidemarkv1.PushEvent_MinSeq{MinSeq: &tidemarkv1.MinSeqRaised{MinSeq: 2}}}
	end := push(7, 0)
	deliver(t, n.Gateway, revoke, raise, end)
	phone.gets(t, "the device that sent 5", 4, 6, 7)
	web.gets(t, "the other device", 4, 5, 6, 7)
	l.gets(t, "who joined at 5", 5, 6, 7)
	tw.gets(t, "who joined again", 4, 5, 6, 7)
	u.gets(t, "who never had a window", 4, 5, 6, 7)
	k.gets(t, "who was kicked at 3")
	for name, c := range map[string]struct {
		l      *listener
		events int
	}{"A": {web, 6}, "L": {l, 4}, "T": {tw, 5}} {
		if got := len(c.l.events) - len(c.l.hints()); got != c.events {
			t.Errorf("%s got %d events, want %d: a revoke of what it does not see, or none of what it sees", name, got, c.events)
		}
	}
	if got := n.metric(t, "tidemark_gateway_events_total"); got != 6 {
		t.Errorf("%v publications for 6 events of a crowd", got)
	}
}

func TestAKickIsInOrderWithMessages(t *testing.T) {
	w := newWorld()
	b := member("B", 0, 0)
	w.put(crowd, member("A", 0, 0), b)
	n := withWorld(t, w)
	a, k := listen(t, n.url, "A", "", false), listen(t, n.url, "B", "", false)
	a.listens(t, 2)
	k.listens(t, 2)
	deliver(t, n.Gateway, push(1, 0))
	a.gets(t, "who stays", 1) // the members are known as of here
	for seq := int64(2); seq <= 20; seq++ {
		deliver(t, n.Gateway, push(seq, 0))
	}
	out := left(b, 20)
	w.put(crowd, out)
	deliver(t, n.Gateway, moved(out, 0, 30))
	for seq := int64(21); seq <= 40; seq++ {
		deliver(t, n.Gateway, push(seq, 30))
	}
	back, _, _ := out.Join("again", 41, watermark.HistoryNone, 0)
	w.put(crowd, back)
	deliver(t, n.Gateway, moved(back, 30, 50))
	k.listens(t, 2)
	deliver(t, n.Gateway, push(41, 50), push(42, 50))
	a.gets(t, "who stays", numbers(1, 42)...)
	k.gets(t, "who was kicked and came back", append(numbers(1, 20), numbers(42, 42)...)...)
	if got := n.metric(t, "tidemark_gateway_crowd_checks_total"); got != 1 {
		t.Errorf("members were read again %v times, want once, at the first event", got)
	}
}

func numbers(from, to int64) (out []int64) {
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return out
}

func TestALostKickLetsNothingOut(t *testing.T) {
	w := newWorld()
	b := member("B", 0, 0)
	w.put(crowd, member("A", 0, 0), b)
	n := withWorld(t, w)
	a, k := listen(t, n.url, "A", "", false), listen(t, n.url, "B", "", false)
	a.listens(t, 2)
	k.listens(t, 2)
	deliver(t, n.Gateway, push(1, 0))
	k.gets(t, "a member", 1)
	// The change itself is never heard of; a later one of somebody else is.
	w.put(crowd, left(b, 1), left(member("C", 0, 0), 2))
	deliver(t, n.Gateway, push(2, 30), moved(left(member("C", 0, 0), 2), 30, 40), push(3, 40))
	a.gets(t, "who stays", 1, 2, 3)
	k.listens(t, 1)
	k.gets(t, "who was kicked", 1)
}

// The change that is heard of is somebody else's, and behind a lost one.
func TestAChangeBehindALostOneIsNotEnough(t *testing.T) {
	w := newWorld()
	b, c := member("B", 0, 0), member("C", 0, 0)
	w.put(crowd, member("A", 0, 0), b, c)
	n := withWorld(t, w)
	a, k := listen(t, n.url, "A", "", false), listen(t, n.url, "B", "", false)
	a.listens(t, 2)
	k.listens(t, 2)
	deliver(t, n.Gateway, push(1, 0))
	k.gets(t, "a member", 1)
	w.put(crowd, left(b, 1), left(c, 1))
	deliver(t, n.Gateway, moved(left(c, 1), 30, 40), push(2, 40))
	a.gets(t, "who stays", 1, 2)
	k.listens(t, 1)
	k.gets(t, "who was kicked", 1)
}

func TestWhatComesWhileMembersAreReadWaitsAndOverflowsIntoAHint(t *testing.T) {
	w := newWorld()
	w.put(crowd, member("A", 0, 0))
	n := withWorld(t, w)
	a := listen(t, n.url, "A", "", false)
	a.listens(t, 2)
	reading, goOn := make(chan struct{}, 1), make(chan struct{})
	fails := 2
	w.mu.Lock()
	w.onRead = func(watermark.ConversationID, []watermark.UserID) error {
		select {
		case reading <- struct{}{}:
		default:
		}
		<-goOn
		if fails--; fails >= 0 {
			return errAway
		}
		return nil
	}
	w.mu.Unlock()
	deliver(t, n.Gateway, push(1, 10))
	<-reading
	for seq := int64(2); seq <= 300; seq++ {
		deliver(t, n.Gateway, push(seq, 10))
	}
	close(goOn)
	a.gets(t, "who waits", numbers(1, 256)...)
	eventually(t, "a hint", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		last := a.events[len(a.events)-1]
		return isSeq(300, last.GetMaxSeq()*boolInt(last.GetKind() == nil))
	})
	deliver(t, n.Gateway, push(301, 10))
	a.gets(t, "afterwards", append(numbers(1, 256), 301)...)
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func TestASeatIsGivenAndTakenWhileConnected(t *testing.T) {
	w := newWorld()
	n := withWorld(t, w)
	a := listen(t, n.url, "A", "", false)
	w.put(crowd, member("A", 0, 0))
	deliver(t, n.Gateway, gateway.Delivery{Reach: gateway.Seat, Users: []watermark.UserID{"A", "B"}, Event: &tidemarkv1.PushEvent{Conversation: string(crowd)}})
	a.listens(t, 2)
	deliver(t, n.Gateway, push(1, 0))
	a.gets(t, "who was seated", 1)
	deliver(t, n.Gateway, gateway.Delivery{Reach: gateway.Dissolve, Event: &tidemarkv1.PushEvent{Conversation: string(crowd)}}, push(2, 0))
	a.listens(t, 1)
	deliver(t, n.Gateway, gateway.Delivery{Users: []watermark.UserID{"A"}, Event: message(3)})
	a.gets(t, "afterwards", 1, 3)
	if got := n.metric(t, "tidemark_gateway_crowds"); got != 0 {
		t.Errorf("%v crowds are left", got)
	}
}

func TestWhoStoodOnTheListAndIsNoMemberHearsNothing(t *testing.T) {
	w := newWorld()
	w.put(crowd, member("A", 0, 0))
	w.lists["X"] = []watermark.ConversationID{crowd}
	n := withWorld(t, w)
	a, x := listen(t, n.url, "A", "", false), listen(t, n.url, "X", "", false)
	a.listens(t, 2)
	deliver(t, n.Gateway, push(1, 5), gateway.Delivery{Users: []watermark.UserID{"X"}, Event: message(2)})
	a.gets(t, "a member", 1)
	x.gets(t, "a stranger", 2)
}

// onRedis gives nodes of one world that share a Redis.
func onRedis(t testing.TB, w *world, n int, change func(*gateway.Config)) []*node {
	t.Helper()
	server := miniredis.RunT(t)
	out := make([]*node, n)
	for i := range out {
		out[i] = startNode(t, func(c *gateway.Config) {
			c.Members, c.Crowds, c.Presence = w, w, w
			c.Redis = gateway.Redis{Addresses: []string{server.Addr()}}
			if change != nil {
				change(c)
			}
		})
	}
	return out
}

// One message to a group of 100,000 with 1,000 online costs one publication
// and as many deliveries as there are devices; a single chat right behind it
// does not wait for it.
func TestTheCostOfAMessageToAHugeGroupIsThatOfWhoIsOnline(t *testing.T) {
	const all, online = 100_000, 200
	w := newWorld()
	for i := range all {
		w.put(crowd, member(watermark.UserID(fmt.Sprint("u", i)), 0, 0))
	}
	nodes := onRedis(t, w, 2, nil)
	var devices []*listener
	for i := range online {
		devices = append(devices, listen(t, nodes[i%2].url, fmt.Sprint("u", i*(all/online)), "", i%4 == 0))
	}
	single := listen(t, nodes[1].url, "S", "", false)
	for _, d := range devices {
		d.listens(t, 2)
	}
	before := nodes[0].metric(t, "tidemark_gateway_events_total")
	deliver(t, nodes[0].Gateway, push(1, 7), gateway.Delivery{Users: []watermark.UserID{"S"}, Event: message(1)})
	single.gets(t, "the single chat", 1)
	for i, d := range devices {
		d.gets(t, fmt.Sprint("device ", i), 1)
	}
	if got := nodes[0].metric(t, "tidemark_gateway_events_total") - before; got != 2 {
		t.Errorf("%v publications for a message to a crowd and one to a user, want 2", got)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reads > 2*online {
		t.Errorf("members were read %d times for %d devices", w.reads, online)
	}
}
