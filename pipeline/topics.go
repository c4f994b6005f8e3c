package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// missingGrace is how long a topic that must exist may be unknown: brokers
// learn of a new one within seconds.
const missingGrace = 5 * time.Second

// createdGrace is how long a topic that was just made may be unknown: a broker on
// a busy machine was seen to need ten seconds, and nobody has anything to mend.
const createdGrace = 20 * time.Second

// fencedGrace is how long there may be too few brokers for a new topic: those of
// a cluster that starts do not count until they have caught up.
const fencedGrace = 20 * time.Second

// TopicsConfig says what the topics are to be.
type TopicsConfig struct {
	Config
	// Create makes the topics that are missing. False: a missing topic is an
	// error of class Fatal.
	Create bool
	// Offline tells that toOfflinePush is needed. False: it is neither made nor
	// checked.
	Offline bool
	// Partitions of toRedis and sequenced when they are made. 0: 12. It is
	// fixed then: conversations would change their partition.
	Partitions int32
	// Replication of topics that are made. 0: the cluster's default.
	Replication int16
	// MinInsync is the least min.insync.replicas that is accepted and what is
	// set on topics that are made. 0: 2 on topics with three replicas or more,
	// otherwise whatever the cluster has.
	MinInsync int
	// Retention of all but deadLetter when they are made. It must exceed the
	// longest time that toMongo may stand still. 0: 7 days.
	Retention time.Duration
	// DeadLetterRetention is that of deadLetter. 0: 30 days.
	DeadLetterRetention time.Duration
}

// TopicInfo is what Kafka says about a topic.
type TopicInfo struct {
	Name string
	// ID is Kafka's id, a topic deleted and made again has another one. Empty:
	// there is no such topic.
	ID          string
	Partitions  int32
	Replication int // of the partition that has fewest
}

// Missing tells whether there is no such topic.
func (t TopicInfo) Missing() bool { return t.ID == "" }

// TopicInfos are Tidemark's topics.
type TopicInfos struct {
	ToRedis, Sequenced, DeadLetter TopicInfo
	// Offline may be missing where nobody needs it.
	Offline TopicInfo
}

// needed gives those that must be there.
func (t TopicInfos) needed(offline bool) []TopicInfo {
	all := []TopicInfo{t.ToRedis, t.Sequenced, t.DeadLetter}
	if offline {
		all = append(all, t.Offline)
	}
	return all
}

// Validate reports every fault of c at once.
func (c TopicsConfig) Validate() error {
	errs := []error{c.Config.Validate()}
	if c.Partitions < 0 || c.Partitions > 10_000 {
		errs = append(errs, fmt.Errorf("kafka partitions %d: must be from 1 to 10,000", c.Partitions))
	}
	if c.Replication < 0 || c.MinInsync < 0 || c.Retention < 0 || c.DeadLetterRetention < 0 {
		errs = append(errs, errors.New("kafka topics: replication, min insync and retentions must not be negative"))
	}
	if c.Replication > 0 && c.MinInsync > int(c.Replication) {
		errs = append(errs, fmt.Errorf("kafka topics: min insync %d exceeds replication %d", c.MinInsync, c.Replication))
	}
	return errors.Join(errs...)
}

// settings are those of a topic that is made.
//
//	setting                         value          why
//	cleanup.policy                  delete         compaction would keep one record of a conversation
//	retention.ms                    7 d, 30 d      what toMongo has not read must still be there after a long weekend
//	max.message.bytes               record + room  the largest record and what a batch puts around it
//	min.insync.replicas             2 of 3         acknowledged means: on two brokers
//	unclean.leader.election.enable  false          a replica that lacks acknowledged records must not lead
//	compression.type                producer       brokers do not compress again
//	message.timestamp.type          CreateTime     a message's time is when it was sent
func (c TopicsConfig) settings(topic string) map[string]*string {
	retention := cmp.Or(c.Retention, 7*24*time.Hour)
	if topic == c.Topics().DeadLetter {
		retention = cmp.Or(c.DeadLetterRetention, 30*24*time.Hour)
	}
	out := map[string]*string{
		"cleanup.policy":                 new("delete"),
		"retention.ms":                   new(strconv.FormatInt(retention.Milliseconds(), 10)),
		"max.message.bytes":              new(strconv.Itoa(c.neededBytes())),
		"unclean.leader.election.enable": new("false"),
		"compression.type":               new("producer"),
		"message.timestamp.type":         new("CreateTime"),
	}
	if n := c.minInsync(int(c.Replication)); n > 0 {
		out["min.insync.replicas"] = new(strconv.Itoa(n))
	}
	return out
}

// minInsync gives the least value for a topic, 0: any.
func (c TopicsConfig) minInsync(replication int) int {
	if c.MinInsync == 0 && replication >= 3 {
		return 2
	}
	return c.MinInsync
}

// neededBytes is the least max.message.bytes of a topic. A batch may hold a
// dead letter's room more than a record (see MaxMessageBytes), in every topic.
func (c TopicsConfig) neededBytes() int {
	return c.maxRecordBytes() + deadLetterExtra + batchOverhead
}

