package syncapi_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/syncapi"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func limitedService(t *testing.T, w *world, c *clock, l syncapi.UserLimits, more func(*syncapi.Config)) string {
	return serve(t, newService(t, w, func(cfg *syncapi.Config) {
		cfg.Authenticate, cfg.UserLimits, cfg.Now = tokens, l, c.now
		if more != nil {
			more(cfg)
		}
	}))
}

// wantLimited checks that err names the limit and says when to come again.
func wantLimited(t *testing.T, what string, err error, reason string, after time.Duration) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("%s: %v, want %s", what, err, reason)
		return
	}
	d := detail(t, err)
	if d.GetMessage() != reason || d.GetRetryAfterMs() != after.Milliseconds() {
		t.Errorf("%s: %s, again in %d ms; want %s, %s", what, d.GetMessage(), d.GetRetryAfterMs(), reason, after)
	}
	header, parseErr := strconv.Atoi(err.(*connect.Error).Meta().Get("Retry-After"))
	if parseErr != nil || header != int((after+time.Second-1)/time.Second) {
		t.Errorf("%s: Retry-After %d, want %s", what, header, after)
	}
}

func numbers(t *testing.T, c client) error {
	t.Helper()
	_, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{Conversations: []string{string(single)}})
	return err
}

func TestAUserWhoCallsTooOften(t *testing.T) {
	w, c := community(t), newClock()
	reg := prometheus.NewRegistry()
	url := limitedService(t, w, c, syncapi.UserLimits{Requests: 2, Burst: 5}, counted(reg))
	a, b, admin := as(t, url, "user:A"), as(t, url, "user:B"), as(t, url, "admin:A")
	grpc := httpClient(t, true)
	grpc.Transport = bearer{"user:A", grpc.Transport}
	overGRPC := tidemarkv1connect.NewSyncServiceClient(grpc, url, connect.WithGRPC())
	for range 5 {
		if err := numbers(t, a); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // a call that is refused costs nothing
		wantLimited(t, "json", numbers(t, a), "requests", 500*time.Millisecond)
		wantLimited(t, "grpc", numbers(t, overGRPC), "requests", 500*time.Millisecond)
	}
	if err := numbers(t, b); err != nil {
		t.Errorf("another user: %v", err)
	}
	for range 20 {
		if err := numbers(t, admin); err != nil {
			t.Errorf("an administrator: %v", err)
		}
	}
	c.move(500 * time.Millisecond)
	if err := numbers(t, a); err != nil {
		t.Errorf("after the pause: %v", err)
	}
	c.move(-time.Hour) // a clock that is set back takes nothing
	wantLimited(t, "set back", numbers(t, a), "requests", 500*time.Millisecond)
	c.move(time.Hour)
	c.move(time.Hour)
	for range 5 {
		if err := numbers(t, a); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	}
	wantLimited(t, "the burst is all", numbers(t, a), "requests", 500*time.Millisecond)
	if got := counter(t, reg, "tidemark_syncapi_limited_calls_total", "requests"); got != 22 {
		t.Errorf("%v counted", got)
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no counter %s %s", name, label)
	return 0
}

func TestAUserWhoWasSentTooMuch(t *testing.T) {
	w, c := community(t), newClock()
	w.say(t, single, "B", 400)
	url := limitedService(t, w, c, syncapi.UserLimits{Bytes: 1000, BytesBurst: 2000}, nil)
	a := as(t, url, "user:A")
	page := &v1.PullRequest{Ranges: []*v1.PullRange{{Conversation: string(single), Begin: 1, End: 1000, Num: 400}}}
	if res, err := a.Pull(t.Context(), page); err != nil || len(res.Pages[0].Messages) != 400 {
		t.Fatalf("the first page is served whole: %v, %v", res, err)
	}
	_, err := a.Pull(t.Context(), page)
	wait := time.Duration(detail(t, err).GetRetryAfterMs()) * time.Millisecond
	if detail(t, err).GetMessage() != "bytes" || wait < 5*time.Second || wait > time.Minute {
		t.Fatalf("%v, again in %s", err, wait)
	}
	c.move(wait - 10*time.Millisecond)
	if err := numbers(t, a); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("too early: %v", err)
	}
	c.move(20 * time.Millisecond)
	if err := numbers(t, a); err != nil {
		t.Errorf("in time: %v", err)
	}
	if err := numbers(t, as(t, url, "user:B")); err != nil {
		t.Errorf("another user: %v", err)
	}
}

func TestAUserWithManyCallsAtOnce(t *testing.T) {
	w := community(t)
	w.set(func() { w.slow = true })
	url := limitedService(t, w, newClock(), syncapi.UserLimits{InFlight: 3}, nil)
	a := as(t, url, "user:A")
	var g errgroup.Group
	for i := range 3 {
		g.Go(func() error {
			_, err := a.Send(t.Context(), &v1.SendRequest{WaitForSeq: true, Message: &v1.SendMessage{
				Conversation: string(single), ClientMessageId: fmt.Sprint(i), Body: &v1.SendMessage_Text{Text: "t"}}})
			return err
		})
	}
	until(t, "three calls wait", func() bool { return w.count("AppendSend") == 3 })
	wantLimited(t, "the fourth", numbers(t, a), "in_flight", time.Second)
	if err := numbers(t, as(t, url, "user:B")); err != nil {
		t.Errorf("another user: %v", err)
	}
	w.set(func() {
		w.slow = false
		for _, k := range w.held {
			w.answers[k.key] = k.answer
		}
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	until(t, "the calls are over", func() bool { return numbers(t, a) == nil })
}

func TestTheProcessServesSoManyCalls(t *testing.T) {
	w := community(t)
	w.set(func() { w.slow = true })
	url := serve(t, newService(t, w, func(c *syncapi.Config) { c.MaxInFlight = 1 }))
	c := as(t, url, "")
	var g errgroup.Group
	g.Go(func() error {
		_, err := c.Send(t.Context(), &v1.SendRequest{WaitForSeq: true, Message: message(single, "A")})
		return err
	})
	until(t, "the call waits", func() bool { return w.count("AppendSend") == 1 })
	_, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A"})
	wantLimited(t, "the second", err, "busy", time.Second)
	w.set(func() {
		for _, k := range w.held {
			w.answers[k.key] = k.answer
		}
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	until(t, "there is room again", func() bool {
		_, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A"})
		return err == nil
	})
}

func TestARequestIsMeasuredBeforeItIsRead(t *testing.T) {
	url := serve(t, newService(t, newWorld(), func(c *syncapi.Config) { c.MaxRequest, c.Authenticate = 1000, tokens }))
	for name, tc := range map[string]struct {
		size   int
		header string
		status int
	}{"too large": {1001, "Bearer user:A", 429}, "too large of nobody": {1001, "", 429}, "as large as may be": {1000, "Bearer user:A", 400}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+tidemarkv1connect.SyncServicePullProcedure, strings.NewReader(strings.Repeat(" ", tc.size)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", tc.header)
		res, err := httpClient(t, false).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tc.status {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
}
