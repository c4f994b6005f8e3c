package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// History is what is asked whether a message is there.
type History interface {
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
}

// System says what is measured.
type System struct {
	// Binary runs Commands. Empty: this program.
	Binary string
	// Commands are the processes, in the order in which they are started.
	Commands []Command
	// Kafka is where the topics are. Without brokers: where the process says that
	// its own Kafka listens.
	Kafka pipeline.Config
	// Partitions of the topics, which the processes make.
	Partitions int32
	// Redis is asked for what it counted. nil: nobody is. RedisAddress is of the
	// process whose time is watched; empty: none.
	Redis        redis.UniversalClient
	RedisAddress string
	// OpenHistory is called once the processes are ready. nil: history is not
	// looked at.
	OpenHistory func(ctx context.Context) (History, func() error, error)
}

// system is a System that runs.
type system struct {
	System
	procs    []*process
	pids     map[string]int
	redis    redis.UniversalClient
	history  History
	closers  []func() error
	topics   pipeline.Topics
	sync     tidemarkv1connect.SyncServiceClient
	syncURL  string
	gateway  string
	kafkaOpt []kgo.Opt
}

// open starts the processes and finds their addresses.
func open(ctx context.Context, cfg System) (_ *system, err error) {
	s := &system{System: cfg, redis: cfg.Redis, pids: map[string]int{}, topics: cfg.Kafka.Topics()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.watch("generator", ownPID())
	if s.Binary == "" {
		if s.Binary, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	for _, c := range cfg.Commands {
		p, err := start(ctx, s.Binary, c)
		if err != nil {
			return nil, err
		}
		s.procs = append(s.procs, p)
		s.closers = append(s.closers, p.close)
		s.watch(c.Name, p.cmd.Process.Pid)
		if a := p.address("kafka"); a != "" {
			s.Kafka.Brokers = []string{a}
		}
		if a := p.address("sync"); a != "" {
			s.syncURL = a
		}
		if a := p.address("gateway"); a != "" {
			s.gateway = a
		}
	}
	if s.kafkaOpt, err = kafkaOptions(s.Kafka); err != nil {
		return nil, err
	}
	s.watchServices()
	if s.syncURL != "" {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = maxProbes
		s.sync = tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: transport}, s.syncURL)
		s.closers = append(s.closers, func() error { transport.CloseIdleConnections(); return nil })
	}
	if cfg.OpenHistory != nil {
		h, closing, err := cfg.OpenHistory(ctx)
		if err != nil {
			return nil, err
		}
		s.history = h
		s.closers = append(s.closers, closing)
	}
	return s, nil
}

// watchServices finds Kafka and Redis among the processes of this machine.
func (s *system) watchServices() {
	known := map[int]bool{}
	for _, pid := range s.pids {
		known[pid] = true
	}
	for name, addr := range map[string]string{"kafka": s.Kafka.Brokers[0], "redis": s.RedisAddress} {
		if pid, ok := listener(addr); ok && !known[pid] {
			s.watch(name, pid)
		}
	}
}

// watch has what a process takes told, where that can be.
func (s *system) watch(name string, pid int) {
	if watches {
		s.pids[name] = pid
	}
}

func (s *system) admins() []string {
	var out []string
	for _, p := range s.procs {
		out = append(out, p.address("admin"))
	}
	return out
}

// close ends everything, what was begun last first.
func (s *system) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// dead gives an error when a process has ended by itself.
func (s *system) dead() error {
	var errs []error
	for _, p := range s.procs {
		errs = append(errs, p.dead())
	}
	return errors.Join(errs...)
}

// troubles tells of each process that is not ready why, and what it said last, to
// stand behind an error; nothing where all are.
func (s *system) troubles(ctx context.Context) string {
	// Whoever asks has run out of time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var out strings.Builder
	for _, p := range s.procs {
		if err := p.unready(ctx, nil); err != nil {
			fmt.Fprintf(&out, "\n%s is not ready: %v", p.name, err)
			if said := p.said.String(); said != "" {
				fmt.Fprintf(&out, "\nit said: %s", said[strings.LastIndexByte(said, '\n')+1:])
			}
		}
	}
	return out.String()
}

// reachWithin is how long Kafka and Redis may take to answer at first.
const reachWithin = 10 * time.Second

// Reachable tells at once what the roles would try to reach for a minute.
func Reachable(ctx context.Context, k pipeline.Config, r redis.UniversalClient) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	client, err := kafkaClient(k)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka at %s: %w", strings.Join(k.Brokers, ", "), err)
	}
	if err := r.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// kafkaOptions gives the generator's own way to Kafka. Its driver is not
// Tidemark's, so that neither its cost nor a fault of it hides behind the
// other's.
func kafkaOptions(k pipeline.Config) ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(k.Brokers...), kgo.ClientID("tidemark-bench")}
	if k.TLS != nil {
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: k.TLS}
		opts = append(opts, kgo.Dialer(dialer.DialContext))
	}
	switch k.SASL.Mechanism {
	case "":
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: k.SASL.User, Pass: k.SASL.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: k.SASL.User, Pass: k.SASL.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: k.SASL.User, Pass: k.SASL.Password}.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("kafka sasl mechanism %q is not known to the generator", k.SASL.Mechanism)
	}
	return opts, nil
}

func kafkaClient(k pipeline.Config) (*kgo.Client, error) {
	opts, err := kafkaOptions(k)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(opts...)
}

// DropTopics deletes the topics and keys of a run on services that others use.
// The prefix must not be empty: it would be everybody's.
func DropTopics(ctx context.Context, k pipeline.Config) error {
	if k.TopicPrefix == "" {
		return errors.New("topics without a prefix of their own are not deleted")
	}
	client, err := kafkaClient(k)
	if err != nil {
		return err
	}
	defer client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 10_000
	for _, name := range []string{k.Topics().ToRedis, k.Topics().Sequenced, k.Topics().DeadLetter} {
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = new(name)
		req.Topics, req.TopicNames = append(req.Topics, t), append(req.TopicNames, name)
	}
	_, err = req.RequestWith(ctx, client)
	return err
}

// DropKeys deletes the keys of a run, as DropTopics does its topics.
func DropKeys(ctx context.Context, client redis.UniversalClient, prefix string) error {
	if prefix == "" || strings.ContainsAny(prefix, "*?[]\\") {
		return fmt.Errorf("keys with the prefix %q are not deleted", prefix)
	}
	one := func(ctx context.Context, c *redis.Client) error {
		keys := c.Scan(ctx, 0, prefix+"*", 5000).Iterator()
		var batch []string
		flush := func() error {
			if len(batch) == 0 {
				return nil
			}
			pipe := c.Pipeline()
			for _, k := range batch {
				pipe.Unlink(ctx, k) // one by one: a Cluster's node holds many slots
			}
			batch = batch[:0]
			_, err := pipe.Exec(ctx)
			return err
		}
		for keys.Next(ctx) {
			if batch = append(batch, keys.Val()); len(batch) == 1000 {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return errors.Join(keys.Err(), flush())
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, one)
	}
	if single, ok := client.(*redis.Client); ok {
		return one(ctx, single)
	}
	return nil
}
