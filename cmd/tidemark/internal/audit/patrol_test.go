package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	wm "github.com/tidemark-im/tidemark/watermark"
)

// failing is a world whose history can be away.
type failing struct {
	*world
	mu   sync.Mutex
	away error
}

func (f *failing) ConversationsAfter(ctx context.Context, after wm.ConversationID, limit int) ([]wm.ConversationID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return nil, f.away
	}
	return f.world.ConversationsAfter(ctx, after, limit)
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
}

func TestPatrol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{world: newWorld()}
		for i := range 150 {
			f.fill(t, wm.GroupOf(fmt.Sprintf("%c%d", 'A'+i%58, i)), 10)
		}
		f.fill(t, "single:ann:bob", 3)
		f.fill(t, "single:zz:zzz", 3) // above every place to begin
		f.conversation = func(c wm.Conversation) wm.Conversation {
			if c.ID.Single() {
				c.Max = 4
			}
			return c
		}
		var log bytes.Buffer
		reg := prometheus.NewRegistry()
		cfg := f.config()
		// 1,506 rows and 152 conversations: a pass takes 17 s.
		cfg.History, cfg.Rate, cfg.Registerer, cfg.Logger = f, 100, reg, slog.New(slog.NewTextHandler(&log, nil))
		p, err := audit.NewPatrol(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if p.Ready() == nil {
			t.Error("ready before it began")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()

		time.Sleep(14 * time.Second) // the first batch takes up to 12
		synctest.Wait()
		if err := p.Ready(); err != nil {
			t.Errorf("at work: %v", err)
		}
		if n := counter(t, reg, "tidemark_audit_passes_total"); n != 0 {
			t.Errorf("%v passes after 14 s, at 100 rows a second", n)
		}
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if n := counter(t, reg, "tidemark_audit_passes_total"); n != 1 {
			t.Errorf("%v passes after 30 s", n)
		}
		if age := counter(t, reg, "tidemark_audit_pass_age_seconds"); age < 5 || age > 20 {
			t.Errorf("the pass is %v s old", age)
		}
		if n := counter(t, reg, "tidemark_audit_conversations_total"); n != 152 {
			t.Errorf("%v conversations were looked at in one pass, want each once", n)
		}

		f.set(errors.New("history is away"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "history is away") {
			t.Errorf("readiness: %v", err)
		}
		f.set(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if err := p.Ready(); err != nil || counter(t, reg, "tidemark_audit_errors_total") == 0 {
			t.Errorf("back: %v", err)
		}
		found, passes := counter(t, reg, "tidemark_audit_findings_total"), counter(t, reg, "tidemark_audit_passes_total")
		if found < passes || passes < 2 {
			t.Errorf("%v findings in %v passes", found, passes)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if text := log.String(); !strings.Contains(text, `msg="audit finding" kind=max_above_rows conversation=single:ann:bob`) {
			t.Errorf("the log says\n%s", text)
		}
	})
}

// counter sums a metric over its labels.
func counter(t testing.TB, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestSomewhereIsNotAlwaysTheSame(t *testing.T) {
	seen := map[wm.ConversationID]bool{}
	for range 1000 {
		seen[audit.Somewhere()] = true
	}
	if len(seen) < 20 {
		t.Errorf("%d places", len(seen))
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld()
	w.fill(t, conv, 3)
	w.conversation = func(c wm.Conversation) wm.Conversation { c.Max = 4; return c }
	reg := prometheus.NewRegistry()
	cfg := w.config()
	cfg.Registerer = reg
	run(t, cfg, audit.Scope{})
	want := `
# HELP tidemark_audit_conversations_total Conversations that an audit looked at.
# TYPE tidemark_audit_conversations_total counter
tidemark_audit_conversations_total 1
# HELP tidemark_audit_errors_total Times that an audit that never ends had to begin a batch again.
# TYPE tidemark_audit_errors_total counter
tidemark_audit_errors_total 0
# HELP tidemark_audit_passes_total Times that an audit that never ends has been through all conversations.
# TYPE tidemark_audit_passes_total counter
tidemark_audit_passes_total 0
# HELP tidemark_audit_rows_total Rows of history that an audit looked at.
# TYPE tidemark_audit_rows_total counter
tidemark_audit_rows_total 3
# HELP tidemark_audit_suspicions_total Second looks of an audit, by outcome.
# TYPE tidemark_audit_suspicions_total counter
tidemark_audit_suspicions_total{outcome="cleared"} 0
tidemark_audit_suspicions_total{outcome="confirmed"} 1
tidemark_audit_suspicions_total{outcome="undecided"} 0
`
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	kinds := 0
	for _, f := range families {
		if f.GetName() == "tidemark_audit_findings_total" {
			kinds = len(f.GetMetric())
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); d != "" {
		t.Errorf("metrics (-want +got)\n%s", d)
	}
	if kinds != len(audit.Kinds()) {
		t.Errorf("%d kinds are shown, want all %d", kinds, len(audit.Kinds()))
	}
}
