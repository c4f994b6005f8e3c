package syncapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/syncapi"
)

// tokens are the callers of tests: "user:A" is A, "admin" is an administrator
// without a user, "admin:A" one with.
func tokens(_ context.Context, token string) (syncapi.Caller, error) {
	kind, user, _ := strings.Cut(token, ":")
	switch kind {
	case "user":
		return syncapi.Caller{User: userID(user)}, nil
	case "admin":
		return syncapi.Caller{User: userID(user), Admin: true}, nil
	case "old":
		return syncapi.Caller{}, syncapi.ErrTokenExpired
	case "keys":
		return syncapi.Caller{}, errors.New("secret-issuer is away")
	}
	return syncapi.Caller{}, fmt.Errorf("%w: unknown", syncapi.ErrTokenInvalid)
}

func withTokens(c *syncapi.Config) { c.Authenticate = tokens }

// bearer gives requests a token.
type bearer struct {
	token string
	base  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.base.RoundTrip(r)
}

// as gives the client of whoever has the token.
func as(tb testing.TB, url, token string) client {
	h := httpClient(tb, false)
	h.Transport = bearer{token, h.Transport}
	return tidemarkv1connect.NewSyncServiceClient(h, url, connect.WithProtoJSON())
}

// outcome is "ok", or the reason of a call's error or of its only entry's.
func outcome(t *testing.T, res any, err error) string {
	t.Helper()
	if err != nil {
		return detail(t, err).GetMessage()
	}
	var e *v1.EntryError
	switch r := res.(type) {
	case *v1.PullResponse:
		e = r.Pages[0].Error
	case *v1.GetWatermarksResponse:
		if len(r.Watermarks) > 0 {
			e = r.Watermarks[0].Error
		}
	}
	if e != nil {
		return e.GetReason()
	}
	return "ok"
}

// call is one call with its fields left open: who the request names, and in
// which conversation. All calls of the service stand in calls.
type call func(ctx context.Context, c client, conv convID, user string) (any, error)

func message(conv convID, sender string) *v1.SendMessage {
	return &v1.SendMessage{Conversation: string(conv), Sender: sender, Body: &v1.SendMessage_Text{Text: "t"}}
}

var calls = map[string]call{
	"Send": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Send(ctx, &v1.SendRequest{Message: message(conv, user)})
	},
	"Send, waiting": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Send(ctx, &v1.SendRequest{Message: message(conv, user), WaitForSeq: true})
	},
	"Pull": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Pull(ctx, &v1.PullRequest{User: user, Ranges: []*v1.PullRange{{Conversation: string(conv), Begin: 1, End: 100}}})
	},
	"GetWatermarks": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: user, Conversations: []string{string(conv)}})
	},
	"GetWatermarks, all": func(ctx context.Context, c client, _ convID, user string) (any, error) {
		return c.GetWatermarks(ctx, &v1.GetWatermarksRequest{User: user})
	},
	"SyncConversations": func(ctx context.Context, c client, _ convID, user string) (any, error) {
		return c.SyncConversations(ctx, &v1.SyncConversationsRequest{User: user})
	},
	"WhoHasRead": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.WhoHasRead(ctx, &v1.WhoHasReadRequest{User: user, Conversation: string(conv), Seq: 1})
	},
	"SetConversationAttributes": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.SetConversationAttributes(ctx, &v1.SetConversationAttributesRequest{User: user, Conversation: string(conv), Attributes: map[string]string{"muted": "1"}})
	},
	// About no conversation: the device is named after it so that each has its own.
	"RegisterDevice": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.RegisterDevice(ctx, &v1.RegisterDeviceRequest{User: user, Device: string(conv), Platform: v1.Platform_PLATFORM_FCM, Token: string(conv)})
	},
	"UnregisterDevice": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.UnregisterDevice(ctx, &v1.UnregisterDeviceRequest{User: user, Device: string(conv)})
	},
	"SetUnreadPolicy": func(ctx context.Context, c client, conv convID, _ string) (any, error) {
		return c.SetUnreadPolicy(ctx, &v1.SetUnreadPolicyRequest{Conversation: string(conv), Policy: v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND})
	},
	"SetReadSeq": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: user, Conversation: string(conv), ReadSeq: 1})
	},
	"MarkMessagesRead": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.MarkMessagesRead(ctx, &v1.MarkMessagesReadRequest{User: user, Conversation: string(conv), Seqs: []int64{1}})
	},
	"MarkConversationRead": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.MarkConversationRead(ctx, &v1.MarkConversationReadRequest{User: user, Conversation: string(conv), ReadSeq: 1})
	},
	"Join": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Join(ctx, &v1.JoinRequest{Conversation: string(conv), User: user})
	},
	"Leave": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Leave(ctx, &v1.LeaveRequest{Conversation: string(conv), User: user})
	},
	"Leave, ordered": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Leave(ctx, &v1.LeaveRequest{Conversation: string(conv), User: user, Actor: "B"})
	},
	"Clear": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Clear(ctx, &v1.ClearRequest{Conversation: string(conv), User: user})
	},
	"RaiseMinSeq": func(ctx context.Context, c client, conv convID, _ string) (any, error) {
		return c.RaiseMinSeq(ctx, &v1.RaiseMinSeqRequest{Conversation: string(conv), MinSeq: 2})
	},
	"Revoke": func(ctx context.Context, c client, conv convID, user string) (any, error) {
		return c.Revoke(ctx, &v1.RevokeRequest{Conversation: string(conv), Seq: 1, Actor: user})
	},
}

