package importer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

// openIM imports the lines of three collections.
func openIM(t *testing.T, to importer.Target, cfg importer.Config, msg, seq, user []string) (*importer.Report, error) {
	t.Helper()
	src, err := importer.OpenIM(t.Context(), importer.OpenIMFiles{Messages: file(t, msg...), Seq: file(t, seq...), SeqUser: file(t, user...)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}()
	cfg.Source, cfg.To = src, to
	return importer.Import(t.Context(), cfg)
}

// oim is a message of a block; without a sender it is null, as one that was
// never stored.
func oim(seq int, sender, peer, content, more string) string {
	if sender == "" {
		return `{"msg":null,"revoke":null,"del_list":[],"is_read":false}`
	}
	return fmt.Sprintf(`{"msg":{"send_id":%q,"recv_id":%q,"group_id":"","client_msg_id":"cm%d","server_msg_id":"sm%d","session_type":1,"content_type":101,`+
		`"content":%q,"seq":{"$numberLong":"%d"},"send_time":%d,"create_time":%d,"status":2,"options":{}}%s}`, sender, peer, seq, seq, content, seq, 5000+seq, 4000+seq, more)
}

func block(id string, msgs ...string) string {
	return fmt.Sprintf(`{"_id":{"$oid":"x"},"doc_id":%q,"msgs":[%s]}`, id, strings.Join(msgs, ","))
}

func blockOf(conv string, first, last int, sender, peer string) []string {
	var out []string
	for from := first; from <= last; {
		n := (from - 1) / 100
		var msgs []string
		for seq := n*100 + 1; seq <= min(n*100+100, last); seq++ {
			if seq < first {
				msgs = append(msgs, oim(seq, "", "", "", ""))
			} else {
				msgs = append(msgs, oim(seq, sender, peer, "text", ""))
			}
		}
		out = append(out, block(fmt.Sprint(conv, ":", n), msgs...))
		from = n*100 + 101
	}
	return out
}

func TestOpenIM(t *testing.T) {
	h := storagetest.NewMemory()
	msg := slices.Concat(
		blockOf("sg_777", 1, 1205, "ann", ""), // block 10 comes before block 2 in an export that is sorted by doc_id
		[]string{
			block("si_ann_bob:0", oim(1, "ann", "bob", `{"content":"hi"}`, `,"is_read":true,"del_list":["bob"]`), oim(2, "", "", "", ""),
				oim(3, "bob", "ann", "x", `,"revoke":{"role":1,"user_id":"bob","nickname":"B","time":6000}`),
				strings.Replace(oim(4, "ann", "bob", "", ""), `"status":2`, `"status":4`, 1), oim(5, "", "", "", "")),
			block("n_si_ann_bob:0", oim(1, "ann", "bob", "note", "")),
			block("si_a_b_c:0", oim(1, "b_c", "a", "x", "")),
			block("si_x_y_z:0", oim(1, "z", "x_y", "x", "")),
		})
	msg = append(msg, blockOf("sg_old", 8, 9, "ann", "")...)
	rand.Shuffle(len(msg), func(i, j int) { msg[i], msg[j] = msg[j], msg[i] })
	seq := []string{
		`{"conversation_id":"si_ann_bob","max_seq":{"$numberLong":"50"},"min_seq":{"$numberLong":"0"}}`,
		`{"conversation_id":"sg_old","max_seq":9,"min_seq":9}`,
		`{"conversation_id":"sg_777","max_seq":1205,"min_seq":0}`,
		`{"conversation_id":"n_si_ann_bob","max_seq":1,"min_seq":0}`,
		`{"conversation_id":"sg_gone","max_seq":20,"min_seq":21}`,
	}
	user := []string{
		`{"user_id":"bob","conversation_id":"si_ann_bob","min_seq":3,"max_seq":0,"read_seq":50}`,
		`{"user_id":"cid","conversation_id":"sg_777","min_seq":7,"max_seq":90,"read_seq":80}`,
		`{"user_id":"dan","conversation_id":"sg_777","min_seq":0,"max_seq":0,"read_seq":1}`,
		`{"user_id":"b_c","conversation_id":"si_a_b_c","min_seq":0,"max_seq":0,"read_seq":1}`,
	}
	rep, err := openIM(t, h, importer.Config{}, msg, seq, user)
	if err != nil {
		t.Fatalf("%v: %+v", err, rep.Faults)
	}
	if diff := cmp.Diff(importer.Skipped{Notifications: 2, BelowMin: 1, Unused: 46, DeletedForOne: 1, Holes: 1, Lowered: 1}, rep.Skipped); diff != "" {
		t.Error(diff)
	}
	if want := (importer.Counts{Conversations: 6, Messages: 1205 + 4 + 1 + 1 + 1, Members: 3 + 2 + 2 + 2 + 1}); rep.Imported != want {
		t.Errorf("imported %+v, want %+v", rep.Imported, want)
	}
	ids := []watermark.ConversationID{"group:777", "group:old", "single:ann:bob", "single:a:b_c", "single:x_y:z", "group:gone"}
	convs, err := h.Conversations(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	var bounds []watermark.Interval
	for _, c := range convs {
		bounds = append(bounds, watermark.Interval{First: c.Min, Last: c.Max})
	}
	if diff := cmp.Diff([]watermark.Interval{{First: 0, Last: 1205}, {First: 9, Last: 9}, {First: 0, Last: 4}, {First: 0, Last: 1}, {First: 0, Last: 1}, {First: 21, Last: 20}}, bounds); diff != "" {
		t.Error(diff)
	}
	rows, err := h.Messages(t.Context(), "single:ann:bob", watermark.Interval{First: 1, Last: 9}, 9)
	if err != nil || len(rows) != 4 {
		t.Fatal(rows, err)
	}
	if m := rows[0]; string(m.Body) != `{"content":"hi"}` || m.BodyType != watermark.BodyText || m.Kind != "openim.101" || m.ClientID != "cm1" ||
		m.SendTime != 4001 || m.RecordTime != 5001 || m.Attributes["openim.server_msg_id"] != "sm1" || m.Revoked != nil {
		t.Errorf("the message: %+v", m)
	}
	if m := rows[1]; m.Revoked == nil || m.Sender != "import" || m.Revoked.Seq != 2 {
		t.Errorf("the hole: %+v", m)
	}
	if r := rows[2].Revoked; r == nil || *r != (watermark.Revoked{Seq: 3, By: "bob", Time: 6000}) {
		t.Errorf("the revoked: %+v", rows[2])
	}
	if rows[3].Revoked == nil {
		t.Errorf("the deleted: %+v", rows[3])
	}
	states, err := h.States(t.Context(), []watermark.Want{{Conversation: "single:ann:bob", Roster: true}, {Conversation: "group:777", Roster: true}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[watermark.UserID]watermark.Member{
		"ann": {User: "ann", Read: 4},
		"bob": {User: "bob", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 3}}, Read: 4, Receipt: 1},
	}, states[0].Members); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[watermark.UserID]watermark.Member{
		"ann": {User: "ann", Read: 1205},
		"cid": {User: "cid", Version: 2, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 7, Upper: 90}}, Read: 80},
		"dan": {User: "dan", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}, Read: 1},
	}, states[1].Members); diff != "" {
		t.Error(diff)
	}
	before := dump(t, h)
	if again, err := openIM(t, h, importer.Config{}, msg, seq, user); err != nil || again.Written != (importer.Counts{}) || dump(t, h) != before {
		t.Errorf("again: %v, %+v", err, again)
	}
}

func TestOpenIMFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		msg  string
		says string
		lost bool
	}{
		"group id":    {block("sg_a b:0", oim(1, "ann", "", "x", "")), `bad id`, false},
		"other kind":  {block("xx_1:0", oim(1, "ann", "", "x", "")), `bad id: conversation "xx_1"`, false},
		"ambiguous":   {block("si_a_b_c:0", oim(1, "q", "r", "x", "")), `bad id: conversation "si_a_b_c"`, false},
		"sender":      {block("sg_1:0", oim(1, "a b", "", "x", "")), "sender", false},
		"a stranger":  {block("si_a_b:0", oim(1, "c", "b", "x", "")), "not one of the two users", false},
		"wrong place": {block("sg_1:0", oim(2, "a", "", "x", "")), "the message says seq 2, its place is that of 1", false},
		"type":        {block("sg_1:0", strings.Replace(oim(1, "a", "", "x", ""), `"send_time":5001`, `"send_time":"soon"`, 1)), "is not a block of messages", false},
		"long hole":   {block("sg_1:20000", oim(2000001, "a", "", "x", "")), "more than 1000000 at once", false},
		"doc id":      {block("sg_1", oim(1, "a", "", "x", "")), "is not conversation:block", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := storagetest.NewMemory()
			msg := []string{tt.msg, block("sg_zz:0", oim(1, "ann", "", "x", ""))}
			rep, err := openIM(t, h, importer.Config{}, msg, nil, nil)
			if !errors.Is(err, importer.ErrFaults) || !strings.Contains(rep.Faults[0].Detail, tt.says) || !strings.Contains(rep.Faults[0].At, "line 1") {
				t.Fatalf("%v, %+v", err, rep.Faults)
			}
			rep, err = openIM(t, h, importer.Config{SkipBad: true}, msg, nil, nil)
			if tt.lost != (err != nil) || err == nil && (rep.Imported.Messages != 1 || rep.Bad != 1) {
				t.Errorf("without the bad: %v, %+v", err, rep)
			}
		})
	}
}

// Sorted in many small files, an input is the same as one that came sorted.
func TestSort(t *testing.T) {
	sorted, h := storagetest.NewMemory(), storagetest.NewMemory()
	lines := slices.Clone(story)
	for n := -150; n < 150; n++ {
		lines = append(lines, fmt.Sprintf(`{"type":"message","conversation":"single:x:y","order":%d,"sender":"x","timeMs":5,"text":"text"}`, n))
	}
	imported(t, sorted, lines...)
	rand.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	path := file(t, lines...)
	old := importer.SetSortBytes(300)
	defer importer.SetSortBytes(old)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	steps := 0
	src, err := importer.Sort(t.Context(), path, convert.Limits{}, func() { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	rep, err := importer.Import(t.Context(), importer.Config{Source: src, To: h})
	if err != nil || steps != len(lines) {
		t.Fatalf("%v: %+v, %d steps", err, rep, steps)
	}
	if diff := cmp.Diff(dump(t, sorted), dump(t, h)); diff != "" {
		t.Error(diff)
	}
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// A message that was revoked in the other system since the first import.
func TestRevokedSince(t *testing.T) {
	h := storagetest.NewMemory()
	line := strings.Replace(said("group:g", 1, "ann", "a"), `"seq"`, `"order"`, 1)
	imported(t, h, line)
	rep := imported(t, h, strings.TrimSuffix(line, "}")+`,"revoked":{"by":"bob","timeMs":7}}`)
	rows, err := h.Messages(t.Context(), "group:g", watermark.Interval{First: 1, Last: 1}, 1)
	if err != nil || rep.Written.Messages != 1 || rows[0].Revoked == nil || *rows[0].Revoked != (watermark.Revoked{Seq: 1, By: "bob", Time: 7}) {
		t.Errorf("%+v, %+v, %v", rep, rows, err)
	}
}
