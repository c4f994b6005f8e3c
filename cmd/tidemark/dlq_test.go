package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// letters lists dead letters, once there are n of them.
func (d *dev) letters(n int, args ...string) []letterLine {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		got := objects[letterLine](d.t, d.ok(append([]string{"dlq", "list", "-o", "json"}, args...)...))
		if len(got) == n {
			return got
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%d dead letters, want %d: %+v", len(got), n, got)
		}
		d.ok("lag", "--until-zero")
	}
}

func TestDeadLetterCommands(t *testing.T) {
	d := startDev(t)
	const g = "group:d"
	send := func(id string) {
		d.ok("send", "--conversation", g, "--from", "bob", "--text", "text of "+id, "--id", id, "--kafka", d.kafka)
	}
	if got := d.ok("dlq", "list"); got != "no dead letters\n" {
		t.Errorf("of none it says %q", got)
	}
	d.ok("join", "--conversation", g, "--user", "alice")
	d.ok("join", "--conversation", g, "--user", "bob")
	d.ok("kick", "--conversation", g, "--user", "bob")
	send("m-1")
	send("m-2")
	send("m-3")
	letters := d.letters(3)
	l := letters[0]
	if l.Reason != "not_member" || l.Conversation != g || l.Sender != "bob" || l.ClientID != "m-1" || l.Tries != 1 || l.Kind != "send" || l.Deed != "" || l.Topic != "toRedis" {
		t.Errorf("got %+v", l)
	}
	wantSays(t, d.ok("dlq", "list", "--reason", "not_member", "--limit", "1"), "LETTER", letters[0].Letter, "and 2 more (--limit 0 lists all)")
	if got := d.ok("dlq", "list", "--sender", "alice"); got != "no dead letters\n" {
		t.Errorf("of alice it says %q", got)
	}
	wantSays(t, d.ok("dlq", "show", l.Letter), "not_member", "text of m-1", "refused by the owner of "+g, "tries         1")
	shown := objects[letterLine](t, d.ok("dlq", "show", l.Letter, "-o", "json"))
	var content struct{ Text string }
	if len(shown) != 1 || json.Unmarshal(shown[0].Shown.Content, &content) != nil || content.Text != "text of m-1" || len(shown[0].Shown.Value) == 0 {
		t.Errorf("got %+v", shown)
	}
	if r := d.run("", "dlq", "show", "toRedis/0/99999"); r.code != exitFailed || !strings.Contains(r.errOut, "no such dead letter") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}

	wantSays(t, d.ok("dlq", "drop", letters[2].Letter, "--why", "a test of kcat"), "1 letter dropped")
	d.letters(2)
	wantSays(t, d.ok("dlq", "show", letters[2].Letter), "dropped at ", "a test of kcat")
	wantSays(t, d.ok("dlq", "replay", "--conversation", g, "--dry-run"), l.Letter, "2 letters would be replayed")
	if got := d.letters(2); got[0].Letter != l.Letter {
		t.Errorf("a dry run did something: %+v", got)
	}
	// The cause still stands: they come back as what they are.
	wantSays(t, d.ok("dlq", "replay", "--conversation", g), "2 letters replayed")
	back := d.letters(2)
	if back[0].Letter == l.Letter || back[0].ClientID != "m-1" || back[0].Tries != 2 || !back[0].FirstTime.Equal(*l.FirstTime) || !back[0].LastTime.After(*l.FirstTime) {
		t.Errorf("came back as %+v, was %+v", back[0], l)
	}
	d.ok("join", "--conversation", g, "--user", "bob")
	wantSays(t, d.ok("dlq", "replay", "--reason", "not_member", "--since", "1h", "-o", "json"), `"done":2`, `"failed":0`)
	d.ok("lag", "--until-zero")
	d.letters(0)
	wantSays(t, d.ok("dlq", "replay", "--conversation", g), "0 letters replayed")
	d.ok("lag", "--until-zero")
	if got := d.pullAll("alice", g); len(got) != 2 || got[0] != "1 text of m-1" || got[1] != "2 text of m-2" {
		t.Errorf("alice sees %q", got)
	}
	// Once more by force is no second message.
	wantSays(t, d.ok("dlq", "replay", "--conversation", g, "--again"), "5 letters replayed")
	d.ok("lag", "--until-zero")
	if got := d.pullAll("alice", g); len(got) != 3 || got[2] != "3 text of m-3" {
		t.Errorf("alice sees %q", got)
	}
	all := d.letters(5, "--all")
	if all[0].Deed != "replayed" {
		t.Errorf("got %+v", all[0])
	}
}

func TestDeadLettersOfAnotherDeployment(t *testing.T) {
	d := startDev(t)
	r := d.run("", "dlq", "list", "--set", "kafka.topic_prefix=other-")
	if r.code != exitFailed || !strings.Contains(r.errOut, "has no topic other-deadLetter") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
}
