package check_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/chaos/check"
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

const cleaned = "group:cleaned"

// cleanedUp is a good run with another group, of 5 messages, of which what is
// below 3 is deleted and 4 revoked, by somebody who had read them.
func cleanedUp() *story {
	s := good()
	for n := range int64(5) {
		s.produce(cleaned, "sam", "c", n+1)
	}
	s.pull("", "eve", cleaned, 1, 2, 3, 4, 5)
	s.add(history.Op{Kind: history.RaiseMin, Conversation: cleaned, Seq: 3, Edge: 5})
	s.add(history.Op{Kind: history.Revoke, Conversation: cleaned, Seq: 4, Edge: 5})
	for _, phase := range []string{"", history.PhaseRest, history.PhaseTool, history.PhaseEmpty} {
		p := s.pull(phase, "eve", cleaned, 3, 4, 5).Page
		p.Min = 3
		p.Messages[1].Text, p.Messages[1].Revoked = "", true
		s.numbers(phase, "eve", cleaned, 0, 3).Marks.Min = 3
	}
	return s
}

func TestDeletingAndRevokingIsNoLoss(t *testing.T) {
	for _, v := range check.Check(cleanedUp().ops).Violations {
		t.Error(v)
	}
}

func TestWhatWasDeletedOrRevokedStaysSo(t *testing.T) {
	for _, c := range []struct {
		name, rule, says string
		spoil            func(s *story)
	}{
		{"a minimum falls", "deleted", "min of " + cleaned, func(s *story) {
			s.last(history.Pull, history.PhaseEmpty, "eve", cleaned).Page.Min = 1
		}},
		{"more is deleted than was asked for", "deleted", "nobody asked for more than 3", func(s *story) {
			s.last(history.Pull, history.PhaseRest, "eve", cleaned).Page.Min = 4
		}},
		{"a deleted message is unread", "unread", "should have 3", func(s *story) {
			s.last(history.Watermarks, history.PhaseEmpty, "eve", cleaned).Marks.Unread = 5
		}},
		{"what stays is missing", "hole", "not 3", func(s *story) {
			drop(s.last(history.Pull, history.PhaseTool, "eve", cleaned).Page, 3)
		}},
		{"a message vanishes that nobody had read", "lost", `"c 5"`, func(s *story) {
			for _, phase := range []string{history.PhaseRest, history.PhaseTool, history.PhaseEmpty} {
				p := s.last(history.Pull, phase, "eve", cleaned).Page
				drop(p, 5)
				p.Max, p.Covered.End = 4, 4
			}
		}},
		{"a revoked message is served again", "revoked", "after it was revoked", func(s *story) {
			s.last(history.Pull, history.PhaseEmpty, "eve", cleaned).Page.Messages[1] = s.message(cleaned, 4)
		}},
		{"a tombstone comes and goes", "revoked", "after it was revoked", func(s *story) {
			s.find(0, func(op *history.Op) bool { return op.Kind == history.Revoke }).OK = false
			s.last(history.Pull, history.PhaseEmpty, "eve", cleaned).Page.Messages[1] = s.message(cleaned, 4)
		}},
		{"a tombstone that nobody asked for", "revoked", "nobody revoked it", func(s *story) {
			m := &s.last(history.Pull, history.PhaseRest, "eve", cleaned).Page.Messages[2]
			m.Text, m.Revoked = "", true
		}},
		{"a tombstone that still says it", "revoked", "still says", func(s *story) {
			s.last(history.Pull, history.PhaseRest, "eve", cleaned).Page.Messages[1].Text = "c 4"
		}},
		{"a tombstone of another message", "revoked", "did not stand there", func(s *story) {
			s.last(history.Pull, history.PhaseRest, "eve", cleaned).Page.Messages[1].ID = "id-c 5"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := cleanedUp()
			c.spoil(s)
			r := check.Check(s.ops)
			for _, v := range r.Violations {
				if v.Rule == c.rule && strings.Contains(v.Text, c.says) {
					return
				}
			}
			t.Errorf("no %q that says %q in %v", c.rule, c.says, r.Violations)
		})
	}
}
