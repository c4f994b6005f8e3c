package sqlite_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/client/sqlite"
)

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.New(sqlite.Config{Path: path, User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func message(conv string, seq int64, text string) *tidemarkv1.Message {
	return &tidemarkv1.Message{Conversation: conv, Seq: seq, Body: &tidemarkv1.Message_Text{Text: text}}
}

func out(conv, id string) *tidemarkv1.SendMessage {
	return &tidemarkv1.SendMessage{Conversation: conv, ClientMessageId: id, Body: &tidemarkv1.SendMessage_Text{Text: "text of " + id}}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// What a call kept is there for whoever opens the file next, also when the one
// who called did not close it.
func TestWhatIsKeptIsThereAfterwards(t *testing.T) {
	path, ctx := filepath.Join(t.TempDir(), "a file?#%.db"), t.Context()
	s := open(t, path)
	numbers := map[string]client.Numbers{"group:a": {Seq: 2, Read: 1, Repair: 1<<53 - 1, Listed: true}, "single:alice:bob": {Seq: 7}}
	must(t,
		s.Save(ctx, "group:a", client.Numbers{Seq: 1}), s.Save(ctx, "group:a", numbers["group:a"]), s.Save(ctx, "single:alice:bob", numbers["single:alice:bob"]),
		s.SaveVersion(ctx, "v1"), s.SaveVersion(ctx, "v2"),
		s.Keep(ctx, client.Update{Message: message("group:a", 2, "two")}), s.Keep(ctx, client.Update{Message: message("group:a", 1, "one")}),
		s.Keep(ctx, client.Update{Message: message("group:a", 2, "two again"), Again: true}), s.Keep(ctx, client.Update{Message: message("group:b", 1, "other")}),
		s.Put(ctx, out("group:a", "1")), s.Put(ctx, out("group:b", "1")), s.Put(ctx, out("group:a", "2")), s.Put(ctx, out("group:a", "1")),
		s.Remove(ctx, "group:b", "1"), s.Remove(ctx, "group:b", "none"),
	)
	s = open(t, path)
	got, err := s.Load(ctx)
	must(t, err)
	if diff := cmp.Diff(numbers, got); diff != "" {
		t.Errorf("numbers (-want +got): %s", diff)
	}
	if v, err := s.LoadVersion(ctx); v != "v2" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	msgs, err := s.Messages(ctx, "group:a", 0, 10)
	must(t, err)
	if diff := cmp.Diff([]*tidemarkv1.Message{message("group:a", 1, "one"), message("group:a", 2, "two again")}, msgs, protocmp.Transform()); diff != "" {
		t.Errorf("messages (-want +got): %s", diff)
	}
	if msgs, err = s.Messages(ctx, "group:a", 0, 1); err != nil || len(msgs) != 1 || msgs[0].GetSeq() != 1 {
		t.Errorf("the first of them: %v, %v", msgs, err)
	}
	if msgs, err = s.Messages(ctx, "group:a", 1, 10); err != nil || len(msgs) != 1 || msgs[0].GetSeq() != 2 {
		t.Errorf("after the first: %v, %v", msgs, err)
	}
	waiting, err := s.Waiting(ctx)
	must(t, err)
	if diff := cmp.Diff([]*tidemarkv1.SendMessage{out("group:a", "1"), out("group:a", "2")}, waiting, protocmp.Transform()); diff != "" {
		t.Errorf("outbox (-want +got): %s", diff)
	}
}

func TestForgetLeavesWhatIsVisible(t *testing.T) {
	s, ctx := open(t, filepath.Join(t.TempDir(), "db")), t.Context()
	for seq := range int64(10) {
		must(t, s.Keep(ctx, client.Update{Message: message("group:a", seq+1, "x")}), s.Keep(ctx, client.Update{Message: message("group:b", seq+1, "x")}))
	}
	must(t, s.Forget(ctx, "group:a", []*tidemarkv1.Range{{Begin: 2, End: 3}, {Begin: 9, End: 20}}), s.Forget(ctx, "group:b", nil))
	var seqs []int64
	msgs, err := s.Messages(ctx, "group:a", 0, 100)
	must(t, err)
	for _, m := range msgs {
		seqs = append(seqs, m.GetSeq())
	}
	if diff := cmp.Diff([]int64{2, 3, 9, 10}, seqs); diff != "" {
		t.Errorf("left (-want +got): %s", diff)
	}
	if msgs, err = s.Messages(ctx, "group:b", 0, 100); err != nil || len(msgs) != 0 {
		t.Errorf("%d messages, %v", len(msgs), err)
	}
}

func TestAFileIsOneUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	open(t, path)
	if _, err := sqlite.New(sqlite.Config{Path: path, User: "bob"}); !errors.Is(err, sqlite.ErrOtherUser) {
		t.Errorf("opened by bob: %v", err)
	}
	for name, cfg := range map[string]sqlite.Config{
		"nothing": {}, "no user": {Path: path}, "no directory": {Path: filepath.Join(path, "x"), User: "alice"},
	} {
		if s, err := sqlite.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
			s.Close()
		}
	}
}
