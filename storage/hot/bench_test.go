package hot_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkViews asks for 10,000 views in pages of 500, as a list does. Against a
// real server it also tells the processor time that the server took for each.
func BenchmarkViews(b *testing.B) {
	for _, kind := range []string{"group", "single"} {
		b.Run(kind, func(b *testing.B) {
			e := newEnv(b)
			asks := make([]hot.Ask, 10_000)
			for i := range asks {
				c := watermark.ConversationID(fmt.Sprintf("group:%d", i))
				if kind == "single" {
					c = watermark.ConversationID(fmt.Sprintf("single:ann:peer%d", i))
				}
				asks[i] = hot.Ask{Conversation: c, User: "ann"}
				e.meta(c, "full", 1, "lt", 1764476000000, "bt", "AAAAAAAAAAAAAAAAAAAAAA/1|77", "in:AAAAAAAAAAAAAAAAAAAAAA/1", 78)
				e.do("ZADD", e.space.SettledKey(), 77, "AAAAAAAAAAAAAAAAAAAAAA/1")
				if kind == "group" {
					e.member(c, open("ann", 1, 0))
				} else {
					e.do("HSET", e.space.Key(c, "mem"), "ann", "-", fmt.Sprintf("peer%d", i), "-")
					e.do("ZADD", e.space.Key(c, "read"), 1, "ann")
				}
			}
			before := e.cpu()
			b.ReportAllocs()
			for b.Loop() {
				for at := 0; at < len(asks); at += 500 {
					views, err := e.Views(b.Context(), asks[at:at+500])
					if err != nil || views[499].Temperature != watermark.Warm {
						b.Fatal(views[499], err)
					}
				}
			}
			n := float64(len(asks) * b.N)
			b.ReportMetric(b.Elapsed().Seconds()*1e6/n, "us/view")
			b.ReportMetric((e.cpu()-before)*1e6/n, "redis-us/view")
		})
	}
}

// cpu gives the processor time that a real server has used, in seconds.
func (e *env) cpu() (seconds float64) {
	text, _ := e.client.Info(context.Background(), "cpu").Result()
	for line := range strings.Lines(text) {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				f, _ := strconv.ParseFloat(v, 64)
				seconds += f
			}
		}
	}
	return seconds
}

func BenchmarkMessages(b *testing.B) {
	e := newEnv(b)
	e.meta(group, "max", 1000)
	e.log(group, 1, 1000)
	span := []hot.Span{{Conversation: group, First: 801, Last: 900}}
	b.ReportAllocs()
	for b.Loop() {
		got, err := e.Messages(b.Context(), span)
		if err != nil || len(got[0]) != 100 {
			b.Fatal(len(got[0]), err)
		}
	}
}
