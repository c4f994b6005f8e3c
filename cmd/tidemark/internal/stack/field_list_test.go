package stack_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// lister is a device that keeps a user's list of conversations.
type lister struct {
	user, version string
	entries       map[string]*tidemarkv1.ConversationEntry
	removed       map[string]*tidemarkv1.ConversationEntry
	changed       map[string]bool // by the last sync, removed ones too
	full          bool
	pages, bytes  int // of the last sync; bytes of its largest page
	first, all    time.Duration
	last          *tidemarkv1.SyncConversationsResponse
}

func newLister(user string) *lister {
	return &lister{user: user, entries: map[string]*tidemarkv1.ConversationEntry{}, removed: map[string]*tidemarkv1.ConversationEntry{}}
}

func (d *lister) sync(r *rig, size int64) {
	r.t.Helper()
	req := &tidemarkv1.SyncConversationsRequest{User: d.user, Version: d.version, PageSize: size}
	d.changed, d.pages, d.bytes = map[string]bool{}, 0, 0
	began := time.Now()
	for {
		res, err := r.svc.SyncConversations(r.ctx(), req)
		if err != nil {
			r.t.Fatalf("page %d of the list of %s: %v", d.pages, d.user, err)
		}
		if d.pages++; d.pages == 1 {
			d.first = time.Since(began)
		}
		d.bytes = max(d.bytes, proto.Size(res))
		for _, e := range res.GetChanged() {
			id := e.GetWatermarks().GetConversation()
			d.entries[id], d.changed[id] = e, true
			delete(d.removed, id)
		}
		for _, e := range res.GetRemoved() {
			id := e.GetWatermarks().GetConversation()
			d.removed[id], d.changed[id] = e, true
			delete(d.entries, id)
		}
		d.last, d.full = res, res.GetFullResync()
		if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	d.all = time.Since(began)
	d.version = d.last.GetVersion()
	if d.full {
		maps.DeleteFunc(d.entries, func(id string, _ *tidemarkv1.ConversationEntry) bool { return !d.changed[id] })
	}
}

// wantList syncs d, checks which conversations came, and that d then shows what
// a device shows that reads all of it.
func (s *story) wantList(when string, d *lister, changed ...string) {
	s.t.Helper()
	d.sync(s.rig, 2)
	want := map[string]bool{}
	for _, c := range changed {
		want[c] = true
	}
	if diff := cmp.Diff(want, d.changed); diff != "" || d.full {
		s.t.Errorf("%s: what changed (-want +got), full %t:\n%s", when, d.full, diff)
	}
	s.between()
	whole := newLister(d.user)
	whole.sync(s.rig, 0)
	since := protocmp.IgnoreFields(&tidemarkv1.ConversationEntry{}, "revoked", "more_revoked")
	if diff := cmp.Diff(whole.entries, d.entries, protocmp.Transform(), since); diff != "" {
		s.t.Errorf("%s: the list (-full +followed):\n%s", when, diff)
	}
	if whole.last.GetTotalUnread() != d.last.GetTotalUnread() {
		s.t.Errorf("%s: %d unread in all, a full read says %d", when, d.last.GetTotalUnread(), whole.last.GetTotalUnread())
	}
	s.between()
}

func (s *story) attributes(user, conv string, attrs map[string]string) *tidemarkv1.CommandResponse {
	s.t.Helper()
	defer s.between()
	res, err := s.svc.SetConversationAttributes(s.ctx(), &tidemarkv1.SetConversationAttributesRequest{User: user, Conversation: conv, Attributes: attrs, OpId: s.op()})
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

func TestField_TheListFollowsVersions(t *testing.T) {
	tell(t, nil, func(s *story) {
		d := newLister(s.a)
		d.sync(s.rig, 0)
		if !d.full || len(d.entries) != 0 {
			s.t.Fatalf("a user of nothing: full %t, %v", d.full, d.entries)
		}
		s.wantList("nothing happened", d)
		s.say(s.c, s.b, 1, 3)
		s.wantList("B sent", d, s.c)
		if e := d.entries[s.c]; e.GetWatermarks().GetUnread() != 3 || e.GetLast().GetText() != "text of m3" {
			s.t.Errorf("B sent: %v", e)
		}
		s.join(s.g, s.a, tidemarkv1.History_HISTORY_NONE)
		s.join(s.g, s.b, tidemarkv1.History_HISTORY_NONE)
		s.wantList("joined", d, s.g)
		s.produce(s.g, fmt.Sprintf(`{"conversation":%q,"sender":%q,"clientMessageId":"m1","text":"you","mentions":[%q]}`, s.g, s.b, s.a))
		s.send(s.g, s.b, "m2")
		s.wantList("mentioned", d, s.g)
		if e := d.entries[s.g]; e.GetMentions() != 1 || e.GetWatermarks().GetUnread() != 2 {
			s.t.Errorf("mentioned: %v", e)
		}
		if d.last.GetTotalUnread() != 5 || d.last.GetTotalConversations() != 2 {
			s.t.Errorf("mentioned: totals %v", d.last)
		}
		s.read(s.a, s.g, 1)
		s.wantList("another device read", d, s.g)
		if e := d.entries[s.g]; e.GetMentions() != 0 || e.GetWatermarks().GetReadSeq() != 1 {
			s.t.Errorf("another device read: %v", e)
		}
		s.send(s.c, s.a, "m4")
		s.wantList("answered", d, s.c)
		if _, err := s.svc.MarkConversationRead(s.ctx(), &tidemarkv1.MarkConversationReadRequest{User: s.b, Conversation: s.c, ReadSeq: 4}); err != nil {
			s.t.Fatal(err)
		}
		s.between()
		s.wantList("the peer read", d, s.c)
		if e := d.entries[s.c]; e.GetWatermarks().GetPeerReceiptSeq() != 4 || !e.GetLast().GetIsRead() {
			s.t.Errorf("the peer read: %v", e)
		}
		res := s.attributes(s.a, s.g, map[string]string{"muted": "1", "pinned": "2"})
		if !res.GetChanged() || res.GetAttributes()["pinned"] != "2" {
			s.t.Errorf("set attributes: %v", res)
		}
		s.attributes(s.a, s.g, map[string]string{"pinned": ""})
		s.wantList("attributes", d, s.g)
		if e := d.entries[s.g]; e.GetAttributes()["muted"] != "1" || len(e.GetAttributes()) != 1 {
			s.t.Errorf("attributes: %v", e)
		}
		if d.last.GetTotalUnread() != 1 || d.last.GetTotalUnreadUnmuted() != 0 {
			s.t.Errorf("attributes: totals %v", d.last)
		}
		if _, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: s.g, Seq: 2, Actor: s.b}); err != nil {
			s.t.Fatal(err)
		}
		s.between()
		s.wantList("the last one revoked", d, s.g)
		if e := d.entries[s.g]; !e.GetLast().GetRevoked() || e.GetLast().GetBody() != nil || !slices.Equal(e.GetRevoked(), []int64{2}) {
			s.t.Errorf("the last one revoked: %v", e)
		}
		s.leave(s.g, s.a)
		s.send(s.g, s.b, "m3")
		s.wantList("kicked", d, s.g)
		if e := d.removed[s.g]; e.GetWatermarks().GetMaxSeq() != 2 || len(e.GetWatermarks().GetVisible()) != 1 || e.GetLast().GetSeq() != 2 {
			s.t.Errorf("kicked: %v", e)
		}
		s.send(s.g, s.b, "m4")
		s.wantList("nothing that A sees", d)
		s.join(s.g, s.a, tidemarkv1.History_HISTORY_NONE)
		s.wantList("back", d, s.g)
		if e := d.entries[s.g]; len(e.GetWatermarks().GetVisible()) != 1 || e.GetAttributes()["muted"] != "1" || e.GetLast().GetSeq() != 2 {
			s.t.Errorf("back: %v", e)
		}
		s.clear(s.c, s.a)
		s.wantList("cleared", d, s.c)
		if e := d.entries[s.c]; e.GetLast() != nil || e.GetWatermarks().GetUnread() != 0 {
			s.t.Errorf("cleared: %v", e)
		}
	})
}

