// Package check judges the history of a chaos run. It knows what the calls
// promise, and nothing of how Tidemark keeps it.
//
// Each rule has a name, under which its violations are reported:
//
//	lost        an acknowledged message is missing at the end
//	doubled     one message stands, or was ever served, at two seqs
//	changed     one seq was served with two different messages
//	invented    a message was served that nobody sent, or not so
//	hole        the seqs at the end are not 1..max
//	order       a message that was acknowledged before another one was sent, or a
//	            producer's earlier one, has the higher seq
//	answer      a send was answered with another seq than the message has
//	stale       the highest seq fell below one that had been answered to a send or
//	            a command
//	fell        a read watermark or a receipt fell, or a mark was not kept
//	early       the highest seq fell, and marks with it, but not below what had
//	            been answered: it had been served before it was certain
//	read        a read watermark at rest is higher than anybody asked for
//	window      somebody was served what lies outside of what may be seen
//	withheld    a visible message was not served to a member at rest
//	followed    a connected device showed a message twice, out of order or wrong,
//	            or not at all
//	unread      unread at rest is not the number of visible seqs above the mark
//	deleted     what was deleted for everybody was served again, or more than was
//	            asked for is deleted
//	revoked     what was revoked was served again, or a message is a tombstone that
//	            nobody revoked
//	page        a page contradicts itself or what was asked
//	repaired    a repair was reported, though nothing in a run may cause one
//	stuck       the deployment did not come to rest
//	incomplete  the history does not have what the checker needs
//
// Of a user who never had a window everything may be seen; the drivers of a run
// join with history NONE only. Who raises a conversation's minimum or revokes a
// message has pulled what goes before, so that it is known.
package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// Violation is one thing that must not be.
type Violation struct {
	Rule string
	At   time.Duration // since the run began; 0: at the end
	Text string
}

func (v Violation) String() string {
	return fmt.Sprintf("%-10s %8.3fs  %s", v.Rule, v.At.Seconds(), v.Text)
}

// Report is what a history came to.
type Report struct {
	Messages, Acknowledged, Resent int // sent, of these acknowledged, and sent more than once
	Conversations                  int
	Pulls, Served                  int // pages, and messages on them
	Marks, Commands, Failed        int // answered marks and commands; calls that failed
	Followed                       int // messages that connected devices showed
	Faults, Exits                  int
	Violations                     []Violation
	ByRule                         map[string]int
}

// kept bounds how many violations of one rule are kept; all are counted.
const kept = 20

// never is later than everything.
const never = int64(math.MaxInt64)

type checker struct {
	ops    []history.Op
	report Report
	msgs   map[string]*message // by text
	byConv map[string][]*message
	// windows has an entry for each user and conversation with a command.
	windows map[pair][]step
	// answered are the seqs that sends and commands were answered with.
	answered map[string]known
	max      map[string]int64              // at rest
	min      map[string]int64              // at rest, where something was deleted
	stood    map[string]map[int64]*message // as it was served first
	whole    map[string]bool               // phase and conversation that were pulled at the end
}

type pair struct{ user, conv string }

// message is one message, however often it was sent.
type message struct {
	text, conv, sender, id, producer string
	n                                int64
	ordered                          bool
	sent, acked                      int64 // first T0, and first T1 of an acknowledged one
	sends                            int
	seq                              int64 // as it was served first
}

// Check judges a history.
func Check(ops []history.Op) Report {
	c := &checker{
		ops: ops, msgs: map[string]*message{}, byConv: map[string][]*message{},
		windows: map[pair][]step{}, answered: map[string]known{}, max: map[string]int64{}, whole: map[string]bool{},
		min: map[string]int64{}, stood: map[string]map[int64]*message{},
	}
	c.report.ByRule = map[string]int{}
	c.learn()
	c.learnWindows()
	c.served()
	c.revokes()
	c.pages()
	c.answers()
	c.monotone()
	for _, phase := range []string{history.PhaseRest, history.PhaseTool, history.PhaseEmpty} {
		c.final(phase)
	}
	c.order()
	c.numbers()
	c.followed()
	slices.SortStableFunc(c.report.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.At, b.At))
	})
	return c.report
}

