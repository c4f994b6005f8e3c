//go:build real

package history_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestPrepareAtOnceAndAgain(t *testing.T) {
	database := freshDatabase()
	first := openStore(t, database)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := history.New(history.Config{URI: server(t), Database: database, Timeout: slow})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Prepare(t.Context()); err != nil {
				t.Error(err)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := first.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPrepareRefusesWhatSomebodyChanged(t *testing.T) {
	tests := []struct {
		name, says string
		cmds       []bson.D
	}{
		{"an index on other keys", "index tidemark_c_s of messages", []bson.D{
			{{Key: "dropIndexes", Value: "messages"}, {Key: "index", Value: "tidemark_c_s"}},
			{{Key: "createIndexes", Value: "messages"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: keys("c")}, {Key: "name", Value: "tidemark_c_s"}}}}},
		}},
		{"a unique index", "index tidemark_u_c of members", []bson.D{
			{{Key: "dropIndexes", Value: "members"}, {Key: "index", Value: "tidemark_u_c"}},
			{{Key: "createIndexes", Value: "members"}, {Key: "indexes", Value: bson.A{bson.D{
				{Key: "key", Value: keys("u", "c")}, {Key: "name", Value: "tidemark_u_c"}, {Key: "unique", Value: true},
			}}}},
		}},
		{"messages that are not clustered", "messages is not clustered", []bson.D{
			{{Key: "drop", Value: "messages"}},
			{{Key: "create", Value: "messages"}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, freshDatabase())
			for _, cmd := range tt.cmds {
				if err := s.Do(t.Context(), cmd); err != nil {
					t.Fatal(err)
				}
			}
			err := s.Prepare(t.Context())
			if err == nil || fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != "index" || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
			}
		})
	}
}

// TestColdLoadTakesTensOfCommands counts what goes over the wire for many small
// conversations and a few large ones.
func TestColdLoadTakesTensOfCommands(t *testing.T) {
	reg := prometheus.NewRegistry()
	s, err := history.New(history.Config{URI: server(t), Database: freshDatabase(), Timeout: slow, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Drop(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	defer s.Close(t.Context())
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n, large = 1000, 2
	var c watermark.Change
	var wants []watermark.Want
	for i := range n {
		conv := watermark.GroupOf(fmt.Sprintf("c%05d", i/2))
		if i%2 == 1 {
			conv += "-" // its members come before those of the one without
		}
		size := 2
		if i%(n/large) == 51 {
			size = watermark.SmallGroup + 10
		}
		for u := range size {
			c.Members = append(c.Members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{User: watermark.UserID(fmt.Sprint("u", u)), Read: 1}})
		}
		c.Rows = append(c.Rows, rowsOf(conv, text(1, "a"))...)
		c.Conversations = append(c.Conversations, watermark.Conversation{ID: conv, Max: 1})
		wants = append(wants, watermark.Want{Conversation: conv, Users: []watermark.UserID{"u5"}, Sent: true})
	}
	if _, err := s.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	before := commands(t, reg)
	states, err := s.States(t.Context(), wants)
	if err != nil {
		t.Fatal(err)
	}
	complete, members := 0, 0
	for _, st := range states {
		if st.Complete {
			complete++
		}
		if st.Complete && len(st.Members) != 2 {
			t.Errorf("%s has %d members", st.ID, len(st.Members))
		}
		members += len(st.Members)
	}
	if complete != n-large || members != 2*(n-large)+large {
		t.Errorf("%d complete, %d members", complete, members)
	}
	// For each 500: conversations, members (with one more answer, and one more
	// query after a large one), ids; then the named members, once.
	if got := commands(t, reg) - before; got > n/500*(1+2+1)+3*large+1 {
		t.Errorf("%v commands", got)
	}
}

func commands(t *testing.T, reg *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidemark_history_commands_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