// EnsureTopics makes the topics that are missing, where that is allowed, and
// checks that all are fit. It waits for the cluster for as long as ctx lives.
// An error of class Fatal says in one line what has to be mended.
func EnsureTopics(ctx context.Context, c TopicsConfig) (TopicInfos, error) {
	if err := c.Validate(); err != nil {
		return TopicInfos{}, fault.New(fault.Fatal, ReasonConfig, err)
	}
	pauses := waits(100*time.Millisecond, 2*time.Second)
	var since time.Time // that it fails by what may heal for a while
	for tries := 1; ; tries++ {
		infos, err := c.ensure(ctx)
		if err == nil {
			return infos, nil
		}
		err = sortError(c.diagnose(ctx, tries, err))
		if grace := c.graceOf(err); grace == 0 {
			since = time.Time{}
		} else if since.IsZero() || time.Since(since) < grace {
			if since.IsZero() {
				since = time.Now()
			}
			err = fault.New(fault.Transient, fault.ReasonOf(err), err)
		}
		if fault.ClassOf(err) == fault.Fatal {
			return TopicInfos{}, err
		}
		if loud(tries) {
			what := "kafka topics are not ready, trying again"
			if isNetwork(err) {
				what = "kafka is not reachable, trying again"
			}
			c.logger().Warn(what, "brokers", c.Brokers, "tries", tries, "reason", fault.ReasonOf(err), "err", err)
		}
		sleep(ctx, pauses.NextBackOff())
		if ctx.Err() != nil {
			return TopicInfos{}, fmt.Errorf("ensure topics: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// graceOf gives how long an error that looks final is waited for. 0: not at all.
func (c TopicsConfig) graceOf(err error) time.Duration {
	switch {
	case fault.ReasonOf(err) == ReasonMissingTopic && c.Create:
		return createdGrace
	case fault.ReasonOf(err) == ReasonMissingTopic:
		return missingGrace
	case errors.Is(err, sarama.ErrInvalidReplicationFactor):
		return fencedGrace
	default:
		return 0
	}
}

// Describe looks at the topics as they are, once.
func Describe(c Config) (TopicInfos, error) {
	conf, err := c.adminConfig()
	if err != nil {
		return TopicInfos{}, fault.New(fault.Fatal, ReasonConfig, err)
	}
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return TopicInfos{}, sortError(fmt.Errorf("connect to kafka: %w", err))
	}
	defer client.Close()
	return describeOurs(client, c.Topics())
}

func describeOurs(client sarama.Client, t Topics) (TopicInfos, error) {
	infos, err := describe(client, t.ToRedis, t.Sequenced, t.DeadLetter, t.Offline)
	if err != nil {
		return TopicInfos{}, err
	}
	return TopicInfos{infos[0], infos[1], infos[2], infos[3]}, nil
}

// describe asks any broker that answers. The infos come in the order of topics.
func describe(client sarama.Client, topics ...string) ([]TopicInfo, error) {
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return nil, sortError(fmt.Errorf("describe topics: %w", sarama.ErrOutOfBrokers))
	}
	// Ids are only told since version 10, which Version 2.8.0 gives.
	resp, err := broker.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, topics))
	if err != nil {
		// The driver goes on taking this broker for alive; a refresh makes it
		// try the others.
		if refresh := client.RefreshMetadata(topics...); refresh != nil {
			err = errors.Join(err, refresh)
		}
		return nil, sortError(fmt.Errorf("describe topics: %w", err))
	}
	out := make([]TopicInfo, len(topics))
	for i, name := range topics {
		out[i].Name = name
		for _, t := range resp.Topics {
			if t.Name != name {
				continue
			}
			switch t.Err {
			case sarama.ErrNoError:
			case sarama.ErrUnknownTopicOrPartition:
				continue
			default:
				return nil, sortError(fmt.Errorf("topic %s: %w", name, t.Err))
			}
			if t.Uuid == (sarama.Uuid{}) {
				return nil, fault.New(fault.Fatal, ReasonVersion, fmt.Errorf("topic %s: the broker gives it no id; kafka 2.8.0 or newer is needed", name))
			}
			out[i].ID = t.Uuid.String()
			out[i].Partitions = int32(len(t.Partitions))
			for n, p := range t.Partitions {
				if n == 0 || len(p.Replicas) < out[i].Replication {
					out[i].Replication = len(p.Replicas)
				}
			}
		}
	}
	return out, nil
}

