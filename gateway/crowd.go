package gateway

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// unknown is where the seats of a crowd are before they were read.
	unknown = int64(-1)
	// maxWaiting bounds what waits while members are read; what comes beyond is
	// left to pulling.
	maxWaiting = 256
	// lingerEvery is how soon it is looked again whether a device has left.
	lingerEvery = time.Millisecond
)

// crowd is a large conversation as far as connected users of this node are in
// it. Who may hear what is decided by their windows, as they were read from
// the truth, and as changes have moved them since.
//
// The seats are right as of a place on the sequenced log: at. Each event names
// the place of the last change of a window before it. As long as at has come
// that far, no change was missed, and the event goes out. Otherwise one was lost
// on the way, or the node has only begun to listen: the event waits, and so does
// all that follows, until the members are read again. A read that began after
// an event had come knows all that its place covers.
type crowd struct {
	all     *crowds
	conv    watermark.ConversationID
	channel string
	held    func() error
	since   time.Time // when held was done

	mu        sync.Mutex
	closed    bool
	log       string
	at        int64
	seats     map[watermark.UserID]*seat
	unread    []watermark.UserID // of seats that wait for their first read
	reading   bool               // unread are being read
	checking  bool               // all seats are being read again
	waiting   []*centrifuge.Publication
	next      place         // the last place that was heard of while checking
	dropped   bool          // more came while checking than may wait
	droppedTo watermark.Seq // the highest seq of it
	heard     int64         // the highest seq that has come, let out or not
}

// place is how far the windows are on which log.
type place struct {
	log     string
	changed int64
}

// seat is a user's.
type seat struct {
	member watermark.Member
	here   bool // the truth knows the member
	read   bool // member was read
	conns  map[*conn][]watermark.Membership
}

// open tells whether the user hears what comes.
func (s *seat) open() bool { return s.read && s.here && s.member.Open() }

// enter seats c, and reads its window. It gives false when the crowd was closed
// meanwhile.
func (cr *crowd) enter(ctx context.Context, c *conn) bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if cr.closed {
		return false
	}
	u := c.who.User
	s := cr.seats[u]
	if s != nil {
		if _, ok := s.conns[c]; ok {
			return true
		}
	}
	if !c.join(cr) {
		if len(cr.seats) == 0 {
			cr.closeLocked()
		}
		return true
	}
	if s == nil {
		s = &seat{conns: make(map[*conn][]watermark.Membership)}
		cr.seats[u] = s
	}
	s.conns[c] = nil
	if s.read {
		cr.fitLocked(s)
		return true
	}
	if !slices.Contains(cr.unread, u) {
		cr.unread = append(cr.unread, u)
	}
	if !cr.reading {
		cr.reading = true
		cr.all.g.spawn(func() { cr.read(ctx) })
	}
	return true
}

// leave takes a connection that has ended out.
func (cr *crowd) leave(c *conn) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	s := cr.seats[c.who.User]
	if s == nil {
		return
	}
	delete(s.conns, c)
	if len(s.conns) == 0 {
		delete(cr.seats, c.who.User)
	}
	if len(cr.seats) == 0 {
		cr.closeLocked()
	}
}

// closeLocked closes an empty crowd; letting the channel go takes the broker.
func (cr *crowd) closeLocked() {
	if !cr.closed {
		cr.closed = true
		cr.all.g.spawn(func() { cr.all.close(cr) })
	}
}

// read reads the windows of users who have just come. While that goes on
// changes of their windows are heard and applied; the higher version stands.
func (cr *crowd) read(ctx context.Context) {
	for {
		cr.mu.Lock()
		n := min(len(cr.unread), maxRead)
		users := cr.unread[:n:n]
		cr.unread = cr.unread[n:]
		cr.reading = n > 0
		cr.mu.Unlock()
		if n == 0 || !cr.load(ctx, users) {
			return
		}
	}
}

// load reads the windows of users into their seats; false when ctx has ended.
func (cr *crowd) load(ctx context.Context, users []watermark.UserID) bool {
	g := cr.all.g
	for chunk := range slices.Chunk(users, maxRead) {
		var members map[watermark.UserID]watermark.Member
		err := g.patiently(ctx, "read members of a crowd", func() (err error) {
			members, _, err = g.cfg.Members.Members(ctx, cr.conv, chunk)
			return err
		})
		if err != nil {
			return false
		}
		cr.mu.Lock()
		for _, u := range chunk {
			m, here := members[u]
			cr.installLocked(u, m, here)
		}
		cr.mu.Unlock()
	}
	return true
}

// installLocked takes a window in, unless a newer one is known. It tells
// whether the devices of the user hear what they may and nothing else.
func (cr *crowd) installLocked(u watermark.UserID, m watermark.Member, here bool) bool {
	s := cr.seats[u]
	if s == nil {
		return true
	}
	if !s.read || m.Version >= s.member.Version {
		s.member, s.here, s.read = m, here, true
	}
	return cr.fitLocked(s)
}

