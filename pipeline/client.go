package pipeline

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultVersion is the oldest Kafka that is spoken to unless told
	// otherwise.
	DefaultVersion = "3.6.0"
	// DefaultMaxRecordBytes fits Kafka's own default of max.message.bytes.
	DefaultMaxRecordBytes = 1_000_000
	// batchOverhead is what Kafka adds to a record when it compares a batch
	// with max.message.bytes, generously.
	batchOverhead = 1024
	// deadLetterExtra is how much larger a dead letter is than its record.
	deadLetterExtra = 8 << 10
)

// Config says how to reach a Kafka cluster. It is shared by everything in this
// package.
type Config struct {
	// Brokers are the addresses to begin with, host:port. At least one.
	Brokers []string
	// ClientID names this process in the broker's logs and quotas. Empty:
	// "tidemark".
	ClientID string
	// Version is the oldest Kafka version among the brokers, as "3.6.0". Empty:
	// DefaultVersion. Older than 2.8.0 is refused, since topics have no ids
	// there.
	Version string
	// TopicPrefix is put before every topic name. Empty: none.
	TopicPrefix string
	// MaxRecordBytes is the largest record that is produced: key, value and
	// headers. It must not exceed the topics' max.message.bytes, which
	// EnsureTopics checks. 0: DefaultMaxRecordBytes.
	MaxRecordBytes int
	// TLS is used for every connection. Nil: plain TCP.
	TLS *tls.Config
	// SASL authenticates every connection. Zero: no authentication.
	SASL SASL
	// Logger is told of waiting, retries and dead letters. Nil: silence.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept and not shown.
	Registerer prometheus.Registerer
	// Tracer begins a span for each traced record that a group handles. Nil:
	// none does; what callers of Append trace is passed on all the same.
	Tracer trace.Tracer
}

// SASL are the credentials for a broker.
type SASL struct {
	// Mechanism is "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512"; "" means no
	// authentication. PLAIN shows the password to whoever listens: use it with
	// TLS only.
	Mechanism string
	User      string
	Password  string
}

// mechanisms are those that Tidemark speaks.
var mechanisms = []string{sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512}

// LogValue keeps the password out of logs.
func (s SASL) LogValue() slog.Value {
	return slog.GroupValue(slog.String("mechanism", s.Mechanism), slog.String("user", s.User))
}

// String keeps the password out of every formatted Config.
func (s SASL) String() string { return fmt.Sprintf("{%s %s ***}", s.Mechanism, s.User) }

// GoString does so for %#v.
func (s SASL) GoString() string { return s.String() }

// Topics are the names of Tidemark's topics.
type Topics struct {
	ToRedis    string // what producers send, and commands
	Sequenced  string // everything that happened, in order
	DeadLetter string // what could not be processed
	Offline    string // what absent users are to be told of, where anybody is
}

// Topics gives the topic names under c's prefix.
func (c Config) Topics() Topics {
	return Topics{
		ToRedis:    c.TopicPrefix + "toRedis",
		Sequenced:  c.TopicPrefix + "sequenced",
		DeadLetter: c.TopicPrefix + "deadLetter",
		Offline:    c.TopicPrefix + "toOfflinePush",
	}
}

// topicName is Kafka's own rule.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// Validate reports every fault of c at once.
func (c Config) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka brokers: at least one address is needed"))
	}
	for _, b := range c.Brokers {
		if strings.TrimSpace(b) == "" {
			errs = append(errs, errors.New("kafka brokers: an address is empty"))
		}
	}
	if v, err := c.version(); err != nil {
		errs = append(errs, err)
	} else if !v.IsAtLeast(sarama.V2_8_0_0) {
		errs = append(errs, fmt.Errorf("kafka version %s: at least 2.8.0 is needed, since topics have no ids before", v))
	}
	if c.TopicPrefix != "" && !topicName.MatchString(c.TopicPrefix+"deadLetter") {
		errs = append(errs, fmt.Errorf("kafka topic prefix %q: only letters, digits, '.', '_' and '-' are allowed, in names of at most 249 bytes", c.TopicPrefix))
	}
	// sarama refuses to send requests above 100 MiB; far below that, a topic
	// would have to be set up for nothing but this.
	if n := c.maxRecordBytes(); n < 1024 || n > 32<<20 {
		errs = append(errs, fmt.Errorf("kafka max record bytes %d: must be from 1 KiB to 32 MiB", n))
	}
	return errors.Join(append(errs, c.SASL.validate())...)
}

