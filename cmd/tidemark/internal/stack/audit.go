package stack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Settle waits until every worker has committed all that stands in its topic:
// first toRedis, which writes what the others read.
func (s *Stack) Settle(ctx context.Context) error {
	topics := s.kafka.Topics()
	for _, g := range []struct {
		role  Role
		topic string
	}{{ToRedis, topics.ToRedis}, {ToMongo, topics.Sequenced}, {ToPush, topics.Sequenced}} {
		if !s.runs(g.role) {
			continue
		}
		ends, err := s.offsets.Ends(ctx, g.topic)
		if err != nil {
			return err
		}
		if err := s.offsets.AwaitCommitted(ctx, s.group(g.role), g.topic, ends); err != nil {
			return err
		}
	}
	return nil
}

// AuditConfig says how an audit of this deployment is done.
type AuditConfig struct {
	// ReadLog holds history against the sequenced log as well.
	ReadLog bool
	// Repair mends what can be mended.
	Repair bool
	// Patience, Rate, Found and Progress are those of audit.Config.
	Patience time.Duration
	Rate     int
	Found    func(audit.Finding)
	Progress func(done, total int64)
}

// Audit audits the deployment, beside its traffic.
func (s *Stack) Audit(ctx context.Context, cfg AuditConfig, scope audit.Scope) (*audit.Report, error) {
	a, err := audit.New(s.auditConfig(cfg))
	if err != nil {
		return nil, err
	}
	return a.Run(ctx, scope)
}

func (s *Stack) auditConfig(cfg AuditConfig) audit.Config {
	space := keyspace.Space{Prefix: s.cfg.Redis.Prefix, Expiry: s.cfg.Redis.Expiry, Incarnation: s.cfg.Redis.Incarnation}
	out := audit.Config{
		History:  s.history,
		Redis:    audit.Server{Runner: keyspace.NewRunner(s.redis), Client: s.redis, Space: space, Decode: wire.DecodeMessage},
		Fence:    fence{s},
		Patience: cfg.Patience, Rate: cfg.Rate, Found: cfg.Found, Progress: cfg.Progress,
		Logger: s.cfg.Logger,
	}
	if cfg.ReadLog {
		out.Log = committedLog{s}
	}
	if cfg.Repair {
		out.Mender = &audit.Mender{History: s.history, Cool: s.cool, Raise: s.hot.RaiseReads, Append: s.appendRecord}
	}
	return out
}

// cool makes conversations cold. Begin empties them; their owner begins again
// when it has something for them.
func (s *Stack) cool(ctx context.Context, convs []watermark.ConversationID) error {
	_, err := s.alloc.Begin(ctx, convs)
	return err
}

func (s *Stack) appendRecord(ctx context.Context, rec watermark.Record) error {
	value, err := wire.EncodeRecord(rec)
	if err != nil {
		return err
	}
	return s.producer.Append(ctx, []wire.Out{{Topic: s.kafka.Topics().Sequenced, Partition: -1, Key: string(rec.Conversation), Value: value}})
}

// committedLog is what of the sequenced log toMongo has committed.
type committedLog struct{ s *Stack }

func (l committedLog) Size(ctx context.Context) (int64, error) {
	lags, err := l.s.offsets.Lag(ctx, pipeline.GroupTopic{Group: l.s.group(ToMongo), Topic: l.s.kafka.Topics().Sequenced})
	var n int64
	for _, p := range lags {
		n += max(p.Committed-p.Start, 0)
	}
	return n, err
}

// Records implements audit.Log.
func (l committedLog) Records(ctx context.Context) iter.Seq2[watermark.Record, error] {
	return func(yield func(watermark.Record, error) bool) {
		topic := l.s.kafka.Topics().Sequenced
		committed, err := l.s.offsets.Committed(ctx, l.s.group(ToMongo), topic)
		if err != nil {
			yield(watermark.Record{}, err)
			return
		}
		for rec, err := range pipeline.ScanBetween(ctx, l.s.kafka, topic, nil, committed) {
			var out watermark.Record
			if err == nil {
				out, err = wire.DecodeRecord(rec)
			}
			if !yield(out, err) || err != nil && fault.ClassOf(err) != fault.Poison {
				return
			}
		}
	}
}

// fence is where toRedis and toMongo stand.
type fence struct{ s *Stack }

func (f fence) Partition(conv watermark.ConversationID) int32 {
	return wire.PartitionOf(string(conv), f.s.topics.Sequenced.Partitions)
}

// Pass waits for toRedis, then for toMongo, and for both once more: a conflict
// that toMongo met goes back to toRedis.
func (f fence) Pass(ctx context.Context, partitions []int32) (map[int32]error, error) {
	topics := f.s.kafka.Topics()
	behind := map[int32]error{}
	for range 2 {
		for _, g := range []struct {
			role  Role
			topic string
		}{{ToRedis, topics.ToRedis}, {ToMongo, topics.Sequenced}} {
			if err := f.passed(ctx, g.role, g.topic, partitions, behind); err != nil {
				return nil, err
			}
		}
	}
	return behind, nil
}

// fencePoll is how often a fence looks where a worker stands.
const fencePoll = 50 * time.Millisecond

// passed waits for one worker, and adds to behind where it had to stop.
func (f fence) passed(ctx context.Context, role Role, topic string, partitions []int32, behind map[int32]error) error {
	ends, err := f.s.offsets.Ends(ctx, topic)
	if err != nil {
		return expired(ctx, err, partitions, behind)
	}
	for {
		committed, err := f.s.offsets.Committed(ctx, f.s.group(role), topic)
		if err != nil {
			return expired(ctx, err, partitions, behind)
		}
		left := slices.DeleteFunc(slices.Clone(partitions), func(p int32) bool { return behind[p] != nil || committed[p] >= ends[p] || ends[p] == 0 })
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			for _, p := range left {
				behind[p] = fmt.Errorf("%s has committed %d of %d on partition %d", role, max(committed[p], 0), ends[p], p)
			}
			return nil
		case <-time.After(fencePoll):
		}
	}
}

// expired takes an error for what it is: the end of patience, or a fault.
func expired(ctx context.Context, err error, partitions []int32, behind map[int32]error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	for _, p := range partitions {
		if behind[p] == nil {
			behind[p] = err
		}
	}
	return nil
}

// auditPart is the audit that never ends.
func (s *Stack) auditPart() (*part, error) {
	cfg := s.auditConfig(AuditConfig{Rate: s.cfg.Audit.Rate, Patience: s.cfg.Audit.Patience})
	cfg.Registerer = s.cfg.Registry
	p, err := audit.NewPatrol(cfg)
	if err != nil {
		return nil, err
	}
	s.cfg.Health.Add(string(Audit), p.Ready)
	return newPart(string(Audit), p.Run), nil
}

// DeadLetters gives what stands in the dead letter topic.
func (s *Stack) DeadLetters(ctx context.Context) iter.Seq2[wire.DeadLetter, error] {
	return func(yield func(wire.DeadLetter, error) bool) {
		for rec, err := range pipeline.Scan(ctx, s.kafka, s.kafka.Topics().DeadLetter) {
			var out wire.DeadLetter
			if err == nil && wire.IsMark(&rec) {
				continue // what was done about one, see package deadletters
			}
			if err == nil {
				out, err = wire.DecodeDeadLetter(rec)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// Produce publishes records on the toRedis topic, as an outside producer does.
func (s *Stack) Produce(ctx context.Context, outs []wire.Out) error {
	for i := range outs {
		outs[i].Topic = s.kafka.Topics().ToRedis
	}
	return s.producer.Append(ctx, outs)
}
