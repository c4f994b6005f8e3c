package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// page is what tests read of a pulled page; int64 are strings in protobuf's
// JSON.
type page struct {
	Messages []struct {
		Seq, Sender, Text, Kind string
		Revoked                 bool
		JSON                    any `json:"json"`
		Attributes              map[string]string
		Mentions                []string
	}
	IsEnd bool
	Rest  *struct{ Begin, End string }
}

func (d *dev) pullAll(user, conv string) []string {
	d.t.Helper()
	var out []string
	for _, p := range objects[page](d.t, d.ok("pull", "--user", user, "--conversation", conv, "--all", "--num", "3", "-o", "json")) {
		for _, m := range p.Messages {
			out = append(out, m.Seq+" "+m.Text)
		}
	}
	return out
}

func TestMessagesThereAndBack(t *testing.T) {
	d := startDev(t)
	const g = "group:g1"
	wantSays(t, d.ok("join", "--conversation", g, "--user", "alice"), "alice joined, membership 1", "there are no messages")
	wantSays(t, d.ok("send", "--conversation", g, "--from", "alice", "--text", "hello", "--id", "m-1", "--wait"), "id m-1  seq 1\n")
	wantSays(t, d.ok("send", "--conversation", g, "--from", "alice", "--text", "hello", "--id", "m-1", "--wait"), "seq 1  (had been sent before)")
	res := objects[struct{ Seq, ClientMessageID string }](t, d.ok("send", "--conversation", g, "--from", "bob", "--json", `{"lat":1.5}`,
		"--kind", "place", "--mention", "alice", "--attr", "a=b=c", "--device", "phone", "--wait", "-o", "json"))
	if len(res) != 1 || res[0].Seq != "2" || res[0].ClientMessageID == "" {
		t.Errorf("got %+v", res)
	}
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("\x00\x01\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.ok("send", "--conversation", g, "--from", "bob", "--data-file", file, "--kind", "image", "--wait")

	text := d.ok("pull", "--user", "alice", "--conversation", g)
	wantSays(t, text, "1    ", "hello", `{"lat":1.5}`, "(3 bytes)", "3 messages, can see 1 to 3, that is all")
	wantSays(t, d.ok("pull", "--user", "alice", "--conversation", g, "--num", "1", "--order", "desc"), "1 message, can see 1 to 3, 1 to 2 not read (--all reads them)")
	pages := objects[page](t, d.ok("pull", "--user", "alice", "--conversation", g, "-o", "json"))
	if len(pages) != 1 || len(pages[0].Messages) != 3 || !pages[0].IsEnd {
		t.Fatalf("got %+v", pages)
	}
	if m := pages[0].Messages[1]; m.Kind != "place" || m.Attributes["a"] != "b=c" || !slices.Equal(m.Mentions, []string{"alice"}) || m.JSON == nil {
		t.Errorf("got %+v", m)
	}
	if r := d.run("", "pull", "--user", "alice", "--conversation", g, "--conversation", "group:none"); r.code != exitFailed || !strings.Contains(r.out, "hello") || !strings.Contains(r.errOut, "group:none: not_found") {
		t.Errorf("one of two fails: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	first := d.ok("pull", "--user", "alice", "--conversation", g, "-o", "json")
	if again := d.ok("pull", "--user", "alice", "--conversation", g, "-o", "json"); first != again {
		t.Error("the same question gives other bytes")
	}

	wantSays(t, d.ok("watermarks", "--user", "alice"), "CONVERSATION", g)
	if got := d.ok("watermarks", "--user", "alcie"); got != "no conversations\n" {
		t.Errorf("of a user without conversations it says %q", got)
	}
	if got := d.ok("watermarks", "--user", "alcie", "-o", "json"); got != "" {
		t.Errorf("of a user without conversations it says %q", got)
	}
	for want, args := range map[string][]string{
		"refused (no_such_seq): there is no such seq in this conversation\n":                    {"revoke", "--conversation", g, "--seq", "99"},
		"refused (id_reused): the sender gave this client message id to other content before\n": {"send", "--conversation", g, "--from", "alice", "--text", "other", "--id", "m-1", "--wait"},
	} {
		if r := d.run("", args...); r.code != exitFailed || r.errOut != "tidemark: "+want {
			t.Errorf("exit code %d: %s, want %s", r.code, r.errOut, want)
		}
	}
	type marks struct {
		Conversation, MaxSeq, ReadSeq, Unread string
		Member                                bool
	}
	want := marks{g, "3", "1", "2", true}
	if got := objects[marks](t, d.ok("watermarks", "--user", "alice", "-o", "json")); len(got) != 1 || got[0] != want {
		t.Errorf("watermarks %+v, want %+v", got, want)
	}
	wantSays(t, d.ok("read", "--user", "alice", "--conversation", g, "--seq", "2"), "alice has read up to 2, 1 unread")
	if got := objects[struct{ ReadSeq, Unread string }](t, d.ok("read", "--user", "alice", "--conversation", g, "--seq", "99", "-o", "json")); len(got) != 1 || got[0].ReadSeq != "3" || got[0].Unread != "0" {
		t.Errorf("got %+v", got)
	}
	d.ok("send", "--conversation", "single:alice:bob", "--from", "alice", "--text", "psst", "--wait")
	d.ok("read", "--user", "bob", "--conversation", "single:alice:bob", "--seq", "1", "--tell-peer")
	if got := objects[struct{ PeerReceiptSeq string }](t, d.ok("watermarks", "--user", "alice", "--conversation", "single:alice:bob", "-o", "json")); len(got) != 1 || got[0].PeerReceiptSeq != "1" {
		t.Errorf("the peer is not told: %+v", got)
	}
}

func TestWindows(t *testing.T) {
	d := startDev(t)
	const g = "group:w"
	send := func(text string) { d.ok("send", "--conversation", g, "--from", "alice", "--text", text, "--wait") }
	d.ok("join", "--conversation", g, "--user", "alice")
	for i := range 4 {
		send(fmt.Sprint("t", i+1))
	}
	wantSays(t, d.ok("join", "--conversation", g, "--user", "bob", "--history", "from:3", "--op-id", "op-1"), "bob joined, membership 1, can see 3 to 4")
	wantSays(t, d.ok("join", "--conversation", g, "--user", "bob", "--history", "from:3", "--op-id", "op-1"), "nothing changed")
	wantSays(t, d.ok("join", "--conversation", g, "--user", "carol", "--history", "all"), "can see 1 to 4")
	if got, want := d.pullAll("bob", g), []string{"3 t3", "4 t4"}; !slices.Equal(got, want) {
		t.Errorf("bob sees %q, want %q", got, want)
	}
	wantSays(t, d.ok("kick", "--conversation", g, "--user", "bob", "--membership", "7"), "nothing changed")
	wantSays(t, d.ok("kick", "--conversation", g, "--user", "bob", "--membership", "1", "--actor", "admin"), "bob was removed")
	wantSays(t, d.ok("leave", "--conversation", g, "--user", "carol"), "carol left")
	send("t5")
	if got, want := d.pullAll("carol", g), []string{"1 t1", "2 t2", "3 t3", "4 t4"}; !slices.Equal(got, want) {
		t.Errorf("carol sees %q, want %q", got, want)
	}
	wantSays(t, d.ok("revoke", "--conversation", g, "--seq", "2", "--actor", "alice"), "message 2 is revoked")
	wantSays(t, d.ok("pull", "--user", "alice", "--conversation", g), "(revoked by alice)")
	wantSays(t, d.ok("raise-min", "--conversation", g, "--seq", "2"), "everything below 2 is deleted; its seqs are 2 to 5")
	wantSays(t, d.ok("clear", "--conversation", g, "--user", "alice"), "alice cleared it")
	wantSays(t, d.ok("pull", "--user", "alice", "--conversation", g), "0 messages, nothing can be seen")
	if got := objects[struct{ OpID string }](t, d.ok("clear", "--conversation", g, "--user", "alice", "--op-id", "x", "-o", "json")); len(got) != 1 || got[0].OpID != "x" {
		t.Errorf("got %+v", got)
	}
}

func TestSendingLines(t *testing.T) {
	d := startDev(t)
	var in strings.Builder
	want := map[string][]string{}
	for i := range 40 {
		conv := fmt.Sprint("group:l", i%3)
		want[conv] = append(want[conv], fmt.Sprintf("%d t%d", len(want[conv])+1, i))
		fmt.Fprintf(&in, `{"conversation":%q,"sender":"alice","text":"t%d"}`+"\r\n", conv, i)
	}
	in.WriteString("\nnonsense\n" + `{"conversation":"x","sender":"alice","text":"t"}` + "\n" + `{"conversation":"group:l0","sendr":"a"}`)
	for name, args := range map[string][]string{
		"sync":  {"send", "--input", "-", "--wait", "-o", "json"},
		"kafka": {"send", "--input", "-", "--kafka", d.kafka},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(in.String(), "group:l", "group:"+name)
			r := d.run(text, args...)
			if r.code != exitFailed {
				t.Errorf("exit code %d", r.code)
			}
			wantSays(t, r.errOut, "tidemark: line 42: is not a message", "tidemark: line 43: ", `conversation "x"`, "line 44: ", `unknown field "sendr"`, "3 of 43 messages failed")
			if name == "sync" {
				seqs := map[string][]string{}
				for _, l := range objects[sentLine](t, r.out) {
					seqs[l.Conversation] = append(seqs[l.Conversation], fmt.Sprint(l.Seq))
				}
				if got := seqs["group:sync0"]; len(got) != 14 || got[0] != "1" || got[13] != "14" {
					t.Errorf("seqs %v", got)
				}
			} else {
				wantSays(t, r.out, "sent 40, failed 3")
			}
			d.ok("lag", "--until-zero")
			for conv, msgs := range want {
				conv = strings.ReplaceAll(conv, "group:l", "group:"+name)
				if got := d.pullAll("alice", conv); !slices.Equal(got, msgs) {
					t.Errorf("%s has %q, want %q", conv, got, msgs)
				}
			}
		})
	}
	r := tidemark(t, in.String(), "send", "--input", "-", "--server", "127.0.0.1:1", "--timeout", "10s")
	if r.code != exitFailed {
		t.Errorf("without a server: exit code %d", r.code)
	}
	wantSays(t, r.errOut, "nothing listens", "the other side cannot be reached")
}

// An interrupt must not wait for a line that nobody types.
func TestStopWhileWaitingForLines(t *testing.T) {
	d := startDev(t)
	in, typist, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a := &app{in: in, out: &buffer{}, errOut: &buffer{}}
	b := &background{t: t, out: a.out.(*buffer), errOut: a.errOut.(*buffer), done: make(chan struct{})}
	ctx, cancel := contextOf(t)
	b.cancel = cancel
	go func() {
		defer close(b.done)
		b.code = a.execute(ctx, []string{"send", "--input", "-", "--wait", "-o", "json", "--server", d.sync})
	}()
	fmt.Fprintln(typist, `{"conversation":"group:s","sender":"alice","text":"t"}`)
	b.await(`"line":1`)
	if r := b.stop(); r.code != exitFailed || !strings.Contains(r.errOut, "stopped after line 1") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	if err := typist.Close(); err != nil { // lets the reader go
		t.Error(err)
	}
}

func TestLongLines(t *testing.T) {
	d := startDev(t)
	line := func(n int) string {
		return `{"conversation":"group:l","sender":"a","text":"` + strings.Repeat("x", n) + `"}` + "\n"
	}
	r := d.run(line(maxLine)+line(10)+line(70<<10), "send", "--input", "-")
	wantSays(t, r.out, "sent 1, failed 2")
	wantSays(t, r.errOut, "line 1: is longer than", "line 3: ")
}

func TestWatch(t *testing.T) {
	d := startDev(t)
	const g = "group:v"
	d.ok("join", "--conversation", g, "--user", "bob")
	for i := range 3 {
		d.ok("send", "--conversation", g, "--from", "alice", "--text", fmt.Sprint("early", i), "--wait")
	}
	w := start(t, "watch", "--user", "bob", "--newest", "1", "--count", "3", "--server", d.sync, "--gateway", d.gateway)
	events := start(t, "watch", "--user", "bob", "--events", "-o", "json", "--server", d.sync, "--gateway", d.gateway)
	w.await("early2")
	events.await("early2")
	d.ok("send", "--conversation", g, "--from", "alice", "--text", "live\x1b[1m", "--wait")
	d.ok("send", "--conversation", "single:alice:bob", "--from", "alice", "--text", "you too", "--wait")
	r := w.wait()
	if r.code != exitOK || strings.Contains(r.out, "early1") || strings.Contains(r.out, "\x1b") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, r.out, g+" #3  alice: early2", g+` #4  alice: live\u001b[1m`, "single:alice:bob #1  alice: you too")
	d.ok("read", "--user", "bob", "--conversation", g, "--seq", "4")
	events.await(`"readSeq":"4"`)
	if r := events.stop(); r.code != exitOK {
		t.Errorf("stopped with exit code %d: %s", r.code, r.errOut)
	}
	for line := range strings.Lines(events.out.String()) {
		if m, e := (&tidemarkv1.Message{}), (&tidemarkv1.PushEvent{}); protojson.Unmarshal([]byte(line), m) != nil && protojson.Unmarshal([]byte(line), e) != nil {
			t.Errorf("%q is neither a message nor an event", line)
		}
	}
	if r := d.run("", "watch", "--user", "bob", "--gateway", "127.0.0.1:1"); r.code != exitFailed || !strings.Contains(r.errOut, "--gateway ws://127.0.0.1:1/connection/websocket") {
		t.Errorf("without a gateway: exit code %d: %s", r.code, r.errOut)
	}
}

