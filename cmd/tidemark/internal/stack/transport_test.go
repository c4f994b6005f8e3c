package stack_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// One port speaks gRPC, gRPC-Web and JSON, and says of itself that it is well
// and what it serves.
func TestEveryProtocolReachesTheRunningStack(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	url := r.roles[stack.Sync].stack.SyncURL()
	h1, h2 := httpClient(t, false), httpClient(t, true)
	const c = "single:A:B"
	seq := int64(0)
	for _, p := range []struct {
		name string
		svc  tidemarkv1connect.SyncServiceClient
	}{
		{"grpc", tidemarkv1connect.NewSyncServiceClient(h2, url, connect.WithGRPC())},
		{"grpc-web", tidemarkv1connect.NewSyncServiceClient(h1, url, connect.WithGRPCWeb())},
		{"grpc-web over HTTP/2", tidemarkv1connect.NewSyncServiceClient(h2, url, connect.WithGRPCWeb())},
		{"json", tidemarkv1connect.NewSyncServiceClient(h1, url, connect.WithProtoJSON())},
		{"connect", tidemarkv1connect.NewSyncServiceClient(h2, url)},
	} {
		seq++
		sent, err := p.svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
			Conversation: c, Sender: "B", Body: &tidemarkv1.SendMessage_Text{Text: p.name},
		}})
		if err != nil || sent.GetSeq() != seq {
			t.Fatalf("%s: send: %v, %v; want seq %d", p.name, sent, err, seq)
		}
		pulled, err := p.svc.Pull(r.ctx(), &tidemarkv1.PullRequest{User: "A", Ranges: []*tidemarkv1.PullRange{{Conversation: c, Begin: seq, End: seq}}})
		if err != nil || len(pulled.GetPages()[0].GetMessages()) != 1 || pulled.GetPages()[0].GetMessages()[0].GetText() != p.name {
			t.Errorf("%s: pull: %v, %v", p.name, pulled, err)
		}
		read, err := p.svc.MarkMessagesRead(r.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: "A", Conversation: c, Seqs: []int64{seq}})
		if err != nil || read.GetReceiptSeq() != seq {
			t.Errorf("%s: mark: %v, %v", p.name, read, err)
		}
		_, err = p.svc.MarkMessagesRead(r.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: "A", Conversation: "group:g", Seqs: []int64{1}})
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("%s: an error arrives as %v", p.name, err)
		}
	}

	// As with curl.
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, url+"/tidemark.v1.SyncService/GetWatermarks", strings.NewReader(`{"user":"A"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := h1.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"conversation":"single:A:B"`) || !strings.Contains(string(body), `"readSeq":"5"`) {
		t.Errorf("plain JSON: %d %s, %v", res.StatusCode, body, err)
	}

	for name, c := range map[string]*http.Client{"HTTP/1.1": h1, "HTTP/2": h2} {
		opt := connect.WithGRPCWeb()
		if c == h2 {
			opt = connect.WithGRPC()
		}
		check := connect.NewClient[emptypb.Empty, emptypb.Empty](c, url+"/"+grpchealth.HealthV1ServiceName+"/Check", opt)
		got, err := check.CallUnary(r.ctx(), connect.NewRequest(new(emptypb.Empty)))
		if err != nil {
			t.Fatalf("health over %s: %v", name, err)
		}
		if status := got.Msg.ProtoReflect().GetUnknown(); !slices.Equal(status, []byte{1 << 3, 1}) { // SERVING
			t.Errorf("health over %s: % x", name, status)
		}
	}
	stream := grpcreflect.NewClient(h2, url, connect.WithGRPC()).NewStream(r.ctx())
	names, err := stream.ListServices()
	if err != nil || !slices.Contains(names, tidemarkv1connect.SyncServiceName) {
		t.Errorf("reflection lists %v, %v", names, err)
	}
	files, err := stream.FileContainingSymbol(tidemarkv1connect.SyncServiceName)
	if err != nil || len(files) == 0 {
		t.Errorf("reflection describes %d files, %v", len(files), err)
	}
	if _, err := stream.Close(); err != nil {
		t.Errorf("reflection: %v", err)
	}
}
