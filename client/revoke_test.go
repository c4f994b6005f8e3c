package client_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
)

const tea = "group:tea"

// shown gives what a device shows of a conversation: of each seq what was
// handed over last.
func (d *device) shown(conv string) map[string]string {
	out := map[string]string{}
	for _, text := range d.got[conv] {
		seq, body, _ := strings.Cut(strings.TrimPrefix(text, "again "), ":")
		out[seq] = body
	}
	return out
}

func (s *server) shows(conv string) map[string]string {
	out := map[string]string{}
	for i, body := range s.bodies[conv] {
		if slices.Contains(s.gone[conv], int64(i+1)) {
			body = ""
		}
		out[fmt.Sprint(i+1)] = body
	}
	return out
}

func catchUp(t *testing.T, s *server, d *device) {
	t.Helper()
	if err := d.client(t, s, false, nil).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasRevokedMeanwhileComesAsATombstone(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send(tea, 40)
	catchUp(t, s, d)
	s.revoke(tea, 39, 3, 4, 17)
	s.send(tea, 2)
	s.revoke(tea, 42)
	d.got[tea] = nil
	pulls := s.pulls
	catchUp(t, s, d)
	if diff := cmp.Diff([]string{"41:m41", "42:", "again 3:", "again 4:", "again 17:", "again 39:"}, d.got[tea]); diff != "" {
		t.Errorf("handed over (-want +got)\n%s", diff)
	}
	if n := s.pulls - pulls; n != 2 {
		t.Errorf("%d pulls, want one for the new messages and one for all tombstones", n)
	}
	d.got[tea] = nil
	catchUp(t, s, d)
	if s.pulls != pulls+2 || len(d.got[tea]) > 0 {
		t.Errorf("what is known is pulled again: %v", d.got[tea])
	}
}

func TestMoreRevokesThanCanBeNamed(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send(tea, 40)
	catchUp(t, s, d)
	s.many = true
	s.revoke(tea, 2, 20, 31)
	catchUp(t, s, d)
	if diff := cmp.Diff(s.shows(tea), d.shown(tea)); diff != "" {
		t.Errorf("the device shows (-want +got)\n%s", diff)
	}
}

// A device that was killed while it took in a revoke takes it in afterwards.
func TestADeathAmongTombstones(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, d := newServer(), newDevice()
		s.send(tea, rapid.IntRange(1, 30).Draw(rt, "messages"))
		for range rapid.IntRange(1, 8).Draw(rt, "lives") {
			d.die = rapid.IntRange(-1, 12).Draw(rt, "dies after")
			_ = d.client(rt, s, false, nil).Run(t.Context())
			all := int64(len(s.bodies[tea]))
			for range rapid.IntRange(0, 4).Draw(rt, "revokes") {
				if seq := rapid.Int64Range(1, all).Draw(rt, "revoked"); !slices.Contains(s.gone[tea], seq) {
					s.revoke(tea, seq)
				}
			}
			s.send(tea, rapid.IntRange(0, 3).Draw(rt, "more"))
			switch rapid.SampledFrom([]string{"nothing", "nothing", "version", "log"}).Draw(rt, "lost") {
			case "version":
				d.list.kept = ""
			case "log":
				s.log += "x"
			}
		}
		d.die = -1
		if err := d.client(rt, s, false, nil).Run(t.Context()); err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(s.shows(tea), d.shown(tea)); diff != "" {
			rt.Errorf("the device shows (-want +got)\n%s", diff)
		}
	})
}

func TestAPushedRevokeIsATombstone(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send(tea, 5)
	live(t, s, d, nil, func(func()) {
		s.revoke(tea, 2)
		s.event(&tidemarkv1.PushEvent{Conversation: tea, MaxSeq: 5, Kind: &tidemarkv1.PushEvent_Revoked{Revoked: &tidemarkv1.Revoked{Seq: 2}}})
	})
	if got := d.got[tea]; got[len(got)-1] != "again 2:" {
		t.Errorf("handed over %v, the tombstone is missing", got)
	}
}

// Pushes that are lost, with nothing after them that would show it, are found
// within the time of a recheck.
func TestLostPushesAreFoundByTheRecheck(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send(tea, 5)
	var lists, late int
	live(t, s, d, func(c *client.Config) { c.Recheck = 10 * time.Minute }, func(settle func()) {
		s.send(tea, 1)
		s.revoke(tea, 2)
		s.mu.Lock()
		s.read[tea] = 4
		s.mu.Unlock()
		lists = s.asked()
		time.Sleep(9*time.Minute - time.Second) // of the test's own clock
		settle()
		late = s.asked()
		time.Sleep(2*time.Minute + time.Second)
		synctest.Wait()
	})
	if late != lists {
		t.Error("the list was asked for before its time")
	}
	if got := s.asked() - lists; got != 1 {
		t.Errorf("the list was asked for %d times, want once", got)
	}
	if diff := cmp.Diff(s.shows(tea), d.shown(tea)); diff != "" {
		t.Errorf("the device shows (-want +got)\n%s", diff)
	}
	if d.store[tea].Read != 4 {
		t.Errorf("the read mark is %d, want 4", d.store[tea].Read)
	}
}
