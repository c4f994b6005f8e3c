package demo_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/demo"
)

func TestTheDemoIsClean(t *testing.T) {
	var out bytes.Buffer
	if err := demo.Run(t.Context(), demo.Config{Out: &out, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"alice is away", "dave is kicked from group:hiking", "erin joins group:hiking late", "8 of them were resends", "is_end: that is all", "Not one number changed", "clean: every seq"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
	t.Log(out.String())
}

func TestOwnMessages(t *testing.T) {
	input := strings.Join([]string{
		`{"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi"}`,
		`{"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi"}`,
		`{"conversation":"group:x","sender":"zoe","text":"no id"}`,
		``,
		`{"conversation":"group:x","sender":"ann","json":{"a":[1,2]}}`,
	}, "\n")
	var out bytes.Buffer
	if err := demo.Run(t.Context(), demo.Config{Out: &out, Input: strings.NewReader(input), Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"ann is away", "1 of them were resends", "group:x", "single:ann:zoe", "clean"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
}

func TestBadInputNamesEveryLine(t *testing.T) {
	input := "{\"conversation\":\"group:{x}\",\"sender\":\"a\",\"text\":\"t\"}\nnonsense\n{\"conversation\":\"group:x\",\"sender\":\"a\",\"text\":\"fine\"}\n"
	err := demo.Run(t.Context(), demo.Config{Out: &bytes.Buffer{}, Input: strings.NewReader(input), Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "line 1:") || !strings.Contains(err.Error(), "line 2:") || strings.Contains(err.Error(), "line 3:") {
		t.Errorf("err = %v", err)
	}
	err = demo.Run(t.Context(), demo.Config{Out: &bytes.Buffer{}, Input: strings.NewReader("\n"), Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "no message") {
		t.Errorf("empty input: %v", err)
	}
}
