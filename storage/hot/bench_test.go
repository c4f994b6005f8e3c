package hot_test

import (
	"fmt"
	"testing"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func BenchmarkViews(b *testing.B) {
	e := newEnv(b)
	asks := make([]hot.Ask, 10_000)
	for i := range asks {
		c := watermark.ConversationID(fmt.Sprintf("group:%d", i))
		asks[i] = hot.Ask{Conversation: c, User: "ann"}
		e.meta(c)
		e.member(c, open("ann", 1, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		views, err := e.Views(b.Context(), asks)
		if err != nil || views[9999].Temperature != watermark.Warm {
			b.Fatal(views[9999], err)
		}
	}
	b.ReportMetric(float64(len(asks))*float64(b.N)/b.Elapsed().Seconds(), "views/s")
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
