// Package config is the configuration of every Tidemark process: defaults,
// then a YAML file, then environment variables, then command-line flags, each
// over the one before.
//
// Every key has one name, its path with dots ("kafka.brokers"). The environment
// variable is TIDEMARK_ and the path in capitals with underscores
// ("TIDEMARK_KAFKA_BROKERS"); lists are comma-separated. An unknown key in the
// file or the environment is an error, since a misspelt limit that is silently
// ignored is worse than a process that does not start. All faults are reported
// together.
//
// The package decides nothing about what the values mean to other packages; it
// checks what can be checked without a connection. Secrets are never part of an
// error or of String.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is everything that can be set. The struct tags are the documentation:
// the table in the README is made from them.
type Config struct {
	Kafka     Kafka     `koanf:"kafka"`
	Redis     Redis     `koanf:"redis"`
	History   History   `koanf:"history"`
	ToRedis   ToRedis   `koanf:"toredis"`
	ToMongo   ToMongo   `koanf:"tomongo"`
	ToPush    ToPush    `koanf:"topush"`
	ToOffline ToOffline `koanf:"tooffline"`
	Sync      Sync      `koanf:"sync"`
	Gateway   Gateway   `koanf:"gateway"`
	Auth      Auth      `koanf:"auth"`
	Audit     Audit     `koanf:"audit"`
	Lag       Lag       `koanf:"lag"`
	Admin     Admin     `koanf:"admin"`
	Shutdown  Shutdown  `koanf:"shutdown"`
	Log       Log       `koanf:"log"`
	Tracing   Tracing   `koanf:"tracing"`
	Limits    Limits    `koanf:"limits"`
}

// Kafka says how to reach Kafka and what the topics are.
type Kafka struct {
	Brokers       []string      `koanf:"brokers" doc:"Addresses to begin with, host:port."`
	ClientID      string        `koanf:"client_id" doc:"Name of this process in the broker's logs and quotas."`
	Version       string        `koanf:"version" doc:"Oldest Kafka version among the brokers."`
	TopicPrefix   string        `koanf:"topic_prefix" doc:"Put before every topic name and consumer group."`
	CreateTopics  bool          `koanf:"create_topics" doc:"Create missing topics at start. Otherwise a missing topic is an error."`
	Partitions    int32         `koanf:"partitions" doc:"Partitions of toRedis and sequenced when they are created. Fixed from then on."`
	Replication   int16         `koanf:"replication" doc:"Replicas of topics that are created. 0: the cluster's default."`
	Retention     time.Duration `koanf:"retention" doc:"Retention of toRedis and sequenced when they are created. Must exceed the longest stop of toMongo."`
	OnLostOffsets string        `koanf:"on_lost_offsets" doc:"What a worker does at its start where it cannot read on (docs/runbook.md): stop, or go on at the earliest or latest offset."`
	TLS           TLS           `koanf:"tls"`
	SASL          SASL          `koanf:"sasl"`
}

// TLS says how connections are encrypted.
type TLS struct {
	Enabled bool   `koanf:"enabled" doc:"Encrypt connections."`
	CA      string `koanf:"ca" doc:"File with the certificates that are trusted. Empty: the system's."`
	Cert    string `koanf:"cert" doc:"File with this process's certificate, with key."`
	Key     string `koanf:"key" doc:"File with this process's key, with cert."`
}

// SASL says who this process is to Kafka.
type SASL struct {
	Mechanism string `koanf:"mechanism" doc:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty for none."`
	User      string `koanf:"user" doc:"User name."`
	Password  string `koanf:"password" secret:"true" doc:"Password."`
}

// Redis says how to reach Redis.
type Redis struct {
	Addresses []string      `koanf:"addresses" doc:"One address: a single server. Several: a Cluster, or Sentinels when master is set."`
	Master    string        `koanf:"master" doc:"Name of the master that the Sentinels watch."`
	Username  string        `koanf:"username" doc:"ACL user."`
	Password  string        `koanf:"password" secret:"true" doc:"Password."`
	DB        int           `koanf:"db" doc:"Database number. Not with a Cluster."`
	Prefix    string        `koanf:"prefix" doc:"Put before every key."`
	Expiry    time.Duration `koanf:"expiry" doc:"How long an idle conversation stays in Redis."`
	HotLog    int           `koanf:"hot_log" doc:"About how many messages of a conversation stay in Redis."`
	Timeout   time.Duration `koanf:"timeout" doc:"How long a read or a write on a connection may take, and a wait for a free one a second longer."`
	PoolSize  int           `koanf:"pool_size" doc:"Connections that a process opens to a server at most. 0: ten for each core."`
	TLS       TLS           `koanf:"tls"`
	// Incarnation is for an embedded Redis without replication ids; it is not
	// settable, since a fixed one would defeat the recovery from a lost Redis.
	Incarnation string `koanf:"-"`
}

