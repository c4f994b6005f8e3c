package stack_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Every record that cannot be a message becomes one dead letter that says where
// it stood and why; those between and behind them get their seqs.
func TestBadRecordsAreDeadLettersAndStallNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const g = "group:g1"
	command := []wire.Header{{Key: "tidemark-type", Value: []byte("command")}}
	bad := []struct {
		name, value   string
		headers       []wire.Header
		reason, cause string
	}{
		{"bytes", "\xff\xff", nil, "undecodable", "protobuf"},
		{"empty", "", nil, "undecodable", "empty"},
		{"half a JSON", `{"conversation":"group:g1"`, nil, "undecodable", "JSON"},
		{"JSON of another kind", `{"conversation":["group:g1"]}`, nil, "undecodable", "JSON"},
		{"JSON that is not UTF-8", "{\"conversation\":\"group:g1\",\"sender\":\"A\",\"text\":\"\xff\"}", nil, "undecodable", "UTF-8"},
		{"a number beyond int64", `{"conversation":"group:g1","sender":"A","text":"x","sendTimeMs":"9223372036854775808"}`, nil, "undecodable", "sendTimeMs"},
		{"a number beyond float64", `{"conversation":"group:g1","sender":"A","text":"x","sendTimeMs":1e400}`, nil, "undecodable", "sendTimeMs"},
		{"a negative time", `{"conversation":"group:g1","sender":"A","text":"x","sendTimeMs":-1}`, nil, "invalid", "send_time_ms"},
		{"no conversation", `{"sender":"A","text":"x"}`, nil, "invalid", "conversation"},
		{"conversation with a colon", line("group:a:b", "A", "1", "x"), nil, "invalid", "conversation"},
		{"conversation with a brace", line("group:{g1}", "A", "1", "x"), nil, "invalid", "conversation"},
		{"users out of order", line("single:B:A", "A", "1", "x"), nil, "invalid", "byte order"},
		{"sender with a colon", line(g, "A:B", "1", "x"), nil, "invalid", "sender"},
		{"sender with a brace", line(g, "{A}", "1", "x"), nil, "invalid", "sender"},
		{"no sender", line(g, "", "1", "x"), nil, "invalid", "sender"},
		{"long client id", line(g, "A", strings.Repeat("x", 65), "x"), nil, "invalid", "client_message_id"},
		{"nothing in it", line(g, "A", "1", ""), nil, "invalid", "text"},
		{"body too large", line(g, "A", "1", strings.Repeat("x", 64<<10+1)), nil, "too_large", "text"},
		{"not what it says it is", line(g, "A", "1", "x"), []wire.Header{{Key: "content-type", Value: []byte("application/protobuf")}}, "undecodable", "protobuf"},
		{"content of an unknown type", line(g, "A", "1", "x"), []wire.Header{{Key: "content-type", Value: []byte("text/xml")}}, "undecodable", "text/xml"},
		{"a record of an unknown type", line(g, "A", "1", "x"), []wire.Header{{Key: "tidemark-type", Value: []byte("wish")}}, "undecodable", "wish"},
		{"bytes as a command", "\xff\xff", command, "undecodable", "Command"},
		{"an empty command", "", command, "undecodable", "empty"},
	}
	var outs []wire.Out
	add := func(value string, headers []wire.Header) {
		outs = append(outs, wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: g, Value: []byte(value), Headers: headers})
	}
	for i, b := range bad {
		add(line(g, "A", fmt.Sprint("good", i), "x"), nil)
		add(b.value, b.headers)
	}
	add(line(g, "A", "last", "x"), nil)
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		t.Fatal(err)
	}
	r.settle()
	good := int64(len(bad) + 1)
	wantSeqs(t, r.pullAll("B", g, 1, 1000), 1, good)
	if seq := r.send(g, "A", "next"); seq != good+1 {
		t.Errorf("seq of the next message = %d, want %d", seq, good+1)
	}

	letters := r.deadLetters()
	if len(letters) != len(bad) {
		t.Errorf("%d dead letters, want %d", len(letters), len(bad))
	}
	for i, d := range letters[:min(len(letters), len(bad))] {
		b := bad[i]
		if d.Reason != b.reason || !strings.Contains(d.Cause, b.cause) {
			t.Errorf("%s: %s: %s; want %s and a cause with %q", b.name, d.Reason, d.Cause, b.reason, b.cause)
		}
		if d.Record.Topic != r.topic(wire.TopicToRedis) || d.Record.Partition != wire.PartitionOf(g, 4) || d.Record.Offset != int64(2*i+1) ||
			string(d.Record.Value) != b.value || string(d.Record.Key) != g || d.First.IsZero() || d.Tries < 1 {
			t.Errorf("%s: the dead letter says %s %d/%d, key %q, %d tries, value %q", b.name, d.Record.Topic, d.Record.Partition, d.Record.Offset,
				d.Record.Key, d.Tries, short(string(d.Record.Value)))
		}
	}
	for _, b := range []struct{ what, value, reason string }{
		{"an id that is used again", line(g, "A", "good0", "other"), watermark.ReasonIDReused},
		{"a sender from outside", line("single:A:B", "C", "1", "x"), watermark.ReasonNotParticipant},
	} {
		n := len(r.deadLetters())
		r.produce(g, b.value)
		r.settle()
		if ls := r.deadLetters(); len(ls) != n+1 {
			t.Errorf("%s: %d new dead letters, want 1", b.what, len(ls)-n)
		} else if !containsReason(ls, b.reason) {
			t.Errorf("%s: no dead letter with reason %s", b.what, b.reason)
		}
	}
}

