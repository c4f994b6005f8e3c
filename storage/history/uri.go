package history

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// clientOptions reads the URI. What it says about a wrong one holds no
// credentials.
func clientOptions(cfg Config) (opts *options.ClientOptions, database string, secrets []string, err error) {
	if cfg.URI == "" {
		return nil, "", nil, errors.New("history: URI is missing")
	}
	u, err := splitURI(cfg.URI)
	if err != nil {
		return nil, "", nil, err
	}
	if cfg.Username != "" {
		u.user = cfg.Username
	}
	if cfg.Password != "" {
		u.password = &cfg.Password
	}
	if u.user == "" && u.password != nil {
		return nil, "", nil, errors.New("history: a password without a user name")
	}
	secrets = append(secretOptions(u.rest), secretsOf(u.password)...)
	opts = options.Client().ApplyURI(u.encoded())
	if err := opts.Validate(); err != nil {
		return nil, "", nil, fmt.Errorf("history: uri: %w", mask(err, secrets))
	}
	if database = cfg.Database; database == "" {
		database = u.database()
	}
	if database == "" {
		database = DefaultDatabase
	}
	return opts, database, secrets, settle(opts, cfg)
}

// uri is a connection string in its parts, credentials as they are meant.
type uri struct {
	scheme   string
	user     string
	password *string
	rest     string // hosts, path and options
}

// afterUser is what can follow the credentials: hosts, and perhaps a database
// and options.
var afterUser = regexp.MustCompile(`^[^/?@#\s]+(/[^/?@#\s]*(\?([A-Za-z]+=[^&]*&?)*)?)?$`)

// splitURI takes the credentials out. They end at the first '@' that is
// followed by what can follow them, so that a password such as p@ss/w:rd may
// stand there as it is.
func splitURI(text string) (u uri, err error) {
	var ok bool
	u.scheme, u.rest, ok = strings.Cut(text, "://")
	if !ok || u.scheme != "mongodb" && u.scheme != "mongodb+srv" {
		return uri{}, errors.New(`history: uri: must begin with "mongodb://" or "mongodb+srv://"`)
	}
	at := -1
	for i := range len(u.rest) {
		if u.rest[i] != '@' {
			continue
		}
		at = i
		if afterUser.MatchString(u.rest[i+1:]) {
			break
		}
	}
	if at < 0 {
		return u, nil
	}
	info := u.rest[:at]
	u.rest = u.rest[at+1:]
	name, password, has := strings.Cut(info, ":")
	// It is taken as percent-encoded if that is what it can be.
	plainName, err1 := url.PathUnescape(name)
	plainPassword, err2 := url.PathUnescape(password)
	if err1 == nil && err2 == nil && !strings.ContainsAny(name+password, ":/?#[]@") {
		name, password = plainName, plainPassword
	}
	u.user = name
	if has {
		u.password = &password
	}
	return u, nil
}

// encoded gives the connection string as the driver wants it.
func (u uri) encoded() string {
	info := ""
	if u.user != "" {
		info = percent(u.user)
		if u.password != nil {
			info += ":" + percent(*u.password)
		}
		info += "@"
	}
	return u.scheme + "://" + info + u.rest
}

func (u uri) database() string {
	hosts, _, _ := strings.Cut(u.rest, "?")
	_, path, _ := strings.Cut(hosts, "/")
	name, err := url.PathUnescape(path)
	if err != nil {
		return "" // the driver has refused it
	}
	return name
}

// Masked gives a URI as it may be shown: without password and other secrets.
func Masked(text string) string {
	u, err := splitURI(text)
	if err != nil {
		return "mongodb://***"
	}
	if u.password != nil {
		u.password = new("***")
	}
	rest := u.rest
	for _, secret := range secretOptions(u.rest) {
		if secret != "" {
			rest = strings.ReplaceAll(rest, secret, "***")
		}
	}
	out := u.scheme + "://"
	if u.user != "" {
		out += percent(u.user)
		if u.password != nil {
			out += ":" + *u.password
		}
		out += "@"
	}
	return out + rest
}

// percent encodes everything but letters, digits and three marks that mean
// nothing anywhere: a field name may not have dots, a URI's parts no others.
func percent(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '~':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func secretsOf(password *string) []string {
	if password == nil {
		return nil
	}
	return []string{*password, percent(*password)}
}

// secretOptions gives the values of options that are secrets.
func secretOptions(rest string) (out []string) {
	_, query, _ := strings.Cut(rest, "?")
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		switch strings.ToLower(key) {
		case "tlscertificatekeyfilepassword", "sslclientcertificatekeypassword", "authmechanismproperties", "proxypassword":
			out = append(out, value)
			if plain, err := url.QueryUnescape(value); err == nil {
				out = append(out, plain)
			}
		}
	}
	return out
}

// mask gives an error whose text holds none of the secrets; what it wraps can
// still be asked for its type.
func mask(err error, secrets []string) error {
	if err == nil {
		return nil
	}
	text, masked := err.Error(), false
	for _, s := range secrets {
		if s != "" && strings.Contains(text, s) {
			text, masked = strings.ReplaceAll(text, s, "***"), true
		}
	}
	if !masked {
		return err
	}
	return &maskedError{text, err}
}

type maskedError struct {
	text string
	err  error
}

func (e *maskedError) Error() string { return e.text }

func (e *maskedError) Unwrap() error { return e.err }