// fitLocked makes the devices of a user hear what its window lets them. The
// node has the channel, so the broker is not asked and nothing waits.
func (cr *crowd) fitLocked(s *seat) (fits bool) {
	fits = true
	for c, had := range s.conns {
		name := c.channel(cr.channel)
		hears := c.client.IsSubscribed(name)
		if hears && (!s.open() || !slices.Equal(had, s.member.Memberships)) {
			c.client.Unsubscribe(name)
			// One that is still connecting is unsubscribed when it has connected,
			// and one that fails to be is closed: both take a moment.
			if hears = c.client.IsSubscribed(name); hears {
				fits = false
				continue
			}
		}
		if s.open() && !hears {
			s.conns[c] = slices.Clone(s.member.Memberships)
			if err := c.client.Subscribe(name, cr.filter(c, &s.member)); err != nil {
				cr.all.g.cfg.Logger.Warn("device not seated in its crowd", "conversation", cr.conv, "user", c.who.User, "error", err)
				c.client.Disconnect(centrifuge.DisconnectServerError)
				continue
			}
			cr.lookLocked(c)
		}
	}
	return fits
}

// lookLocked tells a device what it may have missed before it had its seat. Its
// client has asked what is new when it connected; if the node was listening by
// then, what has come since is known, and otherwise the client has to look.
func (cr *crowd) lookLocked(c *conn) {
	hint := &tidemarkv1.PushEvent{Conversation: string(cr.conv)}
	if cr.since.Before(c.since) {
		if hint.MaxSeq = cr.heard; hint.MaxSeq == 0 {
			return
		}
	}
	encode := protojson.Marshal
	if c.binary {
		encode = proto.Marshal
	}
	data, err := encode(hint)
	if err == nil {
		err = c.client.WritePublication(c.channel(userChannel(c.who.User)), &centrifuge.Publication{Data: data}, centrifuge.StreamPosition{})
	}
	if err != nil && !errors.Is(err, io.EOF) { // which is a device that has gone
		cr.all.g.cfg.Logger.Warn("device not told to look", "conversation", cr.conv, "user", c.who.User, "error", err)
	}
}

// filter lets pass what a member sees, save what its own device caused. What
// names no seq is for everybody.
func (cr *crowd) filter(c *conn, m *watermark.Member) centrifuge.SubscribeOption {
	some := []*centrifuge.FilterNode{{Key: tagSeq, Cmp: "nex"}}
	if !m.Known() {
		some = append(some, &centrifuge.FilterNode{Key: tagSeq, Cmp: "ex"})
	}
	for _, w := range m.Memberships {
		in := []*centrifuge.FilterNode{{Key: tagSeq, Cmp: "gte", Val: strconv.FormatInt(int64(max(w.Lower, 1)), 10)}}
		if w.Upper != 0 {
			in = append(in, &centrifuge.FilterNode{Key: tagSeq, Cmp: "lte", Val: strconv.FormatInt(int64(w.Upper), 10)})
		}
		some = append(some, &centrifuge.FilterNode{Op: "and", Nodes: in})
	}
	f := &centrifuge.FilterNode{Op: "or", Nodes: some}
	if c.who.Device != "" {
		f = &centrifuge.FilterNode{Op: "and", Nodes: []*centrifuge.FilterNode{except(c.who), f}}
	}
	return func(o *centrifuge.SubscribeOptions) { o.ServerTagsFilter = f }
}

// publication takes what came over the channel. Calls come one after the other.
func (cr *crowd) publication(pub *centrifuge.Publication) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	cr.heard = max(cr.heard, number(pub, tagSeq))
	switch {
	case cr.closed:
	case cr.checking:
		cr.waitLocked(pub)
	case !cr.takeLocked(pub):
		life := cr.all.g.life.Load()
		if life == nil {
			return
		}
		cr.checking = true
		cr.waitLocked(pub)
		cr.all.g.spawn(func() { cr.check(life) })
	}
}

// waitLocked keeps pub until the members are read.
func (cr *crowd) waitLocked(pub *centrifuge.Publication) {
	if pub.Tags[tagKind] == kindPassing {
		return
	}
	if p := placeOf(pub); p.log == cr.next.log {
		cr.next.changed = max(cr.next.changed, p.changed)
	} else {
		cr.next = p
	}
	n := int64(len(pub.Data))
	if len(cr.waiting) < maxWaiting {
		if cr.all.waits.Add(n) <= cr.all.most.Load() {
			cr.waiting = append(cr.waiting, pub)
			return
		}
		cr.all.waits.Add(-n)
	}
	cr.dropLocked(pub)
}

// forgetLocked takes the first n of what waits out.
func (cr *crowd) forgetLocked(n int) {
	for _, pub := range cr.waiting[:n] {
		cr.all.waits.Add(-int64(len(pub.Data)))
	}
	cr.waiting = cr.waiting[n:]
}

