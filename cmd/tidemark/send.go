package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// maxConcurrency bounds the messages that are under way at once.
const maxConcurrency = 256

type sendFlags struct {
	conversation, from, text, json, dataFile string
	id, kind, device                         string
	mentions, attrs                          []string
	wait                                     bool

	input, kafka string
	concurrency  int
	timeout      time.Duration
}

// sendFunc sends one message. Its client message id is set, so that sending it
// again is safe.
type sendFunc func(ctx context.Context, m *tidemarkv1.SendMessage) (*tidemarkv1.SendResponse, error)

func newSendCmd(a *app) *cobra.Command {
	f := sendFlags{}
	cmd := &cobra.Command{
		Use:   "send",
		Short: "Send a message, or many from a file",
		Long: `Send sends one message made from flags, or with --input every line of a file.

A line of the file is a message as JSON:
  {"conversation":"group:g1","sender":"alice","text":"hello","clientMessageId":"m-1"}
Messages of one conversation are sent in the order of the file. Each line that
fails is reported with its number, the others are sent. A message without an id
gets one, so that a repeat after a passing fault is not a second message.

With --kafka the messages go straight to the toRedis topic, as another producer's
would; TLS, SASL and the topic prefix are taken from the configuration.`,
		Example: `  tidemark send --conversation group:g1 --from alice --text hello --wait
  tidemark send --conversation single:alice:bob --from alice --json '{"lat":1.5}' --kind location
  tidemark send --conversation group:g1 --from alice --data-file photo.jpg --kind image --attr name=photo.jpg
  tidemark send --input messages.jsonl
  generate | tidemark send --input - --kafka 127.0.0.1:9092`,
		GroupID: groupMessages,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.send(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.conversation, "conversation", "", "`conversation`: single:A:B with A < B, or group:ID")
	flags.StringVar(&f.from, "from", "", "`user` who sends")
	flags.StringVar(&f.text, "text", "", "the message is this `text`")
	flags.StringVar(&f.json, "json", "", "the message is this JSON `value`")
	flags.StringVar(&f.dataFile, "data-file", "", "the message is the content of this `file`; - is standard input")
	flags.StringVar(&f.id, "id", "", "client message `id`, by which a repeat is recognised")
	flags.StringVar(&f.kind, "kind", "", "what the content is to the application (default text)")
	flags.StringArrayVar(&f.mentions, "mention", nil, "`user` who is mentioned; repeatable")
	flags.StringArrayVar(&f.attrs, "attr", nil, "attribute as `key=value`; repeatable")
	flags.StringVar(&f.device, "device", "", "sending `device`; the message is not pushed back to it")
	flags.BoolVar(&f.wait, "wait", false, "wait until the message has its seq")
	flags.StringVar(&f.input, "input", "", "send each line of this `file`; - is standard input")
	flags.StringVar(&f.kafka, "kafka", "", "publish to the Kafka at these `addresses` (host:port, comma-separated) instead of calling the sync API")
	flags.IntVar(&f.concurrency, "concurrency", 32, "how many messages of --input may be under way at once")
	addTimeout(cmd, &f.timeout)
	for _, one := range []string{"conversation", "from", "text", "json", "data-file", "id", "kind", "mention", "attr", "device"} {
		cmd.MarkFlagsMutuallyExclusive("input", one)
	}
	cmd.MarkFlagsMutuallyExclusive("text", "json", "data-file")
	cmd.MarkFlagsMutuallyExclusive("wait", "kafka")
	cmd.MarkFlagsOneRequired("conversation", "input")
	cmd.MarkFlagsRequiredTogether("conversation", "from")
	return cmd
}

func (a *app) send(cmd *cobra.Command, f sendFlags) (err error) {
	var one *tidemarkv1.SendMessage
	if f.input == "" {
		if one, err = a.messageFromFlags(cmd, f); err != nil {
			return err
		}
	} else if f.concurrency < 1 || f.concurrency > maxConcurrency {
		return usagef("--concurrency must be within 1..%d, is %d", maxConcurrency, f.concurrency)
	}
	send, done, err := a.sender(cmd.Context(), f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if one == nil {
		return a.sendLines(cmd.Context(), f, send)
	}
	res, err := send(cmd.Context(), one)
	if err != nil {
		return err
	}
	a.emit(res, func() {
		fmt.Fprintf(a.out, "%s  id %s", one.GetConversation(), res.GetClientMessageId())
		if res.GetSeq() > 0 {
			fmt.Fprintf(a.out, "  seq %d", res.GetSeq())
		}
		if res.GetDuplicate() {
			fmt.Fprint(a.out, "  (had been sent before)")
		}
		fmt.Fprintln(a.out)
	})
	return nil
}

func (a *app) messageFromFlags(cmd *cobra.Command, f sendFlags) (*tidemarkv1.SendMessage, error) {
	m := &tidemarkv1.SendMessage{
		Conversation: f.conversation, Sender: f.from, ClientMessageId: newID(f.id), Kind: f.kind,
		Mentions: f.mentions, Device: f.device,
	}
	var errs []error
	switch {
	case cmd.Flags().Changed("text"):
		m.Body = &tidemarkv1.SendMessage_Text{Text: f.text}
	case cmd.Flags().Changed("json"):
		v := &structpb.Value{}
		if err := protojson.Unmarshal([]byte(f.json), v); err != nil {
			errs = append(errs, errors.New("--json is not a JSON value"))
		}
		m.Body = &tidemarkv1.SendMessage_Json{Json: v}
	case f.dataFile != "":
		in, err := a.open(f.dataFile)
		if err != nil {
			return nil, fmt.Errorf("--data-file: %w", err)
		}
		// One byte more than any deployment takes tells that it is too large.
		data, err := io.ReadAll(io.LimitReader(in, convert.HardMaxBody+1))
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, fmt.Errorf("--data-file: %w", err)
		}
		m.Body = &tidemarkv1.SendMessage_Data{Data: data}
	}
	for _, kv := range f.attrs {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("--attr takes key=value, not %q", kv))
			continue
		}
		if m.Attributes == nil {
			m.Attributes = map[string]string{}
		}
		m.Attributes[k] = v
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usageError{err}
	}
	return m, nil
}

