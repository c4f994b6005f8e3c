package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

const placeHelp = `A letter is named by where its record stood: topic/partition/offset, as list
prints it. Where several filters are given, all must fit. What cannot be decoded
has no sender, and no conversation but its key.`

func newDLQCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "List, show, replay and drop dead letters",
		Long: `Dlq works on the dead letters: records that could not be accepted, with the
reason. Nothing is ever deleted there but by Kafka's retention: what is replayed
or dropped is marked, and not listed any more.

` + placeHelp,
		Example: "  tidemark dlq list --reason not_member --since 2h",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return usagef("dlq needs one of list, show, replay, drop") },
	}
	cmd.AddCommand(newDLQListCmd(a), newDLQShowCmd(a), newDLQReplayCmd(a), newDLQDropCmd(a))
	return cmd
}

func newDLQListCmd(a *app) *cobra.Command {
	var f letterFlags
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use:   "list [PLACE...]",
		Short: "List dead letters",
		Args:  cobra.ArbitraryArgs,
		Long:  "List prints the dead letters that nothing was done about yet, the oldest of each\npartition first.\n\n" + placeHelp,
		Example: `  tidemark dlq list
  tidemark dlq list --reason undecodable --topic toRedis --offsets 1000-2000
  tidemark dlq list --all --limit 0 -o json | jq -r .reason | sort | uniq -c`,
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := f.filter(cmd, args, all)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usagef("--limit must be 0 or more, is %d", limit)
			}
			return a.withLetters(cmd.Context(), func(box *deadletters.Box) error { return a.listLetters(cmd.Context(), box, filter, limit) })
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "also those that were replayed or dropped")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many; 0 for all")
	return cmd
}

func newDLQShowCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show PLACE...",
		Short:   "Show dead letters with their records",
		Long:    "Show prints everything about dead letters: cause, headers, content, and what was\ndone about them.\n\n" + placeHelp,
		Example: "  tidemark dlq show toRedis/3/1742",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := (&letterFlags{}).filter(cmd, args, true)
			if err != nil {
				return err
			}
			return a.withLetters(cmd.Context(), func(box *deadletters.Box) error { return a.showLetters(cmd.Context(), box, filter) })
		},
	}
}

