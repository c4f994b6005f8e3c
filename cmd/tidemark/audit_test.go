package main

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// tamper changes the history of a data directory by hand.
func tamper(t testing.TB, data string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(data, "history.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestAuditOnTheCommandLine(t *testing.T) {
	for args, want := range map[string][]string{
		"--sample -1":                          {"--sample must be within 1.."},
		"--conversation x --conversation y:z":  {`conversation "x"`, `conversation "y:z"`},
		"--all --sample 3":                     {"[all sample]"},
		"--conversation group:g --all":         {"[all conversation]"},
		"--set audit.rate=0 --set nonsense=1":  {"audit.rate", "nonsense"},
		"--set audit.patience=-1s --sample 10": {"audit.patience"},
	} {
		r := tidemark(t, "", append([]string{"audit"}, strings.Fields(args)...)...)
		if r.code != exitUsage || r.out != "" {
			t.Errorf("%s: exit code %d, printed %q", args, r.code, r.out)
		}
		wantSays(t, r.errOut, append(want, "--help' for usage")...)
	}

	data := filepath.Join(t.TempDir(), "data")
	d := startDev(t, "--data", data)
	for range 3 {
		d.ok("send", "--conversation", "group:g", "--from", "ann", "--text", "hi", "--wait")
	}
	d.ok("send", "--conversation", "single:ann:bob", "--from", "ann", "--text", "hi", "--wait")
	d.stop()
	run := func(args ...string) result {
		return tidemark(t, "", append([]string{"audit", "--data", data}, args...)...)
	}

	if r := run("--conversation", "group:nobody"); r.code != exitUnfinished || !strings.Contains(r.errOut, "unknown conversation: group:nobody") {
		t.Errorf("unknown conversation: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	if r := run("--conversation", "single:ann:bob"); r.code != exitOK || r.out != "1 conversation, 1 message, 2 members, 0 conversations warm in Redis\nclean\n" {
		t.Errorf("one conversation: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}

	tamper(t, data, "DELETE FROM messages WHERE conversation = 'group:g' AND seq = 2")
	r := run("--sample", "10")
	if r.code != exitFailed || !strings.Contains(r.errOut, "the audit is not clean: 1 finding, 0 of them mended") {
		t.Errorf("a hole: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.out, "hole group:g: history lacks seq 2\n  to do: audit with --log", "\nhole: 1\n")

	r = run("--all", "-o", "json")
	lines := objects[auditLine](t, r.out)
	if r.code != exitFailed || len(lines) != 2 || lines[0].Finding == nil || lines[0].Finding.Kind != audit.MissingRow || lines[0].Finding.Seq != 2 ||
		lines[1].Report == nil || lines[1].Report.Findings[audit.MissingRow] != 1 || lines[1].Clean {
		t.Errorf("as JSON: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}

	r = run("--repair")
	if r.code != exitFailed || !strings.Contains(r.errOut, "1 finding, 1 of them mended") {
		t.Errorf("repair: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.out, "missing_row group:g: history lacks seq 2", "  mended: written from the log\n")
	if r := run(); r.code != exitOK || !strings.HasSuffix(r.out, "\nclean\n") {
		t.Errorf("after the repair: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}

// A worker that dies must end the audit: what it waits for never comes.
func TestAuditOfDataEndsWhenAWorkerDies(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	d := startDev(t, "--data", data)
	d.ok("send", "--conversation", "group:g", "--from", "ann", "--text", "hi", "--wait")
	d.stop()
	// One more message, which no worker has seen, and a history that refuses it.
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	r := tidemark(t, "", "send", "--conversation", "group:g", "--from", "ann", "--text", "more", "--kafka", emb.Cluster.Brokers()[0])
	if err := emb.Cluster.Close(); err != nil || r.code != exitOK {
		t.Fatalf("send: exit code %d, %v\n%s%s", r.code, err, r.out, r.errOut)
	}
	tamper(t, data, "CREATE TRIGGER refuse BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'refused by hand'); END")

	b := start(t, "audit", "--data", data)
	r = b.wait()
	if r.code != exitUnfinished || r.out != "" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.errOut, "tidemark: tomongo: ", "refused by hand")

	tamper(t, data, "DROP TRIGGER refuse")
	if r := tidemark(t, "", "audit", "--data", data); r.code != exitOK || !strings.HasSuffix(r.out, "\nclean\n") {
		t.Errorf("when it is well again: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}

// Every kind has its section in the manual, and the manual none that is not.
func TestAuditManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "### `"); ok {
			sections[strings.TrimSuffix(strings.TrimSpace(name), "`")] = true
		}
	}
	for _, k := range audit.Kinds() {
		if !sections[string(k)] {
			t.Errorf("docs/audit.md does not say what %s is", k)
		}
		delete(sections, string(k))
	}
	for name := range sections {
		t.Errorf("docs/audit.md speaks of %s, which is no kind", name)
	}
}
