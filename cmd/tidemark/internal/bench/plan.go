package bench

import (
	"errors"
	"fmt"
	"math"
)

// Costs are what a deployment is planned with: processor time in microseconds,
// memory and disk in bytes. They follow from measurements (docs/performance.md)
// and differ from machine to machine, so whoever plans measures with bench stage
// and gives its own.
type Costs struct {
	// For each message, and for each batch of messages of one conversation.
	ToRedis, ToRedisConversation float64
	ToMongo, ToMongoConversation float64
	ToPush                       float64
	Redis, RedisConversation     float64
	Kafka                        float64
	// Driver is of each worker for each record that it reads or appends,
	// KafkaRecord of Kafka for each record of the sequenced log.
	Driver, KafkaRecord float64
	// For each device that is online and gets a message.
	Gateway float64
	// Rounds are cores that go into rounds of few messages, where there is room for
	// them: for one process of each worker, for Redis and for Kafka. Half of them do at
	// RoundsHalf, of Kafka at KafkaHalf, messages a second: fewer make fewer rounds, and of
	// more each round takes more. A busy system makes fewer, larger
	// rounds, and in the end next to none.
	ToRedisRounds, ToMongoRounds, ToPushRounds, RedisRounds, KafkaRounds float64
	RoundsHalf, KafkaHalf                                                float64
	// Cut is how often a burst is cut, in seconds: what is there when a worker asks is
	// a batch, and what comes later is in the next one.
	Cut float64
	// Bytes that a conversation takes in Redis beside its messages, one of its
	// members, a message of the hot log beside its body, and its client id. A hot log
	// takes LogBytes at least: a node of a stream is made whole.
	ConversationBytes, MemberBytes, MessageBytes, IDBytes, LogBytes float64
	// RowBytes is a message in history beside its body.
	RowBytes float64
}

// DefaultCosts were measured on the machine of docs/performance.md.
func DefaultCosts() Costs {
	return Costs{
		ToRedis: 6, ToRedisConversation: 3, ToMongo: 14, ToMongoConversation: 2, ToPush: 4, Driver: 5,
		Redis: 10, RedisConversation: 33, Kafka: 4, KafkaRecord: 5, Gateway: 15,
		ToRedisRounds: 0.35, ToMongoRounds: 0.06, ToPushRounds: 0.23, RedisRounds: 0.19, KafkaRounds: 0.43,
		RoundsHalf: 300, KafkaHalf: 50, Cut: 0.003,
		ConversationBytes: 700, MemberBytes: 180, MessageBytes: 165, IDBytes: 75, LogBytes: 4800, RowBytes: 242,
	}
}

// Speed is how many times as fast a machine is as that of the costs. 0 is 1.
type Speed struct {
	Roles float64 `json:"roles"`
	Redis float64 `json:"redis"`
	Kafka float64 `json:"kafka"`
}

// SpeedOf makes a speed of one number, for everything, or of those of roles, Redis
// and Kafka.
func SpeedOf(numbers []float64) (Speed, error) {
	for _, n := range numbers {
		if !(n >= 0.001 && n <= 1000) {
			return Speed{}, fmt.Errorf("speed must be within 0.001..1000, is %g", n)
		}
	}
	switch len(numbers) {
	case 0:
		return Speed{}, nil
	case 1:
		return Speed{numbers[0], numbers[0], numbers[0]}, nil
	case 3:
		return Speed{numbers[0], numbers[1], numbers[2]}, nil
	}
	return Speed{}, fmt.Errorf("speed takes one number, or three: of roles, Redis and Kafka; these are %d", len(numbers))
}

// of gives that of a part.
func (s Speed) of(part string) float64 {
	v := s.Roles
	switch part {
	case "redis":
		v = s.Redis
	case "kafka":
		v = s.Kafka
	}
	if v == 0 {
		return 1
	}
	return v
}

// Plan says what is asked of a deployment.
type Plan struct {
	// Rate is messages a second, above 0; Size the bytes of a body.
	Rate float64
	Size int
	// Conversations are those that get messages within the expiry of Redis, a day;
	// Members is how many each has, at least 1.
	Conversations, Members int
	// Kept is how many messages of a conversation stand in Redis on average, at
	// most its hot log (1,000).
	Kept float64
	// Online is the share of members with a device that is connected, 0..1.
	Online float64
	// Burst is how many messages a conversation gets in a row, at least 1; they follow
	// one another at the rate. 0: 1.
	Burst float64
	// Batch is how long messages are gathered where the system is busy, in
	// seconds: what makes b, the messages of one conversation in a batch. 0: 50 ms.
	Batch float64
	Costs Costs
	// Speed is that of the machine.
	Speed Speed
}