// newID gives a client message id where there is none.
func newID(given string) string {
	if given != "" {
		return given
	}
	return strings.ToLower(rand.Text())
}

// open opens a file to read; "-" is standard input, which stays open.
func (a *app) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.in), nil
	}
	return os.Open(name)
}

// sender gives the way that messages go: the sync API, or Kafka.
func (a *app) sender(ctx context.Context, f sendFlags) (_ sendFunc, done func() error, err error) {
	if f.kafka != "" {
		return a.kafkaSender(ctx, f)
	}
	svc, closeIdle, err := a.syncClient(f.timeout)
	if err != nil {
		return nil, nil, err
	}
	return apiSender(svc, f.wait), func() error { closeIdle(); return nil }, nil
}

func apiSender(svc tidemarkv1connect.SyncServiceClient, wait bool) sendFunc {
	return func(ctx context.Context, m *tidemarkv1.SendMessage) (*tidemarkv1.SendResponse, error) {
		return svc.Send(ctx, &tidemarkv1.SendRequest{Message: m, WaitForSeq: wait})
	}
}

func (a *app) kafkaSender(ctx context.Context, f sendFlags) (_ sendFunc, done func() error, err error) {
	a.sets = append(a.sets, "kafka.brokers="+f.kafka)
	cfg, kafka, err := a.kafka()
	if err != nil {
		return nil, nil, err
	}
	// A topic that is not there would be waited for.
	topics, err := pipeline.Describe(kafka)
	if err != nil {
		return nil, nil, fmt.Errorf("kafka at %s: %w", f.kafka, err)
	}
	if topics.ToRedis.Missing() {
		return nil, nil, fmt.Errorf("kafka at %s has no topic %s; make it with 'tidemark topics create'", f.kafka, topics.ToRedis.Name)
	}
	producer, err := pipeline.NewProducer(pipeline.ProducerConfig{Config: kafka, Topic: topics.ToRedis.Name})
	if err != nil {
		return nil, nil, err
	}
	limits := convert.Limits{MaxBody: cfg.Limits.MaxBody}
	send := func(ctx context.Context, m *tidemarkv1.SendMessage) (*tidemarkv1.SendResponse, error) {
		// What nobody checks on the way would end among the dead letters.
		if _, _, err := convert.SendToMessage(m, limits); err != nil {
			return nil, err
		}
		out, err := wire.EncodeSend(m, "")
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, f.timeout)
		defer cancel()
		if err := producer.Append(ctx, []wire.Out{out}); err != nil {
			return nil, err
		}
		return &tidemarkv1.SendResponse{ClientMessageId: m.GetClientMessageId()}, nil
	}
	return send, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return producer.Close(ctx)
	}, nil
}

// kafka loads the configuration for a tool that speaks to Kafka; its log shows
// warnings only, unless another level is set.
func (a *app) kafka() (config.Config, pipeline.Config, error) {
	base := config.Default()
	base.Log.Level = "warn"
	cfg, err := a.load(&base)
	if err != nil {
		return config.Config{}, pipeline.Config{}, err
	}
	logger, err := telemetry.NewLogger(a.errOut, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return config.Config{}, pipeline.Config{}, err
	}
	kafka, err := stack.Kafka(cfg, logger)
	if err != nil {
		return config.Config{}, pipeline.Config{}, usageError{err}
	}
	return cfg, kafka, nil
}