// ensure is one attempt.
func (c TopicsConfig) ensure(ctx context.Context) (TopicInfos, error) {
	conf, err := c.adminConfig()
	if err != nil {
		return TopicInfos{}, fault.New(fault.Fatal, ReasonConfig, err)
	}
	// The driver knows no contexts: a broker that takes connections and keeps
	// silent would hold it for a minute and more.
	if deadline, ok := ctx.Deadline(); ok {
		left := max(time.Until(deadline), time.Millisecond)
		for _, t := range []*time.Duration{&conf.Net.DialTimeout, &conf.Net.ReadTimeout, &conf.Net.WriteTimeout, &conf.Metadata.Timeout, &conf.Admin.Timeout} {
			*t = min(*t, left)
		}
	}
	// EnsureTopics tries again by itself, and looks closer in between.
	conf.Metadata.Retry.Max = 0
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return TopicInfos{}, fmt.Errorf("connect to kafka: %w", err)
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		_ = client.Close()
		return TopicInfos{}, fmt.Errorf("connect to kafka: %w", err)
	}
	defer admin.Close() // and the client with it

	infos, err := describeOurs(client, c.Topics())
	if err != nil {
		return infos, err
	}
	if c.Create {
		if err := c.create(admin, infos); err != nil {
			return infos, err
		}
		if infos, err = describeOurs(client, c.Topics()); err != nil {
			return infos, err
		}
	}
	return infos, c.check(admin, infos)
}

// create makes what is missing. That another process makes it at the same time
// is fine.
func (c TopicsConfig) create(admin sarama.ClusterAdmin, infos TopicInfos) error {
	// One that stands decides for its twin.
	partitions := cmp.Or(infos.ToRedis.Partitions, infos.Sequenced.Partitions, c.Partitions, 12)
	for _, t := range infos.needed(c.Offline) {
		if !t.Missing() {
			continue
		}
		n := partitions
		if t.Name == infos.DeadLetter.Name {
			n = 1
		}
		err := admin.CreateTopic(t.Name, &sarama.TopicDetail{
			NumPartitions: n, ReplicationFactor: cmp.Or(c.Replication, -1), ConfigEntries: c.settings(t.Name),
		}, false)
		if errors.Is(err, sarama.ErrTopicAlreadyExists) {
			continue
		}
		if err != nil {
			return fmt.Errorf("create topic %s: %w", t.Name, err)
		}
		c.logger().Info("topic created", "topic", t.Name, "partitions", n)
	}
	return nil
}

// check reports everything at once that makes the topics unfit.
func (c TopicsConfig) check(admin sarama.ClusterAdmin, infos TopicInfos) error {
	all := infos.needed(c.Offline)
	var errs []error
	for _, t := range all {
		if t.Missing() {
			hint := "create it, or allow it to be created"
			if c.Create {
				hint = "it was created and is not yet known"
			}
			errs = append(errs, fmt.Errorf("topic %s is missing: %s", t.Name, hint))
		}
	}
	if len(errs) > 0 {
		return fault.New(fault.Fatal, ReasonMissingTopic, errors.Join(errs...))
	}
	if a, b := infos.ToRedis, infos.Sequenced; a.Partitions != b.Partitions {
		errs = append(errs, fmt.Errorf("topics %s and %s must have the same number of partitions, but have %d and %d", a.Name, b.Name, a.Partitions, b.Partitions))
	}
	resources := make([]*sarama.ConfigResource, len(all))
	for i, t := range all {
		resources[i] = &sarama.ConfigResource{Type: sarama.TopicResource, Name: t.Name}
	}
	results, err := admin.DescribeConfigs(resources, sarama.DescribeConfigsOptions{})
	if err != nil {
		return fmt.Errorf("describe topics: %w", err)
	}
	for _, r := range results {
		switch err := sarama.KError(r.ErrorCode); err {
		case sarama.ErrNoError:
		case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed:
			// Reading and writing do not need this right.
			c.logger().Warn("topic settings cannot be checked", "topic", r.Name, "err", err)
			continue
		default:
			return fmt.Errorf("describe topic %s: %w", r.Name, err)
		}
		for _, t := range all {
			if t.Name == r.Name {
				errs = append(errs, c.checkSettings(t, r.Configs)...)
			}
		}
	}
	return fault.New(fault.Fatal, ReasonConfig, errors.Join(errs...))
}

func (c TopicsConfig) checkSettings(t TopicInfo, entries []sarama.ConfigEntry) (errs []error) {
	values := make(map[string]string, len(entries))
	for _, e := range entries {
		values[e.Name] = e.Value
	}
	wrong := func(name, want string) {
		errs = append(errs, fmt.Errorf("topic %s: %s is %s, must be %s", t.Name, name, values[name], want))
	}
	atLeast := func(name string, least int) {
		if v, ok := values[name]; ok {
			if n, err := strconv.Atoi(v); err != nil || n < least {
				wrong(name, fmt.Sprintf("at least %d", least))
			}
		}
	}
	if v, ok := values["cleanup.policy"]; ok && v != "delete" {
		wrong("cleanup.policy", "delete")
	}
	if v := values["unclean.leader.election.enable"]; v == "true" && t.Replication > 1 {
		wrong("unclean.leader.election.enable", "false")
	}
	atLeast("max.message.bytes", c.neededBytes())
	if n := c.minInsync(t.Replication); n > 0 {
		atLeast("min.insync.replicas", n)
	}
	return errs
}