// History says where messages are kept.
type History struct {
	Backend  string        `koanf:"backend" doc:"sqlite: a file on this machine. mongodb: a replica set that several machines share."`
	Path     string        `koanf:"path" doc:"sqlite: the file. Empty: in memory, for demos and tests."`
	URI      string        `koanf:"uri" secret:"true" doc:"mongodb: mongodb://host[:port][,host...][/database][?options]. A password may stand in it as it is."`
	Username string        `koanf:"username" doc:"mongodb: user, instead of the URI's."`
	Password string        `koanf:"password" secret:"true" doc:"mongodb: password, instead of the URI's."`
	Database string        `koanf:"database" doc:"mongodb: database. Empty: the URI's, or tidemark."`
	Timeout  time.Duration `koanf:"timeout" doc:"mongodb: how long one call of the driver may take, with its retries."`
}

// ToRedis configures sequencing.
type ToRedis struct {
	UnreadPolicy string `koanf:"unread_policy" doc:"advance_on_send: sending marks everything read. keep_on_send: own messages just do not count."`
	MaxBatch     int    `koanf:"max_batch" doc:"Records that one batch of a partition may have."`
	FloorEntries int    `koanf:"floor_entries" doc:"Conversations of a partition whose last acknowledged seq is remembered."`
	MaxTail      int64  `koanf:"max_tail" doc:"A partition pauses while history is more records of it behind. At most 2000000."`
}

// ToMongo configures the history writer.
type ToMongo struct {
	MaxBatch      int           `koanf:"max_batch" doc:"Records that one batch of a partition may have."`
	WriteInterval time.Duration `koanf:"write_interval" doc:"Messages are gathered for so long before they are written, 20,000 or 8 MiB of a partition at most: the more share a transaction, the less each costs. 0: each batch by itself."`
	FlushMarks    int           `koanf:"flush_marks" doc:"Watermarks and bounds of conversations are written after this many messages and read marks of a partition,"`
	FlushInterval time.Duration `koanf:"flush_interval" doc:"or after this long, whichever comes first. toMongo's committed offset trails by as much while records come,"`
	FlushIdle     time.Duration `koanf:"flush_idle" doc:"and by this much when none come any more, and as much again for each thousand that wait."`
}

// ToPush configures the push worker.
type ToPush struct {
	MaxAge       time.Duration `koanf:"max_age" doc:"Messages older than this are not pushed live; clients pull them."`
	CacheMembers int           `koanf:"cache_members" doc:"Members of conversations that one partition keeps in memory."`
	CrowdAbove   int           `koanf:"crowd_above" doc:"A group with more members is pushed to once, for all who are connected, and not to each member."`
	CrowdBelow   int           `koanf:"crowd_below" doc:"With fewer members it is pushed to each member again. At most crowd_above."`
}

// Sync configures the query service.
type Sync struct {
	Listen        string        `koanf:"listen" doc:"Address of gRPC, gRPC-Web and HTTP/JSON. Loopback only, unless callers are authenticated (auth)."`
	ClosedGroups  bool          `koanf:"closed_groups" doc:"Hide a group from users who never had a window in it also when a trusted caller asks for them. From users with a token it always is."`
	PageBytes     int           `koanf:"page_bytes" doc:"Bytes of messages in one answer of Pull."`
	AnswerTimeout time.Duration `koanf:"answer_timeout" doc:"How long a call waits for the owner of a conversation."`
	Reflection    bool          `koanf:"reflection" doc:"Serve gRPC reflection, to everybody who can reach the port."`
	Origins       []string      `koanf:"origins" doc:"Origins of web pages that may call from a browser, each scheme://host[:port]; * for all. Empty: pages of the same host only."`
	Console       Console       `koanf:"console"`
	TLS           ServerTLS     `koanf:"tls"`
}

