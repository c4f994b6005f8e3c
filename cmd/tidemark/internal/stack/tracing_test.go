package stack_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// spans is a collector.
type spans struct {
	url string

	mu  sync.Mutex
	all []*otlp.Span
}

func newSpans(t *testing.T) *spans {
	t.Helper()
	s := &spans{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req collector.ExportTraceServiceRequest
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(b, &req)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, rs := range req.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				s.all = append(s.all, ss.GetSpans()...)
			}
		}
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// chain gives the names of the spans of a trace, each below the one before it,
// from the span below parent on.
func (s *spans) chain(trace, parent string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var below []string
	for _, x := range s.all {
		if fmt.Sprintf("%x", x.GetTraceId()) != trace || fmt.Sprintf("%x", x.GetParentSpanId()) != parent {
			continue
		}
		id := fmt.Sprintf("%x", x.GetSpanId())
		below = append(below, x.GetName())
		s.mu.Unlock()
		rest := s.chain(trace, id)
		s.mu.Lock()
		for _, r := range rest {
			below = append(below, x.GetName()+" > "+r)
		}
	}
	slices.Sort(below)
	return below
}

// of gives the spans of a name, as headers have them.
func (s *spans) of(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, x := range s.all {
		if x.GetName() == name {
			out = append(out, fmt.Sprintf("00-%x-%x-01", x.GetTraceId(), x.GetSpanId()))
		}
	}
	slices.Sort(out)
	return out
}

// listen gives the traces of what a connected device is pushed.
func (r *rig) listen(user string) func() []string {
	r.t.Helper()
	var mu sync.Mutex
	var traces []string
	ctx, stop := context.WithCancel(r.t.Context())
	connected, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- (&client.WebSocket{URL: r.roles[stack.ToPush].stack.GatewayURL(), User: watermark.UserID(user), Device: "d"}).Stream(ctx,
			func() {
				select {
				case connected <- struct{}{}:
				default:
				}
			},
			func(e *tidemarkv1.PushEvent) {
				mu.Lock()
				defer mu.Unlock()
				if e.GetTraceparent() != "" {
					traces = append(traces, e.GetTraceparent())
				}
			})
	}()
	r.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	select {
	case <-connected:
	case <-r.ctx().Done():
		r.t.Fatal("the device is not connected")
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(traces))
	}
}

const (
	traceA, traceB = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
	parentSpan     = "b7ad6b7169203331"
)

// kept gives those of traces whose flag says that they are, and how many others
// there are.
func kept(traces []string) (sampled []string, others int) {
	for _, x := range traces {
		switch {
		case strings.HasSuffix(x, "-01"):
			sampled = append(sampled, x)
		case x != "":
			others++
		}
	}
	slices.Sort(sampled)
	return sampled, others
}

// TestATraceGoesFromTheProducerToDevicesAndWebhook: through Kafka and all stages,
// below what the producer began, to who is connected and who is not; also
// through the sync API.
func TestATraceGoesFromTheProducerToDevicesAndWebhook(t *testing.T) {
	s, h := newSpans(t), newHook(t)
	r := newRig(t, func(c *config.Config) {
		h.configure(c)
		c.Tracing.Endpoint, c.Tracing.Ratio = s.url, 0
	})
	r.start(append(stack.Roles(), stack.ToOffline)...)
	t.Cleanup(func() { r.stop(stack.ToOffline) })
	const conv, other, third = "group:traced", "group:called", "group:untraced"
	for _, c := range []string{conv, other, third} {
		r.join(c, "B", tidemarkv1.History_HISTORY_NONE)
		r.join(c, "C", tidemarkv1.History_HISTORY_NONE)
	}
	pushed := r.listen("C") // B is absent
	outs := r.outs(conv, line(conv, "A", "1", "text"))
	outs[0].Headers = []wire.Header{{Key: "traceparent", Value: []byte("00-" + traceA + "-" + parentSpan + "-01")}}
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		t.Fatal(err)
	}
	svc := tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: withHeader{"traceparent", "00-" + traceB + "-" + parentSpan + "-01"}}, r.roles[stack.Sync].stack.SyncURL())
	if _, err := svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: other, Sender: "A", ClientMessageId: "2", Body: &tidemarkv1.SendMessage_Text{Text: "text"},
	}}); err != nil {
		t.Fatal(err)
	}
	// One that the producer does not want kept, and one of nobody.
	unwanted := r.outs(third, line(third, "A", "3", "text"), line(third, "A", "4", "text"))
	unwanted[0].Headers = []wire.Header{{Key: "traceparent", Value: []byte("00-" + strings.Repeat("c", 32) + "-" + parentSpan + "-00")}}
	if err := r.producer.Append(r.ctx(), unwanted); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.settleOffline()
	const (
		toRedis = "tidemark-toredis toRedis"
		toMongo = toRedis + " > tidemark-tomongo sequenced"
		toPush  = toRedis + " > tidemark-topush sequenced"
		push    = toPush + " > push"
		offline = toPush + " > tidemark-tooffline-webhook toOfflinePush"
		notify  = offline + " > notify webhook"
		send    = "/tidemark.v1.SyncService/Send"
	)
	stages := []string{toRedis, toMongo, toPush, push, offline, notify}
	called := []string{send}
	for _, x := range stages {
		called = append(called, send+" > "+x)
	}
	slices.Sort(stages)
	slices.Sort(called)
	for trace, want := range map[string][]string{traceA: stages, traceB: called} {
		r.eventually("the spans of "+trace, func() error {
			if got := s.chain(trace, parentSpan); !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	}
	// Whoever is told goes on from there, and knows what is not to be kept.
	r.eventually("what the device is told", func() error {
		got, dropped := kept(pushed())
		if want := s.of("push"); len(want) != 2 || !slices.Equal(got, want) || dropped != 1 {
			return fmt.Errorf("got %q and %d that are not kept, want %q and one", got, dropped, want)
		}
		return nil
	})
	h.mu.Lock()
	hooked, _ := kept(h.traces)
	h.mu.Unlock()
	if want := s.of("notify webhook"); !slices.Equal(hooked, want) {
		t.Errorf("the webhook was told %q, want %q", hooked, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if id := fmt.Sprintf("%x", x.GetTraceId()); id != traceA && id != traceB {
			t.Errorf("span %s of trace %s, which nobody wants", x.GetName(), id)
		}
	}
	// The exemplar of the latency leads to the trace.
	families, err := r.roles[stack.ToRedis].registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		if f.GetName() == "tidemark_toredis_sequenced_seconds" {
			for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
				for _, l := range b.GetExemplar().GetLabel() {
					found = found || l.GetName() == "trace_id" && (l.GetValue() == traceA || l.GetValue() == traceB)
				}
			}
		}
	}
	if !found {
		t.Error("no exemplar names a trace")
	}
}

type withHeader struct{ name, value string }

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, h.value)
	return http.DefaultTransport.RoundTrip(r)
}

// TestACollectorThatIsAwayHoldsNothingUp: messages go on, and the end is clean.
func TestACollectorThatIsAwayHoldsNothingUp(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Tracing.Endpoint, c.Tracing.Ratio = "http://127.0.0.1:1", 1 })
	r.start(stack.Roles()...)
	began := time.Now()
	for i := range 20 {
		r.send("group:g", "A", fmt.Sprint(i))
	}
	r.settle()
	if d := time.Since(began); d > patience {
		t.Errorf("it took %s", d)
	}
	wantSeqs(t, r.pullAll("B", "group:g", 1, 20), 1, 20)
}