func (cr *crowd) dropLocked(pub *centrifuge.Publication) {
	cr.dropped = true
	cr.droppedTo = max(cr.droppedTo, watermark.Seq(number(pub, tagSeq)))
}

// takeLocked lets pub out, or does what it says to nodes. It gives false, and
// does nothing, when the members have to be read first.
func (cr *crowd) takeLocked(pub *centrifuge.Publication) bool {
	p := placeOf(pub)
	switch pub.Tags[tagKind] {
	case kindDissolve:
		cr.dissolveLocked()
		return true
	case kindPassing:
		if cr.at != unknown {
			cr.broadcast(pub)
		}
		return true
	case kindChange:
		if cr.log == p.log && cr.at >= p.changed {
			return true // what was read since covers it
		}
		if cr.log != p.log || cr.at < number(pub, tagBefore) || !cr.changeLocked(pub) {
			return false
		}
		cr.at = p.changed
		return true
	}
	if cr.log != p.log || cr.at < p.changed {
		return false
	}
	cr.broadcast(pub)
	return true
}

func (cr *crowd) changeLocked(pub *centrifuge.Publication) bool {
	event := &tidemarkv1.PushEvent{}
	if err := proto.Unmarshal(pub.Data, event); err != nil {
		return false
	}
	m, err := convert.MemberFromAPI(event.GetWindow().GetMember())
	return err == nil && cr.installLocked(m.User, m, true)
}

// dissolveLocked lets everybody go: what comes goes to each user again.
func (cr *crowd) dissolveLocked() {
	for _, s := range cr.seats {
		for c := range s.conns {
			c.part(cr)
			if name := c.channel(cr.channel); c.client.IsSubscribed(name) {
				c.client.Unsubscribe(name)
			}
		}
	}
	clear(cr.seats)
	cr.closeLocked()
}

func (cr *crowd) broadcast(pub *centrifuge.Publication) {
	g := cr.all.g
	if err := g.relay.broadcast(cr.channel, pub); err != nil {
		g.cfg.Logger.Error("event of a crowd not given to devices", "conversation", cr.conv, "error", err)
	}
}

// check reads all members again, and then lets out what has waited. It holds
// for what had come before the read began; if a change of windows came later, it
// is done again.
func (cr *crowd) check(ctx context.Context) {
	cr.all.g.m.checks.Inc()
	for {
		cr.mu.Lock()
		target := cr.next
		users := make([]watermark.UserID, 0, len(cr.seats))
		for u := range cr.seats {
			users = append(users, u)
		}
		cr.mu.Unlock()
		if !cr.load(ctx, users) {
			return
		}
		if cr.checked(ctx, target) {
			return
		}
	}
}

// checked lets out what has waited for a read that began at target, and tells
// whether that was all.
func (cr *crowd) checked(ctx context.Context, target place) bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	for !cr.allFitLocked() {
		cr.mu.Unlock()
		wait(ctx, lingerEvery)
		cr.mu.Lock()
		if ctx.Err() != nil {
			return true
		}
	}
	cr.log, cr.at = target.log, target.changed
	for len(cr.waiting) > 0 {
		pub := cr.waiting[0]
		if cr.closed {
			cr.forgetLocked(len(cr.waiting))
			return true
		}
		if kind := pub.Tags[tagKind]; kind == "" && placeOf(pub).log != cr.next.log {
			cr.dropLocked(pub) // of a log that was replaced
		} else if !cr.takeLocked(pub) {
			return false
		}
		cr.forgetLocked(1)
	}
	if cr.next != target {
		return false
	}
	cr.checking, cr.waiting = false, nil
	if cr.dropped {
		cr.hintLocked()
	}
	return true
}

func (cr *crowd) allFitLocked() bool {
	for _, s := range cr.seats {
		if s.read && !cr.fitLocked(s) {
			return false
		}
	}
	return true
}

// hintLocked tells that there is more than what was let out.
func (cr *crowd) hintLocked() {
	cr.all.g.m.hints.Inc()
	data, err := proto.Marshal(&tidemarkv1.PushEvent{Conversation: string(cr.conv), MaxSeq: int64(cr.droppedTo)})
	if err == nil {
		cr.broadcast(&centrifuge.Publication{Data: data, Tags: map[string]string{tagSeq: strconv.FormatInt(int64(cr.droppedTo), 10)}})
	}
	cr.dropped, cr.droppedTo = false, 0
}

func placeOf(pub *centrifuge.Publication) place {
	return place{pub.Tags[tagLog], number(pub, tagChanged)}
}

// number reads a tag; 0 where there is none.
func number(pub *centrifuge.Publication, tag string) int64 {
	n, _ := strconv.ParseInt(pub.Tags[tag], 10, 64)
	return n
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