// methodOf gives the method that a row of calls is about.
func methodOf(row string) string {
	method, _, _ := strings.Cut(row, ",")
	return method
}

func TestEveryMethodIsAmongTheCalls(t *testing.T) {
	have := map[string]bool{}
	for row := range calls {
		have[methodOf(row)] = true
	}
	methods := v1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); !have[name] {
			t.Errorf("%s is not tested for who may call it: add it to calls, to docs/access.md and to the rules", name)
		}
	}
}

// community is a world with a group of A, B and K, of whom K was kicked after
// message 4, with the single conversation of A and B, and a group of others.
// Message 1 of each is A's, where A is in it.
func community(tb testing.TB) *world {
	w := newWorld()
	for _, u := range []userID{"A", "B", "K"} {
		w.settle(group, u, 0, 0)
	}
	w.say(tb, group, "A", 1)
	w.say(tb, group, "K", 1)
	w.say(tb, group, "B", 2)
	w.settle(group, "K", 0, 4)
	w.say(tb, group, "B", 5)
	w.say(tb, single, "A", 2)
	w.settle("group:others", "B", 0, 0)
	w.say(tb, "group:others", "B", 3)
	return w
}

// The table of docs/access.md, row by row.
func TestWhoMayDoWhat(t *testing.T) {
	doc, err := os.ReadFile("../docs/access.md")
	if err != nil {
		t.Fatal(err)
	}
	// The columns of the table, and who and what they stand for.
	columns := []struct {
		token, user string
		conv        convID
	}{
		{"", "A", group},                // nobody
		{"user:A", "", group},           // a member, for itself
		{"user:A", "B", group},          // a member, for another
		{"user:K", "", group},           // a former member
		{"user:A", "", "group:others"},  // a stranger
		{"user:A", "", "group:nowhere"}, // of what is not there
		{"admin", "A", group},           // an administrator, for a member
	}
	rows := 0
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		make1, ok := calls[cells[0]]
		if !ok || len(cells) != len(columns)+1 {
			continue
		}
		rows++
		for i, col := range columns {
			for _, temperature := range []string{"warm", "cold", "unknown"} {
				w := community(t)
				switch temperature {
				case "cold":
					w.flush()
				case "unknown":
					w.with(group, func(t *talk) { t.unknown["A"], t.unknown["K"] = true, true })
					w.with("group:others", func(t *talk) { t.unknown["A"] = true })
				}
				url := serve(t, newService(t, w, withTokens))
				res, err := make1(t.Context(), as(t, url, col.token), col.conv, col.user)
				if got := outcome(t, res, err); got != cells[i+1] {
					t.Errorf("%s, column %d (%q for %q in %s), %s: %s, want %s", cells[0], i+1, col.token, col.user, col.conv, temperature, got, cells[i+1])
				}
			}
		}
	}
	if rows != len(calls) {
		t.Errorf("docs/access.md has %d rows, want one for each of %d", rows, len(calls))
	}
}

