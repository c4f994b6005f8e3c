package check_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/chaos/check"
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

const (
	group  = "group:g"
	single = "single:ann:bob"
)

// story is a history in which time passes by one with each operation.
type story struct {
	ops  []history.Op
	now  int64
	text map[string]map[int64]string
	max  map[string]int64
}

func (s *story) add(op history.Op) *history.Op {
	op.T0, op.T1, op.OK = s.now, s.now+1, true
	s.now += 2
	s.ops = append(s.ops, op)
	return &s.ops[len(s.ops)-1]
}

func (s *story) produce(conv, user, producer string, n int64) string {
	text := fmt.Sprintf("%s %d", producer, n)
	s.add(history.Op{Kind: history.Produce, Conversation: conv, User: user, Producer: producer, N: n, Ordered: true, ID: "id-" + text, Text: text})
	s.max[conv]++
	if s.text[conv] == nil {
		s.text[conv] = map[int64]string{}
	}
	s.text[conv][s.max[conv]] = text
	return text
}

func (s *story) message(conv string, seq int64) history.Message {
	text := s.text[conv][seq]
	user := "sam"
	if conv == single {
		user = "ann"
	}
	return history.Message{Seq: seq, Sender: user, ID: "id-" + text, Text: text}
}

// pull adds a page of the seqs from..to of a user who asked for just these.
func (s *story) pull(phase, user, conv string, seqs ...int64) *history.Op {
	p := &history.Page{Min: 1, Max: s.max[conv], Covered: &history.Range{Begin: seqs[0], End: seqs[len(seqs)-1]}}
	for _, n := range seqs {
		p.Messages = append(p.Messages, s.message(conv, n))
	}
	p.IsEnd = p.Covered.End == p.Max
	return s.add(history.Op{Kind: history.Pull, Phase: phase, User: user, Conversation: conv, Begin: seqs[0], End: seqs[len(seqs)-1], Page: p})
}

func (s *story) numbers(phase, user, conv string, read, unread int64, visible ...history.Range) *history.Op {
	return s.add(history.Op{
		Kind: history.Watermarks, Phase: phase, User: user, Conversation: conv,
		Marks: &history.Marks{Min: 1, Max: s.max[conv], Read: read, Unread: unread, Visible: visible},
	})
}

func (s *story) command(kind history.Kind, user string) *history.Op {
	return s.add(history.Op{Kind: kind, User: user, Conversation: group, Edge: s.max[group]})
}

// show adds a message that a device showed.
func (s *story) show(user, conv string, seq int64) *history.Op {
	return s.add(history.Op{Kind: history.Follow, User: user, Conversation: conv, Seq: seq, Text: s.text[conv][seq]})
}

