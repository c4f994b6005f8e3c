package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// group gives the consumer group of a worker.
func (s *Stack) group(r Role) string { return groupName(s.cfg.Kafka.TopicPrefix, r) }

func (s *Stack) part(r Role) (*part, error) {
	switch r {
	case Sync:
		return s.syncPart()
	case ToRedis:
		return s.toRedisPart()
	case ToMongo:
		return s.toMongoPart()
	case ToPush:
		return s.toPushPart()
	case Gateway:
		return s.gatewayPart(), nil
	case Audit:
		return s.auditPart()
	case Lag:
		return s.lagPart()
	}
	return nil, fmt.Errorf("unknown role %q", r)
}

func (s *Stack) codec() wire.Codec {
	return wire.Codec{Limits: s.limits(), MaxRecord: s.kafka.MaxRecordBytes}
}

func (s *Stack) limits() convert.Limits { return convert.Limits{MaxBody: s.cfg.Limits.MaxBody} }

func (s *Stack) policy() watermark.UnreadPolicy {
	if s.cfg.ToRedis.UnreadPolicy == "keep_on_send" {
		return watermark.KeepOnSend
	}
	return watermark.AdvanceOnSend
}

// unparkEvery is how soon what was parked is looked at again when nothing else
// comes. Loads have pauses of their own.
const unparkEvery = 250 * time.Millisecond

