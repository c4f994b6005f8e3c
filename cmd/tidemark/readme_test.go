package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Every curl line of the README, and every message that it publishes, is run
// against a stack, in the order of the page.
func TestReadmeLines(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer emb.Cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := stack.Open(ctx, stack.Config{Config: emb.Config, Roles: stack.Roles(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(run) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.Close()
	}()

	published := 0
	text := strings.ReplaceAll(string(page), `\"`, `"`)
	for _, m := range regexp.MustCompile(`['"](\{"conversation":"group:g1".*?\})['"]`).FindAllStringSubmatch(text, -1) {
		if err := s.Produce(ctx, []wire.Out{{Partition: -1, Key: "group:g1", Value: []byte(m[1])}}); err != nil {
			t.Fatal(err)
		}
		published++
	}
	if published != 3 {
		t.Errorf("the README publishes %d messages, want one each for kcat, Java and Python", published)
	}
	if err := s.Settle(ctx); err != nil {
		t.Fatal(err)
	}

	var last string
	calls := regexp.MustCompile(`curl -s http://127\.0\.0\.1:8080(\S+) [^']*'content-type: application/json' \\\n\s*-d '([^']*)'`).FindAllStringSubmatch(string(page), -1)
	for _, c := range calls {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.SyncURL()+c[1], strings.NewReader(c[2]))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || strings.Contains(string(b), `"error":`) {
			t.Errorf("%s %s: %s %s %v", c[1], c[2], res.Status, b, err)
		}
		last = string(b)
	}
	if len(calls) != 4 {
		t.Errorf("%d curl lines in the README, want 4", len(calls))
	}
	// The spaces in protobuf's JSON are not fixed, on purpose.
	if got := len(regexp.MustCompile(`"sender": ?"alice"`).FindAllString(last, -1)); got != 4 {
		t.Errorf("the last pull gives %d messages, want the 4 that the page sends: %s", got, last)
	}
}
