package storagetest_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storagetest.History { return storagetest.NewMemory() })
}

// TestMemoryFailsBetweenSteps shows what a crash leaves: everything before the
// step, nothing after it, and a second Write that completes it.
func TestMemoryFailsBetweenSteps(t *testing.T) {
	conv := watermark.GroupOf("g")
	change := watermark.Change{
		Rows:          []watermark.Row{{Conversation: conv, Message: watermark.Message{Seq: 1, Sender: "a", ClientID: "x", Body: []byte("b")}}},
		Revokes:       []watermark.RevokedRow{{Conversation: conv, Revoked: watermark.Revoked{Seq: 1}}},
		Members:       []watermark.MemberRow{{Conversation: conv, Member: watermark.Member{User: "a", Read: 1}}},
		Conversations: []watermark.Conversation{{ID: conv, Max: 1}},
	}
	crash := errors.New("crash")
	tests := []struct {
		step                  storagetest.Step
		rows, revoked, member bool
		top                   watermark.Seq
	}{
		{"", false, false, false, 0},
		{storagetest.StepRows, true, false, false, 0},
		{storagetest.StepRevokes, true, true, false, 0},
		{storagetest.StepMembers, true, true, true, 0},
		{storagetest.StepConversations, true, true, true, 1},
	}
	for _, tt := range tests {
		t.Run("after "+string(tt.step), func(t *testing.T) {
			h := storagetest.NewMemory()
			armed := true
			h.Fail = func(s storagetest.Step) error {
				if armed && s == tt.step {
					armed = false
					return crash
				}
				return nil
			}
			if _, err := h.Write(t.Context(), change); !errors.Is(err, crash) {
				t.Fatalf("write: %v", err)
			}
			states, err := h.States(t.Context(), []watermark.Want{{Conversation: conv}})
			if err != nil {
				t.Fatal(err)
			}
			rows, err := h.Messages(t.Context(), conv, watermark.Interval{First: 1, Last: 9}, 9)
			if err != nil {
				t.Fatal(err)
			}
			revoked := len(rows) == 1 && rows[0].Revoked != nil
			if len(rows) == 1 != tt.rows || revoked != tt.revoked || len(states[0].Members) == 1 != tt.member || states[0].Max != tt.top {
				t.Errorf("rows %d, revoked %v, members %d, max %d", len(rows), revoked, len(states[0].Members), states[0].Max)
			}
			w, err := h.Write(t.Context(), change)
			if err != nil {
				t.Fatal(err)
			}
			want := watermark.Replay
			if !tt.rows {
				want = watermark.Inserted
			}
			if w.Rows[0] != want {
				t.Errorf("second write: %v", w.Rows)
			}
		})
	}
}
