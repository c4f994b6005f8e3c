package history_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/storage/history"
)

func TestCredentials(t *testing.T) {
	tests := []struct {
		name, uri, user, password, host, database, source string
	}{
		{"none", "mongodb://h:1/", "", "", "h:1", "tidemark", ""},
		{"plain", "mongodb://ann:secret@h:1/", "ann", "secret", "h:1", "tidemark", "admin"},
		{"encoded", "mongodb://ann:p%40ss%2Fw%3Ard@h:1/im", "ann", "p@ss/w:rd", "h:1", "im", "im"},
		{"as it is", "mongodb://ann:p@ss/w:rd@h:1/im", "ann", "p@ss/w:rd", "h:1", "im", "im"},
		{"as it is, no slash after the host", "mongodb://ann:p@ss/w:rd@h:1", "ann", "p@ss/w:rd", "h:1", "tidemark", "admin"},
		{"as it is, with options", "mongodb://ann:p@ss/w:rd@h:1/im?authSource=users", "ann", "p@ss/w:rd", "h:1", "im", "users"},
		{"with a question mark", "mongodb://ann:p?a#@h:1/", "ann", "p?a#", "h:1", "tidemark", "admin"},
		{"with all that a URI is made of", "mongodb://ann:p@x/y?z&a=b@h:1/?authSource=users", "ann", "p@x/y?z&a=b", "h:1", "tidemark", "users"},
		{"with a percent sign", "mongodb://ann:100%@h:1/", "ann", "100%", "h:1", "tidemark", "admin"},
		{"an @ among the options", "mongodb://ann:pw@h:1/?appName=a@b", "ann", "pw", "h:1", "tidemark", "admin"},
		{"a mechanism", "mongodb://ann:p@ss@h:1/im?authMechanism=SCRAM-SHA-256", "ann", "p@ss", "h:1", "im", "im"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opts, database, err := history.Settings(history.Config{URI: tt.uri})
			if err != nil {
				t.Fatal(err)
			}
			var user, password, source string
			if opts.Auth != nil {
				user, password, source = opts.Auth.Username, opts.Auth.Password, opts.Auth.AuthSource
			}
			if user != tt.user || password != tt.password || source != tt.source || opts.Hosts[0] != tt.host || database != tt.database {
				t.Errorf("%q %q %q at %v, database %q", user, password, source, opts.Hosts, database)
			}
		})
	}
}

func TestConfigOverridesTheURI(t *testing.T) {
	opts, database, err := history.Settings(history.Config{
		URI: "mongodb://ann:old@h:1/im?timeoutMS=5", Username: "bob", Password: "p@ss/w:rd%", Database: "other", Timeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if opts.Auth.Username != "bob" || opts.Auth.Password != "p@ss/w:rd%" || database != "other" || *opts.Timeout != time.Second {
		t.Errorf("%+v, %s, %v", opts.Auth, database, *opts.Timeout)
	}
}

func TestWriteConcernOfTheURI(t *testing.T) {
	for options, want := range map[string]string{
		"": "majority true", "?journal=false": "majority false", "?w=3": "3 <nil>", "?w=majority&journal=true": "majority true",
	} {
		opts, _, err := history.Settings(history.Config{URI: "mongodb://h:1/" + options})
		if err != nil {
			t.Fatal(err)
		}
		if got := concernText(opts.WriteConcern); got != want {
			t.Errorf("%q: %s, want %s", options, got, want)
		}
	}
}

// TestWrongURIsSayNothingSecret: each is refused with a line that names what is
// wrong and holds no password.
func TestWrongURIsSayNothingSecret(t *testing.T) {
	const secret = "hunter2"
	tests := []struct {
		name, says string
		cfg        history.Config
	}{
		{"nothing", "URI is missing", history.Config{}},
		{"another scheme", "must begin with", history.Config{URI: "redis://ann:hunter2@h/"}},
		{"no scheme", "must begin with", history.Config{URI: "ann:hunter2@h"}},
		{"a port that is none", "port", history.Config{URI: "mongodb://ann:hunter2@h:0x/"}},
		{"an option that is wrong", "timeout", history.Config{URI: "mongodb://ann:hunter2@h/?timeoutMS=hunter2-"}},
		{"no host", "", history.Config{URI: "mongodb://ann:hunter2@/"}},
		{"a password without a user", "user", history.Config{URI: "mongodb://h/", Password: secret}},
		{"nobody acknowledges", "w=0", history.Config{URI: "mongodb://ann:hunter2@h/?w=0"}},
		{"a negative timeout", "Timeout", history.Config{URI: "mongodb://ann:hunter2@h/", Timeout: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := history.New(tt.cfg)
			if err == nil {
				t.Fatal(s.Close(t.Context()))
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("it does not say %q: %v", tt.says, err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

func TestMaskedURIs(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://h:1/db":                                           "mongodb://h:1/db",
		"mongodb://alice:p@ss/w:rd@h:1,i:2/db?w=1":                   "mongodb://alice:***@h:1,i:2/db?w=1",
		"mongodb+srv://alice:p%40ss@h/db?proxyPassword=topsecret":    "mongodb+srv://alice:***@h/db?proxyPassword=***",
		"mongodb://alice@h/?tlsCertificateKeyFilePassword=s%2Fx&a=b": "mongodb://alice@h/?tlsCertificateKeyFilePassword=***&a=b",
		"postgres://alice:secret@h":                                  "mongodb://***",
		"":                                                           "mongodb://***",
	} {
		if got := history.Masked(uri); got != want {
			t.Errorf("%s is shown as %s, want %s", uri, got, want)
		}
	}
}