func (s *Stack) toRedisPart() (*part, error) {
	topics := s.kafka.Topics()
	var err error
	if s.tailLength, err = pipeline.NewTailLength(pipeline.TailLengthConfig{Config: s.kafka, Group: s.group(ToMongo)}); err != nil {
		return nil, err
	}
	seq, err := toredis.New(toredis.Config{
		Allocator: s.alloc, Truth: s.truth, Members: s.hot, Log: s.producer, Origins: s.offsets, Answers: s.hot,
		Partitions:   s.topics.ToRedis.Partitions,
		Codec:        s.codec(),
		UnreadPolicy: func(watermark.ConversationID) watermark.UnreadPolicy { return s.policy() },
		Sequenced:    topics.Sequenced, DeadLetter: topics.DeadLetter,
		FloorEntries: s.cfg.ToRedis.FloorEntries, Tail: s.tailLength.Records, MaxTail: s.cfg.ToRedis.MaxTail, Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return nil, err
	}
	s.cfg.Health.Add(string(ToRedis)+" records", seq.Ready)
	return s.groupPart(ToRedis, topics.ToRedis, s.cfg.ToRedis.MaxBatch, flushing{every: unparkEvery}, func(p int32) (pipeline.Stage, error) { return seq.Stage(p) })
}

func (s *Stack) toMongoPart() (*part, error) {
	topics := s.kafka.Topics()
	proj, err := tomongo.New(tomongo.Config{
		History: s.history, Hot: s.hot, Owner: owner{s.producer, topics.ToRedis}, Log: s.producer,
		DeadLetter: topics.DeadLetter, Inputs: topics.ToRedis, WriteEvery: s.cfg.ToMongo.WriteInterval, FlushMarks: s.cfg.ToMongo.FlushMarks, FlushEvery: s.cfg.ToMongo.FlushInterval,
		Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return nil, err
	}
	flush := flushing{every: s.cfg.ToMongo.FlushInterval, idle: s.cfg.ToMongo.FlushIdle}
	return s.groupPart(ToMongo, topics.Sequenced, s.cfg.ToMongo.MaxBatch, flush, func(p int32) (pipeline.Stage, error) { return proj.Stage(p) })
}

// laneEvery is how soon it is committed what the lanes of toPush have handed
// off when nothing else comes.
const laneEvery = 250 * time.Millisecond

func (s *Stack) toPushPart() (*part, error) {
	offline, err := s.offline()
	if err != nil {
		return nil, err
	}
	push, err := topush.New(topush.Config{
		Truth: s.truth, Marks: s.hot, Deliverer: deliverer{s.gateway, s.tracing.Tracer()}, Offline: offline, OfflineMembers: s.cfg.ToOffline.MentionOnlyAbove,
		CacheMembers: s.cfg.ToPush.CacheMembers, MaxAge: s.cfg.ToPush.MaxAge,
		Crowds: s.hot, CrowdAbove: s.cfg.ToPush.CrowdAbove, CrowdBelow: s.cfg.ToPush.CrowdBelow,
		Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return nil, err
	}
	return s.groupPart(ToPush, s.kafka.Topics().Sequenced, 0, flushing{every: laneEvery}, func(p int32) (pipeline.Stage, error) { return push.Stage(p) })
}

// fetchEvery is the least time between two fetches, where it is not the group's
// default. What it costs to take a message falls with the messages of a batch: in
// toMongo from 370 us for one to 90 for twelve, since a transaction has its
// sync and its pages. Nobody waits for history, as pulls see the hot log and the
// tail, and a push may be a blink later than a pull.
var fetchEvery = map[Role]time.Duration{
	ToMongo: 50 * time.Millisecond,
	ToPush:  10 * time.Millisecond,
}

// flushing says when what a stage has left is due: at the latest, and when
// nothing comes. 0: only the other one counts.
type flushing struct{ every, idle time.Duration }

func (s *Stack) groupPart(r Role, topic string, maxBatch int, flush flushing, stage func(int32) (pipeline.Stage, error)) (*part, error) {
	g, err := pipeline.NewGroup(pipeline.GroupConfig{
		Config: s.kafka, Group: s.group(r), Topic: topic, DeadLetters: s.producer, FetchEvery: fetchEvery[r],
		MaxBatch: maxBatch, FlushEvery: flush.every, FlushIdle: flush.idle,
		History: s.history, Projects: r == ToMongo, Origins: r == ToRedis, OnLost: pipeline.OnLost(s.cfg.Kafka.OnLostOffsets),
		NewStage: func(_ context.Context, c pipeline.Claim) (pipeline.Stage, error) { return stage(c.Partition) },
	})
	if err != nil {
		return nil, err
	}
	s.cfg.Health.Add(string(r), g.Ready)
	return newPart(string(r), g.Run), nil
}

func (s *Stack) syncPart() (*part, error) {
	page, err := s.console()
	if err != nil {
		return nil, err
	}
	svc, err := syncapi.New(syncapi.Config{
		Hot: s.hot, Truth: s.truth, Log: appender{s.producer, s.kafka.Topics()}, Devices: s.history,
		NodeID:       "sync-" + strings.ToLower(rand.Text()),
		Authenticate: s.callers(), UserLimits: s.userLimits(), MaxInFlight: s.cfg.Limits.InFlight,
		MaxRequest: s.cfg.Limits.MaxRequest, Console: page, Wrap: s.tracing.Serve,
		NoReflection: !s.cfg.Sync.Reflection, Origins: s.cfg.Sync.Origins,
		ClosedGroups: s.cfg.Sync.ClosedGroups, Limits: s.limits(), PageBytes: s.cfg.Sync.PageBytes,
		AnswerTimeout: s.cfg.Sync.AnswerTimeout, Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return nil, err
	}
	return newPart(string(Sync), func(ctx context.Context) error { return svc.Serve(ctx, s.syncListener) }), nil
}

func (s *Stack) gatewayPart() *part {
	return newPart(string(Gateway), func(ctx context.Context) error {
		// Connections are told to go elsewhere, one after the other, before the port
		// closes.
		port, shut := context.WithCancel(context.WithoutCancel(ctx))
		defer shut()
		ended := make(chan error, 1)
		node, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			err := s.gateway.Run(node)
			shut()
			ended <- err
		}()
		err := telemetry.Serve(port, s.gatewayListener, s.gateway.Handler(), time.Second)
		stop()
		return errors.Join(err, <-ended)
	})
}
