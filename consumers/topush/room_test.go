package topush_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// dam is a Deliverer that holds back what is for groups.
type dam struct {
	open chan struct{}
	mu   sync.Mutex
	got  map[watermark.ConversationID][]watermark.Seq // as the first member is told
}

func newDam() *dam {
	return &dam{open: make(chan struct{}), got: make(map[watermark.ConversationID][]watermark.Seq)}
}

func (d *dam) Deliver(ctx context.Context, ds []topush.Delivery) error {
	for _, x := range ds {
		if strings.HasPrefix(string(x.Conversation), "group:") {
			select {
			case <-d.open:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		run, ok := x.Event.(watermark.MessagesSequenced)
		if ok && (x.Users[0] == "u000000" || x.Users[0] == "A") {
			d.mu.Lock()
			d.got[x.Conversation] = append(d.got[x.Conversation], run.Messages[0].Seq)
			d.mu.Unlock()
		}
	}
	return nil
}

// heavyGroups appends a message of that size to each of n groups of 1,001 members.
func (w *world) heavyGroups(t *testing.T, n int, seq watermark.Seq, change func(*watermark.Message)) {
	t.Helper()
	for i := range n {
		id := watermark.ConversationID(fmt.Sprint("group:", i))
		w.base[id] = users(1001)
		m := said(seq, "u000000", "")
		m.Messages[0].BodyType, m.Messages[0].Body = watermark.BodyData, make([]byte, 150)
		if change != nil {
			change(&m.Messages[0])
		}
		m.Messages[0].Hash = m.Messages[0].SumHash()
		w.append(t, id, m)
	}
}

// TestTheLaneHasRoomForSoMuch: where many conversations are costly at once, those
// for which the lane has no room wait, with what comes behind them; what was handed
// off is not handed off again, and the rest has its turn.
func TestTheLaneHasRoomForSoMuch(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*topush.Config)
		most   int
	}{
		"members": {func(c *topush.Config) { c.CacheMembers = 3100 }, 3},
		"bytes":   {func(c *topush.Config) { c.QueueBytes = 100 }, 8}, // 800 bytes of messages of more than 150
	} {
		t.Run(name, func(t *testing.T) {
			const groups = 12
			w, d, reg := newWorld(), newDam(), prometheus.NewRegistry()
			w.heavyGroups(t, groups, 1, nil)
			w.append(t, single, said(1, "A", ""))
			s := w.stage(t, func(cfg *topush.Config) {
				cfg.Deliverer, cfg.LaneCost, cfg.Registerer = d, 1000, reg
				c.change(cfg)
			})
			for range 3 { // as the runner does
				_, err := s.Handle(t.Context(), w.log)
				if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "backlog" {
					t.Fatalf("%d costly conversations: %v, want a backlog", groups, err)
				}
			}
			inLane := 0
			for _, line := range gather(t, reg) {
				_, _ = fmt.Sscanf(line, "tidemark_topush_lane_conversations{} %d", &inLane) // one line is
			}
			if inLane < 1 || inLane > c.most {
				t.Errorf("%d conversations are in the lane, want at most %d", inLane, c.most)
			}
			close(d.open)
			for deadline := time.Now().Add(time.Minute); ; {
				durable, err := s.Handle(t.Context(), w.log)
				if err == nil && durable == groups+1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("durable = %d, %v", durable, err)
				}
				<-time.After(time.Millisecond)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			for id, seqs := range d.got {
				if len(seqs) != 1 {
					t.Errorf("%s is told of %v, want once", id, seqs)
				}
			}
			if len(d.got) != groups+1 {
				t.Errorf("%d conversations are told, want %d", len(d.got), groups+1)
			}
		})
	}
}

// TestWhatIsKeptForTheAbsentIsBounded, too: of each conversation that overran the
// last message, and more only as long as the lane has bytes left.
func TestWhatIsKeptForTheAbsentIsBounded(t *testing.T) {
	const groups = 8
	w, d, offered := newWorld(), newDam(), new(desk)
	s := w.stage(t, func(c *topush.Config) {
		c.Deliverer, c.LaneCost, c.QueueBytes, c.Offline, c.OfflineMembers = d, 1000, 400, offered, 2
	})
	mention := func(m *watermark.Message) { m.Mentions = []watermark.UserID{"u000007"} }
	for seq := watermark.Seq(1); seq <= 4; seq++ { // one or two fit into a queue
		w.heavyGroups(t, groups, seq, mention)
	}
	for i := range 4 {
		if _, err := s.Handle(t.Context(), w.log[i*groups:(i+1)*groups]); err != nil {
			t.Fatal(err)
		}
	}
	close(d.open)
	handle(t, s, w.log[3*groups:])
	// The lane has ended with what it did, so nobody offers any more.
	last, left := 0, 0
	for _, o := range offered.got {
		var seq int
		if _, err := fmt.Sscanf(o[strings.Index(o, " "):], " %d >", &seq); err != nil {
			t.Fatalf("%q: %v", o, err)
		}
		switch {
		case seq == 4:
			last++
		case seq == 3:
			left++
		}
	}
	if last != groups || left == groups {
		t.Errorf("of %d conversations the last message is offered of %d, the one before of %d; want all, and not all", groups, last, left)
	}
}
