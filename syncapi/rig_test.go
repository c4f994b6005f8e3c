package syncapi_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

func newService(tb testing.TB, w *world, change func(*syncapi.Config)) *syncapi.Service {
	tb.Helper()
	cfg := syncapi.Config{Hot: fakeHot{w}, Truth: fakeTruth{w}, Log: fakeLog{w}, Devices: storagetest.NewMemory(), NodeID: "test"}
	if change != nil {
		change(&cfg)
	}
	s, err := syncapi.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// serve serves s on a port of its own and gives the address.
func serve(tb testing.TB, s *syncapi.Service) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Serve: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

func httpClient(tb testing.TB, http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: p}
	tb.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

type client = tidemarkv1connect.SyncServiceClient

// clients speak each protocol to one port.
func clients(tb testing.TB, s *syncapi.Service) map[string]client {
	tb.Helper()
	url := serve(tb, s)
	h1, h2 := httpClient(tb, false), httpClient(tb, true)
	return map[string]client{
		"json":     tidemarkv1connect.NewSyncServiceClient(h1, url, connect.WithProtoJSON()),
		"grpc":     tidemarkv1connect.NewSyncServiceClient(h2, url, connect.WithGRPC()),
		"grpc-web": tidemarkv1connect.NewSyncServiceClient(h1, url, connect.WithGRPCWeb()),
	}
}

const (
	asc       = v1.Order_ORDER_ASC
	desc      = v1.Order_ORDER_DESC
	nearEnd   = v1.Keep_KEEP_NEAR_END
	nearBegin = v1.Keep_KEEP_NEAR_BEGIN
)

type puller interface {
	Pull(context.Context, *v1.PullRequest) (*v1.PullResponse, error)
}

// pull asks for one range.
func pull(tb testing.TB, c puller, user userID, r *v1.PullRange) *v1.PullPage {
	tb.Helper()
	res, err := c.Pull(context.Background(), &v1.PullRequest{User: string(user), Ranges: []*v1.PullRange{r}})
	if err != nil {
		tb.Fatalf("Pull(%v): %v", r, err)
	}
	if len(res.Pages) != 1 {
		tb.Fatalf("Pull(%v): %d pages", r, len(res.Pages))
	}
	return res.Pages[0]
}

func seqsOf(p *v1.PullPage) []int64 {
	out := make([]int64, len(p.Messages))
	for i, m := range p.Messages {
		out[i] = m.Seq
	}
	return out
}

// run gives first, first±1, ... last.
func run(first, last int64) []int64 {
	out := []int64{first}
	for first != last {
		if first < last {
			first++
		} else {
			first--
		}
		out = append(out, first)
	}
	return out
}

// marks gives a user's numbers in one conversation.
func marks(tb testing.TB, s *syncapi.Service, user userID, id convID) *v1.Watermarks {
	tb.Helper()
	res, err := s.GetWatermarks(tb.Context(), &v1.GetWatermarksRequest{User: string(user), Conversations: []string{string(id)}})
	if err != nil {
		tb.Fatal(err)
	}
	if res.Watermarks[0].Error != nil {
		tb.Fatalf("watermarks of %s in %s: %v", user, id, res.Watermarks[0].Error)
	}
	return res.Watermarks[0]
}

// settle makes u a member of a group whose window has the given edges.
func (w *world) settle(id convID, u userID, lower, upper seq) {
	w.with(id, func(t *talk) {
		m := t.memberLocked(u)
		m.Version++
		m.LastMembership = 1
		m.Memberships = []watermark.Membership{{Number: 1, Lower: lower, Upper: upper}}
		t.members[u] = m
	})
}

func contextWithCancel(tb testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(tb.Context())
}
