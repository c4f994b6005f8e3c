package audit_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/storage/embedded"
	wm "github.com/tidemark-im/tidemark/watermark"
)

// go test -run '^$' -bench Audit -benchtime 1x ./cmd/tidemark/internal/audit -args -messages 1000000
var messages = flag.Int("messages", 20_000, "messages that BenchmarkAudit fills a history with")

// BenchmarkAudit fills a history in SQLite with messages, half of them in one
// conversation, and audits it. It reports the peak of the heap while it audits.
func BenchmarkAudit(b *testing.B) {
	store, err := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "history.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	fillStore(b, store, *messages)
	w := newWorld() // for its fence
	a, err := audit.New(audit.Config{History: store, Fence: w})
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	before := heap()
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		most := uint64(0)
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(5 * time.Millisecond):
				most = max(most, heap())
			}
		}
	}()
	for b.Loop() {
		rep, err := a.Run(b.Context(), audit.Scope{})
		if err != nil || !rep.Clean() || rep.Messages != *messages {
			b.Fatalf("%v, %+v", err, rep)
		}
	}
	b.StopTimer()
	close(stop)
	const mib = 1 << 20
	b.ReportMetric(float64(<-peak)/mib, "peak-heap-MiB")
	b.ReportMetric(float64(before)/mib, "heap-before-MiB")
	b.ReportMetric(float64(*messages)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// heap gives the bytes of objects on the heap, those to be swept included.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func fillStore(b *testing.B, store *embedded.Store, n int) {
	b.Helper()
	next := map[wm.ConversationID]wm.Seq{}
	for done := 0; done < n; {
		var c wm.Change
		tops := map[wm.ConversationID]wm.Seq{}
		for ; len(c.Rows) < 5000 && done < n; done++ {
			id := wm.ConversationID("group:large")
			if done%2 == 1 {
				id = wm.GroupOf(fmt.Sprint("small-", done/200))
			}
			next[id]++
			m := msg(next[id], fmt.Sprint("m", next[id]))
			m.Body = fmt.Appendf(nil, "%0300d", done)
			m.Hash = m.SumHash()
			c.Rows = append(c.Rows, wm.Row{Conversation: id, Message: m})
			tops[id] = next[id]
		}
		for id, top := range tops {
			c.Conversations = append(c.Conversations, wm.Conversation{ID: id, Max: top})
			c.Members = append(c.Members, wm.MemberRow{Conversation: id, Member: wm.Member{User: "ann", Read: top}})
		}
		if _, err := store.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