// A device comes back after history was restored from a backup and its writer
// rewound to it: what the version says still holds.
func TestField_TheListSurvivesARewoundWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	r.say("single:A:B", "B", 1, 3)
	r.say("single:A:C", "C", 1, 2)
	r.settle()
	d := newLister("A")
	d.sync(r, 0)
	r.stop(stack.ToMongo)
	r.say("single:A:B", "B", 4, 5)
	r.flush()
	d.sync(r, 0)
	if d.full || len(d.changed) != 1 || d.entries["single:A:B"].GetWatermarks().GetUnread() != 5 {
		t.Errorf("while nothing writes history: full %t, %v", d.full, d.changed)
	}
	r.start(stack.ToMongo)
	r.settle()
	r.flush()
	d.sync(r, 0)
	if d.full || len(d.changed) != 0 {
		t.Errorf("history caught up: full %t, %v", d.full, d.changed)
	}
	d.version = d.version[:20] + d.version[21:]
	d.sync(r, 0)
	if !d.full || len(d.entries) != 2 {
		t.Errorf("a damaged version: full %t, %v", d.full, d.entries)
	}
}

// The list of a user with 10,000 conversations, of which 9,900 are idle and
// everything is cold. Times are reported, not judged.
func TestField_P4_TheListOfManyConversations(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const all, active, user, size = 10_000, 100, "me", 500
	conv := func(i int) string { return fmt.Sprintf("single:%s:peer%05d", user, i) }
	// The past is history's alone, as after a move from elsewhere: ten thousand
	// records through toMongo would only make the test slow.
	h := r.history()
	for from := 0; from < all; from += 1000 {
		var c watermark.Change
		for i := from; i < from+1000; i++ {
			id, peer := watermark.ConversationID(conv(i)), watermark.UserID(fmt.Sprintf("peer%05d", i))
			m := watermark.Message{
				Seq: 1, Sender: peer, ClientID: "m1", Kind: "text",
				SendTime: 1, RecordTime: int64(i + 1), BodyType: watermark.BodyText, Body: []byte("hello"),
			}
			m.Hash = m.SumHash()
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: m})
			c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: user, Read: watermark.Seq(i % 2)}},
				watermark.MemberRow{Conversation: id, Member: watermark.Member{User: peer, Read: 1}})
			c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: 1, LastTime: m.RecordTime})
		}
		if _, err := h.Write(r.ctx(), c); err != nil {
			t.Fatal(err)
		}
	}
	var outs []wire.Out
	for i := range active {
		c := conv(i * 97)
		outs = append(outs, wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: c, Value: []byte(line(c, user, "m2", "answer"))})
	}
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.flush()

	queries := func() float64 { return r.metric(stack.Sync, "tidemark_embedded_queries_total") }
	d := newLister(user)
	d.sync(r, size)
	t.Logf("first page %s, %d pages %s, largest %d bytes, %v history queries", d.first, d.pages, d.all, d.bytes, queries())
	if len(d.entries) != all || d.pages != all/size+1 {
		t.Errorf("%d conversations on %d pages", len(d.entries), d.pages)
	}
	if d.bytes > 4<<20 {
		t.Errorf("a page of %d bytes", d.bytes)
	}
	// Two reads of the list, at 5 queries per 1,000 conversations, and ten for
	// each page.
	if n, most := queries(), float64(2*5*all/1000+10*d.pages); n > most {
		t.Errorf("%v history queries for %d pages, at most %v", n, d.pages, most)
	}
	if d.last.GetTotalConversations() != all || d.last.GetTotalUnread() != int64(all-active)/2 {
		t.Errorf("totals %v", d.last)
	}
	for i := range all {
		e := d.entries[conv(i)]
		if w := e.GetWatermarks(); i%97 != 0 && (w.GetMaxSeq() != 1 || w.GetUnread() != int64(1-i%2) || e.GetLast().GetText() != "hello") {
			t.Fatalf("%v", e)
		}
	}
	before := queries()
	r.send(conv(5), "peer00005", "m2")
	d.sync(r, size)
	t.Logf("one of them changed: %d page, %s, %v history queries", d.pages, d.all, queries()-before)
	if len(d.changed) != 1 || d.pages != 1 {
		t.Errorf("%d changed on %d pages", len(d.changed), d.pages)
	}
}