// good is a run in which everything went well: a group of 9 messages with a
// member who joins after 2, is kicked after 4, joins again after 6 and clears at
// 7, and a single conversation of 3.
func good() *story {
	s := &story{text: map[string]map[int64]string{}, max: map[string]int64{}, now: 1}
	for n := range int64(2) {
		s.produce(group, "sam", "p", n+1)
	}
	s.command(history.Join, "mia")
	s.produce(group, "sam", "p", 3)
	s.produce(group, "sam", "q", 1)
	s.pull("", "mia", group, 3, 4).Page.Min = 3
	s.command(history.Leave, "mia")
	s.produce(group, "sam", "p", 4)
	s.produce(group, "sam", "p", 5)
	s.pull("", "eve", group, 1, 2, 3, 4, 5, 6)
	s.command(history.Join, "mia")
	s.produce(group, "sam", "p", 6)
	s.command(history.Clear, "mia")
	s.produce(group, "sam", "p", 7)
	sent := s.add(history.Op{Kind: history.Send, Conversation: group, User: "sam", Producer: "h", N: 1, ID: "id-h 1", Text: "h 1", Seq: 9})
	s.max[group], s.text[group][9] = 9, sent.Text
	s.add(history.Op{Kind: history.Mark, User: "eve", Conversation: group, Seq: 5, Marks: &history.Marks{Read: 5, Unread: 4}})
	for n := range int64(3) {
		s.produce(single, "ann", "s", n+1)
	}
	s.add(history.Op{Kind: history.Mark, User: "bob", Conversation: single, Seq: 2, Marks: &history.Marks{Read: 2, Unread: 1, Receipt: 2}})
	s.numbers("", "ann", single, 3, 0).Marks.Receipt = 2
	for seq := range int64(3) {
		s.show("ann", single, seq+1)
	}
	s.show("mia", group, 8)
	s.show("mia", group, 9)
	for _, phase := range []string{history.PhaseRest, history.PhaseTool, history.PhaseEmpty} {
		s.pull(phase, "eve", group, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		s.pull(phase, "bob", single, 1, 2, 3)
		s.pull(phase, "mia", group, 8, 9).Page.Min = 8
		s.numbers(phase, "eve", group, 5, 4)
		s.numbers(phase, "mia", group, 7, 2, history.Range{Begin: 8, End: 9})
		s.numbers(phase, "bob", single, 2, 1)
	}
	return s
}

func TestAGoodHistoryPasses(t *testing.T) {
	r := check.Check(good().ops)
	for _, v := range r.Violations {
		t.Error(v)
	}
	if r.Messages != 12 || r.Acknowledged != 12 || r.Conversations != 2 || r.Commands != 4 || r.Marks != 2 {
		t.Errorf("counted %+v", r)
	}
}

// find gives the nth operation that is as asked.
func (s *story) find(n int, is func(*history.Op) bool) *history.Op {
	for i := range s.ops {
		if is(&s.ops[i]) {
			if n == 0 {
				return &s.ops[i]
			}
			n--
		}
	}
	panic("no such operation")
}

func (s *story) last(kind history.Kind, phase, user, conv string) *history.Op {
	return s.find(0, func(op *history.Op) bool {
		return op.Kind == kind && op.Phase == phase && op.User == user && op.Conversation == conv
	})
}

// insert moves the last operation to before the first one of a phase.
func (s *story) insert(phase string, _ *history.Op) *history.Op {
	op := s.ops[len(s.ops)-1]
	i := slices.IndexFunc(s.ops, func(op history.Op) bool { return op.Phase == phase })
	op.T0, op.T1 = s.ops[i-1].T1, s.ops[i-1].T1
	if s.ops[i-1].T1 < s.ops[i].T0 {
		op.T0, op.T1 = s.ops[i-1].T1+1, s.ops[i-1].T1+1
	}
	s.ops = slices.Insert(s.ops[:len(s.ops)-1], i, op)
	return &s.ops[i]
}

// drop takes messages off a page.
func drop(p *history.Page, seqs ...int64) {
	p.Messages = slices.DeleteFunc(p.Messages, func(m history.Message) bool { return slices.Contains(seqs, m.Seq) })
}

func TestEachKindOfViolationIsFound(t *testing.T) {
	for _, c := range []struct {
		name, rule, says string
		spoil            func(s *story)
	}{
		{"a message is missing at the end", "lost", `"h 1"`, func(s *story) {
			for _, ph := range []string{history.PhaseRest, history.PhaseTool, history.PhaseEmpty} {
				p := s.last(history.Pull, ph, "eve", group).Page
				drop(p, 9)
				p.Max, p.Covered.End = 8, 8
			}
		}},
		{"a message is missing in history only", "lost", "empty: " + group, func(s *story) {
			p := s.last(history.Pull, history.PhaseEmpty, "eve", group).Page
			drop(p, 9)
			p.Max, p.Covered.End = 8, 8
		}},
		{"one message stands twice", "doubled", "2 times", func(s *story) {
			p := s.last(history.Pull, history.PhaseRest, "eve", group).Page
			p.Messages[4] = history.Message{Seq: 5, Sender: "sam", ID: "id-p 1", Text: "p 1"}
		}},
		{"one message moves while the run is under way", "doubled", "now at", func(s *story) {
			s.pull("", "eve", group, 1).Page.Messages[0] = history.Message{Seq: 1, Sender: "sam", ID: "id-p 2", Text: "p 2"}
		}},
		{"a seq is used again", "changed", "seq 1: was", func(s *story) {
			s.pull("", "eve", group, 1).Page.Messages[0] = history.Message{Seq: 1, Sender: "sam", ID: "id-p 2", Text: "p 2"}
		}},
		{"a message that nobody sent", "invented", "ghost", func(s *story) {
			s.pull("", "eve", group, 1).Page.Messages[0].Text = "ghost"
		}},
		{"a message under another name", "invented", "eve", func(s *story) {
			s.pull("", "eve", group, 1).Page.Messages[0].Sender = "eve"
		}},
		{"a message in another conversation", "invented", "was not sent so", func(s *story) {
			s.pull("", "eve", group, 1).Page.Messages[0] = history.Message{Seq: 1, Sender: "ann", ID: "id-s 1", Text: "s 1"}
		}},
		{"a seq without a message", "hole", "not 4", func(s *story) {
			drop(s.last(history.Pull, history.PhaseTool, "eve", group).Page, 4)
		}},
		{"messages overtake within a producer", "order", "p sent", func(s *story) {
			for i := range s.ops {
				if op := &s.ops[i]; op.Kind == history.Produce && op.Producer == "p" && op.N < 3 {
					op.N = 3 - op.N
				}
			}
		}},
		{"a message overtakes one that was acknowledged before it was sent", "order", "was acknowledged before", func(s *story) {
			a := s.find(0, func(op *history.Op) bool { return op.Text == "p 1" })
			b := s.find(0, func(op *history.Op) bool { return op.Text == "q 1" })
			a.Producer, b.Producer = "a", "b"
			a.T0, a.T1, b.T0, b.T1 = b.T0, b.T1, a.T0, a.T1
		}},
		{"a send was told another seq", "answer", "answered with seq 8", func(s *story) {
			s.last(history.Send, "", "sam", group).Seq = 8
		}},
		{"the maximum falls", "stale", "max of " + group, func(s *story) {
			s.numbers("", "eve", group, 5, 3).Marks.Max = 8
		}},
		{"an answered send is not to be seen", "stale", "send of sam", func(s *story) {
			s.last(history.Pull, history.PhaseRest, "eve", group).Page.Max = 8
		}},
		{"what was served and not answered is gone again", "early", "max of " + single, func(s *story) {
			s.find(0, func(op *history.Op) bool { return op.Kind == history.Mark && op.User == "bob" }).Marks.Read = 2
			s.insert(history.PhaseRest, s.numbers("", "ann", single, 2, 0)).Marks.Max = 2
		}},
		{"a mark on what is gone again is hidden", "early", "read of bob", func(s *story) {
			s.insert(history.PhaseRest, s.numbers("", "bob", single, 1, 0)).Marks.Max = 1
		}},
		{"the maximum is lower at rest", "stale", "max of " + single, func(s *story) {
			s.numbers(history.PhaseEmpty, "ann", single, 2, 0).Marks.Max = 2
		}},
		{"a command has an edge below the one before", "stale", "after edge", func(s *story) {
			s.find(1, func(op *history.Op) bool { return op.Kind == history.Join }).Edge = 3
		}},
		{"a read watermark falls", "fell", "read of eve", func(s *story) {
			s.numbers("", "eve", group, 4, 5)
		}},
		{"a mark is not kept in history", "fell", "read of bob", func(s *story) {
			m := s.last(history.Watermarks, history.PhaseEmpty, "bob", single).Marks
			m.Read, m.Unread = 0, 3
		}},
		{"a mark is answered with less", "fell", "though seq", func(s *story) {
			m := s.add(history.Op{Kind: history.Mark, User: "eve", Conversation: group, Seq: 9, Marks: &history.Marks{Read: 7}})
			m.User = "zoe"
		}},
		{"a receipt falls", "fell", "receipt of bob", func(s *story) {
			s.numbers("", "ann", single, 3, 0).Marks.Receipt = 1
		}},
		{"a sender has not read what he sent", "fell", "but sent seq", func(s *story) {
			s.numbers(history.PhaseRest, "ann", single, 2, 1)
		}},
		{"a watermark that nobody asked for", "read", "nothing asked for", func(s *story) {
			m := s.last(history.Watermarks, history.PhaseEmpty, "eve", group).Marks
			m.Read, m.Unread = 8, 1
		}},
		{"a kicked member sees on", "window", "mia was served seq 5", func(s *story) {
			op := s.pull("", "mia", group, 3, 4, 5)
			at := s.find(0, func(op *history.Op) bool { return op.Kind == history.Leave }).T1
			op.T0, op.T1, op.Page.Min, op.Page.Max = at+6, at+7, 3, 5
		}},
		{"a pull that overlaps the kick sees what came after", "window", "mia was served seq 5", func(s *story) {
			op := s.pull("", "mia", group, 3, 4, 5)
			leave := s.find(0, func(op *history.Op) bool { return op.Kind == history.Leave })
			op.T0, op.T1, op.Page.Min, op.Page.Max = leave.T0-1, s.now, 3, 5
		}},
		{"a joiner sees what was before", "window", "mia was served seq 2", func(s *story) {
			op := s.pull("", "mia", group, 2, 3)
			at := s.find(0, func(op *history.Op) bool { return op.Kind == history.Join }).T1
			op.T0, op.T1, op.Page.Max = at+1, at+3, 3
		}},
		{"who cleared sees it again", "window", "mia was served seq 7", func(s *story) {
			s.pull(history.PhaseEmpty, "mia", group, 7, 8, 9)
		}},
		{"the ranges at rest are others", "window", "can see", func(s *story) {
			s.last(history.Watermarks, history.PhaseEmpty, "mia", group).Marks.Visible[0].Begin = 7
		}},
		{"a member is not served what is visible", "withheld", "seq 8", func(s *story) {
			drop(s.last(history.Pull, history.PhaseEmpty, "mia", group).Page, 8)
		}},
		{"a device shows a message twice", "followed", "seq 3 of " + single + " after seq 3", func(s *story) { s.show("ann", single, 3) }},
		{"a device shows messages out of order", "followed", "seq 2 of " + single + " after seq 3", func(s *story) {
			a, b := s.last(history.Follow, "", "ann", single), s.find(1, func(op *history.Op) bool { return op.Kind == history.Follow })
			a.Seq, a.Text, b.Seq, b.Text = 3, s.text[single][3], 2, s.text[single][2]
		}},
		{"a device shows another message", "followed", "at seq 1", func(s *story) { s.last(history.Follow, "", "ann", single).Text = "s 2" }},
		{"a device never shows a message", "followed", "never showed seq 2", func(s *story) {
			i := slices.IndexFunc(s.ops, func(op history.Op) bool { return op.Kind == history.Follow && op.Seq == 2 })
			s.ops = slices.Delete(s.ops, i, i+1)
		}},
		{"a device shows what its user may not see", "window", "the device of mia showed seq 5", func(s *story) {
			i := slices.IndexFunc(s.ops, func(op history.Op) bool { return op.Kind == history.Follow && op.User == "mia" })
			s.ops = slices.Insert(s.ops, i, history.Op{Kind: history.Follow, OK: true, T0: s.now, T1: s.now, User: "mia", Conversation: group, Seq: 5, Text: s.text[group][5]})
		}},
		{"unread is wrong at rest", "unread", "should have 4", func(s *story) {
			s.last(history.Watermarks, history.PhaseRest, "eve", group).Marks.Unread = 3
		}},
		{"messages out of order on a page", "page", "not in order", func(s *story) {
			slices.Reverse(s.pull("", "eve", group, 1, 2).Page.Messages)
		}},
		{"a page covers what is not on it", "page", "not on it", func(s *story) {
			drop(s.pull("", "eve", group, 1, 2, 3).Page, 2)
		}},
		{"a page covers more than was asked", "page", "more than was asked", func(s *story) {
			s.pull("", "eve", group, 1, 2, 3).End = 2
		}},
		{"that is all, though it is not", "page", "more that way", func(s *story) {
			s.pull("", "eve", group, 1, 2, 3).Page.IsEnd = true
		}},
		{"that is all, and yet a rest", "page", "has a rest", func(s *story) {
			op := s.pull("", "eve", group, 5, 6, 7, 8, 9)
			op.Begin, op.Page.Rest = 1, &history.Range{Begin: 1, End: 4}
		}},
		{"nothing, though something is there", "page", "empty without a rest", func(s *story) {
			p := s.pull("", "eve", group, 1, 2, 3).Page
			p.Messages, p.Covered, p.IsEnd = nil, nil, false
		}},
		{"a repair", "repaired", "number 7", func(s *story) { s.pull("", "eve", group, 1).Page.Repair = 7 }},
		{"it did not come to rest", "stuck", "lag", func(s *story) { s.add(history.Op{Kind: history.Stuck, Err: "lag is 7"}) }},
		{"nobody pulled to the end", "incomplete", "not pulled to its end", func(s *story) {
			s.last(history.Pull, history.PhaseTool, "eve", group).Page.IsEnd = false
		}},
		{"nothing was sent", "incomplete", "no message", func(s *story) { s.ops = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := good()
			c.spoil(s)
			r := check.Check(s.ops)
			if !slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return v.Rule == c.rule && strings.Contains(v.String(), c.says) }) {
				t.Errorf("no violation of rule %s that says %q among %d: %v", c.rule, c.says, len(r.Violations), r.Violations)
			}
		})
	}
}

