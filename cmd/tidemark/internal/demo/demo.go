// Package demo shows Tidemark's main job on the embedded stack, so that a
// person understands it: messages are published over Kafka while one user is
// away, one is kicked and one joins late; the returning user sees what was
// missed, reads it, loses nothing when Redis is emptied and the workers restart;
// and an audit of every seq ends it.
//
// Run returns nil only if everything that it shows was also checked and right.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// stepTimeout bounds each step, on the slowest machine.
const stepTimeout = 2 * time.Minute

// Config says what to show.
type Config struct {
	// Out is where it is told. Required.
	Out io.Writer
	// Input holds the user's own messages, one JSON SendMessage a line. nil: a
	// story of the demo's own.
	Input io.Reader
	// User is the one who returns. Empty: the one with most conversations.
	User watermark.UserID
	// Base is the configuration, save what the embedded servers decide and where
	// to listen, which is any free port. nil: the defaults.
	Base *config.Config
	// Keep leaves everything running at the end, with the console, until the
	// context of Run is done.
	Keep bool
	// Logger takes what the roles say. Required.
	Logger *slog.Logger
}

// show is a demo under way.
type show struct {
	cfg   Config
	story *story
	emb   *stack.Embedded
	stack *stack.Stack
	stop  func() error
	ended <-chan struct{} // closed when the roles have stopped
	svc   tidemarkv1connect.SyncServiceClient
	// section is the number of the last title.
	section int
	// expected is, for each conversation, how many distinct messages it has.
	expected map[string]int64
	// dead is how many dead letters there are, after is how many messages were
	// sent once the story was over.
	dead, after int
}