func TestSingleConversationsAreForTheirTwo(t *testing.T) {
	for row, make1 := range calls {
		if slices.Contains([]string{"GetWatermarks, all", "SyncConversations", "RegisterDevice", "UnregisterDevice"}, row) {
			continue
		}
		try := func(conv convID, user string) string {
			url := serve(t, newService(t, community(t), withTokens))
			res, err := make1(t.Context(), as(t, url, "user:"+user), conv, "")
			return outcome(t, res, err)
		}
		if got := try(single, "A"); got == "unknown_conversation" || got == "not_participant" {
			t.Errorf("%s of one of the two: %s", row, got)
		}
		there, nowhere := try(single, "C"), try("single:A:Z", "C")
		if there != nowhere || !slices.Contains([]string{"unknown_conversation", "not_participant", "admin_required", "other_user"}, there) {
			t.Errorf("%s of another: %s, and %s where there is none", row, there, nowhere)
		}
	}
	// The first message of a conversation makes it.
	w := newWorld()
	c := as(t, serve(t, newService(t, w, withTokens)), "user:A")
	res, err := c.Send(t.Context(), &v1.SendRequest{Message: message("single:A:Z", ""), WaitForSeq: true})
	if err != nil || res.Seq != 1 {
		t.Errorf("%v, %v", res, err)
	}
	if m := w.convs["single:A:Z"].rows[1]; m.Sender != "A" {
		t.Errorf("sent by %q", m.Sender)
	}
}

func TestAKickedMembersSendReachesNoOwner(t *testing.T) {
	for _, wait := range []bool{true, false} {
		w := community(t)
		c := as(t, serve(t, newService(t, w, withTokens)), "user:K")
		_, err := c.Send(t.Context(), &v1.SendRequest{Message: message(group, ""), WaitForSeq: wait})
		if connect.CodeOf(err) != connect.CodePermissionDenied || detail(t, err).GetMessage() != "not_member" {
			t.Errorf("%v", err)
		}
		if n := w.count("AppendSend"); n != 0 {
			t.Errorf("%d appends", n)
		}
		// An administrator is left to the owner, who refuses too.
		admin := as(t, serve(t, newService(t, w, withTokens)), "admin")
		_, err = admin.Send(t.Context(), &v1.SendRequest{Message: message(group, "K"), WaitForSeq: true})
		if detail(t, err).GetMessage() != "not_member" {
			t.Errorf("admin: %v", err)
		}
	}
}

// When the stores that tell who is a member are away, nobody sends unseen.
func TestNobodySendsUnseen(t *testing.T) {
	w := community(t)
	w.flush()
	w.set(func() { w.truthDown = true })
	c := as(t, serve(t, newService(t, w, withTokens)), "user:C")
	_, err := c.Send(t.Context(), &v1.SendRequest{Message: message(group, "")})
	wantUnavailable(t, "send", err)
	if n := w.count("AppendSend"); n != 0 {
		t.Errorf("%d appends", n)
	}
}

