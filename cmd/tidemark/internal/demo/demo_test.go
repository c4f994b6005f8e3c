package demo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/demo"
	"github.com/tidemark-im/tidemark/internal/config"
)

func TestTheDemoIsClean(t *testing.T) {
	out, err := run(t, demo.Config{})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"1. alice is away for three days; 328 messages are published", "dave is kicked from group:hiking", "erin joins group:hiking late",
		"8 of them were resends", "is_end: that is all", "4. The others see", "Not one number changed", "7. Audit of every seq", "  0 dead letters\n", "clean: every seq",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	t.Log(out)
}

func run(t *testing.T, cfg demo.Config) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cfg.Out, cfg.Logger = &out, slog.New(slog.DiscardHandler)
	err := demo.Run(t.Context(), cfg)
	return out.String(), err
}

func TestOwnMessages(t *testing.T) {
	// The first id comes again with other content, again as it was, and after
	// the horizon as a message of its own.
	lines := []string{
		`{"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi"}`,
		`{"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"other"}`,
		`{"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi","sendTimeMs":5}`,
		`{"conversation":"group:x","sender":"zoe","text":"no id"}`,
		``,
		`{"conversation":"group:x","sender":"ann","json":{"a":[1,2]}}`,
		`{"conversation":"group:y","sender":"ann","data":"AAAA"}`,
		`{"conversation":"group:far","sender":"ann","clientMessageId":"1","text":"hi"}`,
	}
	for range 1000 {
		lines = append(lines, `{"conversation":"group:far","sender":"ann","text":"t"}`)
	}
	lines = append(lines, `{"conversation":"group:far","sender":"ann","clientMessageId":"1","text":"other"}`)
	base := config.Default()
	base.Kafka.TopicPrefix, base.Kafka.Partitions = "p-", 2
	out, err := run(t, demo.Config{Input: strings.NewReader(strings.Join(lines, "\n")), Base: &base})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"1. ann is away; 1008 messages are published", "1 of them was a resend of a message",
		"1 dead letter, which got no seq:\n  line 2: id_reused", "4. ann reads everything", "6. Audit of every seq",
		`ann: {"a":[1,2]}`, "ann: 3 bytes", "   1 message  ", "4 conversations, 1007 messages, 6 members", "(1 message more than above: sent after the restart)",
		"  1 dead letter\n", "clean",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
}

func TestWhoReturns(t *testing.T) {
	one := func() demo.Config {
		return demo.Config{Input: strings.NewReader(`{"conversation":"single:ann:zoe","sender":"zoe","text":"hi"}`)}
	}
	cfg := one()
	cfg.User = "zoe"
	out, err := run(t, cfg)
	if err != nil || !strings.Contains(out, "1. zoe is away; 1 message is published") || !strings.Contains(out, "1 conversation, 2 messages") {
		t.Errorf("err = %v\n%s", err, out)
	}
	cfg = one()
	cfg.User = "bob"
	if _, err := run(t, cfg); err == nil || err.Error() != `demo: user "bob" is in no conversation of these messages; there are ann, zoe` {
		t.Errorf("err = %v", err)
	}
	var many strings.Builder
	for i := range 13 {
		fmt.Fprintf(&many, `{"conversation":"group:g","sender":"u%02d","text":"hi"}`+"\n", i)
	}
	if _, err := run(t, demo.Config{Input: strings.NewReader(many.String()), User: "bob"}); err == nil || !strings.HasSuffix(err.Error(), "u08, u09 and 3 more") {
		t.Errorf("err = %v", err)
	}
	if _, err := run(t, demo.Config{User: "zoe"}); err == nil || !strings.HasSuffix(err.Error(), "there are alice, bob, carol, dave, erin, frank") {
		t.Errorf("err = %v", err)
	}
}

func TestBadInputNamesEveryLine(t *testing.T) {
	const fine = `{"conversation":"group:x","sender":"a","text":"fine"}` + "\n"
	for name, tt := range map[string]struct {
		input string
		want  []string // beginnings of the error's lines
	}{
		"each line": {
			`{"conversation":"group:{x}","sender":"a","text":"t"}` + "\nnonsense\n" + fine + `{"conversation":"single:a:b","sender":"c","text":"t"}` + "\n",
			[]string{"demo: line 1: ", "demo: line 2: is not a message: ", "demo: line 4: "},
		},
		"empty":    {"\n", []string{"demo: the input has no message"}},
		"too long": {fine + strings.Repeat("x", 5<<20) + "\n" + fine, []string{"demo: line 2: is longer than 4 MiB"}},
		"too many": {strings.Repeat("x\n", 30), append(slices.Repeat([]string{"demo: line "}, 20), "demo: what follows line 20 was not looked at")},
		"body":     {`{"conversation":"group:x","sender":"a","text":"12345678901"}`, []string{"demo: line 1: "}},
	} {
		t.Run(name, func(t *testing.T) {
			base := config.Default()
			base.Limits.MaxBody = 10
			out, err := run(t, demo.Config{Input: strings.NewReader(tt.input), Base: &base})
			if err == nil || out != "" {
				t.Fatalf("err = %v\n%s", err, out)
			}
			got := strings.Split(err.Error(), "\n")
			if len(got) != len(tt.want) {
				t.Fatalf("err = %v", err)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("%q does not begin with %q", got[i], tt.want[i])
				}
			}
		})
	}
}

// An interrupt must not wait for a line that nobody types.
func TestStopWhileReading(t *testing.T) {
	in, typist := io.Pipe()
	defer typist.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := demo.Run(ctx, demo.Config{Out: io.Discard, Input: in, Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}
