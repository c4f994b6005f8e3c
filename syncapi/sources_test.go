package syncapi_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// anomaly reads a counter of reg.
func anomaly(tb testing.TB, reg *prometheus.Registry, kind string) float64 {
	tb.Helper()
	families, err := reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "tidemark_syncapi_is_end_anomalies_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	tb.Fatalf("no counter of kind %s", kind)
	return 0
}

func counted(reg *prometheus.Registry) func(*syncapi.Config) {
	return func(c *syncapi.Config) { c.Registerer = reg }
}

func TestPullFillsFromTheTruthWhatRedisLacks(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*talk)
	}{
		{"warm", func(*talk) {}},
		{"hot log cut", func(t *talk) { t.hotFrom = 31 }},
		{"hot log empty", func(t *talk) { t.hotFrom = watermark.MaxSeq }},
		{"cold", func(t *talk) { t.warm = false }},
		{"reader unknown", func(t *talk) { t.unknown["A"] = true }},
		{"peer unknown", func(t *talk) { t.unknown["B"] = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.say(t, single, "B", 40)
			w.settle(single, "A", 6, 0)
			w.settle(single, "B", 0, 38)
			w.with(single, func(t *talk) {
				m := t.members["B"]
				m.Receipt = 40
				t.members["B"] = m
				tc.prepare(t)
			})
			s := newService(t, w, nil)
			for range 2 {
				p := pull(t, s, "A", &v1.PullRange{Conversation: string(single), Begin: 1, End: 100})
				want := page{Seqs: run(6, 40), Min: 6, Max: 40, IsEnd: true}
				if diff := cmp.Diff(want, pageOf(p)); diff != "" {
					t.Error(diff)
				}
				for _, m := range p.Messages {
					if m.IsRead != (m.Seq <= 38) {
						t.Errorf("is_read of %d: %v", m.Seq, m.IsRead)
					}
				}
			}
			if n := w.count("MergeMembers"); n > 1 {
				t.Errorf("members merged %d times", n)
			}
		})
	}
}

