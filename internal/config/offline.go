package config

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

// ToOffline configures what absent users are told, and the worker that tells
// them. Each endpoint that is set has a consumer group of its own.
type ToOffline struct {
	Enabled          bool          `koanf:"enabled" doc:"Tell absent users (docs/offline-push.md): topush writes the topic toOfflinePush, which has to exist, and the role tooffline reads it."`
	MentionOnlyAbove int           `koanf:"mention_only_above" doc:"Of a message to more recipients than this only those are told whom it mentions."`
	Delay            time.Duration `koanf:"delay" doc:"How long a notification waits for more messages of its conversation, and for the user to read them elsewhere. 0s: not at all."`
	MaxAge           time.Duration `koanf:"max_age" doc:"Nobody is told of messages that are older."`
	Preview          int           `koanf:"preview" doc:"Bytes of a text that leave the deployment in a notification. 0: none. At most 1024."`
	Concurrency      int           `koanf:"concurrency" doc:"Attempts under way at once at one endpoint, of this process."`
	Timeout          time.Duration `koanf:"timeout" doc:"How long one attempt may take."`
	Tries            int           `koanf:"tries" doc:"Attempts before a notification goes to the dead letters."`
	FirstPause       time.Duration `koanf:"first_pause" doc:"Pause after the first attempt; it doubles with each further one,"`
	LongestPause     time.Duration `koanf:"longest_pause" doc:"up to this."`
	MaxRetryAfter    time.Duration `koanf:"max_retry_after" doc:"Longest pause that an endpoint can ask for by Retry-After."`
	BreakerAfter     int           `koanf:"breaker_after" doc:"Failures in a row after which an endpoint is left alone"`
	BreakerPause     time.Duration `koanf:"breaker_pause" doc:"for this long, and is then tried with one attempt. It costs no tries."`
	MaxPending       int           `koanf:"max_pending" doc:"Messages times users that a partition holds in memory for an endpoint. What it cannot take stays in Kafka."`
	Webhook          Webhook       `koanf:"webhook"`
	FCM              FCM           `koanf:"fcm"`
	APNs             APNs          `koanf:"apns"`
}

// Webhook is an endpoint of the operator's own.
type Webhook struct {
	URL        string `koanf:"url" doc:"Where to post notifications: https, or http on loopback. Empty: nowhere."`
	Name       string `koanf:"name" doc:"Name of the endpoint, [a-z0-9-], part of its consumer group. Another process with another name serves another webhook."`
	KeyID      string `koanf:"key_id" doc:"Name of the key in the header tidemark-key-id."`
	Secret     string `koanf:"secret" secret:"true" doc:"Key that signs requests, at least 32 bytes: as it is, or whsec_ and base64."`
	SecretFile string `koanf:"secret_file" doc:"File with the key, instead of secret; spaces and line ends around it do not count."`
}

// FCM is Firebase Cloud Messaging.
type FCM struct {
	CredentialsFile string `koanf:"credentials_file" doc:"File with the JSON key of a service account, to notify devices registered for FCM. Empty: none is."`
	Project         string `koanf:"project" doc:"Firebase project. Empty: that of the key."`
	URL             string `koanf:"url" doc:"Where Firebase takes messages: https, or http on loopback. Empty: its own address."`
}

// APNs is Apple's push service.
type APNs struct {
	KeyFile string `koanf:"key_file" doc:"The .p8 file that Apple gave, to notify devices registered for APNs. Empty: none is."`
	KeyID   string `koanf:"key_id" doc:"Apple's id of that key."`
	TeamID  string `koanf:"team_id" doc:"Apple's id of the developer team."`
	Topic   string `koanf:"topic" doc:"The application's bundle id."`
	URL     string `koanf:"url" doc:"Where Apple takes notifications, https. Empty: production. The sandbox: https://api.sandbox.push.apple.com."`
}

