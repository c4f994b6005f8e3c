package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
)

var longSecret = strings.Repeat("s", 32)

func TestWhereToListenAndWithWhat(t *testing.T) {
	for name, tc := range map[string]struct {
		flags map[string]string
		want  []string // of the error; none: valid
	}{
		"loopback by default":          {},
		"nobody is asked":              {map[string]string{"sync.listen": ":8080"}, []string{"sync.listen", "callers are not authenticated"}},
		"nobody is asked, the gateway": {map[string]string{"gateway.listen": "0.0.0.0:1", "gateway.tls.cert": "c", "gateway.tls.key": "k"}, []string{"gateway.listen"}},
		"a secret":                     {map[string]string{"sync.listen": ":8080", "gateway.listen": "10.0.0.1:1", "auth.secret": longSecret}, nil},
		"keys":                         {map[string]string{"sync.listen": "[::]:8080", "auth.jwks_url": "https://idp/keys", "auth.algorithms": "ES256,EdDSA"}, nil},
		"key file":                     {map[string]string{"sync.listen": "[::]:8080", "auth.jwks_file": "f"}, nil},
		"two sources":                  {map[string]string{"auth.secret": longSecret, "auth.jwks_file": "f"}, []string{"only one of"}},
		"a short secret":               {map[string]string{"auth.secret": "hush"}, []string{"4 bytes"}},
		"keys in clear":                {map[string]string{"auth.jwks_url": "http://idp/keys"}, []string{"auth.jwks_url"}},
		"an HMAC with keys":            {map[string]string{"auth.jwks_file": "f", "auth.algorithms": "HS256"}, []string{`"HS256" is none of`}},
		"none":                         {map[string]string{"auth.secret": longSecret, "auth.algorithms": "none"}, []string{`"none" is none of`}},
		"much leeway":                  {map[string]string{"auth.leeway": "1h"}, []string{"auth.leeway"}},
		"no scope":                     {map[string]string{"auth.admin_scope": "a b"}, []string{"admin_scope"}},
		"half a certificate":           {map[string]string{"sync.tls.cert": "c"}, []string{"sync.tls", "go together"}},
		"an authority alone":           {map[string]string{"gateway.tls.client_ca": "c"}, []string{"gateway.tls.client_ca"}},
		"limits":                       {map[string]string{"limits.user_requests": "-1", "limits.in_flight": "0", "limits.tail_bytes": "1", "limits.max_request": "1", "limits.user_bytes": "-2", "gateway.user_connections": "-1"}, []string{"limits.user_requests", "limits.in_flight", "limits.tail_bytes", "limits.max_request", "limits.user_bytes", "gateway.user_connections"}},
		"limits are no numbers":        {map[string]string{"limits.user_requests": "NaN"}, []string{"limits.user_requests"}},
		"no limits":                    {map[string]string{"limits.user_requests": "0", "limits.user_in_flight": "0"}, nil},
	} {
		_, err := config.Load(config.Source{Flags: tc.flags})
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", name, err, w)
			}
		}
		if err != nil && (strings.Contains(err.Error(), longSecret) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: the error shows the secret: %v", name, err)
		}
	}
}

func TestTheSecretMayStandInAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(longSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := config.Auth{SecretFile: name}.SecretBytes()
	if err != nil || string(got) != longSecret {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := (config.Auth{SecretFile: name + "x"}).SecretBytes(); err == nil || !strings.Contains(err.Error(), "auth.secret_file") {
		t.Errorf("%v", err)
	}
}

func TestExposedNamesWhatIsInClear(t *testing.T) {
	c := config.Default()
	if got := c.Exposed(); got != nil {
		t.Errorf("%v", got)
	}
	c.Sync.Listen, c.Gateway.Listen, c.Gateway.TLS.Cert = ":1", ":2", "c"
	if got := c.Exposed(); len(got) != 1 || got[0] != "sync" {
		t.Errorf("%v", got)
	}
}
