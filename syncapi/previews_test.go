package syncapi_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/watermark"
)

func TestPreviewsAreCut(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	long := strings.Repeat("é", 300)
	body := func(typ watermark.BodyType, b []byte) watermark.Message {
		return watermark.Message{BodyType: typ, Body: b}
	}
	peer := func(c string) convID { return watermark.SingleOf("A", "B"+userID(c)) }
	for _, c := range []string{"1", "2", "3", "4", "5", "6"} {
		w.with(peer(c), func(tk *talk) {})
	}
	many := watermark.Message{BodyType: watermark.BodyText, Body: []byte("hi"), Attributes: map[string]string{"k": strings.Repeat("v", 2000)}}
	for c, m := range map[string]watermark.Message{
		"1": body(watermark.BodyText, []byte("x"+long)), "2": body(watermark.BodyText, []byte("short")), "3": body(watermark.BodyData, make([]byte, 600)),
		"4": body(watermark.BodyData, make([]byte, 500)), "5": body(watermark.BodyJSON, []byte(`["`+long+`"]`)), "6": many,
	} {
		m.Sender = "B" + userID(c)
		m.ClientID, m.Kind = "x", "text"
		m.Hash = m.SumHash()
		w.with(peer(c), func(tk *talk) { w.sendLocked(tk, m) })
	}
	d := newDevice("A")
	d.sync(t, 0, nil, s)
	if got := d.entries[string(peer("1"))]; got.Last.GetText() != "x"+long[:510] || !got.LastCut {
		t.Errorf("a long text: %v", got)
	}
	for c, cut := range map[string]bool{"2": false, "3": true, "4": false, "5": true, "6": true} {
		if got := d.entries[string(peer(c))]; got.LastCut != cut || proto.Size(got) > 1000 {
			t.Errorf("%s: cut %v, %d bytes", c, got.LastCut, proto.Size(got))
		}
	}
}

func TestMentionsAreCountedUpToABound(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.join(group, "A", "B")
	for range 250 {
		w.call(t, group, "B", "A")
	}
	d := newDevice("A")
	for _, tt := range []struct {
		read seq
		n    int32
		more bool
	}{{0, 99, true}, {150, 99, true}, {151, 99, false}, {249, 1, false}, {250, 0, false}} {
		w.with(group, func(tk *talk) {
			m := tk.members["A"]
			m.Read = tt.read
			tk.members["A"] = m
		})
		d.version = ""
		d.sync(t, 0, nil, s)
		e := d.entries[string(group)]
		if e.Mentions != tt.n || e.MoreMentions != tt.more {
			t.Errorf("%+v: %d mentions, more %v", tt, e.Mentions, e.MoreMentions)
		}
	}
}

func TestOwnMessagesMentionNobodyToRead(t *testing.T) {
	w := newWorld()
	w.policy = watermark.KeepOnSend
	w.join(group, "A", "B")
	w.call(t, group, "B", "A")
	w.call(t, group, "A", "A", "B")
	d := newDevice("A")
	d.sync(t, 0, nil, newService(t, w, nil))
	if e := d.entries[string(group)]; e.Mentions != 1 || e.Watermarks.Unread != 1 {
		t.Errorf("%d mentions, %d unread", e.Mentions, e.Watermarks.Unread)
	}
}