// Gateway configures live connections.
type Gateway struct {
	Listen          string        `koanf:"listen" doc:"Address of WebSocket and SSE. Loopback only, unless callers are authenticated (auth)."`
	QueueBytes      int           `koanf:"queue_bytes" doc:"What may wait for one slow connection before it is closed."`
	Redis           bool          `koanf:"redis" doc:"Share events between processes through Redis. Needed when the push worker runs elsewhere."`
	Connections     int           `koanf:"connections" doc:"Connections to this process, which need some 30 KiB each; more are told to come again."`
	UserConnections int           `koanf:"user_connections" doc:"Connections of one user to this process. 0: no limit."`
	Origins         []string      `koanf:"origins" doc:"Origins of web pages that may connect, as https://chat.example.com; * for all. Pages of the gateway's own host always may."`
	Drain           time.Duration `koanf:"drain" doc:"Over how long connections are told to go elsewhere when the process stops. Below shutdown.timeout."`
	TransientRate   int           `koanf:"transient_rate" doc:"Typing and other transient events that a connection may send in a second; twice as many at once."`
	TLS             ServerTLS     `koanf:"tls"`
}

// Lag configures the role that shows how far behind the workers are.
type Lag struct {
	Every time.Duration `koanf:"every" doc:"How often the role lag asks Kafka how far behind the workers are."`
}

// Audit configures the role that checks what the others keep.
type Audit struct {
	Rate     int           `koanf:"rate" doc:"Rows, members and conversations that the role audit reads in a second."`
	Patience time.Duration `koanf:"patience" doc:"How long an audit waits for the workers before what looks wrong counts as undecided."`
}

// Admin configures the operator's port.
type Admin struct {
	Listen string `koanf:"listen" doc:"Address of /metrics, /healthz, /readyz and /status. Empty: none."`
	Debug  string `koanf:"debug" doc:"Serve profiles (/debug/pprof/) there, and let the log's level be changed: on, off, or loopback, which is on only where admin.listen is a loopback address."`
}

// Debugs tells whether profiles are served, and the log's level may be changed.
func (a Admin) Debugs() bool {
	host, _, err := net.SplitHostPort(a.Listen)
	return a.Debug == "on" || a.Debug == "loopback" && err == nil && isLoopback(host)
}

// Shutdown configures the end.
type Shutdown struct {
	Timeout time.Duration `koanf:"timeout" doc:"How long all roles together may take to finish what is at hand. Keep it below the supervisor's own limit."`
}

// Log configures what is logged.
type Log struct {
	Level  string `koanf:"level" doc:"debug, info, warn or error."`
	Format string `koanf:"format" doc:"text or json."`
}

// Tracing configures where spans go.
type Tracing struct {
	Endpoint string  `koanf:"endpoint" secret:"true" doc:"URL of an OTLP collector (HTTP), as http://127.0.0.1:4318. Empty: nothing is traced."`
	Ratio    float64 `koanf:"ratio" doc:"Part of the traces that begin in Tidemark that is kept, 0 to 1. What a producer or caller traces always is."`
}

// Limits bounds what producers may send, and what callers of the query service
// may ask for.
type Limits struct {
	MaxBody        int     `koanf:"max_body" doc:"Bytes of a message's body, at most 1048576."`
	MaxRequest     int     `koanf:"max_request" doc:"Bytes of a request to the sync API."`
	InFlight       int     `koanf:"in_flight" doc:"Calls of the sync API that are served at once."`
	TailBytes      int64   `koanf:"tail_bytes" doc:"Bytes that the part of the sequenced log which history lacks may take in a process, about. Where several partitions would need more, they are read in turn; one that needs more by itself is waited for. At least 16777216."`
	UserRequests   float64 `koanf:"user_requests" doc:"Calls a second of one user, on average. For this and the following, 0: no limit; they hold for users with a token, not for administrators."`
	UserBurst      int     `koanf:"user_burst" doc:"Calls of one user at once after a pause. 0: a second's."`
	UserBytes      int     `koanf:"user_bytes" doc:"Bytes of answers a second to one user, on average."`
	UserBytesBurst int     `koanf:"user_bytes_burst" doc:"Bytes of answers to one user at once after a pause. 0: a second's."`
	UserInFlight   int     `koanf:"user_in_flight" doc:"Calls of one user that are served at once."`
}

