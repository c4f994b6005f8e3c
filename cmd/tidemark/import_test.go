package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
)

// exported is an input in no order.
const exported = `{"type":"member","conversation":"group:g","user":"bob","joined":1,"read":1}
{"type":"message","conversation":"group:g","seq":2,"sender":"bob","timeMs":2,"text":"two"}
{"type":"message","conversation":"group:g","seq":1,"sender":"ann","timeMs":1,"text":"one"}
`

func TestImportCommand(t *testing.T) {
	to := "sqlite:" + filepath.Join(t.TempDir(), "history.db")
	t.Setenv("TMPDIR", t.TempDir())
	r := tidemark(t, exported, "import", "--to", to, "--input", "-")
	if r.code != exitFailed || !strings.Contains(r.errOut, "nothing was imported: the input has ") {
		t.Errorf("not sorted: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.out, "line 2 group:g: a message comes after a member")
	r = tidemark(t, exported, "import", "--to", to, "--input", "-", "--sort")
	if want := "imported and read back: 1 conversation, 2 members, 2 messages\nwritten now: 1 conversation, 2 members, 2 messages\n"; r.code != exitOK || r.out != want || r.errOut != "" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	again := objects[importer.Report](t, tidemark(t, exported, "import", "--to", to, "--input", "-", "--sort", "-o", "json").out)
	if len(again) != 1 || again[0].Written != (importer.Counts{}) || again[0].Imported.Messages != 2 {
		t.Errorf("again: %+v", again)
	}
	r = tidemark(t, strings.Replace(exported, `"one"`, `"other"`, 1), "import", "--to", to, "--input", "-", "--sort")
	if r.code != exitFailed {
		t.Errorf("another message: exit code %d", r.code)
	}
	wantSays(t, r.out, "line 3 group:g: another message stands at seq 1 in the target")
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// The lines of the page are what is imported.
func TestImportOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/import.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(page), "```json\n")
	lines, _, _ = strings.Cut(lines, "```")
	r := tidemark(t, lines, "import", "--to", "sqlite:"+filepath.Join(t.TempDir(), "history.db"), "--input", "-")
	if r.code != exitOK || !strings.HasPrefix(r.out, "imported and read back: 1 conversation, 3 members, 3 messages\n") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}

func TestImportOpenIMCommand(t *testing.T) {
	dir := t.TempDir()
	path := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	msg := path("msg.jsonl", `{"doc_id":"sg_7:0","msgs":[null,{"msg":{"send_id":"ann","client_msg_id":"c","content_type":101,"content":"x","seq":2,"send_time":9}}]}
{"doc_id":"sg_no id:0","msgs":[{"msg":{"send_id":"ann","client_msg_id":"c","content_type":101,"content":"x","seq":1,"send_time":9}}]}`)
	seq := path("seq.jsonl", `{"conversation_id":"sg_7","max_seq":2,"min_seq":0}`)
	user := path("seq_user.jsonl", `{"user_id":"bob","conversation_id":"sg_7","min_seq":0,"max_seq":0,"read_seq":1}`)
	args := []string{"import", "--to", "sqlite:" + filepath.Join(dir, "h.db"), "--format", "openim", "--messages", msg, "--seq", seq, "--seq-user", user}
	r := tidemark(t, "", args...)
	if r.code != exitFailed {
		t.Errorf("exit code %d", r.code)
	}
	wantSays(t, r.out, msg+" line 2", "bad id", "1 conversations with faults")
	r = tidemark(t, "", append(args, "--skip-bad")...)
	if r.code != exitOK {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	wantSays(t, r.out, "imported and read back: 1 conversation, 2 members, 2 messages", "1 holes, now tombstones", "1 conversations with faults, not imported")
}

// The history of a deployment is refused until somebody says that it stands still.
func TestImportIntoADeployment(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	d := startDev(t, "--data", data)
	d.ok("send", "--conversation", "group:other", "--from", "ann", "--text", "hi", "--wait")
	d.stop()
	to := "sqlite:" + filepath.Join(data, "history.db")
	r := tidemark(t, exported, "import", "--to", to, "--input", "-", "--sort")
	if r.code != exitFailed || r.out != "" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.errOut, "the target is the history of a deployment", "--into-live")
	r = tidemark(t, exported, "import", "--to", to, "--input", "-", "--sort", "--into-live")
	if r.code != exitOK {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.out, "Empty Redis before the roles start.")
	d = startDev(t, "--data", data)
	wantSays(t, d.ok("send", "--conversation", "group:g", "--from", "bob", "--text", "three", "--wait"), "3")
	d.stop()
	if r := tidemark(t, "", "audit", "--data", data); r.code != exitOK || !strings.HasSuffix(r.out, "clean\n") {
		t.Errorf("the audit: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}