func containsReason(ls []wire.DeadLetter, reason string) bool {
	for _, l := range ls {
		if l.Reason == reason {
			return true
		}
	}
	return false
}

// Records of the sequenced log that nobody could have written are set aside by
// history and push, which go on.
func TestBadRecordsOnTheSequencedLogStallNothing(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const c = "single:A:B"
	r.say(c, "B", 1, 3)
	var outs []wire.Out
	for _, v := range []string{"\xff\xff", "", "{}", "\x0a\x03x:y"} {
		outs = append(outs, wire.Out{Topic: r.topic(wire.TopicSequenced), Partition: -1, Key: c, Value: []byte(v)})
	}
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		t.Fatal(err)
	}
	r.say(c, "B", 4, 6)
	if w := r.marks("A", c); w.GetMaxSeq() != 6 || w.GetUnread() != 6 {
		t.Errorf("before history has them: %v", w)
	}
	r.flush() // the tail has to get over them too
	if w := r.marks("A", c); w.GetMaxSeq() != 6 || w.GetUnread() != 6 {
		t.Errorf("from the tail: %v", w)
	}
	r.settle()
	r.flush()
	wantSeqs(t, r.pullAll("A", c, 1, 10), 1, 6)
	rep, err := r.roles[stack.ToMongo].stack.Audit(r.ctx(), stack.AuditConfig{ReadLog: true}, audit.Scope{})
	if err != nil || !rep.Clean() || rep.Refused != len(outs) || rep.Messages != 6 {
		t.Errorf("audit: %v, %+v", err, rep)
	}
	n := 0
	for _, d := range r.deadLetters() {
		if d.Record.Topic == r.topic(wire.TopicSequenced) && (d.Reason == "undecodable" || d.Reason == "invalid") && d.Cause != "" {
			n++
		}
	}
	if n != len(outs) {
		t.Errorf("%d dead letters of the log, want %d", n, len(outs))
	}
}