func (c *checker) violate(rule string, at int64, format string, args ...any) {
	c.report.ByRule[rule]++
	if c.report.ByRule[rule] <= kept {
		c.report.Violations = append(c.report.Violations, Violation{Rule: rule, At: time.Duration(at), Text: fmt.Sprintf(format, args...)})
	}
}

// learn takes in what was sent, and counts.
func (c *checker) learn() {
	r := &c.report
	for i := range c.ops {
		op := &c.ops[i]
		switch op.Kind {
		case history.Produce, history.Send:
			c.learnMessage(op)
			continue
		case history.Fault:
			r.Faults++
			continue
		case history.Exit:
			r.Exits++
			continue
		case history.Stuck:
			c.violate("stuck", op.T0, "%s", op.Err)
			continue
		}
		switch {
		case !op.OK:
			r.Failed++
		case op.Kind == history.Pull:
			r.Pulls++
			r.Served += len(op.Page.Messages)
			c.repaired(op, op.Page.Repair)
		case op.Kind == history.Watermarks:
			c.repaired(op, op.Marks.Repair)
		case op.Kind == history.Mark:
			r.Marks++
		case op.Kind == history.Follow:
			r.Followed++
		default:
			r.Commands++
		}
	}
	for _, m := range c.msgs {
		r.Messages++
		if m.acked < never {
			r.Acknowledged++
		}
		if m.sends > 1 {
			r.Resent++
		}
	}
	r.Conversations = len(c.byConv)
	if r.Acknowledged == 0 {
		c.violate("incomplete", 0, "no message was acknowledged")
	}
}

func (c *checker) repaired(op *history.Op, number int64) {
	if number > 0 {
		c.violate("repaired", op.T0, "%s: repair number %d", op.Conversation, number)
	}
}

func (c *checker) learnMessage(op *history.Op) {
	m := c.msgs[op.Text]
	if m == nil {
		m = &message{
			text: op.Text, conv: op.Conversation, sender: op.User, id: op.ID, producer: op.Producer,
			n: op.N, ordered: op.Ordered, sent: op.T0, acked: never,
		}
		c.msgs[op.Text] = m
		c.byConv[m.conv] = append(c.byConv[m.conv], m)
	}
	m.sends++
	m.sent = min(m.sent, op.T0)
	if op.OK {
		m.acked = min(m.acked, op.T1)
	} else {
		c.report.Failed++
	}
}

// served holds everything that was ever served against what was sent, and
// against what was served before.
func (c *checker) served() {
	at := c.stood
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Pull || !op.OK {
			continue
		}
		if at[op.Conversation] == nil {
			at[op.Conversation] = map[int64]*message{}
		}
		for _, s := range op.Page.Messages {
			if s.Revoked {
				continue
			}
			m := c.msgs[s.Text]
			if m == nil || m.conv != op.Conversation || m.sender != s.Sender || (m.id != "" && m.id != s.ID) || s.ID == "" {
				c.violate("invented", op.T0, "%s seq %d: %q from %s with id %q was not sent so", op.Conversation, s.Seq, s.Text, s.Sender, s.ID)
				continue
			}
			if m.sent > op.T1 {
				c.violate("invented", op.T0, "%s seq %d: %q was served before it was sent", op.Conversation, s.Seq, s.Text)
			}
			if m.seq == 0 {
				m.seq = s.Seq
			} else if m.seq != s.Seq {
				c.violate("doubled", op.T0, "%s: %q was served at seq %d, now at %d", op.Conversation, s.Text, m.seq, s.Seq)
			}
			if old := at[op.Conversation][s.Seq]; old == nil {
				at[op.Conversation][s.Seq] = m
			} else if old != m {
				c.violate("changed", op.T0, "%s seq %d: was %q, now %q", op.Conversation, s.Seq, old.text, s.Text)
			}
		}
	}
}