// Run runs the demo.
func Run(ctx context.Context, cfg Config) (err error) {
	d := &show{cfg: cfg}
	base := config.Default()
	base.Kafka.Partitions = 4
	if cfg.Base != nil {
		base = *cfg.Base
	}
	base.Sync.Console.Enabled = cfg.Keep
	if cfg.Input == nil {
		d.story = ownStory()
	} else if d.story, err = readInput(ctx, cfg.Input, convert.Limits{MaxBody: base.Limits.MaxBody}); err != nil {
		return err
	}
	if err := d.story.choose(cfg.User); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.emb, err = stack.StartEmbedded(stack.EmbeddedConfig{DataDir: dir, Partitions: base.Kafka.Partitions, Base: &base, Logger: cfg.Logger}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.emb.Cluster.Close()) }()
	if err := d.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, step := range []func(context.Context) error{d.publish, d.returns, d.others, d.reads, d.disaster, d.audit} {
		ctx, cancel := context.WithTimeout(ctx, stepTimeout)
		err := step(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
	d.say("\nEverything above was checked, not only printed: the demo is clean.")
	if cfg.Keep {
		return d.keep(ctx)
	}
	return nil
}

// keep says where to look, and waits until it is told to end.
func (d *show) keep(ctx context.Context) error {
	at := url.Values{"users": {string(d.story.returning)}}
	marks, err := d.watermarks(ctx, string(d.story.returning))
	if err != nil {
		return err
	}
	if len(marks) > 0 {
		conv := marks[0].GetConversation()
		at.Set("conversation", conv)
		if sender := d.story.senderOf(conv); sender != "" && sender != string(d.story.returning) {
			at.Set("users", string(d.story.returning)+","+sender)
		}
	}
	d.say("\nIt goes on running, until Ctrl-C:")
	d.say("  console  %s", d.stack.ConsoleURL()+"#"+at.Encode())
	d.say("  sync     %s", d.stack.SyncURL())
	d.say("  gateway  %s", d.stack.GatewayURL())
	select {
	case <-ctx.Done():
		return nil
	case <-d.ended:
		return errors.New("demo: the roles stopped by themselves")
	}
}

// start opens all roles and waits until they are ready.
func (d *show) start(ctx context.Context) error {
	began := time.Now()
	roles := stack.Roles()
	if d.cfg.Keep {
		roles = append(roles, stack.Lag) // which the console shows
	}
	s, err := stack.Open(ctx, stack.Config{Config: d.emb.Config, Roles: roles, Logger: d.cfg.Logger})
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	var fault error // set when ended is closed
	go func() {
		defer close(ended)
		fault = s.Run(run)
	}()
	d.ended = ended
	d.stack, d.svc = s, tidemarkv1connect.NewSyncServiceClient(http.DefaultClient, s.SyncURL())
	d.stop = func() error {
		cancel()
		<-ended
		return errors.Join(fault, s.Close())
	}
	wait, stop := context.WithTimeout(ctx, stepTimeout)
	defer stop()
	if err := s.Health().Await(wait); err != nil {
		return errors.Join(fmt.Errorf("demo: the roles do not become ready: %w", err), d.stop())
	}
	d.say("All five roles are ready after %s: sync, toredis, tomongo, topush, gateway,", since(began))
	d.say("on an embedded Kafka (%s), Redis (%s) and SQLite history.", d.emb.Config.Kafka.Brokers[0], d.emb.Config.Redis.Addresses[0])
	return nil
}

// headerLine tells in a dead letter which line of the input it was.
const headerLine = "demo-line"

// publish puts the story on Kafka as an outside producer would, and its
// commands through the query service, in their order.
func (d *show) publish(ctx context.Context) error {
	are, days := "are", ""
	if d.story.sends() == 1 {
		are = "is"
	}
	if !d.story.given {
		days = " for three days"
	}
	d.title("%s is away%s; %s %s published to Kafka", d.story.returning, days, count(d.story.sends(), "message"), are)
	began := time.Now()
	var pending []wire.Out
	flush := func() error {
		err := d.stack.Produce(ctx, pending)
		pending = pending[:0]
		return err
	}
	for _, a := range d.story.acts {
		if a.send != nil {
			out, err := wire.EncodeSend(a.send, "")
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			out.Headers = append(out.Headers, wire.Header{Key: headerLine, Value: []byte(strconv.Itoa(a.line))})
			pending = append(pending, out)
			continue
		}
		// A command's edge lies behind every message that was published before.
		if err := flush(); err != nil {
			return err
		}
		if err := d.command(ctx, a); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if err := d.stack.Settle(ctx); err != nil {
		return err
	}
	d.say("Sequenced, stored and pushed after %s.", since(began))
	return d.account(ctx)
}

// account finds out what became of the messages that got no seq of their own,
// and what must be there of the others.
func (d *show) account(ctx context.Context) error {
	dead, err := d.deadLetters(ctx)
	if err != nil {
		return err
	}
	c, err := d.story.count(dead)
	if err != nil {
		return err
	}
	d.expected, d.dead = c.messages, len(dead)
	if c.resends == 1 {
		d.say("1 of them was a resend of a message that had been sent before: recognised, and stored once.")
	} else if c.resends > 1 {
		d.say("%d of them were resends of messages that had been sent before: recognised, and stored once.", c.resends)
	}
	if len(dead) == 0 {
		return nil
	}
	d.say("%s, which got no seq:", count(len(dead), "dead letter"))
	for _, line := range slices.Sorted(maps.Keys(dead)) {
		d.say("  line %d: %s", line, dead[line])
	}
	if !d.story.given {
		return fmt.Errorf("demo: there must be no dead letter, but there are %d", len(dead))
	}
	return nil
}

// deadLetters gives the reasons of the dead letters by line.
func (d *show) deadLetters(ctx context.Context) (map[int]string, error) {
	dead := map[int]string{}
	for letter, err := range d.stack.DeadLetters(ctx) {
		if err != nil {
			return nil, fmt.Errorf("demo: read the dead letters: %w", err)
		}
		value, _ := letter.Record.Header(headerLine)
		line, err := strconv.Atoi(string(value))
		if err != nil {
			return nil, fmt.Errorf("demo: a dead letter that was no message of these: %s: %s", letter.Reason, letter.Cause)
		}
		text := letter.Reason
		if letter.Reason == watermark.ReasonIDReused {
			text += " (the sender gave this client message id to other content before)"
		} else if letter.Cause != "" && letter.Cause != letter.Reason {
			text += " (" + clip(letter.Cause, 100) + ")"
		}
		dead[line] = text
	}
	return dead, nil
}

func (d *show) command(ctx context.Context, a act) error {
	if a.join != nil {
		res, err := d.svc.Join(ctx, a.join)
		if err != nil {
			return fmt.Errorf("demo: join: %w", err)
		}
		if a.told {
			d.say("  %s joins %s late, without history: sees seqs from %d on.", a.join.GetUser(), a.join.GetConversation(), res.GetMaxSeq()+1)
		}
		return nil
	}
	res, err := d.svc.Leave(ctx, a.kick)
	if err != nil {
		return fmt.Errorf("demo: kick: %w", err)
	}
	d.say("  %s is kicked from %s: sees nothing above seq %d.", a.kick.GetUser(), a.kick.GetConversation(), res.GetMaxSeq())
	return nil
}

// returns shows what the returning user finds, and pulls it.
func (d *show) returns(ctx context.Context) error {
	user := string(d.story.returning)
	d.title("%s comes back and asks for the watermarks, active conversations first", user)
	marks, err := d.watermarks(ctx, user)
	if err != nil {
		return err
	}
	d.table(marks)
	for _, w := range marks {
		if want := d.expected[w.GetConversation()]; w.GetMaxSeq() != want && d.story.sees(user, w.GetConversation()) {
			return fmt.Errorf("demo: %s ends at seq %d, but %d distinct messages were published", w.GetConversation(), w.GetMaxSeq(), want)
		}
	}
	d.title("What was missed, newest page first, until the service says: that is all")
	for _, w := range marks {
		n, err := d.pages(ctx, user, w, 40)
		if err != nil {
			return err
		}
		var visible int64
		for _, v := range w.GetVisible() {
			visible += v.GetEnd() - v.GetBegin() + 1
		}
		if n != visible {
			return fmt.Errorf("demo: %s pulled %d messages of %s, but %d can be seen", user, n, w.GetConversation(), visible)
		}
	}
	return nil
}

// pages pulls everything of a conversation, prints each page in short, and
// gives the number of distinct messages.
func (d *show) pages(ctx context.Context, user string, w *tidemarkv1.Watermarks, size int64) (int64, error) {
	d.say("\n%s", w.GetConversation())
	r := &tidemarkv1.PullRange{
		Conversation: w.GetConversation(), Begin: 1, End: w.GetMaxSeq(), Num: size,
		Order: tidemarkv1.Order_ORDER_DESC, Keep: tidemarkv1.Keep_KEEP_NEAR_END,
	}
	seen := map[int64]bool{}
	for {
		res, err := d.svc.Pull(ctx, &tidemarkv1.PullRequest{User: user, Ranges: []*tidemarkv1.PullRange{r}})
		if err != nil {
			return 0, fmt.Errorf("demo: pull: %w", err)
		}
		p := res.GetPages()[0]
		if p.GetError() != nil {
			return 0, fmt.Errorf("demo: pull %s: %s", w.GetConversation(), p.GetError().GetMessage())
		}
		msgs := p.GetMessages()
		for _, m := range msgs {
			if seen[m.GetSeq()] {
				return 0, fmt.Errorf("demo: seq %d of %s was served twice", m.GetSeq(), w.GetConversation())
			}
			seen[m.GetSeq()] = true
		}
		end := "more to come"
		if p.GetIsEnd() {
			end = "is_end: that is all"
		}
		if len(msgs) > 0 {
			d.say("  %4d..%-4d  %12s  %-20s %s", p.GetCovered().GetBegin(), p.GetCovered().GetEnd(), count(len(msgs), "message"), end, sample(msgs))
		}
		if p.GetIsEnd() != (p.GetRest() == nil) {
			return 0, fmt.Errorf("demo: %s: is_end is %v with rest %v", w.GetConversation(), p.GetIsEnd(), p.GetRest())
		}
		if p.GetRest() == nil {
			return int64(len(seen)), nil
		}
		r.Begin, r.End = p.GetRest().GetBegin(), p.GetRest().GetEnd()
	}
}

// others shows that the kicked and the late see what they may.
func (d *show) others(ctx context.Context) error {
	if len(d.story.watched) == 0 {
		return nil
	}
	d.title("The others see what they may, and nothing else")
	for _, x := range d.story.watched {
		res, err := d.svc.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: x.user, Conversations: []string{x.conversation}})
		if err != nil {
			return fmt.Errorf("demo: watermarks: %w", err)
		}
		w := res.GetWatermarks()[0]
		if w.GetError() != nil || len(w.GetVisible()) != 1 {
			return fmt.Errorf("demo: what %s sees of %s: %v", x.user, x.conversation, w)
		}
		v := w.GetVisible()[0]
		d.say("  %-6s of %-15s sees %3d..%-3d of 1..%d", x.user, x.conversation, v.GetBegin(), v.GetEnd(), d.expected[x.conversation])
		pull, err := d.svc.Pull(ctx, &tidemarkv1.PullRequest{User: x.user, Ranges: []*tidemarkv1.PullRange{{Conversation: x.conversation, Begin: 1, End: 1 << 62, Num: 1000}}})
		if err != nil {
			return fmt.Errorf("demo: pull: %w", err)
		}
		msgs := pull.GetPages()[0].GetMessages()
		if int64(len(msgs)) != v.GetEnd()-v.GetBegin()+1 || msgs[0].GetSeq() != v.GetBegin() || msgs[len(msgs)-1].GetSeq() != v.GetEnd() {
			return fmt.Errorf("demo: %s asked for everything of %s and got %d messages, want %d..%d", x.user, x.conversation, len(msgs), v.GetBegin(), v.GetEnd())
		}
	}
	return nil
}