func (s SASL) validate() error {
	switch {
	case s.Mechanism == "" && (s.User != "" || s.Password != ""):
		return errors.New("kafka sasl: user or password is set without a mechanism")
	case s.Mechanism == "":
		return nil
	case !slices.Contains(mechanisms, s.Mechanism):
		return fmt.Errorf("kafka sasl mechanism %q is none of %s", s.Mechanism, strings.Join(mechanisms, ", "))
	case s.User == "" || s.Password == "":
		return fmt.Errorf("kafka sasl %s: user and password must be set", s.Mechanism)
	}
	return nil
}

func (c Config) version() (sarama.KafkaVersion, error) {
	v, err := sarama.ParseKafkaVersion(cmp.Or(c.Version, DefaultVersion))
	if err != nil {
		return v, fmt.Errorf("kafka version %q: %w", c.Version, err)
	}
	return v, nil
}

func (c Config) clientID() string { return cmp.Or(c.ClientID, "tidemark") }

func (c Config) maxRecordBytes() int { return cmp.Or(c.MaxRecordBytes, DefaultMaxRecordBytes) }

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// driverConfig gives what all clients share. c must be valid.
//
//	setting                          value     why
//	Version                          3.6.0     sarama speaks no newer than this; brokers narrow it further
//	Net.DialTimeout                  10 s      a black hole must not hide another broker for 30 s
//	Metadata.Full                    false     only our topics are kept, however many the cluster has
//	Metadata.AllowAutoTopicCreation  false     a topic that appears by itself has the wrong partitions
//	Metadata.RefreshFrequency        1 min     a grown or moved topic is noticed within minutes, not ten
//	MetricRegistry                   quiet     sarama's own meters cost a goroutine and are shown nowhere
func (c Config) driverConfig() (*sarama.Config, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	v, err := c.version()
	if err != nil {
		return nil, err
	}
	boundUnpacking()
	s := sarama.NewConfig()
	s.Version = v
	s.ClientID = c.clientID()
	s.Net.DialTimeout = 10 * time.Second
	s.Metadata.Full = false
	s.Metadata.AllowAutoTopicCreation = false
	s.Metadata.RefreshFrequency = time.Minute
	s.MetricRegistry = quietRegistry{}
	if c.TLS != nil {
		s.Net.TLS.Enable = true
		s.Net.TLS.Config = c.TLS.Clone()
	}
	if c.SASL.Mechanism != "" {
		s.Net.SASL.Enable = true
		s.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		s.Net.SASL.User = c.SASL.User
		s.Net.SASL.Password = c.SASL.Password
		if hash, ok := scramHashes[c.SASL.Mechanism]; ok {
			s.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
		}
	}
	return s, nil
}

// metadataRetries is some three hours, with the pauses of patience. sarama calls
// itself for each, so a number without end would end in its stack. What comes
// back as an error then is sent again by Append.
const metadataRetries = 5000

// linger is how long a record waits for others that go to the same broker, from the
// first of a request on. The partitions of one fetch come to their appends within a
// millisecond or two of each other. Without it toRedis made 885 requests of 360 fetches
// a second, with 1,000 records; a request takes a broker a fifth of a millisecond of
// processor time, whatever is in it (docs/performance.md has what that does to latency).
// What comes alone is 2 ms later for it, and of several records of one key, which wait
// for one another's acknowledgements, each is. Kafka's own producer waits 5 ms (linger.ms,
// since 4.0).
const linger = 2 * time.Millisecond