// SecretText gives the key as it was written.
func (w Webhook) SecretText() (string, error) {
	if w.SecretFile == "" {
		return w.Secret, nil
	}
	b, err := os.ReadFile(w.SecretFile)
	if err != nil {
		return "", fmt.Errorf("tooffline.webhook.secret_file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Endpoints names the endpoints that are set.
func (t ToOffline) Endpoints() []string {
	var out []string
	if !t.Enabled {
		return nil
	}
	if t.Webhook.URL != "" {
		out = append(out, t.Webhook.Name)
	}
	if t.FCM.CredentialsFile != "" {
		out = append(out, EndpointFCM)
	}
	if t.APNs.KeyFile != "" {
		out = append(out, EndpointAPNs)
	}
	return out
}

// The names of the vendors' endpoints.
const (
	EndpointFCM  = "fcm"
	EndpointAPNs = "apns"
)

func defaultToOffline() ToOffline {
	return ToOffline{
		MentionOnlyAbove: 10_000, Delay: 2 * time.Second, MaxAge: 24 * time.Hour, Preview: 200,
		Concurrency: 32, Timeout: 10 * time.Second, Tries: 8, FirstPause: time.Second, LongestPause: 5 * time.Minute,
		MaxRetryAfter: time.Hour, BreakerAfter: 10, BreakerPause: 15 * time.Second, MaxPending: 20_000,
		Webhook: Webhook{Name: "webhook", KeyID: "k1"},
	}
}

var endpointName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (c *Config) validateToOffline(bad badFunc) {
	t := c.ToOffline
	for key, n := range map[string]int64{
		"mention_only_above": int64(t.MentionOnlyAbove), "max_age": int64(t.MaxAge), "concurrency": int64(t.Concurrency), "timeout": int64(t.Timeout),
		"tries": int64(t.Tries), "first_pause": int64(t.FirstPause), "longest_pause": int64(t.LongestPause), "max_retry_after": int64(t.MaxRetryAfter),
		"breaker_after": int64(t.BreakerAfter), "breaker_pause": int64(t.BreakerPause), "max_pending": int64(t.MaxPending),
	} {
		if n <= 0 {
			bad("tooffline."+key, "must be above 0, is %d", n)
		}
	}
	if t.FirstPause > t.LongestPause {
		bad("tooffline.first_pause", "%s exceeds longest_pause (%s)", t.FirstPause, t.LongestPause)
	}
	if t.Delay < 0 {
		bad("tooffline.delay", "must not be negative, is %s", t.Delay)
	}
	if t.Preview < 0 || t.Preview > 1024 {
		bad("tooffline.preview", "must be within 0..1024, is %d", t.Preview)
	}
	w := t.Webhook
	if !endpointName.MatchString(w.Name) || w.Name == EndpointFCM || w.Name == EndpointAPNs {
		bad("tooffline.webhook.name", "%q must be 1-32 bytes of [a-z0-9-], and neither fcm nor apns", w.Name)
	}
	if !t.Enabled && (w.URL != "" || t.FCM.CredentialsFile != "" || t.APNs.KeyFile != "") {
		bad("tooffline.enabled", "must be set, since an endpoint is")
	}
	for key, text := range map[string]string{"webhook": w.URL, "fcm": t.FCM.URL, "apns": t.APNs.URL} {
		u, err := url.Parse(text)
		if text != "" && (err != nil || u.Host == "" || u.Scheme != "https" && (key == "apns" || u.Scheme != "http" || !isLoopback(u.Hostname()))) {
			bad("tooffline."+key+".url", "is no https URL (http is taken on loopback only, and not for apns)") // it may hold a password
		}
	}
	if a := t.APNs; a.KeyFile != "" && (a.KeyID == "" || a.TeamID == "" || a.Topic == "") {
		bad("tooffline.apns", "key_id, team_id and topic are needed with key_file")
	}
	if w.URL == "" {
		return
	}
	if w.KeyID == "" {
		bad("tooffline.webhook.key_id", "is needed with url")
	}
	if (w.Secret == "") == (w.SecretFile == "") {
		bad("tooffline.webhook", "one of secret and secret_file is needed with url")
	}
}
