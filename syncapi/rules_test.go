package syncapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
)

// bad is what each field of each request may not be, by call and field; nil
// where anything goes. A field that stands nowhere here fails the test.
var bad = func() map[string]map[string][]any {
	long, many := strings.Repeat("a", 65), make([]any, 501)
	for i := range many {
		many[i] = "group:g"
	}
	seqs := make([]any, 10_001)
	for i := range seqs {
		seqs[i] = 1
	}
	ids := []any{"", "a b", "a:b", "é", long}
	convs := []any{"", "tea", "group:", "group:a b", "group:" + long, "single:A", "single:B:A", "single:A:A", "single:A:B:C", "room:a"}
	singles := slices.Concat(convs)
	keys := []any{long, "a\x00b"}
	enums := []any{99, -1}
	tokens := []any{"x", "AAAA", long}
	toMany := make([]any, 501)
	for i := range toMany {
		toMany[i] = map[string]any{"conversation": "group:g", "begin": 1, "end": 2}
	}
	attributes := []any{map[string]any{}, map[string]any{"a b": "1"}, map[string]any{strings.Repeat("a", 33): "1"}, map[string]any{"a": strings.Repeat("a", 257)}}
	users := []any{"a b", "a:b", "é", long} // empty: the deployment itself
	return map[string]map[string][]any{
		"Send":              {"message": {nil}, "waitForSeq": nil},
		"Pull":              {"user": ids, "ranges": {[]any{}, toMany}},
		"GetWatermarks":     {"user": ids, "conversations": {many}, "pageSize": nil, "pageToken": tokens},
		"SyncConversations": {"user": ids, "version": nil, "pageToken": tokens, "pageSize": nil},
		"WhoHasRead":        {"user": ids, "conversation": convs, "seq": nil, "pageSize": nil, "pageToken": tokens},
		"SetReadSeq":        {"user": ids, "conversation": convs, "readSeq": nil, "device": keys},
		"MarkMessagesRead":  {"user": ids, "conversation": singles, "seqs": {[]any{}, []any{0}, []any{3, -1}, seqs}, "device": keys},
		"MarkConversationRead": {
			"user": ids, "conversation": convs, "readSeq": nil, "device": keys,
		},
		"Join": {
			"conversation": convs, "user": ids, "history": enums, "from": {-1, 0, "9007199254740992"}, "opId": keys, "actor": users,
		},
		"Leave":       {"conversation": convs, "user": ids, "membership": {-1}, "opId": keys, "actor": users},
		"Clear":       {"conversation": convs, "user": ids, "opId": keys},
		"RaiseMinSeq": {"conversation": convs, "minSeq": {-1, 0, "9007199254740992"}, "opId": keys},
		"Revoke":      {"conversation": convs, "seq": {-1, 0, "9007199254740992"}, "actor": users, "opId": keys},
		"SetConversationAttributes": {
			"user": ids, "conversation": convs, "attributes": attributes, "opId": keys,
		},
		"SetUnreadPolicy":  {"conversation": convs, "policy": enums, "opId": keys},
		"RegisterDevice":   {"user": ids, "device": slices.Concat([]any{""}, keys), "platform": {0, 99, -1}, "token": {"", strings.Repeat("a", 4097)}},
		"UnregisterDevice": {"user": ids, "device": slices.Concat([]any{""}, keys)},
	}
}()

// good are requests that break no rule.
var good = map[string]string{
	"Send":                      `{"message":{"conversation":"group:g","sender":"A","text":"x"}}`,
	"Pull":                      `{"user":"A","ranges":[{"conversation":"group:g","begin":1,"end":2}]}`,
	"GetWatermarks":             `{"user":"A"}`,
	"SyncConversations":         `{"user":"A"}`,
	"WhoHasRead":                `{"user":"A","conversation":"group:g","seq":1}`,
	"SetReadSeq":                `{"user":"A","conversation":"group:g","readSeq":1}`,
	"MarkMessagesRead":          `{"user":"A","conversation":"single:A:B","seqs":[1]}`,
	"MarkConversationRead":      `{"user":"A","conversation":"group:g","readSeq":1}`,
	"Join":                      `{"conversation":"group:g","user":"A","history":"HISTORY_FROM","from":1}`,
	"Leave":                     `{"conversation":"group:g","user":"A"}`,
	"Clear":                     `{"conversation":"group:g","user":"A"}`,
	"RaiseMinSeq":               `{"conversation":"group:g","minSeq":1}`,
	"Revoke":                    `{"conversation":"group:g","seq":1,"actor":"A"}`,
	"SetConversationAttributes": `{"user":"A","conversation":"group:g","attributes":{"pinned":"1"}}`,
	"SetUnreadPolicy":           `{"conversation":"group:g"}`,
	"RegisterDevice":            `{"user":"A","device":"phone","platform":"PLATFORM_FCM","token":"t"}`,
	"UnregisterDevice":          `{"user":"A","device":"phone"}`,
}

// A request with one field that breaks the rule that stands at it in sync.proto
// is refused with the reason "invalid", and the error names that field.
func TestEveryFieldKeepsItsRule(t *testing.T) {
	url := serve(t, newService(t, community(t), nil))
	methods := v1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		name := string(m.Name())
		fields := m.Input().Fields()
		for j := range fields.Len() {
			f := fields.Get(j)
			values, listed := bad[name][f.JSONName()]
			if !listed {
				t.Errorf("%s.%s has no rule here", name, f.Name())
			}
			for _, v := range values {
				request := map[string]any{}
				if err := json.Unmarshal([]byte(good[name]), &request); err != nil {
					t.Fatal(name, err)
				}
				request[f.JSONName()] = v
				if code, reason, at := refusedFor(t, url, name, request); code != "invalid_argument" || reason != "invalid" || !cmp.Equal(at, []string{string(f.Name())}) {
					t.Errorf("%s with %s = %.80v: %s, %s, at %v", name, f.Name(), v, code, reason, at)
				}
			}
		}
	}
}

// refusedFor makes a call and tells for what it is refused.
func refusedFor(t *testing.T, url, method string, request map[string]any) (code, reason string, fields []string) {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/"+tidemarkv1connect.SyncServiceName+"/"+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := httpClient(t, false).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Code    string
		Details []struct {
			Debug struct {
				Reason          string
				FieldViolations []struct{ Field, Description string }
			}
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%s: %q: %v", method, b, err)
	}
	named := map[string]bool{}
	for _, d := range out.Details {
		reason += d.Debug.Reason
		for _, f := range d.Debug.FieldViolations {
			named[f.Field] = true
		}
	}
	return out.Code, reason, slices.Sorted(maps.Keys(named))
}

// What a field of a request may be stands at it, for whoever makes a client.
func TestEveryFieldOfARequestSaysWhatItMayBe(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"sync", "devices"} {
		b, err := os.ReadFile("../api/tidemark/v1/" + name + ".proto")
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(string(b))
	}
	check := func(m protoreflect.MessageDescriptor) {
		_, rest, _ := strings.Cut(text.String(), "\nmessage "+string(m.Name())+" {\n")
		rest, _, _ = strings.Cut(rest, "\n}\n")
		for j := range m.Fields().Len() {
			name := string(m.Fields().Get(j).Name())
			if !regexp.MustCompile(`(?m)^  // .*\n  [^/\n]*\b` + name + ` = \d+;`).MatchString(rest) {
				t.Errorf("%s.%s says nothing", m.Name(), name)
			}
		}
	}
	methods := v1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		check(methods.Get(i).Input())
	}
	check((&v1.PullRange{}).ProtoReflect().Descriptor())
}
