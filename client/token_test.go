package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/client"
)

type body struct {
	*strings.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func TestEveryRequestCarriesTheTokenOfThatMoment(t *testing.T) {
	got := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") }))
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()
	file := filepath.Join(t.TempDir(), "token")
	c := &http.Client{Transport: client.Authorized{Token: client.FileToken(file)}}
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if h := <-got; h != "Bearer "+token {
			t.Errorf("sent %q", h)
		}
		if len(req.Header) != 0 {
			t.Errorf("the caller's request has %v", req.Header)
		}
	}
	if token, err := client.StaticToken("x")(t.Context()); token != "x" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
	if _, err := client.FileToken(file + "x")(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestWithoutATokenNothingIsSent(t *testing.T) {
	failed := errors.New("nobody is logged in")
	a := client.Authorized{Token: func(context.Context) (string, error) { return "", failed }}
	b := &body{Reader: strings.NewReader("x")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:1", b)
	if err != nil {
		t.Fatal(err)
	}
	res, err := a.RoundTrip(req)
	if !errors.Is(err, failed) || !b.closed {
		t.Errorf("%v, body closed %v", err, b.closed)
	}
	if res != nil {
		res.Body.Close()
	}
}
