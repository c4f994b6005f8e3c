package stack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/certs"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// owner hands lost events back to the toRedis topic.
type owner struct {
	producer *pipeline.Producer
	topic    string
}

func (o owner) Append(ctx context.Context, inputs []watermark.Input) error {
	outs := make([]wire.Out, 0, len(inputs))
	for _, in := range inputs {
		out, err := wire.EncodeCommand(convert.InputToCommand(in))
		if err != nil {
			return err
		}
		out.Topic = o.topic
		outs = append(outs, out)
	}
	return o.producer.Append(ctx, outs)
}

// appender is the query service's way into Kafka.
type appender struct {
	producer *pipeline.Producer
	topics   pipeline.Topics
}

func (a appender) AppendSend(ctx context.Context, m *tidemarkv1.SendMessage, caller string) error {
	out, err := wire.EncodeSend(m, caller)
	return a.append(ctx, out, a.topics.ToRedis, err)
}

func (a appender) AppendCommand(ctx context.Context, c *tidemarkv1.Command) error {
	out, err := wire.EncodeCommand(c)
	return a.append(ctx, out, a.topics.ToRedis, err)
}

func (a appender) AppendMarks(ctx context.Context, conv watermark.ConversationID, marks []watermark.ReadAdvanced) error {
	rec := watermark.Record{Conversation: conv}
	for _, m := range marks {
		rec.Events = append(rec.Events, m)
	}
	value, err := wire.EncodeRecord(rec)
	return a.append(ctx, wire.Out{Partition: -1, Key: string(conv), Value: value}, a.topics.Sequenced, err)
}

func (a appender) append(ctx context.Context, out wire.Out, topic string, err error) error {
	if err != nil {
		return err
	}
	out.Topic = topic
	return a.producer.Append(ctx, []wire.Out{out})
}

func kafkaConfig(cfg Config) (pipeline.Config, error) {
	t, err := tlsConfig(cfg.Kafka.TLS, cfg.Logger)
	if err != nil {
		return pipeline.Config{}, fmt.Errorf("kafka.tls: %w", err)
	}
	k := pipeline.Config{
		Brokers: cfg.Kafka.Brokers, ClientID: cfg.Kafka.ClientID, Version: cfg.Kafka.Version,
		TopicPrefix: cfg.Kafka.TopicPrefix, TLS: t, MaxRecordBytes: maxRecord(cfg.Limits.MaxBody),
		SASL:   pipeline.SASL{Mechanism: cfg.Kafka.SASL.Mechanism, User: cfg.Kafka.SASL.User, Password: cfg.Kafka.SASL.Password},
		Logger: cfg.Logger, Registerer: cfg.Registry,
	}
	return k, k.Validate()
}

// maxRecord is the largest Kafka record that messages with bodies of maxBody
// bytes need: in a producer's JSON a body is longer than it is (base64, escapes),
// and attributes and mentions come on top.
func maxRecord(maxBody int) int {
	return max(pipeline.DefaultMaxRecordBytes, 2*maxBody+256<<10)
}

// redisOptions gives the driver's settings. Whoever calls Redis retries by
// itself, with growing pauses, or tells its own caller to: the driver's four
// times five attempts would only hide an outage for seconds. One more attempt
// is left to it, for a pooled connection that broke while nobody looked.
func redisOptions(r config.Redis, log *slog.Logger) (*redis.UniversalOptions, error) {
	t, err := tlsConfig(r.TLS, log)
	if err != nil {
		return nil, fmt.Errorf("redis.tls: %w", err)
	}
	return &redis.UniversalOptions{
		Addrs: r.Addresses, MasterName: r.Master, Username: r.Username, Password: r.Password, DB: r.DB, TLSConfig: t,
		MaxRetries: 1, DialerRetries: 1,
		ReadTimeout: r.Timeout, WriteTimeout: r.Timeout, PoolSize: r.PoolSize,
	}, nil
}

// tlsConfig gives the settings of connections to a server. The certificate that
// is shown to it is read again when its files change.
func tlsConfig(t config.TLS, log *slog.Logger) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca: no certificate in " + t.CA)
		}
	}
	if t.Cert != "" {
		own, err := certs.New(certs.Config{Cert: t.Cert, Key: t.Key, Logger: log})
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.GetClientCertificate = own.ClientCertificate
	}
	return c, nil
}