// A device that outlives its server learns that the next one knows less.
func TestWatchAcrossARestart(t *testing.T) {
	free := func() string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		return ln.Addr().String()
	}
	at := []string{"--sync", free(), "--gateway", free()}
	d := startDev(t, at...)
	for range 2 {
		d.ok("send", "--conversation", "single:alice:bob", "--from", "alice", "--text", "kept", "--wait")
		d.ok("send", "--conversation", "single:alice:carol", "--from", "alice", "--text", "lost", "--wait")
	}
	w := start(t, "watch", "--user", "alice", "--server", d.sync, "--gateway", d.gateway)
	w.await("single:alice:bob #2")
	w.await("single:alice:carol #2")
	d.stop()
	w.awaitIn(w.errOut, "tidemark: the connection to the gateway is lost (")
	if strings.Contains(w.errOut.String(), "is back") {
		t.Errorf("it says too much:\n%s", w.errOut)
	}
	d = startDev(t, at...)
	d.ok("send", "--conversation", "single:alice:bob", "--from", "alice", "--text", "new", "--wait")
	w.awaitIn(w.errOut, "tidemark: the connection to the gateway is back\n")
	w.awaitIn(w.errOut, "single:alice:carol: the server's latest seq is 0, but 2 was received before: it lost messages")
	w.stop()
}

