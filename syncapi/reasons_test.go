package syncapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// deciding is a Hot whose owners answer every call alike.
type deciding struct {
	fakeHot
	answer watermark.Answer
}

func (d deciding) Answers(_ context.Context, keys []watermark.AnswerKey) ([]*watermark.Answer, error) {
	out := make([]*watermark.Answer, len(keys))
	for i := range keys {
		out[i] = &d.answer
	}
	return out, nil
}

// stalled is a Hot that does not come back before the call is over.
type stalled struct{ fakeHot }

func (stalled) Views(ctx context.Context, _ []syncapi.Ask) ([]watermark.View, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// moving is a truth whose log is another one each time.
type moving struct{ fakeTruth }

func (m moving) List(ctx context.Context, u userID) (watermark.List, error) {
	list, err := m.fakeTruth.List(ctx, u)
	list.Log = fmt.Sprint("log ", m.count("List"))
	return list, err
}

// atOnce does it five times together and gives one of the errors.
func atOnce(do func() error) error {
	var g errgroup.Group
	for range 5 {
		g.Go(do)
	}
	return g.Wait()
}

// Each reason of the table is given, with its code, by something that a caller
// can meet; and no other is in the table.
func TestEveryReason(t *testing.T) {
	sendA := func(ctx context.Context, c client) error {
		_, err := c.Send(ctx, &v1.SendRequest{Message: message(single, "A"), WaitForSeq: true})
		return err
	}
	pullA := func(ctx context.Context, c client) error {
		_, err := c.Pull(ctx, &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{{Conversation: string(single), Begin: 1, End: 1}}})
		return err
	}
	markA := func(ctx context.Context, c client) error {
		_, err := c.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: 1})
		return err
	}
	all := func(ctx context.Context, c client) error {
		_, err := c.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: "A"})
		return err
	}
	refusing := func(reason string) func(*world, *syncapi.Config) {
		return func(w *world, c *syncapi.Config) {
			c.Hot = deciding{fakeHot{w}, watermark.Answer{Verdict: watermark.Refused, Reason: reason}}
		}
	}
	auth := func(_ *world, c *syncapi.Config) { c.Authenticate = tokens }
	got := map[string]connect.Code{}
	for name, tc := range map[string]struct {
		set   func(*world, *syncapi.Config)
		token string
		call  func(ctx context.Context, c client) error
		want  string
	}{
		"a field": {call: func(ctx context.Context, c client) error {
			_, err := c.Pull(ctx, &v1.PullRequest{User: "A"})
			return err
		}, want: "invalid"},
		"a large body": {call: func(ctx context.Context, c client) error {
			m := message(single, "A")
			m.Body = &v1.SendMessage_Text{Text: strings.Repeat("x", 70<<10)}
			_, err := c.Send(ctx, &v1.SendRequest{Message: m})
			return err
		}, want: "too_large"},
		"an owner cannot read it": {set: refusing("undecodable"), call: sendA, want: "undecodable"},
		"an owner: not a member":  {set: refusing("not_member"), call: sendA, want: "not_member"},
		"an owner: id reused":     {set: refusing("id_reused"), call: sendA, want: "id_reused"},
		"an owner: no such seq":   {set: refusing("no_such_seq"), call: sendA, want: "no_such_seq"},
		"an owner: window full":   {set: refusing("window_full"), call: sendA, want: "window_full"},
		"an owner: attributes full": {set: refusing("attributes_full"), call: func(ctx context.Context, c client) error {
			_, err := c.SetConversationAttributes(ctx, &v1.SetConversationAttributesRequest{User: "A", Conversation: string(single), Attributes: map[string]string{"x": "1"}})
			return err
		}, want: "attributes_full"},
		"a list that moved": {set: func(w *world, c *syncapi.Config) { c.Truth = moving{fakeTruth{w}} }, call: func(ctx context.Context, c client) error {
			res, err := c.SyncConversations(ctx, &v1.SyncConversationsRequest{User: "A", PageSize: 1})
			for err == nil && res.NextPageToken != "" {
				res, err = c.SyncConversations(ctx, &v1.SyncConversationsRequest{User: "A", PageSize: 1, PageToken: res.NextPageToken})
			}
			return err
		}, want: "list_moved"},
		"an owner: seqs exhausted": {set: refusing("seqs_exhausted"), call: sendA, want: "seqs_exhausted"},
		"an owner: partition":      {set: refusing("wrong_partition"), call: sendA, want: "wrong_partition"},
		"no token":                 {set: auth, call: all, want: "token_missing"},
		"a bad token":              {set: auth, token: "x", call: all, want: "token_invalid"},
		"an old token":             {set: auth, token: "old", call: all, want: "token_expired"},
		"no keys":                  {set: auth, token: "keys", call: all, want: "keys"},
		"not for users": {set: auth, token: "user:A", call: func(ctx context.Context, c client) error {
			_, err := c.RaiseMinSeq(ctx, &v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: 1})
			return err
		}, want: "admin_required"},
		"another user": {set: auth, token: "user:B", call: all, want: "other_user"},
		"not one of the two": {call: func(ctx context.Context, c client) error {
			_, err := c.Send(ctx, &v1.SendRequest{Message: message(single, "C")})
			return err
		}, want: "not_participant"},
		"not the sender": {call: func(ctx context.Context, c client) error {
			_, err := c.Revoke(ctx, &v1.RevokeRequest{Conversation: string(single), Seq: 1, Actor: "B"})
			return err
		}, want: "not_sender"},
		"unknown conversation": {call: func(ctx context.Context, c client) error {
			_, err := c.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: "group:nowhere", ReadSeq: 1})
			return err
		}, want: "unknown_conversation"},
		"a group": {call: func(ctx context.Context, c client) error {
			_, err := c.MarkMessagesRead(ctx, &v1.MarkMessagesReadRequest{User: "A", Conversation: string(group), Seqs: []int64{1}})
			return err
		}, want: "not_single"},
		"too often": {set: func(w *world, c *syncapi.Config) {
			auth(w, c)
			c.UserLimits.Requests = 0.001
		}, token: "user:A", call: func(ctx context.Context, c client) error { return errors.Join(all(ctx, c), all(ctx, c)) }, want: "requests"},
		"too much": {set: func(w *world, c *syncapi.Config) {
			auth(w, c)
			c.UserLimits.Bytes = 1
		}, token: "user:A", call: func(ctx context.Context, c client) error { return errors.Join(all(ctx, c), all(ctx, c)) }, want: "bytes"},
		"a large request": {set: func(_ *world, c *syncapi.Config) { c.MaxRequest = 1 }, call: all, want: "request_too_large"},
		"a store is away": {set: func(w *world, _ *syncapi.Config) { w.hotDown = true }, call: pullA, want: "store"},
		"a row is nowhere": {set: func(w *world, _ *syncapi.Config) {
			w.with(single, func(t *talk) { t.lost[1] = true })
		}, call: func(ctx context.Context, c client) error {
			_, err := c.Revoke(ctx, &v1.RevokeRequest{Conversation: string(single), Seq: 1, Actor: "A"})
			return err
		}, want: "gap"},
		"no seq in the answer": {set: func(w *world, c *syncapi.Config) {
			c.Hot = deciding{fakeHot{w}, watermark.Answer{Verdict: watermark.Known}}
		}, call: sendA, want: "seq_unknown"},
		"no answer": {set: func(w *world, c *syncapi.Config) { w.slow, c.AnswerTimeout = true, time.Millisecond }, call: sendA, want: "no_answer_yet"},
		"too many wait": {set: func(w *world, c *syncapi.Config) { w.slow, c.MaxWaiting = true, 1 }, call: func(ctx context.Context, c client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return atOnce(func() error {
				if err := sendA(ctx, c); connect.CodeOf(err) == connect.CodeResourceExhausted {
					return err
				}
				return nil // it waited in vain
			})
		}, want: "waiting_calls"},
		"too many marks": {set: func(_ *world, c *syncapi.Config) { c.MaxWaiting, c.MarkWindow = 1, 200*time.Millisecond }, call: func(ctx context.Context, c client) error {
			return atOnce(func() error { return markA(ctx, c) })
		}, want: "marks_under_way"},
		"a fault": {set: func(w *world, c *syncapi.Config) {
			c.Log = failing{fakeLog{w}, fault.New(fault.Fatal, "test", errors.New("x"))}
		}, call: sendA, want: "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			w := community(t)
			url := serve(t, newService(t, w, func(c *syncapi.Config) {
				if tc.set != nil {
					tc.set(w, c)
				}
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := tc.call(ctx, as(t, url, tc.token))
			if reason := detail(t, err).GetMessage(); reason != tc.want {
				t.Fatalf("%v has reason %s, want %s", err, reason, tc.want)
			}
			got[tc.want] = connect.CodeOf(err)
		})
	}
	maps.Copy(got, reasonsElsewhere(t))
	want := map[string]connect.Code{}
	for _, r := range syncapi.Reasons() {
		if _, twice := want[r.Word]; twice || r.Meaning == "" {
			t.Errorf("%s stands twice, or without a meaning", r.Word)
		}
		want[r.Word] = r.Code
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-table +met): %s", diff)
	}
}

