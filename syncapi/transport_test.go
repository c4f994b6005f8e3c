package syncapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/emptypb"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/syncapi"
)

func TestPlainJSONOverHTTP(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 2)
	url := serve(t, newService(t, w, nil))
	c := httpClient(t, false)
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/tidemark.v1.SyncService/Pull", `{"user":"A","ranges":[{"conversation":"single:A:B","begin":"1","end":2}]}`, 200, `"isEnd":true`},
		{"POST", "/tidemark.v1.SyncService/Pull", `{"user":"A"}`, 400, `"code":"invalid_argument"`},
		{"POST", "/tidemark.v1.SyncService/Pull", `{"user":`, 400, `"code":"invalid_argument"`},
		{"POST", "/tidemark.v1.SyncService/Pull", ``, 400, `send {}`},
		{"POST", "/tidemark.v1.SyncService/Pull", `{"usr":"A"}`, 400, `unknown field`},
		{"POST", "/tidemark.v1.SyncService/Send", `{"message":{"conversation":"group:g","sender":"A","clientMesageId":"1","text":"t"}}`, 400, `clientMesageId`},
		{"POST", "/tidemark.v1.SyncService/MarkConversationRead", `{"user":"A","conversation":"single:A:C","readSeq":1}`, 404, `"code":"not_found"`},
		{"POST", "/tidemark.v1.SyncService/Nothing", `{}`, 501, `"code":"unimplemented"`},
		{"POST", "/nothing", `{}`, 501, `"code":"unimplemented"`},
		{"GET", "/", "", 404, `"code":"not_found"`},
		{"GET", "/tidemark.v1.SyncService/Nothing", "", 404, `"code":"not_found"`},
		{"GET", "/tidemark.v1.SyncService/Pull", "", 405, ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, url+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if tc.method == "POST" {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != tc.status || !strings.Contains(string(body), tc.want) {
			t.Errorf("%s %s: %d %s, %v", tc.method, tc.path, res.StatusCode, body, err)
		}
		if tc.want != "" && !json.Valid(body) {
			t.Errorf("%s %s: not JSON: %s", tc.method, tc.path, body)
		}
	}
}

func TestHealthAndReflection(t *testing.T) {
	url := serve(t, newService(t, newWorld(), nil))
	h2 := httpClient(t, true)
	check := connect.NewClient[emptypb.Empty, emptypb.Empty](h2, url+"/grpc.health.v1.Health/Check", connect.WithGRPC())
	res, err := check.CallUnary(t.Context(), connect.NewRequest(new(emptypb.Empty)))
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Msg.ProtoReflect().GetUnknown(); !bytes.Equal(got, []byte{1 << 3, 1}) { // status: SERVING
		t.Errorf("health: % x", got)
	}
	stream := grpcreflect.NewClient(h2, url, connect.WithGRPC()).NewStream(t.Context())
	names, err := stream.ListServices()
	if err != nil || len(names) != 2 {
		t.Errorf("services %v, %v", names, err)
	}
	if files, err := stream.FileContainingSymbol(tidemarkv1connect.SyncServiceName); err != nil || len(files) == 0 {
		t.Errorf("reflection: %v", err)
	}
	if _, err := stream.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	w := newWorld()
	for name, c := range clients(t, newService(t, w, nil)) {
		_, err := c.Pull(t.Context(), &v1.PullRequest{User: strings.Repeat("A", 5<<20)})
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%s: %v", name, err)
		}
	}
	if w.count("Views") != 0 {
		t.Error("a store was asked")
	}
}