func TestPullLoadsColdConversationsTogether(t *testing.T) {
	w := newWorld()
	req := &v1.PullRequest{User: "A"}
	for _, id := range []convID{"group:a", "group:b", "single:A:B", "single:A:C"} {
		w.say(t, id, "A", 2)
		req.Ranges = append(req.Ranges, &v1.PullRange{Conversation: string(id), Begin: 1, End: 2})
	}
	w.flush()
	if _, err := newService(t, w, nil).Pull(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if len(w.loads) != 1 || len(w.loads[0]) != 4 {
		t.Fatalf("loads: %v", w.loads)
	}
	if diff := cmp.Diff([]userID{"A", "C"}, w.loads[0][3].Users); diff != "" {
		t.Error(diff)
	}
	if w.count("MergeMembers") != 0 || w.count("Messages") != 0 {
		t.Error("a cold conversation was installed or read in Redis")
	}
}

func TestPullWithTheTruthAwayServesWhatIsWarm(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 3)
	w.say(t, single, "A", 3)
	w.say(t, "group:cut", "B", 3)
	w.with(single, func(t *talk) { t.warm = false })
	w.with("group:cut", func(t *talk) { t.hotFrom = 3 })
	w.set(func() { w.truthDown = true })
	res, err := newService(t, w, nil).Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{
		{Conversation: string(group), Begin: 1, End: 3},
		{Conversation: string(single), Begin: 1, End: 3},
		{Conversation: "group:cut", Begin: 1, End: 3},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []page
	for _, p := range res.Pages {
		got = append(got, pageOf(p))
		if p.Error != nil && p.Error.RetryAfterMs <= 0 {
			t.Errorf("no time to try again: %v", p.Error)
		}
	}
	want := []page{{Seqs: run(1, 3), Min: 1, Max: 3, IsEnd: true}, {Error: "unavailable"}, {Error: "unavailable"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPullEndsBeforeARowThatIsNowhere(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    *v1.PullRange
		want page
	}{
		{"in the middle, near end", &v1.PullRange{Begin: 1, End: 10, Order: desc}, page{Seqs: run(10, 6), Rest: [2]int64{1, 5}, Min: 1, Max: 10}},
		{"in the middle, near begin", &v1.PullRange{Begin: 1, End: 10, Order: asc, Keep: nearBegin}, page{Seqs: run(1, 4), Rest: [2]int64{5, 10}, Min: 1, Max: 10}},
		{"at the kept edge", &v1.PullRange{Begin: 1, End: 5, Order: asc}, page{Error: "unavailable"}},
		{"at the other edge", &v1.PullRange{Begin: 5, End: 10, Order: desc}, page{Seqs: run(10, 6), Rest: [2]int64{5, 5}, Min: 1, Max: 10}},
	} {
		for _, warm := range []bool{true, false} {
			w := newWorld()
			w.say(t, group, "B", 10)
			w.with(group, func(t *talk) { t.lost[5], t.warm = true, warm })
			reg := prometheus.NewRegistry()
			s := newService(t, w, counted(reg))
			tc.r.Conversation = string(group)
			p := pull(t, s, "A", tc.r)
			if diff := cmp.Diff(tc.want, pageOf(p)); diff != "" {
				t.Errorf("%s, warm %v: %s", tc.name, warm, diff)
			}
			if got := anomaly(t, reg, "gap"); got != 1 {
				t.Errorf("%s, warm %v: %v gaps counted", tc.name, warm, got)
			}
			if got := w.count("Views"); got != 2 {
				t.Errorf("%s, warm %v: bounds were read %d times", tc.name, warm, got)
			}
			if p.Error != nil && p.Error.RetryAfterMs <= 0 {
				t.Errorf("%s: no time to try again", tc.name)
			}
		}
	}
}

func TestPullReadsTheBoundsAgainBeforeItSaysGap(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*talk)
		want   page
	}{
		{"deleted meanwhile", func(t *talk) {
			t.Min = 8
			for s := seq(1); s < 8; s++ {
				delete(t.rows, s)
			}
		}, page{Seqs: run(8, 10), Min: 8, Max: 10, IsEnd: true}},
		{"never appended", func(t *talk) {
			delete(t.rows, 10)
			t.Max, t.warm = 9, false
		}, page{Seqs: run(1, 9), Min: 1, Max: 9, IsEnd: true}},
		{"all deleted", func(t *talk) {
			t.Min = 11
			clear(t.rows)
		}, page{Min: 11, Max: 10, IsEnd: true}},
		{"reader removed", func(t *talk) {
			t.members["A"] = watermark.Member{User: "A", Version: 9}
			clear(t.rows)
		}, page{Min: 1, Max: 0, IsEnd: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.say(t, group, "B", 10)
			w.set(func() { w.beforeMessages = func() { w.with(group, tc.change) } })
			reg := prometheus.NewRegistry()
			p := pull(t, newService(t, w, counted(reg)), "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 10})
			if diff := cmp.Diff(tc.want, pageOf(p)); diff != "" {
				t.Error(diff)
			}
			if got := anomaly(t, reg, "gap"); got != 0 {
				t.Errorf("%v gaps counted", got)
			}
		})
	}
}

func TestPullCountsAnomalies(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	w.with(group, func(t *talk) { t.Min = 5 })
	reg := prometheus.NewRegistry()
	var lines bytes.Buffer
	s := newService(t, w, func(c *syncapi.Config) {
		c.Registerer, c.Logger = reg, slog.New(slog.NewTextHandler(&lines, nil))
	})
	pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 2})
	if got := lines.String(); !strings.Contains(got, "kind=empty conversation=group:g1 user=A begin=1 end=2") {
		t.Errorf("logged %q", got)
	}
	if got := anomaly(t, reg, "empty"); got != 1 {
		t.Errorf("empty: %v", got)
	}
	for i := range 5 {
		pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: 5, End: 9})
		pull(t, s, userID("ABCDE"[i:i+1]), &v1.PullRange{Conversation: string(group), Begin: 6, End: 9})
	}
	if got := anomaly(t, reg, "repeat"); got != 3 {
		t.Errorf("repeat: %v after 5 times the same range", got)
	}
	if got := anomaly(t, reg, "gap"); got != 0 {
		t.Errorf("gap: %v", got)
	}
	if n := strings.Count(lines.String(), "page anomaly"); n != 2 {
		t.Errorf("%d lines of two kinds within a second", n)
	}
}