func TestTopicsAndLag(t *testing.T) {
	d := startDev(t)
	wantSays(t, d.ok("topics", "check"), "TOPIC", "toRedis", "sequenced", "deadLetter")
	wantSays(t, d.ok("topics", "describe", "--set", "kafka.topic_prefix=other-"), "other-toRedis", "missing")
	if r := d.run("", "topics", "check", "--set", "kafka.topic_prefix=other-"); r.code != exitFailed || !strings.Contains(r.errOut, "topic other-toRedis is missing") || !strings.Contains(r.errOut, "'tidemark topics create'") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	if r := d.run("", "send", "--conversation", "group:g", "--from", "a", "--text", "x", "--kafka", d.kafka, "--set", "kafka.topic_prefix=other-"); r.code != exitFailed || !strings.Contains(r.errOut, "no topic other-toRedis") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	got := objects[topicLine](t, d.ok("topics", "create", "-o", "json", "--set", "kafka.topic_prefix=other-", "--set", "kafka.partitions=3"))
	if len(got) != 3 || got[0].Name != "other-toRedis" || got[0].Partitions != 3 || got[0].Missing || got[0].ID == "" {
		t.Errorf("got %+v", got)
	}
	d.ok("topics", "check", "--set", "kafka.topic_prefix=other-")

	d.ok("send", "--conversation", "group:g", "--from", "a", "--text", "x", "--kafka", d.kafka)
	lines := objects[lagLine](t, d.ok("lag", "--until-zero", "-o", "json"))
	var committed int64
	for _, l := range lines {
		committed += max(l.Committed, 0)
		if l.Records != 0 {
			t.Errorf("%+v", l)
		}
	}
	if len(lines) != 6 || committed < 3 {
		t.Errorf("6 partitions are read, 3 workers handle the message: %+v", lines)
	}
	wantSays(t, d.ok("lag"), "COMMITTED", "tidemark-toredis")

	// Nobody reads these topics.
	d.ok("send", "--conversation", "group:g", "--from", "a", "--text", "x", "--kafka", d.kafka, "--set", "kafka.topic_prefix=other-")
	before := time.Now()
	r := d.run("", "lag", "--until-zero", "--timeout", "1s", "--set", "kafka.topic_prefix=other-")
	if r.code != exitFailed || !strings.Contains(r.errOut, "still 1 records behind") || time.Since(before) < time.Second {
		t.Errorf("exit code %d after %s: %s", r.code, time.Since(before), r.errOut)
	}
}