func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	w := newWorld()
	for name, c := range clients(t, newService(t, w, nil)) {
		_, err := c.Send(t.Context(), &v1.SendRequest{Message: &v1.SendMessage{
			Conversation: string(single), Sender: "A", Body: &v1.SendMessage_Text{Text: strings.Repeat("x", 70<<10)},
		}})
		if connect.CodeOf(err) != connect.CodeInvalidArgument || detail(t, err).GetMessage() != "too_large" || !strings.Contains(err.Error(), "text") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServeFinishesCallsBeforeItStops(t *testing.T) {
	w := newWorld()
	w.slow = true
	s := newService(t, w, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	h1 := httpClient(t, false)
	c := tidemarkv1connect.NewSyncServiceClient(h1, "http://"+ln.Addr().String())
	var g errgroup.Group
	g.Go(func() error {
		res, err := c.Send(t.Context(), &v1.SendRequest{WaitForSeq: true, Message: &v1.SendMessage{
			Conversation: string(single), Sender: "A", ClientMessageId: "x", Body: &v1.SendMessage_Text{Text: "y"},
		}})
		if err == nil && res.Seq != 1 {
			err = errors.New("no seq")
		}
		return err
	})
	until(t, "the call is appended", func() bool { return w.count("AppendSend") == 1 })
	cancel()
	until(t, "the port is closed", func() bool {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-served:
		t.Fatalf("Serve came back with a call under way: %v", err)
	default:
	}
	w.set(func() {
		w.slow = false
		w.answerLocked(w.waited, w.decided)
	})
	if err := g.Wait(); err != nil {
		t.Errorf("the call: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestServeGivesUpOnCallsThatDoNotFinish(t *testing.T) {
	w := newWorld()
	w.slow = true
	s := newService(t, w, func(c *syncapi.Config) { c.DrainTimeout = 20 * time.Millisecond })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	c := tidemarkv1connect.NewSyncServiceClient(httpClient(t, false), "http://"+ln.Addr().String())
	var g errgroup.Group
	g.Go(func() error {
		_, err := c.Join(t.Context(), &v1.JoinRequest{Conversation: string(group), User: "A"})
		return err
	})
	until(t, "the call is appended", func() bool { return w.count("AppendCommand") == 1 })
	cancel()
	if err := <-served; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Serve: %v", err)
	}
	if err := g.Wait(); err == nil {
		t.Error("the call was answered")
	}
}

func TestServeTellsWhyItCannot(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := newService(t, newWorld(), nil).Serve(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestFaultsAreLoggedAndNotTold(t *testing.T) {
	for class, want := range map[fault.Class]connect.Code{
		fault.Transient: connect.CodeUnavailable,
		fault.Fatal:     connect.CodeInternal,
	} {
		var lines bytes.Buffer
		w := newWorld()
		log := failing{fakeLog{w}, fault.New(class, "test", errors.New("secret-host:9092 refused"))}
		s := newService(t, w, func(c *syncapi.Config) {
			c.Log, c.Logger = log, slog.New(slog.NewTextHandler(&lines, nil))
		})
		req := &v1.SendRequest{Message: &v1.SendMessage{Conversation: string(single), Sender: "A", Body: &v1.SendMessage_Text{Text: "hush"}}}
		for name, c := range clients(t, s) {
			_, err := c.Send(t.Context(), req)
			if connect.CodeOf(err) != want || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s, %s: %v", class, name, err)
			}
		}
		if n := strings.Count(lines.String(), "secret-host"); n != 1 {
			t.Errorf("%s: logged %d times within a second: %s", class, n, &lines)
		}
		if strings.Contains(lines.String(), "hush") {
			t.Errorf("%s: a message body is logged", class)
		}
	}
}

type failing struct {
	fakeLog
	err error
}

func (f failing) AppendSend(context.Context, *v1.SendMessage, string) error { return f.err }

func TestNewNamesAllFaultsTogether(t *testing.T) {
	_, err := syncapi.New(syncapi.Config{NodeID: "a:b", PageBytes: -1, MarkWindow: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"no Hot", "no Truth", "no Log", "no Devices", `node id "a:b"`, "PageBytes", "MarkWindow"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

// until polls for what happens in another goroutine.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