// What a person with curl gets wrong is answered with a status, a code and a
// sentence.
func TestBadRequestsInJSONAreAnsweredClearly(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	r.say("single:A:B", "B", 1, 3)
	client, url := httpClient(t, false), r.roles[stack.Sync].stack.SyncURL()+"/"+tidemarkv1connect.SyncServiceName+"/"
	post := func(method, contentType, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, url+method, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	ranges := func(n int) string {
		return `{"user":"A","ranges":[` + strings.TrimSuffix(strings.Repeat(`{"conversation":"single:A:B"},`, n), ",") + `]}`
	}
	for _, tc := range []struct {
		method, body string
		status       int
		code, text   string
	}{
		{"Pull", "\xff\xff", 400, "invalid_argument", "decoded"},
		{"Pull", "", 400, "invalid_argument", ""},
		{"Pull", `{"user":"A",`, 400, "invalid_argument", "decoded"},
		{"Pull", `{"user":"A"}`, 400, "invalid_argument", "ranges"},
		{"Pull", ranges(501), 400, "invalid_argument", "501"},
		{"Pull", `{"user":"A:B","ranges":[{"conversation":"single:A:B"}]}`, 400, "invalid_argument", "user"},
		{"Pull", `{"user":"A","ranges":[{"conversation":"single:A:B","end":"9223372036854775808"}]}`, 400, "invalid_argument", "end"},
		{"Pull", `{"user":"A","ranges":[{"conversation":"single:A:B","end":1e400}]}`, 400, "invalid_argument", "end"},
		{"Pull", `{"user":"A","ranges":[{"conversation":"single:A:B","order":{}}]}`, 400, "invalid_argument", "order"},
		{"GetWatermarks", `{"user":""}`, 400, "invalid_argument", "user id is empty"},
		{"GetWatermarks", `{"user":"{A}"}`, 400, "invalid_argument", "user"},
		{"GetWatermarks", `{"user":"A","pageToken":"made up"}`, 400, "invalid_argument", "page_token"},
		{"SetReadSeq", `{"user":"A","conversation":"group:{g}","readSeq":1}`, 400, "invalid_argument", "group"},
		{"SetReadSeq", `{"user":"A","conversation":"group:nobody-knows","readSeq":1}`, 404, "not_found", "nobody-knows"},
		{"SetReadSeq", `{"user":"C","conversation":"single:A:B","readSeq":1}`, 404, "not_found", "single:A:B"},
		{"MarkMessagesRead", `{"user":"A","conversation":"single:A:B","seqs":[]}`, 400, "invalid_argument", "seqs"},
		{"MarkMessagesRead", `{"user":"A","conversation":"group:g","seqs":[1]}`, 400, "failed_precondition", "group"},
		{"Send", `{}`, 400, "invalid_argument", "message"},
		{"Send", `{"message":{"conversation":"single:A:B","sender":"C","text":"x"}}`, 403, "permission_denied", "sender"},
		{"Send", `{"message":{"conversation":"single:A:B:C","sender":"A","text":"x"}}`, 400, "invalid_argument", "conversation"},
		{"Send", `{"message":{"conversation":"single:A:B","sender":"A","text":""}}`, 400, "invalid_argument", "text"},
		{"Send", `{"message":{"conversation":"single:A:B","sender":"A","text":"` + strings.Repeat("x", 70_000) + `"}}`, 400, "invalid_argument", "70000 bytes"},
		{"Send", `{"message":{"conversation":"single:A:B","sender":"A","text":"` + strings.Repeat("x", 5<<20) + `"}}`, 429, "resource_exhausted", "at most"},
		{"Join", `{"user":"A","conversation":"group:g:h"}`, 400, "invalid_argument", "group"},
		{"Join", `{"user":"C","conversation":"single:A:B"}`, 403, "permission_denied", "user"},
		{"Join", `{"user":"A","conversation":"group:g","history":"HISTORY_FROM","from":-3}`, 400, "invalid_argument", "from"},
		{"Leave", `{"user":"A","conversation":"group:g","membership":-1}`, 400, "invalid_argument", "membership"},
		{"RaiseMinSeq", `{"conversation":"single:A:B","minSeq":-1}`, 400, "invalid_argument", "min_seq"},
		{"RaiseMinSeq", `{"conversation":"single:A:B","minSeq":"9223372036854775807"}`, 400, "", "seq"},
		{"Revoke", `{"conversation":"single:A:B","seq":0}`, 400, "invalid_argument", "seq"},
		{"Revoke", `{"conversation":"single:A:B","seq":"4611686018427387904"}`, 400, "", "seq"},
		{"Revoke", `{"conversation":"single:A:B","seq":1,"actor":"A"}`, 403, "permission_denied", "seq 1"},
		{"Nothing", `{}`, 501, "unimplemented", "method"},
	} {
		status, body := post(tc.method, "application/json", tc.body)
		var got struct{ Code, Message string }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Errorf("%s %s: %d %q is no error in JSON", tc.method, short(tc.body), status, short(body))
			continue
		}
		if status != tc.status || (tc.code != "" && got.Code != tc.code) || got.Code == "" || !strings.Contains(got.Message, tc.text) {
			t.Errorf("%s %s: %d %s; want %d %s with %q", tc.method, short(tc.body), status, short(body), tc.status, tc.code, tc.text)
		}
	}
	if status, body := post("Pull", "application/proto", "\xff\xff"); status != 400 {
		t.Errorf("bad bytes in binary: %d %s", status, short(body))
	}
	if status, body := post("Pull", "text/xml", "<pull/>"); status != 415 {
		t.Errorf("XML: %d %s", status, short(body))
	}
	if status, body := post("Pull", "application/json", `{"user":"A","ranges":[{"conversation":"single:A:B","begin":1,"end":"10"}]}`); status != 200 || !strings.Contains(body, `"isEnd":true`) {
		t.Errorf("afterwards: %d %s", status, body)
	}
}