// Who is kicked before it heard that its message stands, and sends it again, is
// told so, warm and cold alike. Nothing else of it gets through.
func TestAResendAfterTheKickIsAnswered(t *testing.T) {
	w := community(t)
	w.settle(group, "L", 0, 0)
	l := as(t, serve(t, newService(t, w, withTokens)), "user:L")
	send := func(id, text string, wait bool) (*v1.SendResponse, error) {
		return l.Send(t.Context(), &v1.SendRequest{WaitForSeq: wait, Message: &v1.SendMessage{
			Conversation: string(group), ClientMessageId: id, Body: &v1.SendMessage_Text{Text: text},
		}})
	}
	first, err := send("x", "t", true)
	if err != nil {
		t.Fatal(err)
	}
	w.settle(group, "L", 0, seq(first.Seq))
	w.say(t, group, "B", 3)
	appends := w.count("AppendSend")
	for _, state := range []string{"warm", "cold"} {
		if res, err := send("x", "t", true); err != nil || res.Seq != first.Seq || !res.Duplicate || res.ClientMessageId != "x" {
			t.Errorf("%s: %v, %v; want seq %d", state, res, err, first.Seq)
		}
		if res, err := send("x", "t", false); err != nil || res.Seq != 0 || res.ClientMessageId != "x" {
			t.Errorf("%s, not waiting: %v, %v", state, res, err)
		}
		for what, of := range map[string][2]string{"another": {"y", "t"}, "other content": {"x", "u"}, "no id": {"", "t"}} {
			if _, err := send(of[0], of[1], true); connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("%s, %s: %v", state, what, err)
			}
		}
		w.flush()
	}
	if n := w.count("AppendSend"); n != appends {
		t.Errorf("%d appends", n-appends)
	}
	w.set(func() { w.truthDown = true })
	_, err = send("x", "t", true)
	wantUnavailable(t, "resend", err)
}

func TestWhoIsNamedByTheTokenNeedsNoName(t *testing.T) {
	w := community(t)
	url := serve(t, newService(t, w, withTokens))
	a := as(t, url, "user:A")
	if _, err := a.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{Conversation: string(single), ReadSeq: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Clear(t.Context(), &v1.ClearRequest{Conversation: string(single)}); err != nil {
		t.Fatal(err)
	}
	if m := w.convs[single].members["A"]; m.Read == 0 || m.Version == 0 {
		t.Errorf("%+v", m)
	}
	for u, m := range w.convs[single].members {
		if u != "A" && (u != "B" || m.Version > 0 || m.Read > 0) {
			t.Errorf("member %q: %+v", u, m)
		}
	}
	// An administrator's own name stands for it too; without one it must say.
	if res, err := as(t, url, "admin:A").Pull(t.Context(), &v1.PullRequest{Ranges: []*v1.PullRange{{Conversation: string(single), Begin: 1, End: 1}}}); err != nil || res.Pages[0].Error != nil {
		t.Errorf("%v, %v", res, err)
	}
	_, err := as(t, url, "admin").Pull(t.Context(), &v1.PullRequest{Ranges: []*v1.PullRange{{Conversation: string(single), Begin: 1, End: 1}}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("%v", err)
	}
	// The deployment's own revoke has no actor; a user's is the user's.
	if _, err := a.Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(group), Seq: 4}); detail(t, err).GetMessage() != "not_sender" {
		t.Errorf("%v", err)
	}
	if _, err := as(t, url, "admin:A").Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(group), Seq: 4}); err != nil {
		t.Errorf("%v", err)
	}
}

func TestACommandsAnswerTellsAFormerMemberNothingOfWhatFollowed(t *testing.T) {
	w := community(t)
	c := as(t, serve(t, newService(t, w, withTokens)), "user:K")
	for name, got := range map[string]func() (*v1.CommandResponse, error){
		"leave": func() (*v1.CommandResponse, error) {
			return c.Leave(t.Context(), &v1.LeaveRequest{Conversation: string(group)})
		},
		"revoke": func() (*v1.CommandResponse, error) {
			return c.Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(group), Seq: 2})
		},
	} {
		if res, err := got(); err != nil || res.MaxSeq != 4 {
			t.Errorf("%s: %v, %v; want max 4 of 9", name, res, err)
		}
	}
	w.with(group, func(t *talk) { t.Min = 8 })
	if res, err := c.Clear(t.Context(), &v1.ClearRequest{Conversation: string(group)}); err != nil || res.MaxSeq > 4 || res.MinSeq > 5 || len(res.Visible) != 0 {
		t.Errorf("clear: %v, %v", res, err)
	}
}

