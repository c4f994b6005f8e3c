package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

func bare(t testing.TB, opts ...kfake.Opt) (*kfake.Cluster, pipeline.Config) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, pipeline.Config{Brokers: c.ListenAddrs(), Registerer: prometheus.NewRegistry(), Logger: logger(t), TopicPrefix: "t1."}
}

func TestTopicsAreMadeOnce(t *testing.T) {
	c, cfg := bare(t)
	tc := pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 6, Replication: 1}
	first, err := pipeline.EnsureTopics(within(t), tc)
	if err != nil {
		t.Fatal(err)
	}
	if first.ToRedis.Name != "t1.toRedis" || first.ToRedis.Partitions != 6 || first.Sequenced.Partitions != 6 || first.DeadLetter.Partitions != 1 {
		t.Errorf("infos = %+v", first)
	}
	if first.ToRedis.ID == "" || first.ToRedis.ID == first.Sequenced.ID {
		t.Errorf("ids = %q, %q", first.ToRedis.ID, first.Sequenced.ID)
	}
	// A second start, with other wishes, leaves them as they are.
	tc.Partitions = 9
	again, err := pipeline.EnsureTopics(within(t), tc)
	if err != nil {
		t.Fatal(err)
	}
	if again != first {
		t.Errorf("infos changed: %+v, then %+v", first, again)
	}
	if seen, err := pipeline.Describe(cfg); err != nil || seen != first {
		t.Errorf("Describe = %+v, %v", seen, err)
	}
	configs := c.TopicInfo("t1.sequenced").Configs
	for name, want := range map[string]string{"cleanup.policy": "delete", "max.message.bytes": "1009216", "retention.ms": "604800000"} {
		if v := configs[name]; v == nil || *v != want {
			t.Errorf("%s is not %s", name, want)
		}
	}
}

func TestAMissingTwinGetsTheSamePartitions(t *testing.T) {
	_, cfg := bare(t, kfake.SeedTopics(7, "t1.sequenced"))
	got, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 3, Replication: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got.ToRedis.Partitions != 7 {
		t.Errorf("toRedis has %d partitions, want 7", got.ToRedis.Partitions)
	}
}

func TestUnfitTopicsAreFatalInOneLine(t *testing.T) {
	tests := []struct {
		name   string
		opts   []kfake.Opt
		change func(*pipeline.TopicsConfig)
		reason string
		want   []string
	}{
		{
			"missing", []kfake.Opt{kfake.SeedTopics(1, "t1.toRedis", "t1.deadLetter")}, nil,
			pipeline.ReasonMissingTopic, []string{"topic t1.sequenced is missing", "create it"},
		},
		{
			"partitions differ", []kfake.Opt{kfake.SeedTopics(3, "t1.toRedis"), kfake.SeedTopics(4, "t1.sequenced", "t1.deadLetter")}, nil,
			pipeline.ReasonConfig, []string{"t1.toRedis and t1.sequenced must have the same number of partitions, but have 3 and 4"},
		},
		{
			"records do not fit", []kfake.Opt{kfake.SeedTopics(1, "t1.toRedis", "t1.sequenced", "t1.deadLetter")},
			func(c *pipeline.TopicsConfig) { c.MaxRecordBytes = 2 << 20 },
			pipeline.ReasonConfig, []string{"topic t1.toRedis: max.message.bytes is 1048588, must be at least 2106368"},
		},
		{
			"too few replicas in sync", []kfake.Opt{kfake.SeedTopics(1, "t1.toRedis", "t1.sequenced", "t1.deadLetter")},
			func(c *pipeline.TopicsConfig) { c.MinInsync = 2 },
			pipeline.ReasonConfig, []string{"topic t1.sequenced: min.insync.replicas is 1, must be at least 2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, cfg := bare(t, tt.opts...)
			tc := pipeline.TopicsConfig{Config: cfg}
			if tt.change != nil {
				tt.change(&tc)
			}
			_, err := pipeline.EnsureTopics(within(t), tc)
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != tt.reason {
				t.Fatalf("err = %v, want fatal %s", err, tt.reason)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("err = %v, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestTopicsWaitForTheCluster(t *testing.T) {
	p := newProxy(t)
	_, cfg := bare(t, kfake.ListenFn(p.listen))
	p.down()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := pipeline.EnsureTopics(ctx, pipeline.TopicsConfig{Config: cfg, Create: true, Replication: 1})
	if !errors.Is(err, context.DeadlineExceeded) || fault.ClassOf(err) == fault.Fatal {
		t.Fatalf("err = %v, want to wait as long as the context lives", err)
	}
	p.up()
	if _, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Replication: 1}); err != nil {
		t.Fatal(err)
	}
}

// A cluster that starts has no broker for a topic until they have caught up.
func TestTopicsWaitForBrokersThatAreFenced(t *testing.T) {
	c, cfg := bare(t)
	refused := 0
	c.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if refused++; refused > 2 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, topic := range req.(*kmsg.CreateTopicsRequest).Topics {
			r := kmsg.NewCreateTopicsResponseTopic()
			r.Topic, r.ErrorCode = topic.Topic, kerr.InvalidReplicationFactor.Code
			resp.Topics = append(resp.Topics, r)
		}
		return resp, nil, true
	})
	infos, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 1, Replication: 1})
	if err != nil || infos.ToRedis.Missing() || infos.DeadLetter.Missing() {
		t.Errorf("after %d refusals: %+v, %v", refused, infos, err)
	}
}

func TestSASL(t *testing.T) {
	c, cfg := bare(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "right"))
	cfg.SASL = pipeline.SASL{Mechanism: "PLAIN", User: "alice", Password: "right"}
	if _, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Replication: 1}); err != nil {
		t.Fatal(err)
	}
	cfg.SASL.Password = "hunter2"
	// Kafka says so; the fake only hangs up.
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg})
	if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonAuth {
		t.Fatalf("err = %v, want fatal auth", err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in the error: %v", err)
	}

	// Nobody waits for a password to become right.
	p := producer(t, cfg, "t1.toRedis")
	if err := p.Append(within(t), outs("k", "v")); fault.ReasonOf(err) != pipeline.ReasonAuth {
		t.Errorf("Append = %v, want auth", err)
	}
	s := &stage{}
	g := start(t, cfg, pipeline.GroupConfig{Topic: "t1.toRedis", NewStage: s.make})
	if err := g.wait(t); fault.ReasonOf(err) != pipeline.ReasonAuth {
		t.Errorf("Run = %v, want auth", err)
	}
}

// The topic of absent users is made and needed only where somebody tells them.
func TestTheTopicOfAbsentUsersIsThereWhereItIsNeeded(t *testing.T) {
	c, cfg := bare(t)
	tc := pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 6, Replication: 1}
	got, err := pipeline.EnsureTopics(within(t), tc)
	if err != nil || !got.Offline.Missing() || c.TopicInfo("t1.toOfflinePush") != nil {
		t.Fatalf("infos = %+v, %v", got, err)
	}
	tc.Offline, tc.Create = true, false
	if _, err := pipeline.EnsureTopics(within(t), tc); fault.ReasonOf(err) != pipeline.ReasonMissingTopic || !strings.Contains(err.Error(), "t1.toOfflinePush") {
		t.Fatalf("err = %v", err)
	}
	tc.Create = true
	if got, err = pipeline.EnsureTopics(within(t), tc); err != nil || got.Offline.Partitions != 6 || got.Offline.Name != "t1.toOfflinePush" {
		t.Fatalf("infos = %+v, %v", got, err)
	}
}