// reads marks everything read.
func (d *show) reads(ctx context.Context) error {
	user := string(d.story.returning)
	d.title("%s reads everything", user)
	marks, err := d.watermarks(ctx, user)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(d.cfg.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  conversation\tunread before\tunread after")
	for _, w := range marks {
		res, err := d.svc.MarkConversationRead(ctx, &tidemarkv1.MarkConversationReadRequest{User: user, Conversation: w.GetConversation(), ReadSeq: w.GetMaxSeq()})
		if err != nil {
			return fmt.Errorf("demo: mark read: %w", err)
		}
		fmt.Fprintf(tw, "  %s\t%d\t%d\n", w.GetConversation(), w.GetUnread(), res.GetUnread())
		if res.GetUnread() != 0 {
			return fmt.Errorf("demo: %s has %d unread after reading all", w.GetConversation(), res.GetUnread())
		}
	}
	return tw.Flush()
}

// disaster empties Redis, restarts the workers, and compares.
func (d *show) disaster(ctx context.Context) error {
	user := string(d.story.returning)
	d.title("Redis is emptied and every worker restarted")
	before, err := d.watermarks(ctx, user)
	if err != nil {
		return err
	}
	// What Redis holds is compared with the log while it still holds it.
	warm, err := d.compare(ctx)
	if err != nil {
		return err
	}
	d.say("Before: the audit is clean, Redis holds %d of %s.", warm.Warm, count(warm.Conversations, "conversation"))
	if err := d.stop(); err != nil {
		return err
	}
	d.emb.Cluster.FlushRedis()
	if err := d.start(ctx); err != nil {
		return err
	}
	after, err := d.watermarks(ctx, user)
	if err != nil {
		return err
	}
	d.table(after)
	if !slices.EqualFunc(before, after, sameMarks) {
		return fmt.Errorf("demo: the watermarks changed: before %v, after %v", before, after)
	}
	d.say("Not one number changed.")
	if len(after) == 0 {
		return nil
	}
	// And the next message goes on where the last one ended.
	w := after[0]
	sender, text := d.story.senderOf(w.GetConversation()), "still here"
	text = text[:min(len(text), d.emb.Config.Limits.MaxBody)]
	res, err := d.svc.Send(ctx, &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: w.GetConversation(), Sender: sender, ClientMessageId: "after-the-disaster-" + rand.Text(), Body: &tidemarkv1.SendMessage_Text{Text: text},
	}})
	if err != nil {
		return fmt.Errorf("demo: send: %w", err)
	}
	d.expected[w.GetConversation()]++
	d.after++
	d.say("The next message of %s gets seq %d.", w.GetConversation(), res.GetSeq())
	if res.GetSeq() != d.expected[w.GetConversation()] {
		return fmt.Errorf("demo: the next seq of %s is %d, want %d", w.GetConversation(), res.GetSeq(), d.expected[w.GetConversation()])
	}
	return nil
}