// answers holds what sends were told against where the messages stand.
func (c *checker) answers() {
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Send || !op.OK || op.Seq == 0 {
			continue
		}
		if m := c.msgs[op.Text]; m.seq != 0 && m.seq != op.Seq {
			c.violate("answer", op.T0, "%s: %q was answered with seq %d and stands at %d", op.Conversation, op.Text, op.Seq, m.seq)
		}
	}
}

// final holds one of the complete pulls at the end against what was
// acknowledged.
func (c *checker) final(phase string) {
	stands := map[string]map[int64]string{}
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Pull || op.Phase != phase || !op.OK || c.windows[pair{op.User, op.Conversation}] != nil {
			continue
		}
		seqs := stands[op.Conversation]
		if seqs == nil {
			seqs = map[int64]string{}
			stands[op.Conversation] = seqs
		}
		c.max[op.Conversation] = max(c.max[op.Conversation], op.Page.Max)
		c.min[op.Conversation] = max(c.min[op.Conversation], op.Page.Min)
		if op.Page.IsEnd {
			c.whole[phase+" "+op.Conversation] = true
		}
		for _, m := range op.Page.Messages {
			seqs[m.Seq] = m.Text
			if old := c.stood[op.Conversation][m.Seq]; m.Revoked && old != nil {
				seqs[m.Seq] = old.text
			}
		}
	}
	for conv, msgs := range c.byConv {
		if !c.whole[phase+" "+conv] && slices.ContainsFunc(msgs, func(m *message) bool { return m.acked < never }) {
			c.violate("incomplete", 0, "%s: %s was not pulled to its end", phase, conv)
			continue
		}
		c.finalOf(phase, conv, msgs, stands[conv])
	}
}

func (c *checker) finalOf(phase, conv string, msgs []*message, seqs map[int64]string) {
	var missing []string
	for s := max(c.min[conv], 1); s <= c.max[conv]; s++ {
		if _, ok := seqs[s]; !ok {
			missing = append(missing, fmt.Sprint(s))
		}
	}
	if len(missing) > 0 {
		c.violate("hole", 0, "%s: %s has seqs to %d, but not %s", phase, conv, c.max[conv], few(missing))
	}
	found := map[string]int{}
	for _, text := range seqs {
		found[text]++
	}
	var lost []string
	for _, m := range msgs {
		switch n := found[m.text]; {
		case n == 0 && m.seq > 0 && m.seq < c.min[conv]: // deleted
		case n == 0 && m.acked < never:
			lost = append(lost, m.text)
		case n > 1:
			c.violate("doubled", 0, "%s: %s has %q %d times", phase, conv, m.text, n)
		}
	}
	slices.Sort(lost)
	for _, text := range lost {
		c.violate("lost", c.msgs[text].sent, "%s: %s has not %q, acknowledged at %.3fs", phase, conv, text, time.Duration(c.msgs[text].acked).Seconds())
	}
}

func few(items []string) string {
	if len(items) > 10 {
		return strings.Join(items[:10], ", ") + fmt.Sprintf(" and %d more", len(items)-10)
	}
	return strings.Join(items, ", ")
}

// order tests that seqs follow the order in which messages went in: what was
// acknowledged before another one was sent stands before it.
func (c *checker) order() {
	for conv, msgs := range c.byConv {
		placed := slices.DeleteFunc(slices.Clone(msgs), func(m *message) bool { return m.seq == 0 })
		slices.SortFunc(placed, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
		var latest *message // of those with a lower seq, the one sent last
		last := map[string]*message{}
		for _, m := range placed {
			if latest != nil && m.acked < latest.sent {
				c.violate("order", m.sent, "%s: %q was acknowledged before %q was sent, but has seq %d and %d", conv, m.text, latest.text, m.seq, latest.seq)
			}
			if latest == nil || m.sent > latest.sent {
				latest = m
			}
			if !m.ordered || m.acked == never {
				continue
			}
			if p := last[m.producer]; p != nil && p.n > m.n {
				c.violate("order", m.sent, "%s: %s sent %q before %q, but they have seq %d and %d", conv, m.producer, m.text, p.text, m.seq, p.seq)
			}
			last[m.producer] = m
		}
	}
}
