package devcluster_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/internal/devcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKafkaOutlivesTheProcessAndRedisDoesNot(t *testing.T) {
	dir := t.TempDir()
	c, err := devcluster.Start(devcluster.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kafka().CreateTopic("t", 3, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Redis().Set("k", "v"); err != nil {
		t.Fatal(err)
	}
	first := c.Incarnation()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, err = devcluster.Start(devcluster.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if info := c.Kafka().TopicInfo("t"); info == nil {
		t.Error("the topic is gone after a restart")
	}
	if c.Redis().Exists("k") {
		t.Error("redis kept a key over a restart")
	}
	if c.Incarnation() == first {
		t.Error("redis has the same incarnation after a restart")
	}
}