// Each kind of anomaly is counted, and has a line of its own from which the
// request can be made again, at most one a second.
func TestEveryKindOfAnomalyIsCountedAndCanBeReplayed(t *testing.T) {
	for kind, tc := range map[string]struct {
		world func(w *world)
		r     *v1.PullRange
		calls int
		line  string
	}{
		"empty":  {func(w *world) { w.with(group, func(t *talk) { t.Min = 5 }) }, &v1.PullRange{Begin: 1, End: 2}, 1, "begin=1 end=2 num=0 order=asc keep=end"},
		"repeat": {func(*world) {}, &v1.PullRange{Begin: 2, End: 4, Num: 3, Order: desc, Keep: nearBegin}, 3, "begin=2 end=4 num=3 order=desc keep=begin"},
		"gap":    {func(w *world) { w.with(group, func(t *talk) { t.lost[5] = true }) }, &v1.PullRange{Begin: 1, End: 10, Order: desc}, 1, "begin=1 end=10 num=0 order=desc keep=end"},
		"ahead":  {func(*world) {}, &v1.PullRange{Begin: 12, End: 40, Num: 20}, 1, "begin=12 end=40 num=20 order=asc keep=end"},
		"shrank": {func(w *world) {
			raised := func(t *talk) {
				t.Min = 8
				for seq := range watermark.Seq(8) {
					t.lost[seq] = true
				}
			}
			w.set(func() { w.beforeMessages = func() { w.with(group, raised) } })
		}, &v1.PullRange{Begin: 1, End: 10}, 1, "begin=1 end=10 num=0 order=asc keep=end"},
	} {
		w := newWorld()
		w.say(t, group, "B", 10)
		tc.world(w)
		reg := prometheus.NewRegistry()
		var lines bytes.Buffer
		s := newService(t, w, func(c *syncapi.Config) {
			c.Registerer, c.Logger = reg, slog.New(slog.NewTextHandler(&lines, nil))
		})
		tc.r.Conversation = string(group)
		for range tc.calls {
			pull(t, s, "A", tc.r)
		}
		for _, other := range []string{"empty", "repeat", "gap", "ahead", "shrank"} {
			if got := anomaly(t, reg, other); got != map[bool]float64{true: 1}[other == kind] {
				t.Errorf("%s: %v of %s are counted", kind, got, other)
			}
		}
		want := "kind=" + kind + " conversation=group:g1 user=A " + tc.line + "\n"
		if got := lines.String(); strings.Count(got, "page anomaly") != 1 || !strings.HasSuffix(got, want) {
			t.Errorf("%s: logged %q, want %q", kind, got, want)
		}
	}
}

// A caller who has everything asks for what comes next, with or without an end.
func TestWhoIsUpToDateIsNotAhead(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	reg := prometheus.NewRegistry()
	s := newService(t, w, counted(reg))
	for _, begin := range []int64{1, 10, 11} {
		pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: begin, End: 1 << 52})
	}
	if got := anomaly(t, reg, "ahead"); got != 0 {
		t.Errorf("%v are ahead", got)
	}
}

func TestRedisAwayIsUnavailable(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	w.set(func() { w.hotDown = true })
	reg := prometheus.NewRegistry()
	for name, c := range clients(t, newService(t, w, counted(reg))) {
		_, err := c.Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{{Conversation: string(group), Begin: 1, End: 1}}})
		wantUnavailable(t, name, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidemark_syncapi_calls_total" {
			if m := f.GetMetric(); len(m) != 1 || m[0].GetCounter().GetValue() != 3 {
				t.Errorf("calls: %v", m)
			}
		}
	}
}