func newDLQReplayCmd(a *app) *cobra.Command {
	var f letterFlags
	var dry, again bool
	cmd := &cobra.Command{
		Use:   "replay [PLACE...]",
		Short: "Append the records of dead letters again",
		Args:  cobra.ArbitraryArgs,
		Long: `Replay appends the records of the chosen letters to the topic that they came
from, as they were: they are sequenced now, behind what is there, under the same
client message id or op id as the first time. What is refused again comes back as
another dead letter, with one try more; it is not replayed by the same call.

It can be stopped or killed and be called again: no letter is replayed twice. Let
only one run at a time.

` + placeHelp,
		Example: `  tidemark dlq replay --reason not_member --conversation group:g1 --dry-run
  tidemark dlq replay --reason not_member --conversation group:g1
  tidemark dlq replay toRedis/3/1742`,
		RunE: func(cmd *cobra.Command, args []string) error {
			order, err := f.order(cmd, args, dry, again)
			if err != nil {
				return err
			}
			return a.withLetters(cmd.Context(), func(box *deadletters.Box) error {
				return a.work(cmd.Context(), "replayed", order, box.Replay)
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be replayed, and do nothing")
	cmd.Flags().BoolVar(&again, "again", false, "also letters that were replayed or dropped before")
	return cmd
}

func newDLQDropCmd(a *app) *cobra.Command {
	var f letterFlags
	var dry bool
	var why string
	cmd := &cobra.Command{
		Use:   "drop [PLACE...]",
		Short: "Mark dead letters as not needed",
		Args:  cobra.ArbitraryArgs,
		Long: `Drop notes of the chosen letters that they are not needed, with the reason that
you give. They are not listed any more, and 'replay --again' still has them:
nothing is deleted, that is left to Kafka's retention.

` + placeHelp,
		Example: "  tidemark dlq drop --reason undecodable --since 2h --why 'a load test without a codec'",
		RunE: func(cmd *cobra.Command, args []string) error {
			order, err := f.order(cmd, args, dry, false)
			if err != nil {
				return err
			}
			if strings.TrimSpace(why) == "" || len(why) > 1024 {
				return usagef("--why must have 1 to 1024 bytes")
			}
			return a.withLetters(cmd.Context(), func(box *deadletters.Box) error {
				return a.work(cmd.Context(), "dropped", order, func(ctx context.Context, o deadletters.Order) (*deadletters.Result, error) {
					return box.Drop(ctx, o, why)
				})
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be dropped, and do nothing")
	cmd.Flags().StringVar(&why, "why", "", "`reason`, for whoever looks later")
	require(cmd, "why")
	return cmd
}

// letterFlags choose letters.
type letterFlags struct {
	reason, conversation, sender, topic, offsets, since, until string
	partition                                                  int32
}

func (f *letterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.reason, "reason", "", "only this `reason`, one word as list prints it")
	flags.StringVar(&f.conversation, "conversation", "", "only of this `conversation`")
	flags.StringVar(&f.sender, "sender", "", "only of this `user`")
	flags.StringVar(&f.topic, "topic", "", "only from this `topic`, with the deployment's prefix")
	flags.Int32Var(&f.partition, "partition", -1, "only from this `partition` of it")
	flags.StringVar(&f.offsets, "offsets", "", "only from these offsets of it: `A-B`, A-, -B or A")
	flags.StringVar(&f.since, "since", "", "only refused since this `time`: 2026-01-31T12:00:00Z, or 2h for two hours ago")
	flags.StringVar(&f.until, "until", "", "only refused until this `time`")
}

func (f *letterFlags) filter(cmd *cobra.Command, places []string, handled bool) (deadletters.Filter, error) {
	out := deadletters.Filter{Reason: f.reason, Conversation: f.conversation, Sender: f.sender, Topic: f.topic, Handled: handled}
	var errs []error
	for _, s := range places {
		p, err := deadletters.ParsePlace(s)
		errs = append(errs, err)
		out.Places = append(out.Places, p)
	}
	if flag := cmd.Flags().Lookup("partition"); flag != nil && flag.Changed {
		if f.partition < 0 {
			errs = append(errs, errors.New("--partition must not be negative"))
		}
		out.Partition = &f.partition
	}
	if f.offsets != "" {
		first, last, err := offsetRange(f.offsets)
		errs = append(errs, err)
		out.First, out.Last = &first, &last
	}
	now := time.Now()
	var err1, err2 error
	out.Since, err1 = moment("since", f.since, now)
	out.Until, err2 = moment("until", f.until, now)
	if err := errors.Join(append(errs, err1, err2)...); err != nil {
		return out, usageError{err}
	}
	return out, nil
}

// order is a filter for a command that changes something: it must choose.
func (f *letterFlags) order(cmd *cobra.Command, places []string, dry, handled bool) (deadletters.Order, error) {
	filter, err := f.filter(cmd, places, handled)
	if err != nil {
		return deadletters.Order{}, err
	}
	if len(places) == 0 && *f == (letterFlags{partition: -1}) {
		return deadletters.Order{}, usagef("name letters, or choose them with a filter (--topic takes all of one)")
	}
	return deadletters.Order{Filter: filter, DryRun: dry}, nil
}

// offsetRange reads A-B, A-, -B or A.
func offsetRange(s string) (first, last int64, err error) {
	from, to, isRange := strings.Cut(s, "-")
	last = math.MaxInt64
	if from != "" {
		first, err = strconv.ParseInt(from, 10, 64)
	}
	if err == nil && to != "" {
		last, err = strconv.ParseInt(to, 10, 64)
	}
	if !isRange {
		last = first
	}
	if err != nil || from+to == "" || first > last {
		return 0, 0, fmt.Errorf("--offsets: %q is none of A-B, A-, -B and A", s)
	}
	return first, last, nil
}

// moment reads a time, or how long ago it was.
func moment(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("--%s: %q is neither a time like 2026-01-31T12:00:00Z nor a duration like 2h", flag, s)
	}
	return t, nil
}

// withLetters opens the dead letters for one command.
func (a *app) withLetters(ctx context.Context, f func(*deadletters.Box) error) (err error) {
	cfg, kafka, err := a.kafka()
	if err != nil {
		return err
	}
	topics, err := pipeline.Describe(kafka)
	if err != nil {
		return fmt.Errorf("kafka at %s: %w", strings.Join(cfg.Kafka.Brokers, ","), err)
	}
	if topics.DeadLetter.Missing() {
		return fmt.Errorf("kafka at %s has no topic %s", strings.Join(cfg.Kafka.Brokers, ","), topics.DeadLetter.Name)
	}
	logger, err := telemetry.NewLogger(a.errOut, "warn", "text")
	if err != nil {
		return err
	}
	box, closing, err := stack.OpenDeadLetters(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer func() { err = interrupted(ctx, errors.Join(err, closing())) }()
	return f(box)
}

type letterLine struct {
	Letter       string     `json:"letter"`
	Topic        string     `json:"topic"`
	TopicID      string     `json:"topicId"`
	Partition    int32      `json:"partition"`
	Offset       int64      `json:"offset"`
	Reason       string     `json:"reason"`
	Cause        string     `json:"cause"`
	FirstTime    *time.Time `json:"firstTime"`
	LastTime     *time.Time `json:"lastTime"`
	Tries        int        `json:"tries"`
	Kind         string     `json:"kind"`
	Conversation string     `json:"conversation"`
	Sender       string     `json:"sender"`
	ClientID     string     `json:"clientMessageId"`
	Bytes        int        `json:"bytes"`
	Deed         wire.Deed  `json:"deed"`

	Shown *shownLetter `json:"record,omitempty"`
}

// shownLetter is what show adds.
type shownLetter struct {
	Time    *time.Time    `json:"time"`
	Key     []byte        `json:"key"`
	Headers []shownHeader `json:"headers"`
	Value   []byte        `json:"value"`
	// Content is the value, decoded.
	Content json.RawMessage `json:"content,omitempty"`
	Done    *wire.Mark      `json:"done,omitempty"`
}

type shownHeader struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

func lineOf(l *deadletters.Letter) letterLine {
	return letterLine{
		Letter: l.Place(), Topic: l.Record.Topic, TopicID: l.Record.TopicID, Partition: l.Record.Partition, Offset: l.Record.Offset,
		Reason: l.Reason, Cause: l.Cause, FirstTime: timePointer(l.First), LastTime: timePointer(l.DeadLetter.Last), Tries: l.Tries,
		Kind: l.Kind, Conversation: l.Conversation, Sender: l.Sender, ClientID: l.ClientID,
		Bytes: max(len(l.Record.Value), l.Omitted), Deed: l.Deed,
	}
}

func timePointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// listRows is how many rows of a list are aligned together.
const listRows = 500

func (a *app) listLetters(ctx context.Context, box *deadletters.Box, f deadletters.Filter, limit int) error {
	var rows [][]string
	flush := func() {
		if len(rows) > 0 {
			a.printLetters(rows)
		}
		rows = nil
	}
	n, more, strange := 0, 0, 0
	for l, err := range box.List(ctx, f, &strange) {
		if err != nil {
			return err
		}
		if limit > 0 && n == limit {
			more++
			continue
		}
		n++
		a.emit(lineOf(&l), func() {
			rows = append(rows, letterCells(&l))
			if len(rows) == listRows {
				flush()
			}
		})
	}
	flush()
	if a.output == "json" {
		return nil
	}
	switch {
	case n == 0:
		fmt.Fprintln(a.out, "no dead letters")
	case more > 0:
		fmt.Fprintf(a.out, "and %d more (--limit 0 lists all)\n", more)
	}
	if strange > 0 {
		fmt.Fprintf(a.out, "%s on the topic are no dead letters\n", count(strange, "record"))
	}
	return nil
}

func letterCells(l *deadletters.Letter) []string {
	or := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	cause := l.Cause
	if r := []rune(cause); len(r) > 80 {
		cause = string(r[:79]) + "…"
	}
	return []string{
		l.Place(), clock(milli(l.DeadLetter.Last)), l.Reason, strconv.Itoa(l.Tries), or(string(l.Deed), "-"),
		or(l.Conversation, "-"), or(l.Sender, "-"), cause,
	}
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func (a *app) showLetters(ctx context.Context, box *deadletters.Box, f deadletters.Filter) error {
	n, strange := 0, 0
	for l, err := range box.List(ctx, f, &strange) {
		if err != nil {
			return err
		}
		n++
		line := lineOf(&l)
		shown := &shownLetter{Time: timePointer(l.Record.Time), Key: l.Record.Key, Value: l.Record.Value, Done: l.Mark}
		for _, h := range l.Record.Headers {
			shown.Headers = append(shown.Headers, shownHeader(h))
		}
		if l.Content != nil {
			if shown.Content, err = marshalLine(l.Content); err != nil {
				return err
			}
		}
		line.Shown = shown
		a.emit(line, func() { a.printLetter(&l, &line) })
	}
	if n == 0 {
		return errors.New("there is no such dead letter")
	}
	return nil
}

func (a *app) printLetter(l *deadletters.Letter, line *letterLine) {
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.out, "%-13s %s\n", name, oneLine(value))
		}
	}
	field("letter", line.Letter)
	field("topic id", line.TopicID)
	field("reason", line.Reason)
	field("cause", line.Cause)
	field("first refused", clock(milli(l.First)))
	field("last refused", clock(milli(l.DeadLetter.Last)))
	field("tries", strconv.Itoa(line.Tries))
	field("kind", line.Kind)
	field("conversation", line.Conversation)
	field("sender", line.Sender)
	field("id", line.ClientID)
	if m := l.Mark; m != nil {
		field("done", strings.TrimSuffix(fmt.Sprintf("%s at %s: %s", m.Deed, clock(milli(m.Time)), m.Why), ": "))
	}
	field("sent", clock(milli(l.Record.Time)))
	field("key", readable(l.Record.Key))
	for _, h := range l.Record.Headers {
		field("header", h.Key+": "+readable(h.Value))
	}
	switch {
	case l.Omitted > 0:
		field("value", fmt.Sprintf("(%d bytes, which were too large for the dead letters and were left out)", l.Omitted))
	case line.Shown.Content != nil:
		field("value", string(line.Shown.Content))
	default:
		field("value", readable(l.Record.Value))
	}
	fmt.Fprintln(a.out)
}

// readable gives bytes as text, where they are, else as base64.
func readable(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return "base64 " + base64.StdEncoding.EncodeToString(b)
}

type workLine struct {
	*deadletters.Result
	DryRun bool `json:"dryRun"`
}

// work runs what replays or drops letters.
func (a *app) work(ctx context.Context, done string, o deadletters.Order, f func(context.Context, deadletters.Order) (*deadletters.Result, error)) error {
	b := newBar(a.errOut, done, 0)
	var rows [][]string
	o.Each = func(l *deadletters.Letter) {
		b.step(1)
		if o.DryRun {
			a.emit(lineOf(l), func() {
				if rows = append(rows, letterCells(l)); len(rows) == listRows {
					a.printLetters(rows)
					rows = nil
				}
			})
		}
	}
	res, err := f(ctx, o)
	b.finish()
	if len(rows) > 0 {
		a.printLetters(rows)
	}
	if err != nil {
		if res.Done > 0 {
			err = fmt.Errorf("%s %s, call it again to go on: %w", count(res.Done, "letter"), done, err)
		}
		return err
	}
	if o.DryRun && a.output == "json" {
		return nil // a line for each letter, as list prints
	}
	a.emit(workLine{res, o.DryRun}, func() {
		if o.DryRun {
			fmt.Fprintf(a.out, "%s would be %s\n", count(res.Chosen, "letter"), done)
			return
		}
		fmt.Fprintf(a.out, "%s %s\n", count(res.Done, "letter"), done)
		if res.Found > 0 {
			fmt.Fprintf(a.out, "%s had been %s by an earlier call that did not end\n", count(res.Found, "letter"), done)
		}
	})
	for _, s := range res.Failures {
		a.complain(errors.New(s))
	}
	if res.Failed > 0 {
		return fmt.Errorf("%s could not be %s", count(res.Failed, "letter"), done)
	}
	return nil
}

func (a *app) printLetters(rows [][]string) {
	a.table([]string{"LETTER", "REFUSED", "REASON", "TRIES", "DONE", "CONVERSATION", "SENDER", "CAUSE"}, rows)
}
