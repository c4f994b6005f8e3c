package syncapi_test

import (
	"testing"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

func BenchmarkPull100(b *testing.B) {
	w := newWorld()
	w.say(b, single, "B", 1000)
	s := newService(b, w, nil)
	req := &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{{Conversation: string(single), Begin: 1, End: 1000, Num: 100}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Pull(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetWatermarks1000(b *testing.B) {
	w := newWorld()
	crowd(b, w, 1000)
	s := newService(b, w, nil)
	req := &v1.GetWatermarksRequest{User: "A", PageSize: 1000}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.GetWatermarks(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