func TestTokensOverEveryProtocol(t *testing.T) {
	w := community(t)
	url := serve(t, newService(t, w, withTokens))
	for token, want := range map[string]struct {
		code   connect.Code
		reason string
	}{
		"":       {connect.CodeUnauthenticated, "token_missing"},
		"forged": {connect.CodeUnauthenticated, "token_invalid"},
		"user:":  {connect.CodeUnauthenticated, "token_invalid"},
		"old":    {connect.CodeUnauthenticated, "token_expired"},
		"keys":   {connect.CodeUnavailable, "keys"},
		"user:A": {},
	} {
		for name, opt := range map[string]connect.ClientOption{"json": connect.WithProtoJSON(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb()} {
			h := httpClient(t, name == "grpc")
			h.Transport = bearer{token, h.Transport}
			_, err := tidemarkv1connect.NewSyncServiceClient(h, url, opt).GetWatermarks(t.Context(), &v1.GetWatermarksRequest{})
			if want.reason == "" {
				if err != nil {
					t.Errorf("%s, %s: %v", token, name, err)
				}
				continue
			}
			if connect.CodeOf(err) != want.code || detail(t, err).GetMessage() != want.reason || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q, %s: %v, want %s %s", token, name, err, want.code, want.reason)
			}
		}
	}
	for header, ok := range map[string]bool{"bearer user:A": true, "BEARER  user:A ": true, "Basic user:A": false, "user:A": false, "Bearer": false, "Beareruser:A": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+tidemarkv1connect.SyncServiceGetWatermarksProcedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", header)
		res, err := httpClient(t, false).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.StatusCode == http.StatusOK; got != ok || !ok && (res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != "Bearer") {
			t.Errorf("%q: %s %v", header, res.Status, res.Header)
		}
	}
	if n := w.count("AppendSend"); n != 0 {
		t.Errorf("%d appends", n)
	}
}

func TestHealthNeedsNoTokenAndReflectionCanBeOff(t *testing.T) {
	for off, want := range map[bool]int{true: 501, false: 200} {
		url := serve(t, newService(t, newWorld(), func(c *syncapi.Config) { c.Authenticate, c.NoReflection = tokens, off }))
		for path, status := range map[string]int{"/grpc.health.v1.Health/Check": 200, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": want} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if strings.Contains(path, "reflection") {
				req.Header.Set("Content-Type", "application/connect+json")
				req.Body, req.ContentLength = http.NoBody, 0
			}
			res, err := httpClient(t, true).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			// A stream is answered with 200 whatever becomes of it.
			if got := res.StatusCode; got != status && !(off && strings.Contains(path, "reflection") && got == 200 && res.Header.Get("Content-Type") == "application/connect+json") {
				t.Errorf("off %v: %s: %s", off, path, res.Status)
			}
		}
	}
}

// With authentication, a call that did not pass the guard is nobody's.
func TestACallThatCamePastTheGuardIsNobodys(t *testing.T) {
	w := community(t)
	s := newService(t, w, withTokens)
	if _, err := s.Send(t.Context(), &v1.SendRequest{Message: message("group:others", "A")}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("%v", err)
	}
	p := pull(t, s, "A", &v1.PullRange{Conversation: "group:others", Begin: 1, End: 9})
	if p.Error.GetReason() != "unknown_conversation" {
		t.Errorf("%v", p)
	}
}
