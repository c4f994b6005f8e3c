package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline"
)

type lagLine struct {
	Group      string  `json:"group"`
	Topic      string  `json:"topic"`
	Partition  int32   `json:"partition"`
	Committed  int64   `json:"committed"`
	Start      int64   `json:"start"`
	End        int64   `json:"end"`
	Records    int64   `json:"records"`
	Lost       int64   `json:"lost"`
	AgeSeconds float64 `json:"ageSeconds"`
	// HeadroomSeconds is null where retention never deletes anything.
	HeadroomSeconds *float64 `json:"headroomSeconds"`
	// Members are those of the group.
	Members int `json:"members"`
}

func newLagCmd(a *app) *cobra.Command {
	var untilZero bool
	var every, timeout time.Duration
	cmd := &cobra.Command{
		Use:   "lag",
		Short: "Show how far the workers are behind",
		Long: `Lag shows for every worker and partition what it has committed, where the topic
ends, how long the oldest record that it has not handled has waited (by the time
that its producer gave it), and when retention deletes that record. MEMBERS is how
many processes read for the worker. It fails when the log gave up records that a
worker had not read.

With --until-zero it waits until nothing is left, and fails when --timeout passes
before.`,
		Example: `  tidemark lag
  tidemark lag --until-zero --timeout 5m
  tidemark lag -o json | jq -s 'map(.records) | add'`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every <= 0 || timeout <= 0 {
				return usagef("--every and --timeout must be above 0")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return a.lag(ctx, untilZero, every)
		},
	}
	cmd.Flags().BoolVar(&untilZero, "until-zero", false, "wait until no worker is behind")
	cmd.Flags().DurationVar(&every, "every", 200*time.Millisecond, "how often --until-zero looks")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long all of it may take")
	return cmd
}

func (a *app) lag(ctx context.Context, untilZero bool, every time.Duration) (err error) {
	cfg, kafka, err := a.kafka()
	if err != nil {
		return err
	}
	offsets, err := pipeline.NewOffsets(pipeline.OffsetsConfig{Config: kafka})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, offsets.Close()) }()
	groups := stack.Groups(kafka, cfg.ToOffline.Endpoints()...)
	var lines []pipeline.PartitionLag
	if untilZero {
		lines, err = untilCaughtUp(ctx, offsets, groups, every)
	} else {
		lines, err = offsets.Lag(ctx, groups...)
	}
	if err != nil {
		return err
	}
	members := map[string]int{}
	for _, g := range groups {
		if members[g.Group], err = offsets.Members(ctx, g.Group); err != nil {
			return err
		}
	}
	return a.printLag(lines, members, time.Now())
}

// untilCaughtUp looks until nothing is left twice in a row: what the first
// worker wrote just before it was found at its end, only the second look at
// the others sees.
func untilCaughtUp(ctx context.Context, offsets *pipeline.Offsets, groups []pipeline.GroupTopic, every time.Duration) ([]pipeline.PartitionLag, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for calm := 0; ; {
		lines, err := offsets.Lag(ctx, groups...)
		if err != nil {
			return nil, err
		}
		var left int64
		for _, l := range lines {
			left += l.Records
		}
		if calm++; left > 0 {
			calm = 0
		}
		if calm == 2 {
			return lines, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the workers are still %d records behind: %w", left, ctx.Err())
		case <-tick.C:
		}
	}
}

func (a *app) printLag(lines []pipeline.PartitionLag, members map[string]int, now time.Time) error {
	var rows [][]string
	var lost int64
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, l := range lines {
		lost += l.Lost
		age := l.Age(now)
		line := lagLine{
			Group: l.Group, Topic: l.Topic, Partition: l.Partition, Committed: l.Committed, Start: l.Start, End: l.End,
			Records: l.Records, Lost: l.Lost, AgeSeconds: age.Seconds(), Members: members[l.Group],
		}
		headroom := "-"
		if left, ok := l.Headroom(now); ok {
			line.HeadroomSeconds, headroom = new(left.Seconds()), left.Round(time.Second).String()
		}
		a.emit(line, func() {
			committed, waited := "-", "-"
			if l.Committed >= 0 {
				committed = n(l.Committed)
			}
			if !l.Oldest.IsZero() {
				waited = age.Round(time.Millisecond).String()
			}
			rows = append(rows, []string{l.Group, n(int64(members[l.Group])), l.Topic, n(int64(l.Partition)), committed, n(l.End), n(l.Records), waited, headroom})
		})
	}
	if rows != nil {
		a.table([]string{"GROUP", "MEMBERS", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "AGE", "HEADROOM"}, rows)
	}
	if lost > 0 {
		return fmt.Errorf("the log gave up %d records that a worker had not read", lost)
	}
	return nil
}