// reasonsElsewhere meets those that need more than one call of a client.
func reasonsElsewhere(t *testing.T) map[string]connect.Code {
	t.Helper()
	out := map[string]connect.Code{}
	w := community(t)
	url := serve(t, newService(t, w, nil))
	for path, method := range map[string]string{"/tidemark.v1.SyncService/Nothing": http.MethodPost, "/": http.MethodGet} {
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodPost {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := httpClient(t, false).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for word, code := range map[string]connect.Code{"unknown_method": connect.CodeUnimplemented, "unknown_path": connect.CodeNotFound} {
			// The detail is base64 in the error, with its plain form beside it.
			if bytes.Contains(body, []byte(code.String())) && bytes.Contains(body, []byte("ErrorInfo")) {
				out[word] = code
			}
		}
	}
	// The deadline and the end of a call are told to who calls without HTTP.
	for word, end := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), time.Millisecond)
		},
		"canceled": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx, cancel
		},
	} {
		ctx, cancel := end()
		s := newService(t, w, func(c *syncapi.Config) { c.Hot = stalled{fakeHot{w}} })
		res, err := s.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(single)}})
		cancel()
		if err == nil {
			t.Errorf("%s: %v", word, res)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			out["deadline"] = connect.CodeDeadlineExceeded
		} else if errors.Is(err, context.Canceled) {
			out["canceled"] = connect.CodeCanceled
		}
	}
	// A mark after the end, and the limits on calls that are under way, have
	// tests of their own: TestAUserWithManyCallsAtOnce and its neighbours.
	out["in_flight"], out["busy"] = connect.CodeResourceExhausted, connect.CodeResourceExhausted
	stopped := newService(t, w, nil)
	ctx, cancel := contextWithCancel(t)
	cancel()
	if err := stopped.Run(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := stopped.Send(t.Context(), &v1.SendRequest{Message: message(single, "A"), WaitForSeq: true})
	if connect.CodeOf(err) == connect.CodeUnavailable {
		out["stopping"] = connect.CodeUnavailable
	}
	return out
}

