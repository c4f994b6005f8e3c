package syncapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime/metrics"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/syncapi"
)

// mostAllocated is what one call may allocate beside a multiple of its request:
// a full page and what it is made of.
const mostAllocated = 32 << 20

// fuzzMethod sends bytes to a method through the real handler, as JSON and as
// protobuf, as a user and as an administrator. Whatever they are, it answers
// with what is the caller's own fault or with success, and allocates no more
// than stands in proportion to the request.
func fuzzMethod(f *testing.F, method string, seeds ...proto.Message) {
	for _, m := range seeds {
		for _, admin := range []bool{true, false} {
			f.Add(must(protojson.Marshal(m)), false, admin)
			f.Add(must(proto.Marshal(m)), true, admin)
		}
	}
	for _, text := range []string{``, `{}`, `[]`, `null`, `{"user":`, `{"user":"A","user":"B"}`, "\xff", `{"user":"` + strings.Repeat("x", 5000) + `"}`} {
		f.Add([]byte(text), false, true)
		f.Add([]byte(text), true, false)
	}
	w := community(f)
	s := newService(f, w, func(c *syncapi.Config) { c.Authenticate, c.MaxRequest = tokens, 1<<20 })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	f.Cleanup(func() { cancel(); <-done })
	h := s.Handler()
	n := 0
	f.Fuzz(func(t *testing.T, body []byte, binary, admin bool) {
		if n++; n%200 == 0 { // what was sent piles up
			fresh := community(t)
			w.set(func() { w.convs = fresh.convs; clear(w.answers) })
		}
		req := httptest.NewRequest(http.MethodPost, "/"+tidemarkv1connect.SyncServiceName+"/"+method, bytes.NewReader(body))
		req.Header.Set("Content-Type", map[bool]string{true: "application/proto", false: "application/json"}[binary])
		req.Header.Set("Authorization", map[bool]string{true: "Bearer admin:A", false: "Bearer user:A"}[admin])
		before := allocated()
		res := httptest.NewRecorder()
		h.ServeHTTP(res, req)
		if got := allocated() - before; got > mostAllocated+200*uint64(len(body)) {
			t.Errorf("%d bytes allocated for a request of %d", got, len(body))
		}
		if res.Code == http.StatusOK {
			return
		}
		var e struct {
			Code, Message string
			Details       []struct{ Type string }
		}
		if err := json.Unmarshal(res.Body.Bytes(), &e); err != nil || len(e.Details) == 0 || e.Details[0].Type != "google.rpc.ErrorInfo" {
			t.Errorf("%d %s: no reason", res.Code, res.Body)
		}
		if res.Code >= 500 {
			t.Errorf("%d %s", res.Code, res.Body)
		}
	})
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func FuzzSend(f *testing.F) {
	deep := structpb.NewNullValue()
	for range 200 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	fuzzMethod(f, "Send",
		&v1.SendRequest{Message: message(group, "A"), WaitForSeq: true},
		&v1.SendRequest{Message: &v1.SendMessage{
			Conversation: string(single), Sender: "A", ClientMessageId: "c", Kind: "k", SendTimeMs: math.MaxInt64,
			Mentions: []string{"A", "\x00"}, Attributes: map[string]string{"": "x"}, Body: &v1.SendMessage_Json{Json: deep},
		}},
		&v1.SendRequest{Message: &v1.SendMessage{Conversation: "group:" + strings.Repeat("g", 65), Body: &v1.SendMessage_Data{Data: make([]byte, 70<<10)}}},
	)
}

func FuzzPull(f *testing.F) {
	var many []*v1.PullRange
	for range 501 {
		many = append(many, &v1.PullRange{Conversation: string(group), Begin: 1, End: math.MaxInt64, Num: math.MaxInt64})
	}
	fuzzMethod(f, "Pull",
		&v1.PullRequest{User: "A", Ranges: many[:500]},
		&v1.PullRequest{User: "A", Ranges: many},
		&v1.PullRequest{Ranges: []*v1.PullRange{
			{Conversation: string(group), Begin: math.MinInt64, End: math.MaxInt64, Num: -1, Order: 99, Keep: -1},
			{Conversation: string(single), Begin: math.MinInt64, End: math.MaxInt64, Num: math.MinInt64, Order: v1.Order_ORDER_DESC},
			{Conversation: string(single), Begin: 1, End: 1 << 62, Num: 1 << 62},
		}},
	)
}

func FuzzGetWatermarks(f *testing.F) {
	fuzzMethod(f, "GetWatermarks",
		&v1.GetWatermarksRequest{User: "A", PageSize: math.MaxInt64},
		&v1.GetWatermarksRequest{User: "A", PageSize: math.MinInt64, PageToken: "AQ"},
		&v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group), "", string(group), "single:B:A"}},
	)
}

func FuzzSyncConversations(f *testing.F) {
	fuzzMethod(f, "SyncConversations",
		&v1.SyncConversationsRequest{User: "A", PageSize: math.MaxInt64},
		&v1.SyncConversationsRequest{User: "A", PageSize: math.MinInt64, PageToken: "Ag"},
		&v1.SyncConversationsRequest{User: "A", PageSize: 1, Version: strings.Repeat("A", 600<<10)},
	)
}