// wantUnavailable checks that err says when to try again and nothing of what
// lies behind.
func wantUnavailable(t *testing.T, name string, err error) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%s: %v", name, err)
		return
	}
	fault := err.(*connect.Error)
	if got := fault.Meta().Get("Retry-After"); got != "1" {
		t.Errorf("%s: Retry-After %q", name, got)
	}
	if fault.Message() != "a store cannot be reached at the moment" {
		t.Errorf("%s: message %q", name, fault.Message())
	}
	if d := detail(t, err); d.GetMessage() != "store" || d.GetRetryAfterMs() != 1000 {
		t.Errorf("%s: detail %v", name, d)
	}
}

// detail gives what comes with an error: its reason as the message, and when to
// try again.
func detail(t *testing.T, err error) *v1.EntryError {
	t.Helper()
	out := new(v1.EntryError)
	fault, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Errorf("%v is no Connect error", err)
		return out
	}
	for _, d := range fault.Details() {
		value, err := d.Value()
		if err != nil {
			t.Error(err)
		}
		switch x := value.(type) {
		case *errdetails.ErrorInfo:
			out.Message = x.GetReason()
			if x.GetDomain() != syncapi.ErrorDomain {
				t.Errorf("domain %q", x.GetDomain())
			}
		case *errdetails.RetryInfo:
			out.RetryAfterMs = x.GetRetryDelay().AsDuration().Milliseconds()
		}
	}
	if out.Message == "" {
		t.Errorf("no reason in %v", err)
	}
	return out
}

func TestMembersLoadedForAnOlderWarmUpAreServedAndNotMerged(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 5)
	w.settle(single, "A", 3, 0)
	w.with(single, func(t *talk) { t.unknown["A"] = true })
	w.set(func() {
		w.beforeLoad = func() { w.with(single, func(t *talk) { t.warmUps++ }) }
	})
	s := newService(t, w, nil)
	for range 2 {
		got := pageOf(pull(t, s, "A", &v1.PullRange{Conversation: string(single), Begin: 1, End: 5}))
		if diff := cmp.Diff(page{Seqs: run(3, 5), Min: 3, Max: 5, IsEnd: true}, got); diff != "" {
			t.Error(diff)
		}
	}
	if n := w.count("MergeMembers"); n != 2 {
		t.Errorf("merged %d times", n)
	}
	if w.convs[single].unknown["A"] {
		t.Error("the second load was not taken")
	}
}

func TestPullReadsNoMoreThanItServes(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 1000)
	w.with(group, func(t *talk) {
		for s, m := range t.rows {
			m.Body = bytes.Repeat([]byte("x"), 10_000)
			t.rows[s] = m
		}
	})
	s := newService(t, w, nil)
	for _, keep := range []v1.Keep{nearEnd, nearBegin} {
		p := pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 1000, Num: 1000, Keep: keep})
		if n := len(p.Messages); n < 200 || n > 210 || p.Rest == nil {
			t.Errorf("%v: %d messages of 10 kB, rest %v", keep, n, p.Rest)
		}
	}
	if n := w.count("truth.Messages"); n != 0 {
		t.Errorf("the truth was read %d times for rows that did not fit", n)
	}
}

func TestAPageThatIsLaidOutAnewHasItsWholeRoomAgain(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	r := &v1.PullRange{Conversation: string(group), Begin: 1, End: 10, Order: desc}
	full := pull(t, newService(t, w, nil), "A", r)
	size := 0
	for _, m := range full.Messages {
		size += proto.Size(m) + 6
	}
	w.with(group, func(t *talk) { t.lost[3] = true })
	s := newService(t, w, func(c *syncapi.Config) { c.PageBytes = size })
	if diff := cmp.Diff(run(10, 4), seqsOf(pull(t, s, "A", r))); diff != "" {
		t.Error(diff)
	}
}