func TestTheListOfAUser(t *testing.T) {
	d := startDev(t)
	const g, c = "group:g1", "single:alice:bob"
	version := func(out string) string {
		_, v, _ := strings.Cut(strings.TrimSpace(out), "Version: ")
		return v
	}
	empty := d.ok("list", "--user", "alice")
	wantSays(t, empty, "0 conversations, 0 unread, 0 of them not muted. Version: ")
	d.ok("join", "--conversation", g, "--user", "alice")
	d.ok("join", "--conversation", g, "--user", "bob")
	d.ok("send", "--conversation", g, "--from", "bob", "--text", "look here", "--mention", "alice", "--wait")
	d.ok("send", "--conversation", c, "--from", "alice", "--text", "hi", "--wait")
	first := d.ok("list", "--user", "alice", "--list-version", version(empty))
	wantSays(t, first, "CONVERSATION", g, "bob: look here", c, "alice: hi", "2 conversations, 1 unread, 1 of them not muted")
	wantSays(t, d.ok("attributes", "--conversation", g, "--user", "alice", "--attribute", "muted=1", "--attribute", "pinned=yes"), "alice set muted=1 pinned=yes")
	d.ok("kick", "--conversation", g, "--user", "bob")
	second := d.ok("list", "--user", "alice", "--list-version", version(first))
	wantSays(t, second, g, "muted=1 pinned=yes", "1 unread, 0 of them not muted")
	if strings.Contains(second, c) {
		t.Errorf("what did not change is shown:\n%s", second)
	}
	wantSays(t, d.ok("list", "--user", "alice", "--list-version", version(second)), "Nothing changed.")
	wantSays(t, d.ok("list", "--user", "bob", "--list-version", version(second)), "Nothing can be said since that version", "left")
	d.ok("read", "--user", "alice", "--conversation", g, "--seq", "1")
	wantSays(t, d.ok("readers", "--user", "alice", "--conversation", g, "--seq", "1"), "2 readers", "alice  1", "bob    1")
	wantSays(t, d.ok("policy", "--conversation", g, "--policy", "keep_on_send"), "its unread policy is keep_on_send")
	wantSays(t, d.ok("policy", "--conversation", g, "--policy", "keep_on_send"), "nothing changed")
	res := objects[struct {
		Changed []struct {
			Watermarks struct{ Conversation, Unread string }
			Attributes map[string]string
		}
		Version string
	}](t, d.ok("list", "--user", "alice", "-o", "json"))
	if len(res) != 1 || len(res[0].Changed) != 2 || res[0].Version == "" {
		t.Errorf("got %+v", res)
	}
	for _, args := range [][]string{{"policy", "--conversation", g, "--policy", "x"}, {"attributes", "--conversation", g, "--user", "alice", "--attribute", "muted"}} {
		if r := d.run("", args...); r.code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
	}
	if r := d.run("", "attributes", "--conversation", g, "--user", "bob", "--attribute", "muted=1"); r.code != exitFailed || !strings.Contains(r.errOut, "not_member") {
		t.Errorf("of a user who left: exit code %d, %s", r.code, r.errOut)
	}
}
