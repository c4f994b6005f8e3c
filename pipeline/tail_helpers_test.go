package pipeline_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	tailTopic = "sequenced"
	tailGroup = "toMongo"
)

// tailLog is a sequenced log on an in-process broker, with the records that
// were written to it.
type tailLog struct {
	tb      testing.TB
	cluster *kfake.Cluster
	count   int32 // partitions
	config  pipeline.Config
	client  *kgo.Client

	mu      sync.Mutex
	ends    map[int32]int64
	records map[watermark.ConversationID][]watermark.Record
}

func newTailLog(tb testing.TB, partitions int32) *tailLog {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, tailTopic))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return &tailLog{
		tb: tb, cluster: cluster, count: partitions, client: client,
		config:  pipeline.Config{Brokers: cluster.ListenAddrs()},
		ends:    make(map[int32]int64),
		records: make(map[watermark.ConversationID][]watermark.Record),
	}
}

// add appends events of a conversation as one record and gives its offset.
func (l *tailLog) add(id watermark.ConversationID, events ...watermark.Event) int64 {
	l.tb.Helper()
	l.addAll(watermark.Record{Conversation: id, Events: events})
	recs := l.at(id)
	return recs[len(recs)-1].Offset
}

// addAll appends records, each on its conversation's partition.
func (l *tailLog) addAll(recs ...watermark.Record) {
	l.tb.Helper()
	batch := make([]*kgo.Record, len(recs))
	for i, r := range recs {
		value, err := wire.EncodeRecord(r)
		if err != nil {
			l.tb.Fatal(err)
		}
		batch[i] = &kgo.Record{Topic: tailTopic, Partition: l.partition(r.Conversation), Key: []byte(r.Conversation), Value: value}
	}
	if err := l.client.ProduceSync(l.tb.Context(), batch...).FirstErr(); err != nil {
		l.tb.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, m := range batch {
		recs[i].Offset = m.Offset
		l.ends[m.Partition] = max(l.ends[m.Partition], m.Offset+1)
		l.records[recs[i].Conversation] = append(l.records[recs[i].Conversation], recs[i])
	}
}

// forget drops the copies of what was written, so that a measurement of memory
// does not see them.
func (l *tailLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.records)
}

// addRaw appends a record that is none.
func (l *tailLog) addRaw(partition int32, value []byte) {
	l.tb.Helper()
	if err := l.client.ProduceSync(l.tb.Context(), &kgo.Record{Topic: tailTopic, Partition: partition, Value: value}).FirstErr(); err != nil {
		l.tb.Fatal(err)
	}
}

func (l *tailLog) partition(id watermark.ConversationID) int32 {
	return wire.PartitionOf(string(id), l.count)
}

// at gives the records of id.
func (l *tailLog) at(id watermark.ConversationID) []watermark.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[id]
}

// end gives the end of a partition, as far as addAll wrote it.
func (l *tailLog) end(partition int32) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends[partition]
}

// fold folds the records of id with offsets in [from, to); to < 0: all.
func (l *tailLog) fold(id watermark.ConversationID, from, to int64) *watermark.State {
	s := watermark.NewState(id)
	for _, r := range l.at(id) {
		if r.Offset >= from && (to < 0 || r.Offset < to) {
			s.Apply(r)
		}
	}
	return s
}

// commit commits offset for history's writer.
func (l *tailLog) commit(partition int32, offset int64) {
	l.tb.Helper()
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset = partition, offset
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic, topic.TopicID = tailTopic, l.cluster.TopicInfo(tailTopic).TopicID
	topic.Partitions = append(topic.Partitions, p)
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Topics = tailGroup, append(req.Topics, topic)
	resp, err := req.RequestWith(l.tb.Context(), l.client)
	if err != nil {
		l.tb.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode); err != nil {
		l.tb.Fatal(err)
	}
}

// tailUnder is a running tail with its metrics.
type tailUnder struct {
	*pipeline.Tail
	tb   testing.TB
	reg  *prometheus.Registry
	stop func() // ends Run and waits for it
}

func (l *tailLog) tail(change func(*pipeline.TailConfig)) *tailUnder {
	l.tb.Helper()
	reg := prometheus.NewRegistry()
	conf := pipeline.TailConfig{
		Config: l.config, Group: tailGroup,
		Patience: 8 * time.Second, Confirm: 300 * time.Millisecond,
	}
	conf.Registerer = reg
	if change != nil {
		change(&conf)
	}
	tail, err := pipeline.NewTail(conf)
	if err != nil {
		l.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tail.Run(ctx) }()
	u := &tailUnder{Tail: tail, tb: l.tb, reg: reg}
	u.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.tb.Errorf("Run: %v", err)
		}
	})
	l.tb.Cleanup(u.stop)
	return u
}

func (u *tailUnder) pin(ids ...watermark.ConversationID) *pipeline.Pin {
	u.tb.Helper()
	p, err := u.Pin(u.tb.Context(), ids)
	if err != nil {
		u.tb.Fatal(err)
	}
	u.tb.Cleanup(p.Release)
	return p
}

// state asks a pin about one conversation.
func (u *tailUnder) state(p *pipeline.Pin, id watermark.ConversationID) *watermark.State {
	u.tb.Helper()
	states, err := p.States(u.tb.Context(), []watermark.ConversationID{id})
	if err != nil {
		u.tb.Fatal(err)
	}
	return states[id]
}

// metric gives the value of a metric that has no labels.
func (u *tailUnder) metric(name string) float64 {
	u.tb.Helper()
	families, err := u.reg.Gather()
	if err != nil {
		u.tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		m := f.GetMetric()[0]
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return 0
}

// completes checks that history up to H and what the tail says make everything.
func (l *tailLog) completes(id watermark.ConversationID, h, end int64, got *watermark.State) {
	l.tb.Helper()
	whole := l.fold(id, 0, h)
	if got != nil {
		whole.Merge(got)
	}
	if diff := cmp.Diff(l.fold(id, 0, end), whole, cmpopts.EquateEmpty()); diff != "" {
		l.tb.Errorf("history below %d with the tail differs from the log below %d (-want +got):\n%s", h, end, diff)
	}
}

func tailRun(seqs ...watermark.Seq) watermark.MessagesSequenced {
	var e watermark.MessagesSequenced
	for _, s := range seqs {
		e.Messages = append(e.Messages, tailMsg(s, "a", fmt.Sprintf("m%d", s)))
	}
	return e
}

func tailMsg(s watermark.Seq, sender watermark.UserID, clientID string) watermark.Message {
	m := watermark.Message{
		Seq: s, Sender: sender, ClientID: clientID, Kind: "text", SendTime: 1000 + int64(s), RecordTime: 2000 + int64(s),
		BodyType: watermark.BodyText, Body: []byte("body of " + clientID),
	}
	m.Hash = m.SumHash()
	return m
}

// requests counts the requests of a kind that reach the broker from now on.
func (l *tailLog) requests(key int16) func() int {
	h := l.cluster.Fault(kfake.Fault{Keys: tailKeys(key), Count: -1, Observe: true})
	return h.Hits
}
