package syncapi_test

import (
	"testing"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

func FuzzListTokens(f *testing.F) {
	w := newWorld()
	crowd(f, w, 5)
	s := newService(f, w, nil)
	req := &v1.SyncConversationsRequest{User: "A", PageSize: 2}
	for {
		res, err := s.SyncConversations(f.Context(), req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(res.Version, res.NextPageToken)
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
	}
	f.Fuzz(func(t *testing.T, version, token string) {
		req := &v1.SyncConversationsRequest{User: "A", PageSize: 2, Version: version, PageToken: token}
		for range 100 {
			res, err := s.SyncConversations(t.Context(), req)
			if err != nil {
				if c := connect.CodeOf(err); c != connect.CodeInvalidArgument && c != connect.CodeAborted {
					t.Fatalf("%q %q: %v", version, token, err)
				}
				return
			}
			if req.PageToken = res.NextPageToken; req.PageToken == "" {
				return
			}
		}
		t.Fatal("no end")
	})
}
