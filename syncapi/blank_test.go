package syncapi_test

import (
	"testing"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// A conversation in which everything was refused is warm in Redis and is not
// there. One of which only members stand is there, for strangers too. Neither
// depends on what Redis holds.
func TestWhatIsThereDoesNotDependOnRedis(t *testing.T) {
	w := newWorld()
	w.with("group:refused", func(*talk) {})
	w.order(watermark.Input{Conversation: "group:joined", Act: watermark.ActJoin, User: "B"})
	s := newService(t, w, nil)
	for _, state := range []string{"warm", "cold"} {
		for conv, want := range map[convID]string{"group:refused": "not_found", "group:joined": "", "group:never": "not_found"} {
			res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(conv)}})
			if err != nil {
				t.Fatal(err)
			}
			if got := res.Watermarks[0].Error.GetCode(); got != want {
				t.Errorf("%s, %s: watermarks: %q, want %q", conv, state, got, want)
			}
			if got := pull(t, s, "A", &v1.PullRange{Conversation: string(conv), Begin: 1, End: 9}).Error.GetCode(); got != want {
				t.Errorf("%s, %s: pull: %q, want %q", conv, state, got, want)
			}
			_, err = s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(conv), ReadSeq: 3})
			if (want == "") != (err == nil) || err != nil && connect.CodeOf(err).String() != want {
				t.Errorf("%s, %s: mark: %v, want %q", conv, state, err, want)
			}
		}
		w.flush()
	}
}