// Need is what a part of a deployment needs.
type Need struct {
	Part  string  `json:"part"`
	Cores float64 `json:"cores"`
	// Rounds are cores beside them, where there is room: see Costs.
	Rounds float64 `json:"rounds_cores"`
	// Memory in bytes; 0: not counted.
	Memory float64 `json:"memory_bytes"`
}

// Answer is a plan's result.
type Answer struct {
	// PerBatch is b: the messages of one conversation that are decided at once.
	PerBatch float64 `json:"per_batch"`
	Needs    []Need  `json:"needs"`
	// HistoryPerDay is what history grows, LogPerDay what Kafka keeps of a day,
	// in bytes, each once: replicas come on top.
	HistoryPerDay float64 `json:"history_bytes_per_day"`
	LogPerDay     float64 `json:"log_bytes_per_day"`
}

func (p *Plan) fill() error {
	var errs []error
	bad := func(wrong bool, text string) {
		if wrong {
			errs = append(errs, errors.New(text))
		}
	}
	bad(!(p.Rate > 0 && p.Rate <= 1e9), "rate must be above 0 and at most 1e9")
	bad(p.Size < 1 || p.Size > maxSize, fmt.Sprintf("size must be within 1..%d", maxSize))
	bad(p.Conversations < 1 || p.Conversations > 1e12, "conversations must be within 1..1e12")
	bad(p.Members < 1 || p.Members > 1e7, "members must be within 1..1e7")
	bad(!(p.Kept >= 0 && p.Kept <= 10_000), "messages in Redis must be within 0..10000")
	bad(!(p.Online >= 0 && p.Online <= 1), "online must be within 0..1")
	bad(!(p.Batch >= 0), "batch must not be negative")
	bad(p.Burst != 0 && !(p.Burst >= 1 && p.Burst <= 1e6), "burst must be within 1..1e6")
	p.Burst = max(p.Burst, 1)
	if p.Batch == 0 {
		p.Batch = 0.05
	}
	return invalid(errs...)
}

// Answer works out a plan:
//
//	pieces   = at most burst, 1 + (burst - 1) / rate / cut
//	b        = burst / pieces * x / (1 - e^-x),  x = rate / burst * batch / conversations
//	cores    = rate * (per message + per conversation / b) / 1e6 / speed
//	rounds   = cores of rounds * arrivals / (arrivals + half) / speed, arrivals = rate * pieces / burst; none where there is no room
//	Redis    = conversations * (conversation + members * member + kept * id + max(log, kept * (message + size)))
//	history  = rate * 86400 * (row + size)
//
// b is the number of messages of a conversation that has any, where bursts come
// at random.
func (p Plan) Answer() (*Answer, error) {
	if err := p.fill(); err != nil {
		return nil, err
	}
	c := p.Costs
	x := p.Rate / p.Burst * p.Batch / float64(p.Conversations)
	pieces := 1.0
	if c.Cut > 0 {
		pieces = min(p.Burst, 1+(p.Burst-1)/p.Rate/c.Cut)
	}
	b := p.Burst / pieces
	if x > 1e-9 {
		b *= x / -math.Expm1(-x)
	}
	arrivals := p.Rate * pieces / p.Burst
	need := func(part string, message, conversation, rounds, half float64) Need {
		speed := p.Speed.of(part)
		return Need{
			Part: part, Cores: p.Rate * (message + conversation/b) / 1e6 / speed, Rounds: rounds * arrivals / (arrivals + half) / speed,
		}
	}
	log := max(c.LogBytes, p.Kept*(c.MessageBytes+float64(p.Size)))
	redis := need("redis", c.Redis, c.RedisConversation, c.RedisRounds, c.RoundsHalf)
	redis.Memory = float64(p.Conversations) * (c.ConversationBytes + float64(p.Members)*c.MemberBytes + p.Kept*c.IDBytes + log)
	day := p.Rate * 86400
	return &Answer{
		PerBatch: b,
		Needs: []Need{
			need("toredis", c.ToRedis+c.Driver, c.ToRedisConversation+c.Driver, c.ToRedisRounds, c.RoundsHalf),
			need("tomongo", c.ToMongo, c.ToMongoConversation+c.Driver, c.ToMongoRounds, c.RoundsHalf),
			need("topush", c.ToPush, c.Driver, c.ToPushRounds, c.RoundsHalf),
			need("gateway", c.Gateway*p.Online*float64(p.Members), 0, 0, c.RoundsHalf),
			redis,
			need("kafka", c.Kafka, c.KafkaRecord, c.KafkaRounds, c.KafkaHalf),
		},
		HistoryPerDay: day * (c.RowBytes + float64(p.Size)),
		LogPerDay:     day * 2 * (150 + float64(p.Size)), // toRedis and sequenced
	}, nil
}