// Both policies side by side, over the deployment's default.
func TestField_R8_PolicyOfAConversation(t *testing.T) {
	for name, def := range map[string]bool{"over advance_on_send": false, "over keep_on_send": true} {
		t.Run(name, func(t *testing.T) {
			change := keepOnSend
			if !def {
				change = nil
			}
			tell(t, change, func(s *story) {
				set := func(conv string, p tidemarkv1.UnreadPolicy, changed bool) {
					s.t.Helper()
					res, err := s.svc.SetUnreadPolicy(s.ctx(), &tidemarkv1.SetUnreadPolicyRequest{Conversation: conv, Policy: p})
					if err != nil || res.GetChanged() != changed {
						s.t.Fatalf("set policy of %s to %s: %v, %v", conv, p, res, err)
					}
					s.between()
				}
				set(s.c, tidemarkv1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND, true)
				set(s.g, tidemarkv1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND, true)
				set(s.g, tidemarkv1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND, false)
				for _, tc := range []struct {
					conv                 string
					read, after6, after7 int64
				}{{s.c, 0, 5, 6}, {s.g, 6, 0, 1}} {
					s.say(tc.conv, s.b, 1, 5)
					s.send(tc.conv, s.a, "m6")
					s.wantMarks("A sent 6", s.a, tc.conv, 6, tc.read, tc.after6)
					s.send(tc.conv, s.b, "m7")
					s.wantMarks("B sent 7", s.a, tc.conv, 7, tc.read, tc.after7)
					s.read(s.a, tc.conv, 7)
					s.wantMarks("A marked 7", s.a, tc.conv, 7, 7, 0)
				}
				set(s.g, tidemarkv1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED, true)
				s.send(s.g, s.b, "m8")
				s.send(s.g, s.a, "m9")
				if def {
					s.wantMarks("the default again", s.a, s.g, 9, 7, 1)
				} else {
					s.wantMarks("the default again", s.a, s.g, 9, 9, 0)
				}
			})
		})
	}
}

