package syncapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/syncapi"
)

// A browser asks first, and lets a page read an answer only if it is told that
// the page may.
func TestPagesOfOtherOrigins(t *testing.T) {
	const page = "https://chat.example.com"
	for name, tc := range map[string]struct {
		origins []string
		origin  string
		allowed string
	}{
		"named":          {[]string{"http://localhost:3000", page}, page, page},
		"another":        {[]string{"http://localhost:3000"}, page, ""},
		"another port":   {[]string{page + ":8443"}, page, ""},
		"all":            {[]string{"*"}, page, "*"},
		"none":           {nil, page, ""},
		"no page at all": {[]string{page}, "", ""},
	} {
		url := serve(t, newService(t, community(t), func(c *syncapi.Config) { c.Origins = tc.origins }))
		send := func(method string, header map[string]string, body string) *http.Response {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, url+tidemarkv1connect.SyncServiceGetWatermarksProcedure, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range header {
				req.Header.Set(k, v)
			}
			if tc.origin != "" {
				req.Header.Set("Origin", tc.origin)
			}
			res, err := httpClient(t, false).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			return res
		}
		asked := send(http.MethodOptions, map[string]string{
			"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,connect-protocol-version,content-type",
		}, "")
		if got := asked.Header.Get("Access-Control-Allow-Origin"); got != tc.allowed {
			t.Errorf("%s: asked first, allowed is %q, want %q", name, got, tc.allowed)
		}
		if got := asked.Header.Get("Access-Control-Allow-Headers"); tc.allowed != "" && !strings.Contains(got, "authorization") {
			t.Errorf("%s: headers %q are allowed", name, got)
		}
		called := send(http.MethodPost, map[string]string{"Content-Type": "application/json"}, `{"user":"A"}`)
		if got := called.Header.Get("Access-Control-Allow-Origin"); called.StatusCode != http.StatusOK || got != tc.allowed {
			t.Errorf("%s: status %d, allowed is %q, want %q", name, called.StatusCode, got, tc.allowed)
		}
		if got := called.Header.Get("Access-Control-Expose-Headers"); tc.allowed != "" && !strings.Contains(got, "Retry-After") {
			t.Errorf("%s: %q can be read", name, got)
		}
	}
}

func TestOriginsThatNoBrowserSends(t *testing.T) {
	w := community(t)
	for _, bad := range []string{"", "chat.example.com", "https://", "https://chat.example.com/", "https://*.example.com", "file://x", "https://Chat.example.com", "https://a@b"} {
		_, err := syncapi.New(syncapi.Config{Hot: fakeHot{w}, Truth: fakeTruth{w}, Log: fakeLog{w}, NodeID: "n", Origins: []string{bad}})
		if err == nil || !strings.Contains(err.Error(), "origin") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