// Default gives the configuration of somebody who sets nothing.
func Default() Config {
	return Config{
		Kafka: Kafka{
			Brokers: []string{"127.0.0.1:9092"}, ClientID: "tidemark", Version: "3.6.0",
			CreateTopics: false, Partitions: 12, Retention: 7 * 24 * time.Hour, OnLostOffsets: "stop",
		},
		Redis:     Redis{Addresses: []string{"127.0.0.1:6379"}, Expiry: 24 * time.Hour, HotLog: 1000, Timeout: 3 * time.Second},
		History:   History{Backend: "sqlite", Path: "tidemark.db", Timeout: 30 * time.Second},
		ToRedis:   ToRedis{UnreadPolicy: "advance_on_send", MaxBatch: 2000, FloorEntries: 100_000, MaxTail: 1_000_000},
		ToMongo:   ToMongo{MaxBatch: 2000, WriteInterval: 5 * time.Second, FlushMarks: 100_000, FlushInterval: 15 * time.Second, FlushIdle: 250 * time.Millisecond},
		ToOffline: defaultToOffline(),
		ToPush:    ToPush{MaxAge: 5 * time.Minute, CacheMembers: 200_000, CrowdAbove: 256, CrowdBelow: 192},
		Sync:      Sync{Listen: "127.0.0.1:8080", PageBytes: 2 << 20, AnswerTimeout: 10 * time.Second, Reflection: true},
		Gateway:   Gateway{Listen: "127.0.0.1:8081", QueueBytes: 1 << 20, Redis: true, Connections: 100_000, UserConnections: 100, Drain: 5 * time.Second, TransientRate: 5},
		Auth:      Auth{Refresh: 15 * time.Minute, Leeway: 30 * time.Second, ScopeClaim: "scope", AdminScope: "tidemark:admin"},
		Audit:     Audit{Rate: 2000, Patience: time.Minute},
		Lag:       Lag{Every: 10 * time.Second},
		Admin:     Admin{Listen: "127.0.0.1:8082", Debug: "loopback"},
		Shutdown:  Shutdown{Timeout: 25 * time.Second},
		Log:       Log{Level: "info", Format: "text"},
		Tracing:   Tracing{Ratio: 0.01},
		Limits: Limits{
			MaxBody: 64 << 10, MaxRequest: 4 << 20, InFlight: 10_000, TailBytes: 512 << 20,
			UserRequests: 100, UserBurst: 500, UserBytes: 8 << 20, UserBytesBurst: 64 << 20, UserInFlight: 32,
		},
	}
}