// What a user does on one device reaches the others: what it sends, how far it
// has read, what it sets.
func TestField_DevicesOfOneUserFollowOneAnother(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	url := r.roles[stack.ToPush].stack.GatewayURL()
	phone, web, peer := r.connectDevice("A", "phone", url), r.connectDevice("A", "web", url), r.connectDevice("B", "", url)
	const c = "single:A:B"
	r.say(c, "B", 1, 3)
	if _, err := r.svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: c, Sender: "A", ClientMessageId: "mine", Device: "phone", Body: &tidemarkv1.SendMessage_Text{Text: "from the phone"},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.svc.MarkConversationRead(r.ctx(), &tidemarkv1.MarkConversationReadRequest{User: "A", Conversation: c, ReadSeq: 4, Device: "phone"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.svc.SetConversationAttributes(r.ctx(), &tidemarkv1.SetConversationAttributesRequest{User: "A", Conversation: c, Attributes: map[string]string{"pinned": "1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.svc.SetUnreadPolicy(r.ctx(), &tidemarkv1.SetUnreadPolicyRequest{Conversation: c, Policy: tidemarkv1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		device *device
		events []string
	}{
		"the phone": {phone, []string{"message 1", "message 2", "message 3", "attributes map[pinned:1]", "policy"}},
		"the web":   {web, []string{"message 1", "message 2", "message 3", "message 4", "read 4", "attributes map[pinned:1]", "policy"}},
		"the peer":  {peer, []string{"message 1", "message 2", "message 3", "message 4", "receipt 4", "policy"}},
	} {
		r.eventually("pushes to "+name, func() error {
			if diff := cmp.Diff(want.events, want.device.events()); diff != "" {
				return fmt.Errorf("(-want +got)\n%s", diff)
			}
			return nil
		})
	}
	// A device that was away asks what changed: the mark is in it.
	away := newLister("A")
	away.sync(r, 0)
	if w := away.entries[c].GetWatermarks(); w.GetReadSeq() != 4 || away.entries[c].GetAttributes()["pinned"] != "1" {
		t.Errorf("a device that was away: %v", away.entries[c])
	}
	if _, err := r.svc.SetReadSeq(r.ctx(), &tidemarkv1.SetReadSeqRequest{User: "A", Conversation: c, ReadSeq: 4}); err != nil {
		t.Fatal(err)
	}
	r.send(c, "B", "m5")
	r.read("A", c, 5)
	away.sync(r, 0)
	if w := away.entries[c].GetWatermarks(); len(away.changed) != 1 || w.GetReadSeq() != 5 || w.GetUnread() != 0 {
		t.Errorf("it asks again: %v", away.entries[c])
	}
}

// events gives what was pushed, in short.
func (d *device) events() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, e := range d.pushes {
		switch k := e.GetKind().(type) {
		case *tidemarkv1.PushEvent_Message:
			out = append(out, fmt.Sprint("message ", k.Message.GetSeq()))
		case *tidemarkv1.PushEvent_Read:
			if k.Read.GetReadSeq() > 0 {
				out = append(out, fmt.Sprint("read ", k.Read.GetReadSeq()))
			} else {
				out = append(out, fmt.Sprint("receipt ", k.Read.GetReceiptSeq()))
			}
		case *tidemarkv1.PushEvent_Window:
			out = append(out, fmt.Sprint(k.Window.GetCause(), " ", k.Window.GetMember().GetAttributes()))
		case *tidemarkv1.PushEvent_Policy:
			out = append(out, "policy")
		default:
			out = append(out, fmt.Sprintf("%T", k))
		}
	}
	return out
}