func FuzzWhoHasRead(f *testing.F) {
	fuzzMethod(f, "WhoHasRead",
		&v1.WhoHasReadRequest{User: "A", Conversation: string(group), Seq: 1, PageSize: math.MaxInt64},
		&v1.WhoHasReadRequest{User: "A", Conversation: string(single), Seq: math.MaxInt64, PageSize: math.MinInt64, PageToken: "Aw"},
	)
}

func FuzzSetConversationAttributes(f *testing.F) {
	many := make(map[string]string)
	for i := range 17 {
		many[strings.Repeat("a", i+1)] = "v"
	}
	fuzzMethod(f, "SetConversationAttributes",
		&v1.SetConversationAttributesRequest{User: "A", Conversation: string(group), Attributes: many},
		&v1.SetConversationAttributesRequest{User: "A", Conversation: string(single), Attributes: map[string]string{"": "", "a b": strings.Repeat("v", 300)}},
		&v1.SetConversationAttributesRequest{User: "A", Conversation: string(single), Attributes: map[string]string{"muted": "1"}, OpId: "o"},
	)
}

func FuzzSetUnreadPolicy(f *testing.F) {
	fuzzMethod(f, "SetUnreadPolicy",
		&v1.SetUnreadPolicyRequest{Conversation: string(group), Policy: v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND},
		&v1.SetUnreadPolicyRequest{Conversation: string(group), Policy: 99, OpId: "o"},
	)
}

func FuzzRegisterDevice(f *testing.F) {
	fuzzMethod(f, "RegisterDevice",
		&v1.RegisterDeviceRequest{User: "A", Device: "phone", Platform: v1.Platform_PLATFORM_APNS, Token: strings.Repeat("t", 5000)},
		&v1.RegisterDeviceRequest{User: "A", Device: strings.Repeat("d", 65), Platform: 99, Token: "a\x00"},
	)
}

func FuzzUnregisterDevice(f *testing.F) {
	fuzzMethod(f, "UnregisterDevice", &v1.UnregisterDeviceRequest{User: "A", Device: "phone"}, &v1.UnregisterDeviceRequest{Device: "\x00"})
}

func FuzzSetReadSeq(f *testing.F) {
	fuzzMethod(f, "SetReadSeq",
		&v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 1 << 62, Device: "d"},
		&v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: math.MinInt64},
	)
}

func FuzzMarkMessagesRead(f *testing.F) {
	fuzzMethod(f, "MarkMessagesRead",
		&v1.MarkMessagesReadRequest{User: "A", Conversation: string(single), Seqs: []int64{1, math.MaxInt64}},
		&v1.MarkMessagesReadRequest{User: "A", Conversation: string(group), Seqs: []int64{math.MinInt64}},
	)
}

func FuzzMarkConversationRead(f *testing.F) {
	fuzzMethod(f, "MarkConversationRead",
		&v1.MarkConversationReadRequest{User: "A", Conversation: string(single), ReadSeq: math.MaxInt64},
		&v1.MarkConversationReadRequest{User: "A", Conversation: string(group), ReadSeq: -1},
	)
}

func FuzzJoin(f *testing.F) {
	fuzzMethod(f, "Join",
		&v1.JoinRequest{Conversation: string(group), User: "C", History: v1.History_HISTORY_FROM, From: math.MaxInt64},
		&v1.JoinRequest{Conversation: string(group), User: "C", History: 77, From: -1, OpId: "o", Actor: "A"},
	)
}

func FuzzLeave(f *testing.F) {
	fuzzMethod(f, "Leave",
		&v1.LeaveRequest{Conversation: string(group), User: "A", Membership: math.MinInt32},
		&v1.LeaveRequest{Conversation: string(single), User: "A", Membership: math.MaxInt32, OpId: strings.Repeat("o", 65)},
	)
}

func FuzzClear(f *testing.F) {
	fuzzMethod(f, "Clear", &v1.ClearRequest{Conversation: string(group), User: "A", OpId: "o"}, &v1.ClearRequest{Conversation: string(single)})
}

func FuzzRaiseMinSeq(f *testing.F) {
	fuzzMethod(f, "RaiseMinSeq",
		&v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: math.MaxInt64},
		&v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: 3, OpId: "o"},
	)
}

func FuzzRevoke(f *testing.F) {
	fuzzMethod(f, "Revoke",
		&v1.RevokeRequest{Conversation: string(group), Seq: 1, Actor: "A"},
		&v1.RevokeRequest{Conversation: string(group), Seq: math.MaxInt64},
	)
}

func TestEveryMethodIsFuzzed(t *testing.T) {
	fuzzed := map[string]bool{
		"Send": true, "Pull": true, "GetWatermarks": true, "SetReadSeq": true, "MarkMessagesRead": true, "MarkConversationRead": true,
		"Join": true, "Leave": true, "Clear": true, "RaiseMinSeq": true, "Revoke": true,
		"SyncConversations": true, "WhoHasRead": true, "SetConversationAttributes": true, "SetUnreadPolicy": true,
		"RegisterDevice": true, "UnregisterDevice": true,
	}
	methods := v1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); !fuzzed[name] {
			t.Errorf("%s has no fuzz target", name)
		}
	}
}