// Validate reports every fault of c, joined.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad(key, "%q is none of %s", value, strings.Join(allowed, ", "))
		}
	}
	positive := func(key string, n int64) {
		if n <= 0 {
			bad(key, "must be above 0, is %d", n)
		}
	}
	addresses := func(key string, list []string) {
		if len(list) == 0 {
			bad(key, "is empty")
		}
		for _, a := range list {
			if _, _, err := net.SplitHostPort(a); err != nil {
				bad(key, "%q is not host:port", a)
			}
		}
	}
	addresses("kafka.brokers", c.Kafka.Brokers)
	positive("kafka.partitions", int64(c.Kafka.Partitions))
	if c.Kafka.Retention < time.Hour {
		bad("kafka.retention", "must be at least 1h, is %s", c.Kafka.Retention)
	}
	oneOf("kafka.on_lost_offsets", c.Kafka.OnLostOffsets, "stop", "earliest", "latest")
	oneOf("kafka.sasl.mechanism", c.Kafka.SASL.Mechanism, "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
	if (c.Kafka.SASL.Mechanism == "") != (c.Kafka.SASL.User == "") {
		bad("kafka.sasl", "mechanism and user go together")
	}
	addresses("redis.addresses", c.Redis.Addresses)
	if c.Redis.Expiry < time.Minute {
		bad("redis.expiry", "must be at least 1m, is %s", c.Redis.Expiry)
	}
	if c.Redis.HotLog < 1000 || c.Redis.HotLog > 10_000 {
		bad("redis.hot_log", "must be within 1000..10000, is %d", c.Redis.HotLog)
	}
	for key, t := range map[string]TLS{"kafka.tls": c.Kafka.TLS, "redis.tls": c.Redis.TLS} {
		if (t.Cert == "") != (t.Key == "") {
			bad(key, "cert and key go together")
		}
	}
	oneOf("history.backend", c.History.Backend, "sqlite", "mongodb")
	if c.History.Backend == "mongodb" && c.History.URI == "" {
		bad("history.uri", "is needed with history.backend mongodb")
	}
	positive("history.timeout", int64(c.History.Timeout))
	positive("redis.timeout", int64(c.Redis.Timeout))
	if c.Redis.PoolSize < 0 || c.Redis.PoolSize > 10_000 {
		bad("redis.pool_size", "must be within 0..10000, is %d", c.Redis.PoolSize)
	}
	oneOf("toredis.unread_policy", c.ToRedis.UnreadPolicy, "advance_on_send", "keep_on_send")
	positive("toredis.max_batch", int64(c.ToRedis.MaxBatch))
	positive("toredis.floor_entries", int64(c.ToRedis.FloorEntries))
	if c.ToRedis.MaxTail < 1 || c.ToRedis.MaxTail > 2_000_000 {
		// Beyond it nobody reads the tail any more.
		bad("toredis.max_tail", "must be within 1..2000000, is %d", c.ToRedis.MaxTail)
	}
	positive("tomongo.max_batch", int64(c.ToMongo.MaxBatch))
	if c.ToMongo.WriteInterval < 0 {
		bad("tomongo.write_interval", "must not be negative, is %s", c.ToMongo.WriteInterval)
	}
	positive("tomongo.flush_marks", int64(c.ToMongo.FlushMarks))
	positive("tomongo.flush_interval", int64(c.ToMongo.FlushInterval))
	positive("tomongo.flush_idle", int64(c.ToMongo.FlushIdle))
	positive("topush.max_age", int64(c.ToPush.MaxAge))
	positive("topush.cache_members", int64(c.ToPush.CacheMembers))
	positive("topush.crowd_above", int64(c.ToPush.CrowdAbove))
	if c.ToPush.CrowdBelow < 1 || c.ToPush.CrowdBelow > c.ToPush.CrowdAbove {
		bad("topush.crowd_below", "must be within 1..%d (crowd_above), is %d", c.ToPush.CrowdAbove, c.ToPush.CrowdBelow)
	}
	positive("audit.rate", int64(c.Audit.Rate))
	positive("audit.patience", int64(c.Audit.Patience))
	positive("lag.every", int64(c.Lag.Every))
	positive("sync.page_bytes", int64(c.Sync.PageBytes))
	positive("sync.answer_timeout", int64(c.Sync.AnswerTimeout))
	positive("gateway.queue_bytes", int64(c.Gateway.QueueBytes))
	positive("gateway.transient_rate", int64(c.Gateway.TransientRate))
	if c.Gateway.Drain <= 0 || c.Gateway.Drain >= c.Shutdown.Timeout {
		bad("gateway.drain", "must be above 0 and below shutdown.timeout (%s), is %s", c.Shutdown.Timeout, c.Gateway.Drain)
	}
	positive("shutdown.timeout", int64(c.Shutdown.Timeout))
	if c.Limits.MaxBody < 1 || c.Limits.MaxBody > 1<<20 {
		bad("limits.max_body", "must be within 1..1048576, is %d", c.Limits.MaxBody)
	}
	c.validateAccess(bad)
	c.validateConsole(bad)
	c.validateToOffline(bad)
	c.validateLimits(bad)
	if c.Admin.Listen != "" {
		addresses("admin.listen", []string{c.Admin.Listen})
	}
	oneOf("admin.debug", c.Admin.Debug, "on", "off", "loopback")
	if c.Tracing.Ratio < 0 || c.Tracing.Ratio > 1 {
		bad("tracing.ratio", "must be within 0..1, is %v", c.Tracing.Ratio)
	}
	if u, err := url.Parse(c.Tracing.Endpoint); c.Tracing.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("tracing.endpoint", "is no http or https URL")
	}
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "text", "json")
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
