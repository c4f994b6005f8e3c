package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

type topicLine struct {
	Name        string `json:"name"`
	ID          string `json:"id"`
	Missing     bool   `json:"missing"`
	Partitions  int32  `json:"partitions"`
	Replication int    `json:"replication"`
}

func newTopicsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "topics",
		Short:   "Make, check and describe the Kafka topics",
		Long:    "Topics works on Tidemark's topics in the Kafka of the configuration (kafka.brokers and the rest of kafka.*).",
		Example: "  tidemark topics create --set kafka.partitions=24 --set kafka.replication=3",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("topics needs one of create, check, describe")
		},
	}
	create := &cobra.Command{
		Use:   "create",
		Short: "Make the topics that are missing, and check all",
		Long: `Create makes the topics that are missing, with kafka.partitions, kafka.replication
and kafka.retention, and checks those that are there. The number of partitions is
fixed from then on.`,
		Example: `  tidemark topics create --set kafka.brokers=k1:9092 --set kafka.partitions=24 --set kafka.replication=3`,
	}
	a.ensures(create, true)
	check := &cobra.Command{
		Use:     "check",
		Short:   "Check that all topics are there and fit",
		Long:    "Check says in one line what has to be mended, and fails, when a topic is missing or its settings would lose messages.",
		Example: "  tidemark topics check --config tidemark.yaml",
	}
	a.ensures(check, false)
	describe := &cobra.Command{
		Use:     "describe",
		Short:   "Show the topics as they are",
		Example: "  tidemark topics describe -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, kafka, err := a.kafka()
			if err != nil {
				return err
			}
			infos, err := pipeline.Describe(kafka)
			if err != nil {
				return err
			}
			a.printTopics(infos)
			return nil
		},
	}
	cmd.AddCommand(create, check, describe)
	return cmd
}

// ensures makes cmd one that checks the topics, and makes them when create.
func (a *app) ensures(cmd *cobra.Command, create bool) {
	var timeout time.Duration
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for Kafka")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, kafka, err := a.kafka()
		if err != nil {
			return err
		}
		if timeout <= 0 {
			return usagef("--timeout must be above 0, is %s", timeout)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		infos, err := pipeline.EnsureTopics(ctx, pipeline.TopicsConfig{
			Config: kafka, Create: create, Partitions: cfg.Kafka.Partitions,
			Replication: cfg.Kafka.Replication, Retention: cfg.Kafka.Retention, Offline: cfg.ToOffline.Enabled,
		})
		if err != nil {
			return topicsError(cfg.Kafka.Brokers, timeout, err)
		}
		a.printTopics(infos)
		return nil
	}
}

// topicsError says what can be done about topics that are missing and a Kafka
// that is away.
func topicsError(brokers []string, timeout time.Duration, err error) error {
	at := strings.Join(brokers, ",")
	switch {
	case fault.ReasonOf(err) == pipeline.ReasonMissingTopic:
		return errors.Join(err, errors.New("'tidemark topics create' makes the topics that are missing"))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("kafka at %s does not answer within %s: %s", at, timeout, strings.ReplaceAll(err.Error(), "\n", ": "))
	}
	return fmt.Errorf("kafka at %s: %w", at, err)
}

func (a *app) printTopics(infos pipeline.TopicInfos) {
	var rows [][]string
	topics := []pipeline.TopicInfo{infos.ToRedis, infos.Sequenced, infos.DeadLetter}
	if !infos.Offline.Missing() { // where nobody tells absent users it need not be there
		topics = append(topics, infos.Offline)
	}
	for _, t := range topics {
		a.emit(topicLine{t.Name, t.ID, t.Missing(), t.Partitions, t.Replication}, func() {
			if t.Missing() {
				rows = append(rows, []string{t.Name, "missing", "-", "-"})
				return
			}
			rows = append(rows, []string{t.Name, t.ID, strconv.Itoa(int(t.Partitions)), strconv.Itoa(t.Replication)})
		})
	}
	if rows != nil {
		a.table([]string{"TOPIC", "ID", "PARTITIONS", "REPLICAS"}, rows)
	}
}
