package stack_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/consumers/tooffline/webhook"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

const hookSecret = "0123456789abcdef0123456789abcdef"

// hook is somebody else's web service, which verifies what it gets.
type hook struct {
	srv *httptest.Server

	mu     sync.Mutex
	status int // what it answers
	last   map[string]webhook.Data
	calls  int
	faults []error
}

func newHook(t *testing.T) *hook {
	h := &hook{status: http.StatusNoContent, last: make(map[string]webhook.Data)}
	v := webhook.Verifier{Keys: map[string][]byte{"k1": []byte(hookSecret)}, Window: time.Hour}
	h.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls++
		e, verr := v.Verify(r.Header, body)
		if err := errors.Join(err, verr); err != nil {
			h.faults = append(h.faults, err)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.status < 300 {
			h.last[e.Data.User+" in "+e.Data.Conversation] = e.Data
		}
		w.WriteHeader(h.status)
	}))
	t.Cleanup(h.srv.Close)
	return h
}

func (h *hook) answer(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

// told gives what users were told last, one line each.
func (h *hook) told() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, u := range slices.Sorted(maps.Keys(h.last)) {
		d := h.last[u]
		out = append(out, fmt.Sprintf("%s to %d, unread %d, badge %d, mentioned %v: %s", u, d.LastSeq, d.Unread, d.Badge, d.Mentioned, d.Message.Text))
	}
	return out
}

func (h *hook) configure(c *config.Config) {
	t := &c.ToOffline
	t.Enabled, t.Delay = true, 50*time.Millisecond
	t.FirstPause, t.LongestPause, t.Tries, t.BreakerPause = 10*time.Millisecond, 50*time.Millisecond, 3, 20*time.Millisecond
	t.Webhook.URL, t.Webhook.Secret = h.srv.URL, hookSecret
}

func (r *rig) attribute(user, conv, key, value string) {
	r.t.Helper()
	if _, err := r.syncClient().SetConversationAttributes(r.ctx(), &tidemarkv1.SetConversationAttributesRequest{
		User: user, Conversation: conv, Attributes: map[string]string{key: value}, OpId: r.op(),
	}); err != nil {
		r.t.Fatal(err)
	}
}

// settleOffline waits until the endpoint's worker is done with everything.
func (r *rig) settleOffline() {
	r.t.Helper()
	topic := r.topic(wire.TopicOffline)
	ends, err := r.offsets.Ends(r.ctx(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.offsets.AwaitCommitted(r.ctx(), r.topic("tidemark-tooffline-webhook"), topic, ends); err != nil {
		r.t.Fatalf("tooffline does not catch up: %v", err)
	}
}

func TestAbsentUsersAreToldByAWebhook(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	r := startAll(t, h.configure)
	t.Cleanup(func() { r.stop(stack.ToOffline) })
	const g = "group:g1"
	for _, u := range []string{"A", "B", "C", "D", "E", "F"} {
		r.join(g, u, tidemarkv1.History_HISTORY_NONE)
	}
	r.attribute("C", g, "muted", "1")
	r.attribute("D", g, "muted", "1")
	r.send("single:B:Z", "Z", "other") // counts in B's badge
	r.produce(g,
		`{"conversation":"group:g1","sender":"A","clientMessageId":"1","text":"one"}`,
		`{"conversation":"group:g1","sender":"A","clientMessageId":"2","text":"two","mentions":["D"]}`)
	r.settle()
	r.read("E", g, 2)
	r.leave(g, "F")
	r.send(g, "A", "3")
	r.settle() // all of it stands there before the worker begins
	r.start(stack.ToOffline)
	r.settleOffline()
	want := []string{
		"B in group:g1 to 3, unread 3, badge 4, mentioned false: text of 3",
		"B in single:B:Z to 1, unread 1, badge 4, mentioned false: text of other",
		"D in group:g1 to 3, unread 3, badge 0, mentioned true: text of 3",
		"E in group:g1 to 3, unread 1, badge 1, mentioned false: text of 3",
		"F in group:g1 to 2, unread 2, badge 0, mentioned false: two",
	}
	got := h.told()
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// Somebody has to mend the endpoint; its dead letters wait for that.
	h.answer(http.StatusInternalServerError)
	r.send("single:A:B", "A", "late")
	r.settle()
	r.settleOffline()
	letters := r.deadLetters()
	if len(letters) != 1 || letters[0].Reason != "undelivered" || letters[0].Tries != 3 {
		t.Fatalf("dead letters %+v", letters)
	}
	h.answer(http.StatusOK)
	r.replay(deadletters.Order{}, 1)
	r.settleOffline()
	if d := h.last["B in single:A:B"]; d.LastSeq != 1 || d.Attempt != 1 {
		t.Errorf("after the replay B was told %+v", d)
	}
	if len(h.faults) > 0 {
		t.Errorf("not verified: %v", h.faults)
	}

	// A worker that starts again tells nobody again.
	before := h.calls
	r.restart(stack.ToOffline)
	r.send("single:A:B", "A", "later")
	r.settle()
	r.settleOffline()
	if h.calls != before+1 || h.last["B in single:A:B"].LastSeq != 2 {
		t.Errorf("%d calls for one message, B was told %+v", h.calls-before, h.last["B in single:A:B"])
	}
}
