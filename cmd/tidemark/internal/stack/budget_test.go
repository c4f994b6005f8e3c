//go:build !real

package stack_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// asked is what the query service has asked of Redis and of history by now.
func (r *rig) asked() (calls map[string]float64) {
	r.t.Helper()
	families, err := r.roles[stack.Sync].registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	calls = map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "tidemark_hot_call_seconds":
				calls["redis "+labelOf(m)] += float64(m.GetHistogram().GetSampleCount())
			case "tidemark_embedded_call_seconds":
				calls["history "+labelOf(m)] += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return calls
}

func labelOf(m *dto.Metric) string { return m.GetLabel()[0].GetValue() }

// Whoever asks for much costs no more trips than who asks for little: what is
// warm is one trip to Redis for all conversations and one for all messages of a
// call, and nothing of history but the list of the user's conversations.
func TestTripsOfACallDoNotGrowWithIt(t *testing.T) {
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	trips := func(call func() error) map[string]float64 {
		t.Helper()
		before := r.asked()
		if err := call(); err != nil {
			t.Fatal(err)
		}
		spent := map[string]float64{}
		for what, n := range r.asked() {
			if d := n - before[what]; d > 0 {
				spent[what] = d
			}
		}
		return spent
	}
	var ranges []*tidemarkv1.PullRange
	const most = 200
	for _, n := range []int{1, most} {
		for i := len(ranges); i < n; i++ {
			conv := fmt.Sprintf("single:a:b%d", i)
			r.produceLine(conv)
			ranges = append(ranges, &tidemarkv1.PullRange{Conversation: conv, Begin: 1, End: 10})
		}
		r.within(stack.ToRedis, wire.TopicToRedis)
		r.within(stack.ToMongo, wire.TopicSequenced)
		pull := func() error {
			res, err := r.svc.Pull(r.ctx(), &tidemarkv1.PullRequest{User: "a", Ranges: ranges})
			if err == nil && len(res.GetPages()[n-1].GetMessages()) != 1 {
				err = fmt.Errorf("a page has no message: %v", res.GetPages()[n-1])
			}
			return err
		}
		marks := func() error {
			got, err := r.listed(1000)
			if err == nil && got != n {
				err = fmt.Errorf("%d conversations, want %d", got, n)
			}
			return err
		}
		// The first time members are loaded.
		trips(pull)
		trips(marks)
		if diff := cmp.Diff(map[string]float64{"redis views": 1, "redis messages": 1}, trips(pull)); diff != "" {
			t.Errorf("trips of a Pull of %d conversations: %s", n, diff)
		}
		if diff := cmp.Diff(map[string]float64{"redis views": 1, "history activity": 1}, trips(marks)); diff != "" {
			t.Errorf("trips of GetWatermarks of %d conversations: %s", n, diff)
		}
	}
	// However many the pages are, the list is read once.
	pages := func() error {
		got, err := r.listed(most / 10)
		if err == nil && got != most {
			err = fmt.Errorf("%d conversations, want %d", got, most)
		}
		return err
	}
	if diff := cmp.Diff(map[string]float64{"redis views": 10, "history activity": 1}, trips(pages)); diff != "" {
		t.Errorf("trips of GetWatermarks in 10 pages: %s", diff)
	}
}

// listed counts the conversations of user a, in pages.
func (r *rig) listed(size int64) (n int, err error) {
	req := &tidemarkv1.GetWatermarksRequest{User: "a", PageSize: size}
	for {
		res, err := r.svc.GetWatermarks(r.ctx(), req)
		if err != nil {
			return n, err
		}
		n += len(res.GetWatermarks())
		if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
			return n, nil
		}
	}
}

func (r *rig) produceLine(conv string) {
	r.t.Helper()
	out := wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: conv, Value: []byte(line(conv, "a", "m1", "a text"))}
	if err := r.producer.Append(r.ctx(), []wire.Out{out}); err != nil {
		r.t.Fatal(err)
	}
}
