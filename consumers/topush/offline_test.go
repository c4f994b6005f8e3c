package topush_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// desk takes offers.
type desk struct {
	got  []string
	fail error
}

func (d *desk) Offer(_ context.Context, offers []topush.Offer) error {
	if d.fail != nil {
		return d.fail
	}
	for _, o := range offers {
		d.got = append(d.got, fmt.Sprintf("%s %d > %v", o.Conversation, o.Message.Seq, o.Users))
	}
	return nil
}

func absent(d *desk, members int) func(*topush.Config) {
	return func(c *topush.Config) { c.Offline, c.OfflineMembers = d, members }
}

func TestMessagesAreOfferedToTheirRecipients(t *testing.T) {
	d, w := new(desk), newWorld()
	w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0), member("C", 2, 0), member("D", 0, 1)}
	s := w.stage(t, absent(d, 0))
	w.append(t, group, said(1, "A", "phone"))
	w.append(t, group, said(2, "B", ""), watermark.ReadAdvanced{User: "A", Read: 1})
	w.append(t, single, said(1, "A", ""))
	each(t, w, s, 0)
	handle(t, s, w.log) // a replay
	equal(t, "offered", d.got, []string{
		"group:g 1 > [B D]", // the sender's other devices are not notified, who has left is: it saw the message
		"group:g 2 > [A C]",
		"single:A:B 1 > [B]",
	})
}

// A large group notifies only those whom a message mentions, if they see it.
func TestALargeGroupOffersMentionsOnly(t *testing.T) {
	d, w := new(desk), newWorld()
	for i := range 5 {
		w.base[group] = append(w.base[group], member(watermark.UserID(fmt.Sprint("u", i)), 0, 0))
	}
	w.base[group] = append(w.base[group], member("late", 5, 0))
	s := w.stage(t, absent(d, 4))
	say := func(seq watermark.Seq, mentions ...watermark.UserID) {
		e := said(seq, "u0", "")
		e.Messages[0].Mentions = mentions
		e.Messages[0].Hash = e.Messages[0].SumHash()
		w.append(t, group, e)
	}
	say(1)
	say(2, "u3", "u1", "u0", "late", "stranger", "u3")
	each(t, w, s, 0)
	equal(t, "offered", d.got, []string{"group:g 2 > [u1 u3]"})
}

// Pushing live is over for a message that is too old; telling who is absent is
// not.
func TestOldMessagesAreOfferedOnce(t *testing.T) {
	d, w := new(desk), newWorld()
	w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0)}
	w.append(t, group, said(1, "A", ""))
	w.log[0].Time = time.Now().Add(-time.Hour)
	s := w.stage(t, absent(d, 0))
	handle(t, s, w.log)
	handle(t, s, w.log)
	equal(t, "offered", d.got, []string{"group:g 1 > [B]"})
	if got := w.told(); len(got) > 0 {
		t.Errorf("pushed %v", got)
	}
}

// An offer that was not taken keeps the record from being done with.
func TestAnOfferThatFailsIsMadeAgain(t *testing.T) {
	d, w := &desk{fail: errDied}, newWorld()
	w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0)}
	w.append(t, group, said(1, "A", ""))
	s := w.stage(t, absent(d, 0))
	if durable, err := s.Handle(t.Context(), w.log); !errors.Is(err, errDied) || durable != 0 || len(w.marks) != 0 {
		t.Fatalf("durable = %d, err = %v, marks %v", durable, err, w.marks)
	}
	d.fail = nil
	handle(t, s, w.log)
	equal(t, "offered", d.got, []string{"group:g 1 > [B]"})
}

// shelf takes records, and knows who is online.
type shelf struct {
	outs   []wire.Out
	online []watermark.UserID
	asked  int
	fail   error
}

func (s *shelf) Append(_ context.Context, outs []wire.Out) error {
	s.outs = append(s.outs, outs...)
	return nil
}

func (s *shelf) Online(_ context.Context, users []watermark.UserID) (map[watermark.UserID]bool, error) {
	s.asked++
	on := make(map[watermark.UserID]bool)
	for _, u := range users {
		on[u] = slices.Contains(s.online, u)
	}
	return on, s.fail
}

func TestAbsentUsersStandInRecords(t *testing.T) {
	shelf := &shelf{online: []watermark.UserID{"u0001", "B"}}
	l, err := topush.NewOfflineLog(topush.OfflineLog{Log: shelf, Topic: "offline", Presence: shelf})
	if err != nil {
		t.Fatal(err)
	}
	var many []watermark.UserID
	for i := range 1500 {
		many = append(many, watermark.UserID(fmt.Sprintf("u%04d", i)))
	}
	m := said(4, "A", "").Messages[0]
	m.Mentions = []watermark.UserID{"u1400", "u0001"}
	if err := l.Offer(t.Context(), []topush.Offer{
		{Conversation: group, Message: m, Users: many},
		{Conversation: single, Message: said(1, "A", "").Messages[0], Users: []watermark.UserID{"B"}},
	}); err != nil {
		t.Fatal(err)
	}
	if len(shelf.outs) != 2 || shelf.asked != 2 {
		t.Fatalf("%d records, presence asked %d times", len(shelf.outs), shelf.asked)
	}
	var got []string
	for _, out := range shelf.outs {
		o, err := wire.DecodeOffline(wire.Record{Value: out.Value})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(o.Users, "u0001") {
			t.Error("a user who is online stands in a record")
		}
		got = append(got, fmt.Sprintf("%s %s %s %d: %d users, %v", out.Topic, out.Key, o.Conversation, o.Seq, len(o.Users), o.Mentions))
	}
	equal(t, "records", got, []string{"offline group:g group:g 4: 1000 users, []", "offline group:g group:g 4: 499 users, [u1400]"})

	shelf.fail = errDied
	if err := l.Offer(t.Context(), []topush.Offer{{Conversation: group, Message: m, Users: many[:1]}}); !errors.Is(err, errDied) {
		t.Errorf("err = %v: nobody knows who is online", err)
	}
	_, err = topush.NewOfflineLog(topush.OfflineLog{})
	for _, want := range []string{"Log", "Topic", "Presence"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in %v", want, err)
		}
	}
}
