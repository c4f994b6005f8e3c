package pipeline_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// produceCompressed appends one record as a batch of its own, as a producer that
// is not ours may.
func produceCompressed(t *testing.T, cfg pipeline.Config, topic string, codec sarama.CompressionCodec, value []byte) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_6_0_0
	conf.Producer.Return.Successes = true
	conf.Producer.Compression = codec
	conf.Producer.MaxMessageBytes = 1 << 30
	p, err := sarama.NewSyncProducer(cfg.Brokers, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(value)}); err != nil {
		t.Fatal(err)
	}
}

// What a batch unpacks to is bounded for each codec, and the one that is larger
// is named.
func TestABatchThatUnpacksToTooMuchIsNamed(t *testing.T) {
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionGZIP, sarama.CompressionLZ4, sarama.CompressionSnappy, sarama.CompressionZSTD} {
		t.Run(codec.String(), func(t *testing.T) {
			_, cfg := cluster(t, 1)
			send(t, producer(t, cfg, "toRedis"), "group:1", "a", "b")
			if sarama.MaxDecompressedBatchSize != pipeline.MaxUnpacked {
				t.Fatalf("the driver's bound is %d", sarama.MaxDecompressedBatchSize)
			}
			defer func() { sarama.MaxDecompressedBatchSize = pipeline.MaxUnpacked }()
			sarama.MaxDecompressedBatchSize = 1 << 20
			produceCompressed(t, cfg, "toRedis", codec, bytes.Repeat([]byte{'x'}, 900<<10))
			produceCompressed(t, cfg, "toRedis", codec, bytes.Repeat([]byte{'x'}, 2<<20))
			var got seen
			s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
			err := start(t, cfg, pipeline.GroupConfig{NewStage: s.make}).wait(t)
			if fault.ReasonOf(err) != pipeline.ReasonBatchTooLarge || !strings.Contains(err.Error(), "topic toRedis partition 0 offset 3: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("Run = %v", err)
			}
		})
	}
}
