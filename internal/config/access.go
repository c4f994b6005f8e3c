package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Auth says whose tokens are good. Without any of secret, secret_file, jwks_url
// and jwks_file callers are not authenticated.
type Auth struct {
	Secret     string        `koanf:"secret" secret:"true" doc:"Shared secret of HS256 tokens, at least 32 bytes. For development."`
	SecretFile string        `koanf:"secret_file" doc:"File with the shared secret; spaces and line ends around it do not count."`
	JWKSURL    string        `koanf:"jwks_url" doc:"Where the issuer publishes its keys as a JSON Web Key Set: https, or http on loopback."`
	JWKSFile   string        `koanf:"jwks_file" doc:"File with a JSON Web Key Set. It is read again when it changes."`
	Refresh    time.Duration `koanf:"jwks_refresh" doc:"How old keys from jwks_url may get. Unknown keys are fetched at once, at most every 10s."`
	Algorithms []string      `koanf:"algorithms" doc:"Signatures that are taken: HS256 with a secret; RS256, ES256, EdDSA with keys. Empty: all of these."`
	Issuer     string        `koanf:"issuer" doc:"What iss of a token must be. Empty: anything."`
	Audience   []string      `koanf:"audience" doc:"What aud of a token must have one of. Empty: anything."`
	Leeway     time.Duration `koanf:"leeway" doc:"How much clocks may differ when exp, nbf and iat are checked, at most 5m."`
	ScopeClaim string        `koanf:"scope_claim" doc:"Claim with the scopes: a list, or words with spaces between."`
	AdminScope string        `koanf:"admin_scope" doc:"Scope of administrators, who act for all users."`
}

// Enabled tells whether callers are authenticated.
func (a Auth) Enabled() bool {
	return a.Secret != "" || a.SecretFile != "" || a.JWKSURL != "" || a.JWKSFile != ""
}

// SecretBytes gives the shared secret, nil when there is none.
func (a Auth) SecretBytes() ([]byte, error) {
	if a.SecretFile == "" {
		return []byte(a.Secret), nil
	}
	b, err := os.ReadFile(a.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("auth.secret_file: %w", err)
	}
	return []byte(strings.TrimSpace(string(b))), nil
}

// ServerTLS says how a listener is encrypted.
type ServerTLS struct {
	Cert     string `koanf:"cert" doc:"File with the certificate chain, with key. Empty: plain text. Renewed files are used without a restart."`
	Key      string `koanf:"key" doc:"File with the key, with cert."`
	ClientCA string `koanf:"client_ca" doc:"File with the authorities of clients; those without a certificate are turned away. Empty: none is needed."`
}

// Enabled tells whether connections are encrypted.
func (t ServerTLS) Enabled() bool { return t.Cert != "" }

// badFunc takes a fault of a key.
type badFunc func(key, format string, args ...any)

func (c *Config) validateAccess(bad badFunc) {
	a := c.Auth
	sources := 0
	for _, given := range []string{a.Secret, a.SecretFile, a.JWKSURL, a.JWKSFile} {
		if given != "" {
			sources++
		}
	}
	if sources > 1 {
		bad("auth", "only one of secret, secret_file, jwks_url and jwks_file may be set")
	}
	if a.Secret != "" && len(a.Secret) < 32 {
		bad("auth.secret", "has %d bytes, at least 32 are needed", len(a.Secret))
	}
	allowed := []string{"RS256", "ES256", "EdDSA"}
	if a.Secret != "" || a.SecretFile != "" {
		allowed = []string{"HS256"}
	}
	for _, alg := range a.Algorithms {
		if !slices.Contains(allowed, alg) {
			bad("auth.algorithms", "%q is none of %s", alg, strings.Join(allowed, ", "))
		}
	}
	if a.JWKSURL != "" {
		u, err := url.Parse(a.JWKSURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
			bad("auth.jwks_url", "%q is no https URL (http is taken on loopback only)", a.JWKSURL)
		}
	}
	if a.Leeway < 0 || a.Leeway > 5*time.Minute {
		bad("auth.leeway", "must be within 0s..5m, is %s", a.Leeway)
	}
	if a.Refresh < 10*time.Second {
		bad("auth.jwks_refresh", "must be at least 10s, is %s", a.Refresh)
	}
	if a.ScopeClaim == "" || a.AdminScope == "" || strings.ContainsAny(a.AdminScope, " \t\n") {
		bad("auth", "scope_claim and admin_scope must be set, the latter to one word")
	}
	for key, l := range map[string]struct {
		listen string
		tls    ServerTLS
	}{"sync": {c.Sync.Listen, c.Sync.TLS}, "gateway": {c.Gateway.Listen, c.Gateway.TLS}} {
		c.validateListen(key, l.listen, bad)
		if (l.tls.Cert == "") != (l.tls.Key == "") {
			bad(key+".tls", "cert and key go together")
		}
		if l.tls.ClientCA != "" && l.tls.Cert == "" {
			bad(key+".tls.client_ca", "needs cert and key")
		}
	}
}

// validateListen refuses an address that others could reach while every caller
// is believed.
func (c *Config) validateListen(role, addr string, bad badFunc) {
	host, _, err := net.SplitHostPort(addr)
	switch {
	case err != nil:
		bad(role+".listen", "%q is not host:port", addr)
	case !c.Auth.Enabled() && !isLoopback(host):
		bad(role+".listen", "%q is not a loopback address; callers are not authenticated, so only this machine may reach it (set auth.jwks_url or another key of auth)", addr)
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Exposed names the listeners that others can reach and that are not encrypted:
// tokens cross the network in clear unless something in front encrypts.
func (c *Config) Exposed() []string {
	var out []string
	for _, l := range []struct {
		name, listen string
		tls          ServerTLS
	}{{"sync", c.Sync.Listen, c.Sync.TLS}, {"gateway", c.Gateway.Listen, c.Gateway.TLS}} {
		if host, _, err := net.SplitHostPort(l.listen); err == nil && !isLoopback(host) && !l.tls.Enabled() {
			out = append(out, l.name)
		}
	}
	return out
}

func (c *Config) validateLimits(bad badFunc) {
	for key, n := range map[string]float64{
		"limits.user_requests": c.Limits.UserRequests, "limits.user_burst": float64(c.Limits.UserBurst),
		"limits.user_bytes": float64(c.Limits.UserBytes), "limits.user_bytes_burst": float64(c.Limits.UserBytesBurst),
		"limits.user_in_flight": float64(c.Limits.UserInFlight), "gateway.user_connections": float64(c.Gateway.UserConnections),
	} {
		if !(n >= 0) {
			bad(key, "must not be negative, is %v", n)
		}
	}
	if c.Gateway.Connections < 1 {
		bad("gateway.connections", "must be above 0, is %d", c.Gateway.Connections)
	}
	if c.Limits.TailBytes < 16<<20 {
		bad("limits.tail_bytes", "must be at least %d, is %d", 16<<20, c.Limits.TailBytes)
	}
	if c.Limits.InFlight <= 0 {
		bad("limits.in_flight", "must be above 0, is %d", c.Limits.InFlight)
	}
	if c.Limits.MaxRequest < 2*c.Limits.MaxBody || c.Limits.MaxRequest > 64<<20 {
		bad("limits.max_request", "must be within twice limits.max_body (%d) and 67108864, is %d", 2*c.Limits.MaxBody, c.Limits.MaxRequest)
	}
}