// The same over gRPC, where a request is well-formed and its values are not.
func TestBadRequestsOverGRPCAreAnsweredClearly(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	r.say("single:A:B", "B", 1, 3)
	svc := tidemarkv1connect.NewSyncServiceClient(httpClient(t, true), r.roles[stack.Sync].stack.SyncURL(), connect.WithGRPC())
	for name, tc := range map[string]struct {
		call func() error
		code connect.Code
		text string
	}{
		"a user with a colon": {func() error {
			_, err := svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: "A:B"})
			return err
		}, connect.CodeInvalidArgument, "user"},
		"a conversation with a brace": {func() error {
			_, err := svc.SetReadSeq(r.ctx(), &tidemarkv1.SetReadSeqRequest{User: "A", Conversation: "group:{g}", ReadSeq: 1})
			return err
		}, connect.CodeInvalidArgument, "group"},
		"an unknown conversation": {func() error {
			_, err := svc.MarkConversationRead(r.ctx(), &tidemarkv1.MarkConversationReadRequest{User: "A", Conversation: "single:A:Z", ReadSeq: 1})
			return err
		}, connect.CodeNotFound, "single:A:Z"},
		"an id of megabytes": {func() error {
			_, err := svc.SetReadSeq(r.ctx(), &tidemarkv1.SetReadSeqRequest{User: "A", Conversation: "group:" + strings.Repeat("x", 3<<20), ReadSeq: 1})
			if err != nil && len(err.Error()) > 1000 {
				return fmt.Errorf("an error of %d bytes", len(err.Error()))
			}
			return err
		}, connect.CodeInvalidArgument, "64"},
		"a revoke beyond the end": {func() error {
			_, err := svc.Revoke(r.ctx(), &tidemarkv1.RevokeRequest{Conversation: "single:A:B", Seq: 4})
			return err
		}, connect.CodeFailedPrecondition, "no_such_seq"},
		"a revoke of the largest number": {func() error {
			_, err := svc.Revoke(r.ctx(), &tidemarkv1.RevokeRequest{Conversation: "single:A:B", Seq: math.MaxInt64, Actor: "A"})
			return err
		}, connect.CodeInvalidArgument, "seq"},
		"a join of a stranger to two": {func() error {
			_, err := svc.Join(r.ctx(), &tidemarkv1.JoinRequest{Conversation: "single:A:B", User: "C"})
			return err
		}, connect.CodePermissionDenied, "user"},
		"an op id with a line break": {func() error {
			_, err := svc.Clear(r.ctx(), &tidemarkv1.ClearRequest{Conversation: "single:A:B", User: "A", OpId: "a\nb"})
			return err
		}, connect.CodeInvalidArgument, "op_id"},
		"an id used again": {func() error {
			_, err := svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
				Conversation: "single:A:B", Sender: "B", ClientMessageId: "m1", Body: &tidemarkv1.SendMessage_Text{Text: "other"},
			}})
			return err
		}, connect.CodeAlreadyExists, "id_reused"},
	} {
		err := tc.call()
		if connect.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.text) {
			t.Errorf("%s: %v; want %s with %q", name, err, tc.code, tc.text)
		}
	}
	// Entries fail alone.
	res, err := svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: "A", Conversations: []string{"group:a:b", "single:A:B", "group:nobody-knows", "single:B:C", "{"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"invalid_argument", "", "not_found", "not_found", "invalid_argument"} {
		if got := res.GetWatermarks()[i]; got.GetError().GetCode() != want || (want == "" && got.GetMaxSeq() != 3) {
			t.Errorf("entry %d: %v, want %q", i, got, want)
		}
	}
}
