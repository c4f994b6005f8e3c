package hot_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestCrowds(t *testing.T) {
	e := newEnv(t)
	users := make([]watermark.UserID, 1500)
	for i := range users {
		users[i] = watermark.UserID(fmt.Sprint("u", i))
	}
	if trips := e.trips.during(func() {
		if err := e.Enlist(t.Context(), group, users, time.Hour); err != nil {
			t.Fatal(err)
		}
	}); trips != 2 {
		t.Errorf("round trips = %d, want 2", trips)
	}
	if err := e.Enlist(t.Context(), "group:other", users[:1], time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := e.Delist(t.Context(), group, users[1:2]); err != nil {
		t.Fatal(err)
	}
	got, err := e.Crowds(t.Context(), []watermark.UserID{"nobody", "u0", "u1", "u1499"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got[1])
	diff(t, "crowds", got, [][]watermark.ConversationID{nil, {group, "group:other"}, nil, {group}})
	if ttl := e.client.TTL(t.Context(), e.space.CrowdsKey("u1499")).Val(); ttl <= time.Hour {
		t.Errorf("a list expires in %v, before the mark that says that it is whole", ttl)
	}
}

func TestACrowdStandsWhileRedisIsTheSame(t *testing.T) {
	e := newEnv(t)
	standing := func() []time.Duration {
		t.Helper()
		left, err := e.StandingCrowds(t.Context(), []watermark.ConversationID{group, "group:other"})
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	diff(t, "at first", standing(), []time.Duration{0, 0})
	if err := e.StandCrowd(t.Context(), group, time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := standing(); left[0] < 50*time.Minute || left[1] != 0 {
		t.Errorf("left = %v, want about an hour and nothing", left)
	}
	e.do("SET", e.space.CrowdKey(group), "another server", "PX", 3_600_000)
	diff(t, "after a restart", standing(), []time.Duration{0, 0})
	if err := e.StandCrowd(t.Context(), group, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := e.FallCrowd(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	diff(t, "fallen", standing(), []time.Duration{0, 0})
}

func TestPresence(t *testing.T) {
	e := newEnv(t)
	now := time.UnixMilli(1_700_000_000_000)
	phone, web := hot.Connection{User: "ann", Device: "phone", Node: "n1"}, hot.Connection{User: "ann", Node: "n2"}
	again := hot.Connection{User: "ann", Device: "phone", Node: "n2"}
	touch := func(at time.Time, conns ...hot.Connection) {
		t.Helper()
		if err := e.Touch(t.Context(), conns, at); err != nil {
			t.Fatal(err)
		}
	}
	want := func(at time.Time, seen time.Time, devices ...string) {
		t.Helper()
		got, err := e.Presence(t.Context(), []watermark.UserID{"ann", "bob"}, at)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got[0].Devices)
		diff(t, "presence", got, []hot.Presence{{Devices: devices, LastSeen: seen}, {}})
	}
	want(now, time.Time{})
	touch(now, phone, web, again)
	want(now, now, "", "phone")
	later := now.Add(time.Minute)
	touch(later, web)
	want(now.Add(hot.PresenceTTL+time.Second), later, "") // nobody spoke of the phone any more
	if err := e.Gone(t.Context(), []hot.Connection{web}, later.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	want(later.Add(time.Second), later.Add(time.Second), "phone")
	if ttl := e.client.TTL(t.Context(), e.space.OnlineKey("ann")).Val(); ttl > hot.PresenceTTL {
		t.Errorf("connections expire in %v", ttl)
	}
	for i := range 150 {
		touch(later, hot.Connection{User: "ann", Device: fmt.Sprint("d", i), Node: "n1"})
	}
	got, err := e.Presence(t.Context(), []watermark.UserID{"ann"}, later)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got[0].Devices); n > 100 {
		t.Errorf("%d devices are kept, want at most 100", n)
	}
}
