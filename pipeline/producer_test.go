package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

func TestAppendKeepsTheOrderOfAKey(t *testing.T) {
	_, cfg := cluster(t, 4)
	p := producer(t, cfg, "sequenced")
	var all []wire.Out
	for i := range 20 {
		for k := range 5 {
			all = append(all, outs(fmt.Sprint("group:", k), fmt.Sprint(k, "-", i))...)
		}
	}
	if err := p.Append(within(t), all); err != nil {
		t.Fatal(err)
	}
	for k := range 5 {
		key := fmt.Sprint("group:", k)
		var got, want []string
		for _, r := range stored(t, cfg, "sequenced", wire.PartitionOf(key, 4), 20) {
			if string(r.Key) == key {
				got = append(got, string(r.Value))
			}
		}
		want = numbered(20, fmt.Sprint(k, "-"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}

func TestAppendTakesTheNamedPartition(t *testing.T) {
	_, cfg := cluster(t, 4)
	p := producer(t, cfg, "sequenced")
	for n := range int32(4) {
		if err := p.Append(within(t), []wire.Out{{Topic: "sequenced", Partition: n, Key: "same", Value: []byte{byte(n)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range int32(4) {
		if got := stored(t, cfg, "sequenced", n, 1); len(got) != 1 || got[0].Value[0] != byte(n) {
			t.Errorf("partition %d has %v", n, got)
		}
	}
	err := p.Append(within(t), []wire.Out{{Topic: "sequenced", Partition: 9, Key: "k", Value: []byte("v")}})
	if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonNoPartition {
		t.Errorf("partition 9 of 4: %v, want fatal", err)
	}
}

// failProduce answers the first n produce requests with an error for every
// partition, without writing anything.
func failProduce(c *kfake.Cluster, n int32, code *kerr.Error) *atomic.Int32 {
	var calls atomic.Int32
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if calls.Add(1) > n {
			return nil, nil, false
		}
		c.KeepControl()
		return produceError(req.(*kmsg.ProduceRequest), code), nil, true
	})
	return &calls
}

func produceError(req *kmsg.ProduceRequest, code *kerr.Error) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func TestAppendOutlivesProduceErrors(t *testing.T) {
	// What the driver repeats by itself, and what it gives back.
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.OutOfOrderSequenceNumber} {
		t.Run(code.Message, func(t *testing.T) {
			c, cfg := cluster(t, 1)
			failProduce(c, 3, code)
			p := producer(t, cfg, "sequenced")
			want := numbered(10, "m")
			if err := p.Append(within(t), outs("group:1", want...)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, values(stored(t, cfg, "sequenced", 0, 10))); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAppendWaitsForAcknowledgement(t *testing.T) {
	c, cfg := cluster(t, 1)
	release := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	p := producer(t, cfg, "sequenced")
	var done atomic.Bool
	errc := make(chan error, 1)
	go func() {
		err := p.Append(within(t), outs("group:1", "a", "b"))
		done.Store(true)
		errc <- err
	}()
	eventually(t, "the first record is in flight", func() bool { return inFlight(t, cfg) == 1 })
	if done.Load() {
		t.Error("Append returned before Kafka answered")
	}
	close(release)
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	if got := inFlight(t, cfg); got != 0 {
		t.Errorf("in flight = %v, want 0", got)
	}
}

func inFlight(t testing.TB, cfg pipeline.Config) float64 {
	return metric(t, cfg, "tidemark_pipeline_append_in_flight_records")
}

// metric sums a family.
func metric(t testing.TB, cfg pipeline.Config, name string) float64 {
	t.Helper()
	families, err := cfg.Registerer.(interface {
		Gather() ([]*family, error)
	}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestAppendNamesTheRecordThatKafkaRefuses(t *testing.T) {
	c, cfg := cluster(t, 1)
	// The broker refuses every batch that has the bad record in it.
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.ProduceRequest)
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				if strings.Contains(string(p.Records), "BAD") {
					return produceError(r, kerr.MessageTooLarge), nil, true
				}
			}
		}
		return nil, nil, false
	})
	p := producer(t, cfg, "sequenced")
	batch := append(outs("group:1", "a1", "BAD", "a3"), outs("group:2", "b1", "b2")...)
	batch = append(batch, outs("group:3", "c1")...)
	err := p.Append(within(t), batch)
	if fault.ClassOf(err) != fault.Poison || fault.ReasonOf(err) != pipeline.ReasonTooLarge {
		t.Fatalf("err = %v, want poison too_large", err)
	}
	if r, ok := errors.AsType[*pipeline.RejectedError](err); !ok || r.Index != 1 || r.Key != "group:1" || r.Topic != "sequenced" {
		t.Errorf("rejected = %+v", r)
	}
	got := values(stored(t, cfg, "sequenced", 0, 4))
	for _, want := range []string{"a1", "b1", "b2", "c1"} {
		if !strings.Contains(strings.Join(got, " "), want) {
			t.Errorf("%s is missing in %v", want, got)
		}
	}
	if strings.Contains(strings.Join(got, " "), "a3") {
		t.Errorf("a3 overtook the refused record: %v", got)
	}
}

// TestARefusalIsNotBlamedOnNeighbours: Kafka refuses a batch as a whole.
func TestARefusalIsNotBlamedOnNeighbours(t *testing.T) {
	c, cfg := cluster(t, 1)
	gate := make(chan struct{})
	var first atomic.Bool
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if first.CompareAndSwap(false, true) {
			c.SleepControl(func() { <-gate }) // so that all others share the next batch
			return nil, nil, false
		}
		r := req.(*kmsg.ProduceRequest)
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				if strings.Contains(string(p.Records), "BAD") {
					return produceError(r, kerr.InvalidRecord), nil, true
				}
			}
		}
		return nil, nil, false
	})
	p := producer(t, cfg, "sequenced")
	var batch []wire.Out
	for i := range 20 {
		batch = append(batch, outs(fmt.Sprint("group:", i), fmt.Sprint("good", i))...)
	}
	batch = append(batch, outs("group:bad", "BAD")...)
	ahead, errc := make(chan error, 1), make(chan error, 1)
	go func() { ahead <- p.Append(within(t), outs("group:ahead", "ahead")) }()
	eventually(t, "the broker has one", first.Load)
	go func() { errc <- p.Append(within(t), batch) }()
	eventually(t, "all are with the driver", func() bool { return inFlight(t, cfg) == 22 })
	close(gate)
	if err := <-ahead; err != nil {
		t.Fatal(err)
	}
	err := <-errc
	if r, ok := errors.AsType[*pipeline.RejectedError](err); !ok || r.Index != 20 || fault.ReasonOf(err) != pipeline.ReasonInvalidRecord {
		t.Fatalf("err = %v, want record 20 rejected", err)
	}
	if strings.Count(err.Error(), "append record") != 1 {
		t.Errorf("err = %v, want one record named", err)
	}
	got := values(stored(t, cfg, "sequenced", 0, 21))
	for i := range 20 {
		if !slices.Contains(got, fmt.Sprint("good", i)) {
			t.Errorf("good%d is missing", i)
		}
	}
}

func TestAppendRefusesTooLargeBeforeSending(t *testing.T) {
	_, cfg := cluster(t, 1)
	cfg.MaxRecordBytes = 2048
	p := producer(t, cfg, "sequenced")
	err := p.Append(within(t), outs("group:1", "fits", strings.Repeat("x", 4096)))
	if r, ok := errors.AsType[*pipeline.RejectedError](err); !ok || r.Index != 1 || fault.ClassOf(err) != fault.Poison {
		t.Fatalf("err = %v, want record 1 rejected", err)
	}
	if err := p.Append(within(t), outs("group:1", "next")); err != nil {
		t.Fatal(err)
	}
	if got := values(stored(t, cfg, "sequenced", 0, 1)); got[0] != "next" {
		t.Errorf("log = %v, want nothing of the refused call", got)
	}
}

func TestAppendWaitsForABrokerThatIsAway(t *testing.T) {
	proxy := newProxy(t)
	_, cfg := cluster(t, 1, kfake.ListenFn(proxy.listen))
	p := producer(t, cfg, "sequenced")
	proxy.down()
	errc := make(chan error, 1)
	want := numbered(5, "m")
	go func() { errc <- p.Append(within(t), outs("group:1", want...)) }()
	eventually(t, "the producer says why it waits", func() bool {
		return metric(t, cfg, "tidemark_pipeline_append_retries_total") > 1
	})
	proxy.up()
	if err := <-errc; err != nil {
		t.Fatal(err)
	}

	// And once more, with a connection that breaks.
	proxy.down()
	go func() { errc <- p.Append(within(t), outs("group:1", "late")) }()
	eventually(t, "the driver waits for metadata", func() bool {
		return metric(t, cfg, "tidemark_pipeline_append_metadata_waits_total") > 1
	})
	proxy.up()
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(want, "late"), values(stored(t, cfg, "sequenced", 0, 6))); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestCloseGivesUpWhenItsContextEnds(t *testing.T) {
	proxy := newProxy(t)
	_, cfg := cluster(t, 1, kfake.ListenFn(proxy.listen))
	p, err := pipeline.NewProducer(pipeline.ProducerConfig{Config: cfg, Topic: "sequenced"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Append(within(t), outs("group:1", "a")); err != nil {
		t.Fatal(err)
	}
	proxy.down()
	errc := make(chan error, 1)
	go func() { errc <- p.Append(within(t), outs("group:1", "b")) }()
	eventually(t, "the driver waits for metadata", func() bool {
		return metric(t, cfg, "tidemark_pipeline_append_metadata_waits_total") > 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want to hear that a record is not acknowledged", err)
	} else if strings.Contains(err.Error(), "let go") {
		t.Errorf("Close = %v, want the driver to give up at once", err)
	}
	if err := <-errc; !errors.Is(err, pipeline.ErrClosed) {
		t.Errorf("Append = %v, want ErrClosed", err)
	}
	if err := p.Append(within(t), outs("group:1", "c")); !errors.Is(err, pipeline.ErrClosed) {
		t.Errorf("Append after Close = %v, want ErrClosed", err)
	}
	proxy.up()
}

func TestCloseWaitsForAcknowledgements(t *testing.T) {
	c, cfg := cluster(t, 1)
	failProduce(c, 5, kerr.UnknownServerError)
	p, err := pipeline.NewProducer(pipeline.ProducerConfig{Config: cfg, Topic: "sequenced"})
	if err != nil {
		t.Fatal(err)
	}
	errc := make(chan error, 1)
	go func() { errc <- p.Append(within(t), outs("group:1", "a", "b")) }()
	eventually(t, "the first try failed", func() bool { return metric(t, cfg, "tidemark_pipeline_append_retries_total") > 0 })
	if err := p.Close(within(t)); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := <-errc; err != nil {
		t.Errorf("Append = %v, want its acknowledgements", err)
	}
	if got := values(stored(t, cfg, "sequenced", 0, 2)); !cmp.Equal(got, []string{"a", "b"}) {
		t.Errorf("log = %v", got)
	}
}

func TestAppendEndsWithItsContext(t *testing.T) {
	c, cfg := cluster(t, 1)
	failProduce(c, 1<<30, kerr.UnknownServerError)
	p := producer(t, cfg, "sequenced")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Append(ctx, outs("group:1", "a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want the context's", err)
	}
}

func TestAppendStopsAtFatalErrors(t *testing.T) {
	c, cfg := cluster(t, 1)
	failProduce(c, 1<<30, kerr.TopicAuthorizationFailed)
	p := producer(t, cfg, "sequenced")
	err := p.Append(within(t), outs("group:1", "a"))
	if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonNotAuthorized {
		t.Errorf("err = %v, want fatal not_authorized", err)
	}
}

func TestManyAppendsShareTheProducer(t *testing.T) {
	_, cfg := cluster(t, 4)
	p := producer(t, cfg, "sequenced")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if err := p.Append(within(t), outs(fmt.Sprint("group:", i), numbered(5, "v")...)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := metric(t, cfg, "tidemark_pipeline_appended_records_total"); got != 250 {
		t.Errorf("acknowledged = %v, want 250", got)
	}
}

func TestRecordsWithoutATopic(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "")
	if err := p.Append(within(t), outs("k", "v")); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("err = %v, want fatal", err)
	}
}

// TestRecordsShareRequests: what comes soon after one another is one request. Each
// request is processor time of a broker, whatever is in it.
func TestRecordsShareRequests(t *testing.T) {
	c, cfg := cluster(t, 1)
	var requests atomic.Int64
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		requests.Add(1)
		return nil, nil, false
	})
	p := producer(t, cfg, "sequenced")
	const rounds = 50
	for i := range rounds {
		var batch []wire.Out
		for k := range 8 {
			batch = append(batch, outs(fmt.Sprint("group:", k), fmt.Sprint(i))...)
		}
		if err := p.Append(within(t), batch); err != nil {
			t.Fatal(err)
		}
	}
	// Where the first one leaves alone it is two of them.
	if n := requests.Load(); n > rounds*3/2 {
		t.Errorf("%d requests for %d times eight records", n, rounds)
	}
}