func TestTheReasonsAreDocumented(t *testing.T) {
	const begin, end = "<!-- reasons:begin -->\n", "<!-- reasons:end -->"
	b, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), begin)
	table, _, _ := strings.Cut(rest, end)
	if want := syncapi.ReasonTable(); table != want {
		t.Errorf("docs/errors.md must have this table:\n%s", want)
	}
}

// fieldsOf gives the fields that an error names, each with what is wrong.
func fieldsOf(t *testing.T, err error) map[string]string {
	t.Helper()
	out := map[string]string{}
	e, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Fatalf("%v is no Connect error", err)
	}
	for _, d := range e.Details() {
		v, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := v.(*errdetails.BadRequest); ok {
			for _, f := range b.GetFieldViolations() {
				if f.GetDescription() == "" {
					t.Errorf("%s: no description", f.GetField())
				}
				out[f.GetField()] = f.GetDescription()
			}
		}
	}
	return out
}

func TestInvalidRequestsNameTheirFields(t *testing.T) {
	url := serve(t, newService(t, community(t), nil))
	c := as(t, url, "")
	ctx := t.Context()
	for name, tc := range map[string]struct {
		call func() error
		want []string
	}{
		"message": {func() error {
			_, err := c.Send(ctx, &v1.SendRequest{Message: &v1.SendMessage{Conversation: "x", Sender: "a b", Kind: "?", SendTimeMs: -1}})
			return err
		}, []string{"message.conversation", "message.sender", "message.kind", "message.send_time_ms"}},
		"no message": {func() error { _, err := c.Send(ctx, &v1.SendRequest{}); return err }, []string{"message"}},
		"user":       {func() error { _, err := c.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: "a:b"}); return err }, []string{"user"}},
		"token": {func() error {
			_, err := c.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: "A", PageToken: "x"})
			return err
		}, []string{"page_token"}},
		"ranges": {func() error { _, err := c.Pull(ctx, &v1.PullRequest{User: "A"}); return err }, []string{"ranges"}},
		"mark": {func() error {
			_, err := c.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: "nonsense"})
			return err
		}, []string{"conversation"}},
		"device": {func() error {
			_, err := c.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: string(single), Device: "\x00"})
			return err
		}, []string{"device"}},
		"seqs": {func() error {
			_, err := c.MarkMessagesRead(ctx, &v1.MarkMessagesReadRequest{User: "A", Conversation: string(single), Seqs: []int64{-1}})
			return err
		}, []string{"seqs"}},
		"command": {func() error {
			_, err := c.Join(ctx, &v1.JoinRequest{Conversation: "x", User: "a b", From: 3, OpId: "\x00", Actor: "?"})
			return err
		}, []string{"conversation", "user", "from", "op_id", "actor"}},
		"minimum": {func() error {
			_, err := c.RaiseMinSeq(ctx, &v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: -1})
			return err
		}, []string{"min_seq"}},
		"revoke": {func() error {
			_, err := c.Revoke(ctx, &v1.RevokeRequest{Conversation: string(group), Seq: 0, Actor: "A"})
			return err
		}, []string{"seq"}},
	} {
		err := tc.call()
		if connect.CodeOf(err) != connect.CodeInvalidArgument || detail(t, err).GetMessage() != "invalid" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := fieldsOf(t, err)
		want := map[string]string{}
		for _, f := range tc.want {
			want[f] = got[f]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: fields (-want +got): %s", name, diff)
		}
	}
}

func TestWhatCannotBeDecodedHasAReasonInEveryProtocol(t *testing.T) {
	url := serve(t, newService(t, community(t), nil))
	for contentType, body := range map[string]string{
		"application/json": `{"user":7,`, "application/proto": "\xff\xff",
		"application/json; charset=utf-8": `{"usr":""}`, "application/grpc-web+proto": "\x00\x00\x00\x00\x02\xff\xff", "application/grpc": "\x00\x00\x00\x00\x02\xff\xff",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+tidemarkv1connect.SyncServicePullProcedure, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		res, err := httpClient(t, contentType == "application/grpc").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		bin := res.Header.Get("Grpc-Status-Details-Bin") + res.Trailer.Get("Grpc-Status-Details-Bin")
		said := string(text) + res.Header.Get("Grpc-Message") + res.Trailer.Get("Grpc-Message")
		if err != nil || !strings.Contains(said, "decoded") || !strings.Contains(said, "ErrorInfo") && bin == "" {
			t.Errorf("%s: %s %s %v %v", contentType, res.Status, text, res.Header, res.Trailer)
		}
	}
}
