package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func letter() wire.DeadLetter {
	rec := record([]byte{0xff, 0x00}, header("content-type", "x"), header("tidemark-caller", "sync-1"), header("tidemark-origin", "t/1/2/3"), header("trace", "\xff"))
	rec.Key, rec.Time = []byte{0xfe}, rec.Time.UTC()
	return wire.DeadLetter{
		Record: rec, Reason: watermark.ReasonUndecodable, Cause: "not a SendMessage",
		First: time.UnixMilli(1700000000000).UTC(), Last: time.UnixMilli(1700000005000).UTC(), Tries: 3,
	}
}

func TestDeadLettersRoundTrip(t *testing.T) {
	want := letter()
	out, err := wire.EncodeDeadLetter(want)
	if err != nil {
		t.Fatal(err)
	}
	if !out.Time.Equal(want.Last) || out.Partition != -1 || out.Key != "\xfe" {
		t.Errorf("out = %+v", out)
	}
	there := wire.Record{Topic: "deadLetter", TopicID: "other", Partition: 8, Offset: 9, Time: at, Key: []byte(out.Key), Value: out.Value, Headers: out.Headers}
	got, err := wire.DecodeDeadLetter(there)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDeadLetterOfADeadLetterTellsTheLast(t *testing.T) {
	out, err := wire.EncodeDeadLetter(letter())
	if err != nil {
		t.Fatal(err)
	}
	again := letter()
	again.Record.Headers, again.Record.Offset, again.Reason = out.Headers, 77, "invalid"
	if out, err = wire.EncodeDeadLetter(again); err != nil {
		t.Fatal(err)
	}
	if len(out.Headers) != 6 {
		t.Errorf("%d headers, want the record's four and two: %v", len(out.Headers), out.Headers)
	}
	got, err := wire.DecodeDeadLetter(wire.Record{Value: out.Value, Headers: out.Headers})
	if err != nil || got.Record.Offset != 77 || got.Reason != "invalid" || len(got.Record.Headers) != 4 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDeadLetterCausesAreBounded(t *testing.T) {
	d := letter()
	d.Reason, d.Cause, d.Tries = "bad\xff", strings.Repeat("é\x01", 5000), 1<<40
	out, err := wire.EncodeDeadLetter(d)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, h := range out.Headers {
		size += len(h.Value)
	}
	if size > 8<<10 {
		t.Errorf("%d bytes of headers", size)
	}
	got, err := wire.DecodeDeadLetter(wire.Record{Value: out.Value, Headers: out.Headers})
	if err != nil || got.Reason != "bad?" || got.Tries != 1<<31-1 || !strings.HasPrefix(d.Cause, got.Cause[:1000]) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDecodeDeadLetterRefuses(t *testing.T) {
	tests := []struct {
		name, value, place, reason string
	}{
		{"no json", "x", "t/1/2/3", watermark.ReasonUndecodable},
		{"negative offset", `{"offset":"-1"}`, "t/1/2/3", watermark.ReasonInvalid},
		{"negative partition", `{"partition":-1}`, "t/1/2/3", watermark.ReasonInvalid},
		{"negative time", `{"firstTimeMs":"-1"}`, "t/1/2/3", watermark.ReasonInvalid},
		{"negative tries", `{"tries":-1}`, "t/1/2/3", watermark.ReasonInvalid},
		{"bad place", `{}`, "t/1/2", watermark.ReasonUndecodable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.DecodeDeadLetter(wire.Record{Headers: []wire.Header{header("tidemark-dead-letter", tt.value), header("tidemark-dead-letter-place", tt.place)}})
			wantPoison(t, err, tt.reason, "dead letter")
		})
	}
	_, err := wire.DecodeDeadLetter(wire.Record{})
	wantPoison(t, err, watermark.ReasonUndecodable, "tidemark-dead-letter is missing")
	// A newer writer may say more, an older one names no place.
	if _, err := wire.DecodeDeadLetter(wire.Record{Headers: []wire.Header{header("tidemark-dead-letter", `{"color":"red"}`)}}); err != nil {
		t.Error(err)
	}
}
