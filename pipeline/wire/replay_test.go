package wire_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// died gives the dead letter of r, as it is read from its topic.
func died(t *testing.T, r wire.Record) wire.DeadLetter {
	t.Helper()
	out, err := wire.EncodeDeadLetter(wire.DeadLetter{
		Record: r, Reason: "invalid", Cause: "x", First: r.Time.Add(time.Second), Last: r.Time.Add(time.Second), Tries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := wire.DecodeDeadLetter(wire.Record{Topic: "deadLetter", Key: []byte(out.Key), Value: out.Value, Headers: out.Headers})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// replayed gives the record that a replay of d comes to stand as.
func replayed(t *testing.T, d wire.DeadLetter, offset int64) wire.Record {
	t.Helper()
	out, err := d.Replay()
	if err != nil {
		t.Fatal(err)
	}
	if out.Partition != -1 || out.Topic != d.Record.Topic || out.Key != string(d.Record.Key) || string(out.Value) != string(d.Record.Value) || !out.Time.IsZero() {
		t.Errorf("out = %+v", out)
	}
	r := record(out.Value, out.Headers...)
	r.Offset, r.Time = offset, at.Add(time.Duration(offset)*time.Second)
	return r
}

func decoded(t *testing.T, r wire.Record) watermark.Input {
	t.Helper()
	in, err := wire.Codec{}.DecodeInput(r)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// A replay is decided anew, at its own place, and is the same message all the
// same: by the id that its first place gives it, however often it dies.
func TestReplayIsANewInputOfTheSameMessage(t *testing.T) {
	anonymous := send()
	anonymous.ClientMessageId = ""
	first := record(binary(t, anonymous))
	elsewhere := first
	elsewhere.Partition, elsewhere.Offset = 7, 5
	out, err := wire.Forward(elsewhere, "single:a:b")
	if err != nil {
		t.Fatal(err)
	}
	forwarded := record(out.Value, out.Headers...)
	waited := record(binary(t, send()), header("tidemark-caller", "sync-1"), header("trace", "x"))
	for name, r := range map[string]wire.Record{"without an id": first, "forwarded": forwarded, "with an id": waited} {
		t.Run(name, func(t *testing.T) {
			want := decoded(t, r)
			again := r
			for offset := int64(100); offset < 103; offset++ {
				again = replayed(t, died(t, again), offset)
				in := decoded(t, again)
				if in.Message.ClientID != want.Message.ClientID || in.Message.SendTime != want.Message.SendTime || in.Message.Hash != want.Message.Hash {
					t.Errorf("replayed as %+v, was %+v", in.Message, want.Message)
				}
				if in.Origin != again.Place() || in.Time != again.Time.UnixMilli() || in.Message.RecordTime != in.Time || in.Caller != "" {
					t.Errorf("the replay at %v is an input at %v, time %d, for %q", again.Place(), in.Origin, in.Time, in.Caller)
				}
				if n := strings.Count(string(headersOf(again)), "tidemark-replay"); n != 1 {
					t.Errorf("%d notes", n)
				}
			}
			d := died(t, again)
			if d.Tries != 4 || !d.First.Equal(r.Time.Add(time.Second).Truncate(time.Millisecond)) || !d.Last.After(d.First) {
				t.Errorf("after three replays: %d tries, first %v, last %v", d.Tries, d.First, d.Last)
			}
			// A replay that stands on a wrong partition is forwarded as what it is.
			stray := again
			stray.Partition = 9
			out, err := wire.Forward(stray, "single:a:b")
			if err != nil {
				t.Fatal(err)
			}
			in := decoded(t, record(out.Value, out.Headers...))
			if in.Message.ClientID != want.Message.ClientID || in.Origin != stray.Place() {
				t.Errorf("forwarded as %s at %v", in.Message.ClientID, in.Origin)
			}
		})
	}
}

func headersOf(r wire.Record) (all []byte) {
	for _, h := range r.Headers {
		all = append(append(all, h.Key...), ' ')
	}
	return all
}

// A header that no forwarder wrote made the record a dead letter: without it
// the record stands for itself.
func TestReplayIgnoresAForgedOrigin(t *testing.T) {
	r := record(binary(t, send()), header("tidemark-origin", "other/1/1000000/5"))
	if _, err := (wire.Codec{}).DecodeInput(r); err == nil {
		t.Fatal("the origin is believed")
	}
	if in := decoded(t, replayed(t, died(t, r), 50)); in.Origin.Offset != 50 || in.Message.SendTime != at.UnixMilli() {
		t.Errorf("got %+v", in)
	}
}

func TestReplayedCommandsKeepTheirOp(t *testing.T) {
	c := &v1.Command{Conversation: "group:g", OpId: "op-1", Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: "bob"}}}
	out, err := wire.EncodeCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	in := decoded(t, replayed(t, died(t, record(out.Value, out.Headers...)), 60))
	if in.OpID != "op-1" || in.Act != watermark.ActClear || in.Origin.Offset != 60 {
		t.Errorf("got %+v", in)
	}
}

func TestReplayNotesThatAreNone(t *testing.T) {
	for name, v := range map[string]string{
		"no json": "x", "too long": `{"x":"` + strings.Repeat("y", 2000) + `"}`, "no place": `{}`, "half a place": `{"first":"t/1/2/3","letter":"t/1"}`,
		"negative": `{"first":"t/1/2/3","letter":"t/1/2/3","tries":-1}`, "overflow": `{"first":"t/1/99999999999999999999/3","letter":"t/1/2/3"}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := record(binary(t, send()), header("tidemark-replay", v))
			_, err := wire.Codec{}.DecodeInput(r)
			wantPoison(t, err, watermark.ReasonUndecodable, "tidemark-replay")
			d := died(t, r)
			if d.Tries != 1 {
				t.Errorf("%d tries", d.Tries)
			}
			if in := decoded(t, replayed(t, d, 70)); in.Message.ClientID != "c1" {
				t.Errorf("got %+v", in)
			}
			if wire.ReplayedLetter(&r) != "" {
				t.Error("it names a letter")
			}
		})
	}
	r := replayed(t, died(t, record(binary(t, send()))), 3)
	if got := wire.ReplayedLetter(&r); got != "Zm9vYmFyYmF6cXV4/3/42" {
		t.Errorf("it replays %q", got)
	}
}

func TestLettersWithoutContent(t *testing.T) {
	r := replayed(t, died(t, record(binary(t, send()))), 8)
	whole := wire.DeadLetter{Record: r, Reason: "invalid", Cause: "x", First: at.Add(time.Hour), Last: at.Add(time.Hour), Tries: 1}
	out, err := wire.EncodeDeadLetter(whole.WithoutContent(errors.New("too large")))
	if err != nil {
		t.Fatal(err)
	}
	d, err := wire.DecodeDeadLetter(wire.Record{Key: []byte(out.Key), Value: out.Value, Headers: out.Headers})
	if err != nil || d.Omitted != len(r.Value) || d.Tries != 2 || d.First.After(at.Add(time.Minute)) || d.Record.Value != nil || d.Record.Headers != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := d.Replay(); err == nil || !strings.Contains(err.Error(), "left out") {
		t.Errorf("replayed without its content: %v", err)
	}
	_, err = wire.DecodeDeadLetter(wire.Record{Headers: append(out.Headers, header("tidemark-dead-letter-omitted", "-1"))})
	wantPoison(t, err, watermark.ReasonUndecodable, "tidemark-dead-letter-omitted")
}

func TestMarksRoundTrip(t *testing.T) {
	for _, want := range []wire.Mark{
		{Letter: "T/3/42", Deed: wire.Replaying, Time: at.UTC(), Topic: "toRedis", Ends: map[int32]int64{0: 5, 3: 1 << 60}},
		{Letter: "T/3/42", Deed: wire.Replayed, Time: at.UTC()},
		{Letter: "T/3/42", Deed: wire.Dropped, Why: "a \"test\"\nof kcat", Time: at.UTC()},
	} {
		out, err := wire.EncodeMark(want)
		if err != nil {
			t.Fatal(err)
		}
		r := wire.Record{Key: []byte(out.Key), Value: out.Value, Headers: out.Headers}
		got, err := wire.DecodeMark(r)
		if d := cmp.Diff(want, got); err != nil || d != "" || !wire.IsMark(&r) || out.Key != "T/3/42" || out.Value != nil {
			t.Errorf("%v %+v (-want +got):\n%s", err, out, d)
		}
		if _, err := wire.DecodeDeadLetter(r); fault.ClassOf(err) != fault.Poison {
			t.Errorf("a mark is taken for a letter: %v", err)
		}
	}
	for _, v := range []string{"x", `{"letter":"T/3/42","deed":"eaten"}`, `{"letter":"T/3","deed":"dropped"}`, `{"deed":"dropped"}`} {
		if _, err := wire.DecodeMark(wire.Record{Headers: []wire.Header{header("tidemark-dead-letter-mark", v)}}); fault.ClassOf(err) != fault.Poison {
			t.Errorf("%s: %v", v, err)
		}
	}
	// A producer's own header does not make a letter a mark.
	d, err := wire.EncodeDeadLetter(wire.DeadLetter{Record: record(nil, header("tidemark-dead-letter-mark", `{"letter":"T/3/42","deed":"dropped"}`))})
	r := wire.Record{Headers: d.Headers}
	if err != nil || wire.IsMark(&r) || strings.Contains(string(headersOf(r)), "letter-mark") {
		t.Errorf("%v, %v", d.Headers, err)
	}
}

func TestGlances(t *testing.T) {
	command, err := wire.EncodeCommand(&v1.Command{Conversation: "group:g", OpId: "op-1", Actor: "root", Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: "bob"}}})
	if err != nil {
		t.Fatal(err)
	}
	value, err := wire.EncodeRecord(watermark.Record{Conversation: "group:s", Events: []watermark.Event{watermark.MinSeqRaised{Min: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	sequenced := record(value)
	sequenced.Topic = "p.sequenced"
	broken := sequenced
	broken.Value, broken.Key = []byte("x"), []byte("group:k")
	for name, tt := range map[string]struct {
		r    wire.Record
		want wire.Glance
	}{
		"binary":        {record(binary(t, send())), wire.Glance{Kind: "send", Conversation: "single:a:b", Sender: "a", ClientID: "c1"}},
		"not valid":     {record([]byte(`{"conversation":"group:a:b","sender":"x:y"}`)), wire.Glance{Kind: "send", Conversation: "group:a:b", Sender: "x:y"}},
		"command":       {record(command.Value, command.Headers...), wire.Glance{Kind: "command", Conversation: "group:g", Sender: "root", ClientID: "op-1"}},
		"no command":    {record([]byte{0xff}, command.Headers...), wire.Glance{}},
		"sequenced":     {sequenced, wire.Glance{Kind: "sequenced", Conversation: "group:s"}},
		"not sequenced": {broken, wire.Glance{Conversation: "group:k"}},
		"nothing":       {record(nil), wire.Glance{}},
	} {
		got := wire.GlanceAt(&tt.r)
		if (got.Content != nil) != (tt.want.Kind == "send" || tt.want.Kind == "command") {
			t.Errorf("%s: content %v", name, got.Content)
		}
		if got.Content = nil; got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}