// audit checks every seq in the log, in history and in Redis.
func (d *show) audit(ctx context.Context) error {
	d.title("Audit of every seq: sequenced log, history and Redis against each other")
	rep, err := d.compare(ctx)
	if err != nil {
		return err
	}
	d.say("  %s, %s, %s, %s warm in Redis", count(rep.Conversations, "conversation"), count(rep.Messages, "message"),
		count(rep.Members, "member"), count(rep.Warm, "conversation"))
	if d.after > 0 {
		d.say("  (%s more than above: sent after the restart)", count(d.after, "message"))
	}
	dead, err := d.deadLetters(ctx)
	if err != nil {
		return err
	}
	if len(dead) != d.dead {
		return fmt.Errorf("demo: there are %s, but there were %d before Redis was emptied", count(len(dead), "dead letter"), d.dead)
	}
	d.say("  %s", count(len(dead), "dead letter"))
	d.say("  clean: every seq from 1 on is there once, nothing is missing, nothing stands twice.")
	return nil
}

// compare audits the deployment at rest; a finding is an error.
func (d *show) compare(ctx context.Context) (*audit.Report, error) {
	if err := d.stack.Settle(ctx); err != nil {
		return nil, err
	}
	rep, err := d.stack.Audit(ctx, stack.AuditConfig{ReadLog: true, Found: func(f audit.Finding) {
		d.say("  FINDING %s %s: %s", f.Kind, f.Conversation, f.Detail)
	}}, audit.Scope{})
	if err != nil {
		return nil, err
	}
	if !rep.Clean() {
		return nil, fmt.Errorf("demo: the audit has %s and %s undecided", count(rep.Found(), "finding"), count(rep.Undecided, "suspicion"))
	}
	var want int
	for _, n := range d.expected {
		want += int(n)
	}
	if rep.Messages != want {
		return nil, fmt.Errorf("demo: %d messages are in history, but %d distinct ones were published", rep.Messages, want)
	}
	return rep, nil
}

// watermarks gives all conversations of a user.
func (d *show) watermarks(ctx context.Context, user string) ([]*tidemarkv1.Watermarks, error) {
	var out []*tidemarkv1.Watermarks
	var token string
	for {
		res, err := d.svc.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: user, PageToken: token})
		if err != nil {
			return nil, fmt.Errorf("demo: watermarks of %s: %w", user, err)
		}
		out = append(out, res.GetWatermarks()...)
		if token = res.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

func sameMarks(a, b *tidemarkv1.Watermarks) bool {
	return a.GetConversation() == b.GetConversation() && a.GetMinSeq() == b.GetMinSeq() && a.GetMaxSeq() == b.GetMaxSeq() &&
		a.GetReadSeq() == b.GetReadSeq() && a.GetUnread() == b.GetUnread() && a.GetPeerReceiptSeq() == b.GetPeerReceiptSeq()
}