// What is not known must not be held against anybody.
func TestWhatMayHaveHappenedIsNoViolation(t *testing.T) {
	for name, spoil := range map[string]func(s *story){
		"a message that was not acknowledged is missing": func(s *story) {
			s.find(0, func(op *history.Op) bool { return op.Text == "h 1" }).OK = false
			for i := range s.ops {
				if p := s.ops[i].Page; p != nil && p.Max == 9 {
					drop(p, 9)
					p.Max, p.Covered.End = 8, 8
				}
				if m := s.ops[i].Marks; m != nil && m.Max == 9 {
					m.Max, m.Unread = 8, m.Unread-1
					if len(m.Visible) > 0 {
						m.Visible[0].End = 8
					}
				}
			}
		},
		"a message that was not acknowledged is there": func(s *story) {
			s.find(0, func(op *history.Op) bool { return op.Text == "h 1" }).OK = false
		},
		"a message is sent again": func(s *story) {
			again := *s.find(0, func(op *history.Op) bool { return op.Text == "p 1" })
			again.T0, again.T1 = s.now, s.now+1
			s.ops = append(s.ops, again)
		},
		"a pull that overlaps a kick": func(s *story) {
			op := s.pull("", "mia", group, 3, 4)
			leave := s.find(0, func(op *history.Op) bool { return op.Kind == history.Leave })
			op.T0, op.T1, op.Page.Min, op.Page.Max = leave.T0-1, leave.T1, 3, 4
		},
		"a command whose answer was lost": func(s *story) {
			s.find(1, func(op *history.Op) bool { return op.Kind == history.Join }).OK = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			spoil(s)
			for _, v := range check.Check(s.ops).Violations {
				t.Error(v)
			}
		})
	}
}

func TestManyViolationsOfOneRuleAreCountedAndCut(t *testing.T) {
	s := good()
	for range 100 {
		s.pull("", "eve", group, 1).Page.Repair = 7
	}
	r := check.Check(s.ops)
	if r.ByRule["repaired"] != 100 || len(r.Violations) >= 100 {
		t.Errorf("counted %v, kept %d", maps.Clone(r.ByRule), len(r.Violations))
	}
}