// producerConfig gives the settings of an appending client. Producers have a
// client of their own: on a shared one the fetch long polls sit on the
// connection that an idempotent producer needs (50 ms instead of 0.4).
//
//	setting                     value      why
//	Idempotent                  true       a lost acknowledgement must not write twice nor out of order
//	RequiredAcks                all        acknowledged means: survives a broker
//	Net.MaxOpenRequests         1          what sarama's idempotence needs
//	Metadata.Retry.Max          5000       the look-up of a leader is not covered by Producer.Retry.Max;
//	                                       with 10, a killed broker cost 1 % of the records as errors
//	Metadata.Retry.BackoffFunc  waits      250 ms to 2 s, and ends all waiting at Close (see patience)
//	Metadata.Timeout            10 years   what lets BackoffFunc end it
//	Producer.Retry.Max          1000       each costs memory per partition, so not unlimited; Append goes on anyway
//	Producer.Retry.BackoffFunc  20 ms-1 s  a leader election takes about 100 ms, a restart 10 s
//	Flush.Frequency             2 ms       see linger
//	MaxMessageBytes             as given   sarama cuts batches by it too; with room for a dead letter's headers
//	Partitioner                 ours       the Java client's murmur2, or the partition that the record names
//	Return.Successes, .Errors   true       Append waits for each
//	Transaction.Retry.Max       0          the first producer id: Append's own back-off repeats it
//	Net.ReadTimeout             20 s       must exceed Producer.Timeout (10 s)
func (c Config) producerConfig(p *patience) (*sarama.Config, error) {
	s, err := c.driverConfig()
	if err != nil {
		return nil, err
	}
	s.Net.MaxOpenRequests = 1
	s.Net.ReadTimeout = 20 * time.Second
	s.Metadata.Retry.Max = metadataRetries
	s.Metadata.Retry.BackoffFunc = p.backoff
	s.Metadata.Timeout = foreverish
	s.Producer.Flush.Frequency = linger
	s.Producer.Idempotent = true
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.MaxMessageBytes = c.maxRecordBytes() + deadLetterExtra
	s.Producer.Partitioner = newPartitioner
	s.Producer.Return.Successes = true
	s.Producer.Return.Errors = true
	s.Producer.Retry.Max = 1000
	s.Producer.Retry.BackoffFunc = produceBackoff
	s.Producer.Transaction.Retry.Max = 0
	return s, nil
}

// consumerConfig gives the settings of a reading client: of a group, and of
// whoever reads partitions by itself. Each has a client of its own.
//
//	setting                       value        why
//	Consumer.MaxWaitTime          100 ms       commits and heartbeats wait behind a fetch on the same connection
//	Consumer.Fetch.Default        1 MiB        bounds what a partition holds in memory to about twice that
//	Consumer.IsolationLevel       committed    a producer of ours may use transactions; an aborted send never was
//	Consumer.Return.Errors        true         each is sorted: out of range is fatal, the rest is counted
//	Consumer.Retry.Backoff        250 ms       a restarted broker is read again at once, not 2 s later
//	Offsets.AutoCommit            1 s          never synchronously per batch: it waits behind the long poll
//	Offsets.Initial               oldest       what was sent before the first start counts
//	Group.ResetInvalidOffsets     false        an offset that the log does not hold means loss: stop
//	Group.Rebalance.Strategies    cooperative  partitions that stay go on during a rebalance
//	Group.Session.Timeout         10 s         a killed process is replaced within it
//	Group.Heartbeat.Interval      1 s          a rebalance is noticed within it
//	Group.Rebalance.Retry.Max     4            Run's own loop goes on
//	Metadata.Retry.Max            3            in a group the same number counts failed heartbeats, without a
//	                                           pause: unlimited would spin, and stay a member that is none
//	Metadata.Timeout              10 s         so that a stopped process does not wait for a dead broker
func (c Config) consumerConfig() (*sarama.Config, error) {
	s, err := c.driverConfig()
	if err != nil {
		return nil, err
	}
	s.Metadata.Retry.Max = 3
	s.Metadata.Timeout = 10 * time.Second
	s.Consumer.MaxWaitTime = 100 * time.Millisecond
	s.Consumer.IsolationLevel = sarama.ReadCommitted
	s.Consumer.Return.Errors = true
	s.Consumer.Retry.Backoff = 250 * time.Millisecond
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Offsets.AutoCommit.Enable = true
	s.Consumer.Offsets.AutoCommit.Interval = time.Second
	s.Consumer.Group.ResetInvalidOffsets = false
	s.Consumer.Group.Session.Timeout = 10 * time.Second
	s.Consumer.Group.Heartbeat.Interval = time.Second
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	s.Consumer.Group.Rebalance.Retry.Backoff = 250 * time.Millisecond
	return s, nil
}

// adminConfig gives the settings for looking at and making topics. Metadata is
// fetched in full: without a topic of its own the driver finds no controller
// otherwise.
func (c Config) adminConfig() (*sarama.Config, error) {
	s, err := c.driverConfig()
	if err != nil {
		return nil, err
	}
	s.Metadata.Full = true
	s.Metadata.Timeout = 5 * time.Second
	s.Admin.Timeout = 10 * time.Second
	s.Net.ReadTimeout = 12 * time.Second // above Admin.Timeout; a port that keeps silent is not waited for longer
	return s, nil
}
