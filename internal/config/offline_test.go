package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
)

func TestEndpointsOfAbsentUsersAreChecked(t *testing.T) {
	const secret = "tooffline:\n  enabled: true\n  webhook:\n    url: https://example.org/push\n    secret: 0123456789abcdef0123456789abcdef\n"
	for _, c := range []struct {
		name, yaml, want string
	}{
		{name: "one webhook", yaml: secret},
		{name: "plain http to others", yaml: strings.Replace(secret, "https://example", "http://example", 1), want: "tooffline.webhook.url"},
		{name: "plain http to this machine", yaml: strings.Replace(secret, "https://example.org", "http://127.0.0.1:9", 1)},
		{name: "not enabled", yaml: strings.Replace(secret, "enabled: true", "enabled: false", 1), want: "tooffline.enabled"},
		{name: "no secret", yaml: strings.Replace(secret, "    secret: 0123456789abcdef0123456789abcdef\n", "", 1), want: "secret_file"},
		{name: "two secrets", yaml: secret + "    secret_file: x\n", want: "secret_file"},
		{name: "no key id", yaml: secret + "    key_id: ''\n", want: "tooffline.webhook.key_id"},
		{name: "bad name", yaml: secret + "    name: My Hook\n", want: "tooffline.webhook.name"},
		{name: "a vendor's name", yaml: secret + "    name: fcm\n", want: "tooffline.webhook.name"},
		{name: "key of apple alone", yaml: "tooffline:\n  enabled: true\n  apns:\n    key_file: x\n", want: "team_id"},
		{name: "apple in clear", yaml: "tooffline:\n  enabled: true\n  apns:\n    url: http://127.0.0.1:9\n", want: "tooffline.apns.url"},
		{name: "firebase in clear", yaml: "tooffline:\n  enabled: true\n  fcm:\n    url: http://example.org\n", want: "tooffline.fcm.url"},
		{name: "firebase not enabled", yaml: "tooffline:\n  fcm:\n    credentials_file: x\n", want: "tooffline.enabled"},
		{name: "numbers", yaml: "tooffline:\n  tries: 0\n", want: "tooffline.tries"},
		{name: "pauses", yaml: "tooffline:\n  first_pause: 1h\n", want: "tooffline.first_pause"},
		{name: "delay", yaml: "tooffline:\n  delay: -1s\n", want: "tooffline.delay"},
		{name: "preview", yaml: "tooffline:\n  preview: 2000\n", want: "tooffline.preview"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := config.Load(config.Source{File: write(t, c.yaml)})
			if c.want == "" {
				if err != nil || !slices.Equal(cfg.ToOffline.Endpoints(), []string{"webhook"}) {
					t.Errorf("endpoints %v, %v", cfg.ToOffline.Endpoints(), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "0123456789") || strings.Contains(err.Error(), "example.org") {
				t.Errorf("err = %v, want %s named and nothing secret shown", err, c.want)
			}
		})
	}
}

func TestTheKeyOfAWebhookMayStandInAFile(t *testing.T) {
	f := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(f, []byte(" hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := (config.Webhook{SecretFile: f}).SecretText(); err != nil || s != "hush" {
		t.Errorf("%q, %v", s, err)
	}
	if _, err := (config.Webhook{SecretFile: f + "x"}).SecretText(); err == nil || !strings.Contains(err.Error(), "secret_file") {
		t.Errorf("err = %v", err)
	}
}

func TestEachVendorThatIsSetIsAnEndpoint(t *testing.T) {
	cfg := config.Default()
	cfg.ToOffline.Webhook.URL, cfg.ToOffline.FCM.CredentialsFile, cfg.ToOffline.APNs.KeyFile = "https://x", "f", "k"
	if got := cfg.ToOffline.Endpoints(); got != nil {
		t.Errorf("not enabled, and has %v", got)
	}
	cfg.ToOffline.Enabled = true
	if got := cfg.ToOffline.Endpoints(); !slices.Equal(got, []string{"webhook", "fcm", "apns"}) {
		t.Errorf("endpoints %v", got)
	}
}
