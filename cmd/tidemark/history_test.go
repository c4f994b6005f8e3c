package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// historyFile writes a small history.
func historyFile(t *testing.T, texts ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.db")
	s, err := embedded.New(embedded.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := watermark.Change{
		Members:       []watermark.MemberRow{{Conversation: "group:g", Member: watermark.Member{User: "bob", Version: 1, LastMembership: 1, Read: 1}}},
		Conversations: []watermark.Conversation{{ID: "group:g", Max: watermark.Seq(len(texts))}},
	}
	for i, text := range texts {
		m := watermark.Message{Seq: watermark.Seq(i + 1), Sender: "alice", ClientID: text, BodyType: watermark.BodyText, Body: []byte(text)}
		m.Hash = m.SumHash()
		c.Rows = append(c.Rows, watermark.Row{Conversation: "group:g", Message: m})
	}
	if _, err := s.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHistoryCopyAndCompare(t *testing.T) {
	from, to := historyFile(t, "a", "b"), filepath.Join(t.TempDir(), "new.db")
	run := func(verb string, more ...string) result {
		return tidemark(t, "", append([]string{"history", verb, "--from", "sqlite:" + from, "--to", "sqlite:" + to}, more...)...)
	}
	if r := run("compare"); r.code != exitUsage || !strings.Contains(r.errOut, "--to sqlite:"+to+": no such file") {
		t.Errorf("a target that is not there: exit code %d: %s", r.code, r.errOut)
	}
	r := run("copy")
	if r.code != exitOK || r.errOut != "" {
		t.Fatalf("exit code %d: %s", r.code, r.errOut)
	}
	wantSays(t, r.out, "copied 1 conversation, 1 member, 2 messages\n", "the same: 1 conversation, 1 member, 2 messages, sha256 ")
	again := objects[transferLine](t, run("copy", "-o", "json").out)
	if len(again) != 1 || !again[0].Same || again[0].Copied.Sum() != 0 || again[0].Comparing.To.Messages != 2 {
		t.Errorf("a second copy says %+v", again)
	}
	if r := run("compare"); r.code != exitOK || !strings.HasPrefix(r.out, "the same: ") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.errOut)
	}

	to = historyFile(t, "a", "b", "c")
	if r := run("copy"); r.code != exitFailed || !strings.Contains(r.errOut, "differ, in 2 places; if the source was written meanwhile, stop toMongo") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	} else {
		wantSays(t, r.out, "source: ", "target: ", "messages     group:g (2 messages sha256 ", ": seq 3 is in the target only\n", "conversation group:g: ")
	}
	got := objects[transferLine](t, run("compare", "-o", "json").out)
	if len(got) != 1 || got[0].Same || got[0].Copied != nil || got[0].Comparing.Differing != 2 {
		t.Errorf("got %+v", got)
	}
	to = historyFile(t, "x")
	if r := run("copy"); r.code != exitFailed || !strings.Contains(r.errOut, "another message at group:g/1") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
}

func TestHistoryPlaces(t *testing.T) {
	file := historyFile(t, "a")
	empty := filepath.Join(t.TempDir(), "empty.db")
	s, err := embedded.New(embedded.Config{Path: empty})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const secret = "p@ss/w:rd"
	for name, tt := range map[string]struct {
		from, to string
		code     int
		says     string
	}{
		"no form":         {"postgres://u:" + secret + "@h/db", "sqlite:x", exitUsage, "--from must be sqlite:PATH, mongodb://..., env:NAME or config"},
		"no file":         {"sqlite:" + file + "x", "sqlite:x", exitUsage, "no such file"},
		"no path":         {"sqlite:", "sqlite:x", exitUsage, "--from must be"},
		"no variable":     {"env:NONE", "sqlite:x", exitUsage, `"NONE" is not set`},
		"a circle":        {"env:SELF", "sqlite:x", exitUsage, `"SELF" does not hold`},
		"the same":        {"sqlite:" + file, "sqlite:" + filepath.Dir(file) + "/./history.db", exitUsage, "are the same history"},
		"the same server": {"env:MONGO", "mongodb://u:other@127.0.0.1:1/db", exitUsage, "are the same history, mongodb://u:***@127.0.0.1:1/db"},
		"in memory":       {"config", "sqlite:x", exitUsage, "a history in memory"},
		"empty":           {"sqlite:" + empty, "sqlite:x", exitFailed, "holds no history"},
		"away":            {"sqlite:" + file, "env:AWAY", exitFailed, "127.0.0.1:1"},
		"wrong":           {"sqlite:" + file, "mongodb://u:" + secret + "@h:x/db", exitFailed, "u:***@"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut buffer
			a := &app{out: &out, errOut: &errOut, environ: func() []string {
				return []string{
					"SELF=env:SELF", "MONGO=mongodb://u:" + secret + "@127.0.0.1:1/db",
					"AWAY=mongodb://u:" + secret + "@127.0.0.1:1/db?serverSelectionTimeoutMS=200", "TIDEMARK_HISTORY_PATH=",
				}
			}}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			code := a.execute(ctx, []string{"history", "copy", "--from", tt.from, "--to", tt.to})
			if code != tt.code || out.String() != "" {
				t.Errorf("exit code %d, printed %q", code, out.String())
			}
			wantSays(t, errOut.String(), tt.says)
			if strings.Contains(errOut.String(), "w:rd") {
				t.Errorf("it shows a password: %s", errOut.String())
			}
		})
	}
}
