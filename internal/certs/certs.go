// Package certs renews certificates: one that is renewed on disk is used without
// a restart, by a listener and by those who show it to a server.
//
// The files are looked at when somebody connects, at most once a second. Files
// that changed are read; when they cannot be, or do not fit together (a renewal
// that is half written), what was read before stays in use and the fault is
// logged, once for each state of the files. Connections that stand are not
// touched.
//
// A Source is safe for concurrent use and starts no goroutines.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// look is how often the files are looked at.
const look = time.Second

// Config names the files.
type Config struct {
	// Cert and Key are PEM files with a certificate chain and its key. Required.
	Cert, Key string
	// ClientCA is a PEM file with the authorities of clients; a client without a
	// certificate by one of them is turned away. Empty: clients need none.
	ClientCA string

	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
}

// Source holds what the files said when they were last good.
type Source struct {
	cfg Config

	mu     sync.Mutex
	looked time.Time
	stamps []stamp // of the files when they were last read
	tls    *tls.Config
}

// stamp tells one state of a file from another.
type stamp struct {
	time time.Time
	size int64
}

// New reads the files.
func New(cfg Config) (*Source, error) {
	if cfg.Cert == "" || cfg.Key == "" {
		return nil, errors.New("certs: certificate and key files are both needed")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg, looked: cfg.Now()}
	var err error
	if s.stamps, err = s.stat(); err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	if s.tls, err = s.read(); err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	return s, nil
}

// Config gives the configuration of a listener; every connection is made with
// what the files say then.
func (s *Source) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         protocols(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil },
	}
}

// ClientCertificate gives what the files say now, for GetClientCertificate of
// those who connect to a server that asks for one.
func (s *Source) ClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &s.current().Certificates[0], nil
}

func protocols() []string { return []string{"h2", "http/1.1"} }

func (s *Source) current() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	if now.Sub(s.looked) < look {
		return s.tls
	}
	s.looked = now
	stamps, err := s.stat()
	if err == nil && slices.Equal(stamps, s.stamps) {
		return s.tls
	}
	// Files that are missing for a moment have a state of their own: no stamps.
	known := stamps == nil && s.stamps == nil
	s.stamps = stamps
	var fresh *tls.Config
	if err == nil {
		fresh, err = s.read()
	}
	switch {
	case err == nil:
		s.tls = fresh
		s.cfg.Logger.Info("certificate is renewed", "cert", s.cfg.Cert)
	case !known:
		s.cfg.Logger.Error("certificate cannot be renewed, the one before stays in use", "cert", s.cfg.Cert, "error", err)
	}
	return s.tls
}

func (s *Source) files() []string {
	files := []string{s.cfg.Cert, s.cfg.Key}
	if s.cfg.ClientCA != "" {
		files = append(files, s.cfg.ClientCA)
	}
	return files
}

func (s *Source) stat() ([]stamp, error) {
	var out []stamp
	for _, name := range s.files() {
		var info fs.FileInfo
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		out = append(out, stamp{info.ModTime(), info.Size()})
	}
	return out, nil
}

func (s *Source) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(s.cfg.Cert, s.cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("load %s and %s: %w", s.cfg.Cert, s.cfg.Key, err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols(), Certificates: []tls.Certificate{pair}}
	if s.cfg.ClientCA != "" {
		pem, err := os.ReadFile(s.cfg.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("read client CA: %w", err)
		}
		out.ClientCAs, out.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !out.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("client CA: no certificate in %s", s.cfg.ClientCA)
		}
	}
	return out, nil
}
