package wire_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func BenchmarkDecodeInput(b *testing.B) {
	s := send()
	s.Body = &v1.SendMessage_Text{Text: strings.Repeat("x", 200)}
	for name, value := range map[string][]byte{"binary": binary(b, s), "json": asJSON(b, s)} {
		b.Run(name, func(b *testing.B) {
			rec := record(value)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := (wire.Codec{}).DecodeInput(rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchRecord(n int) watermark.Record {
	r := run(1, watermark.Seq(n))
	for i := range r.Messages {
		r.Messages[i].Body = []byte(strings.Repeat("x", 200))
	}
	return watermark.Record{Conversation: "group:g", Events: []watermark.Event{r}, Inputs: []watermark.Origin{origin(7)}}
}

func BenchmarkEncodeRecord(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint("messages=", n), func(b *testing.B) {
			rec := benchRecord(n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.EncodeRecord(rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint("messages=", n), func(b *testing.B) {
			value, err := wire.EncodeRecord(benchRecord(n))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.DecodeRecord(wire.Record{Value: value}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
