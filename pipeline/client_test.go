package pipeline_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline"
)

func TestConfigReportsEveryFault(t *testing.T) {
	err := pipeline.Config{
		Brokers: []string{"a:9092", " "}, Version: "1.0.0", TopicPrefix: "a b", MaxRecordBytes: 10,
		SASL: pipeline.SASL{Mechanism: "GSSAPI"},
	}.Validate()
	for _, want := range []string{"an address is empty", "at least 2.8.0", "topic prefix", "max record bytes 10", `"GSSAPI" is none of`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want it to say %q", err, want)
		}
	}
	if err := (pipeline.Config{Brokers: []string{"a:9092"}}).Validate(); err != nil {
		t.Errorf("a minimal config: %v", err)
	}
}

func TestMechanismsOfThisBuild(t *testing.T) {
	tests := []struct {
		sasl pipeline.SASL
		want string // empty: fine
	}{
		{pipeline.SASL{Mechanism: "PLAIN", User: "u", Password: "p"}, ""},
		{pipeline.SASL{}, ""},
		{pipeline.SASL{Mechanism: "PLAIN", User: "u"}, "user and password must be set"},
		{pipeline.SASL{User: "u"}, "without a mechanism"},
		{pipeline.SASL{Mechanism: "SCRAM-SHA-512", User: "u", Password: "p"}, ""},
		{pipeline.SASL{Mechanism: "plain", User: "u", Password: "p"}, "is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"},
	}
	for _, tt := range tests {
		err := pipeline.Config{Brokers: []string{"a:9092"}, SASL: tt.sasl}.Validate()
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.sasl, err, tt.want)
		}
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	cfg := pipeline.Config{SASL: pipeline.SASL{Mechanism: "PLAIN", User: "u", Password: "hunter2"}}
	var buf bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&buf, nil))
	log.Info("x", "sasl", cfg.SASL)
	for _, text := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg), buf.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the password is in %s", text)
		}
	}
}

func TestGroupConfigReportsEveryFault(t *testing.T) {
	_, err := pipeline.NewGroup(pipeline.GroupConfig{Config: pipeline.Config{Brokers: []string{"a:1"}}, MaxBatch: -1, DrainTimeout: -1})
	for _, want := range []string{"name is needed", "not a topic's name", "NewStage", "DeadLetters", "MaxBatch", "DrainTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want it to say %q", err, want)
		}
	}
}
