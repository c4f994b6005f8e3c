package syncapi_test

import (
	"testing"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// Who never joined a group may see it and is no member of it; the two of a
// single conversation are members from its first message on.
func TestWhoIsAMember(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 3)
	w.say(t, single, "B", 3)
	s := newService(t, w, nil)
	for conv, want := range map[convID]bool{group: false, single: true} {
		res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(conv)}})
		if err != nil || res.GetWatermarks()[0].GetMember() != want || res.GetWatermarks()[0].GetMaxSeq() != 3 {
			t.Errorf("%s: %v, %v; want member %v", conv, res, err, want)
		}
	}
}
