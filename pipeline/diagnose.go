package pipeline

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
)

const (
	probeTimeout = 3 * time.Second
	// probeTries is how often a broker must have hung up before it counts as one
	// that wants other credentials: one that shuts down hangs up too.
	probeTries = 4
)

// diagnose looks closer at a broker that hangs up on us or keeps silent. A client with TLS on a
// port without, one without on a port with it, and one that does not log in
// where it must: all look like a broker that goes away, and would be waited for
// without end. What cannot be told apart stays as it is, with a hint.
func (c Config) diagnose(ctx context.Context, tries int, err error) error {
	if !spoken(err) {
		return err
	}
	for _, addr := range c.Brokers {
		wrong, why := c.probe(ctx, addr, tries)
		if wrong != "" {
			return fault.New(fault.Fatal, wrong, fmt.Errorf("kafka at %s: %s: %w", addr, why, err))
		}
	}
	return fmt.Errorf("%w (a broker does not answer, or hangs up: check that kafka.tls and kafka.sasl fit the port)", err)
}

// spoken tells whether somebody was there: a port that hangs up, or one that
// waits for the rest of what it does not understand.
func spoken(err error) bool {
	if _, ok := errors.AsType[*net.DNSError](err); ok || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	return isNetwork(err)
}

// probe gives the reason and the words for what is wrong; none when it is not
// sure.
func (c Config) probe(ctx context.Context, addr string, tries int) (reason, why string) {
	plain := speaksKafka(ctx, addr, nil)
	switch {
	case c.TLS != nil && plain:
		return ReasonTLS, "TLS is on, and this port is not encrypted: turn kafka.tls.enabled off, or give the address of the encrypted port"
	case c.TLS == nil && !plain && speaksTLS(ctx, addr):
		return ReasonTLS, "TLS is off, and this port is encrypted: turn kafka.tls.enabled on, or give the address of a port that is not"
	case tries < probeTries || !plain && (c.TLS == nil || !speaksKafka(ctx, addr, c.TLS)):
	case c.SASL.Mechanism == "":
		return ReasonAuth, "it answers and then hangs up on a client without a name: set kafka.sasl, or give the address of a port that wants no credentials"
	default:
		return ReasonAuth, "it answers and hangs up when " + c.SASL.User + " logs in: check kafka.sasl (mechanism, user, password)"
	}
	return "", ""
}

// speaksTLS tells whether a port answers a handshake. Nothing is sent over what
// comes of it, so it does not matter whose certificate it is.
func speaksTLS(ctx context.Context, addr string) bool {
	conn, done, err := dialProbe(ctx, addr)
	if err != nil {
		return false
	}
	defer done()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx)
	alert, ok := errors.AsType[*net.OpError](err)
	return err == nil || ok && alert.Op == "remote error"
}

// speaksKafka tells whether a port answers the one question that brokers answer
// before anybody has logged in: which requests they know (ApiVersions, version 0).
func speaksKafka(ctx context.Context, addr string, t *tls.Config) bool {
	conn, done, err := dialProbe(ctx, addr)
	if err != nil {
		return false
	}
	defer done()
	if t != nil {
		t = t.Clone()
		if t.ServerName == "" {
			t.ServerName, _, _ = net.SplitHostPort(addr)
		}
		conn = tls.Client(conn, t)
	}
	const correlation = "tide"
	// Size, key 18, version 0, correlation id, no client id.
	question := append([]byte{0, 0, 0, 10, 0, 18, 0, 0}, correlation...)
	if _, err := conn.Write(append(question, 0xff, 0xff)); err != nil {
		return false
	}
	answer := make([]byte, 8)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return false
	}
	return bytes.Equal(answer[4:], []byte(correlation)) && binary.BigEndian.Uint32(answer) < 1<<20
}

func dialProbe(ctx context.Context, addr string) (net.Conn, func(), error) {
	d := net.Dialer{Timeout: probeTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	// The only error is a connection that is closed already.
	_ = conn.SetDeadline(time.Now().Add(probeTimeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, func() { stop(); _ = conn.Close() }, nil
}
