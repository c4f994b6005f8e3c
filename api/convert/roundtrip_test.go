package convert_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// overWire sends a protobuf message through its bytes, as Kafka does.
func overWire[T proto.Message](t *rapid.T, in, out T) T {
	t.Helper()
	b, err := proto.Marshal(in)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatalf("unmarshal: %v", err)
	}
	return out
}

func equal(t *rapid.T, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("round trip (-want +got):\n%s", d)
	}
}

func TestMembersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := members.Draw(t, "member")
		got, err := convert.MemberFromAPI(overWire(t, convert.MemberToAPI(&m), new(v1.MemberState)))
		if err != nil {
			t.Fatalf("a member that the owner made is refused: %v", err)
		}
		if len(m.Memberships) == 0 {
			m.Memberships = nil
		}
		m.Own = nil
		equal(t, got, m)
	})
}

func TestMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := messages.Draw(t, "message")
		got, err := convert.MessageFromLogged(overWire(t, convert.LoggedFromMessage(&m), new(v1.LoggedMessage)))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, got, m)
	})
}

func TestEventsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := events.Draw(t, "event")
		got, err := convert.EventFromAPI(overWire(t, convert.EventToAPI(e), new(v1.Event)))
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := e.(watermark.WindowChanged); ok {
			w.Member.Own = nil
			if len(w.Member.Memberships) == 0 {
				w.Member.Memberships = nil
			}
			e = w
		}
		equal(t, got, e)
	})
}

func TestCommandsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := commands.Draw(t, "input")
		got, err := convert.CommandToInput(overWire(t, convert.InputToCommand(in), new(v1.Command)))
		if err != nil {
			t.Fatal(err)
		}
		if in.Member != nil && len(in.Member.Memberships) == 0 {
			in.Member.Memberships = nil
		}
		equal(t, got, in)
	})
}

func TestEnumsRoundTrip(t *testing.T) {
	for _, p := range []watermark.UnreadPolicy{watermark.AdvanceOnSend, watermark.KeepOnSend} {
		if got, err := convert.PolicyFromAPI(convert.PolicyToAPI(p)); err != nil || got != p {
			t.Errorf("policy %d comes back as %d, %v", p, got, err)
		}
	}
	for _, h := range []watermark.History{watermark.HistoryNone, watermark.HistoryAll, watermark.HistoryFrom} {
		if got, err := convert.HistoryFromAPI(convert.HistoryToAPI(h)); err != nil || got != h {
			t.Errorf("history %d comes back as %d, %v", h, got, err)
		}
	}
	for _, b := range []watermark.BodyType{watermark.BodyNone, watermark.BodyData, watermark.BodyText, watermark.BodyJSON} {
		if got, err := convert.BodyTypeFromAPI(convert.BodyTypeToAPI(b)); err != nil || got != b {
			t.Errorf("body type %d comes back as %d, %v", b, got, err)
		}
		if int32(convert.BodyTypeToAPI(b)) != int32(b) {
			t.Errorf("body type %d has the number %d on the wire, which the codec of the log takes to be the same", b, convert.BodyTypeToAPI(b))
		}
	}
	if o, err := convert.OrderFromAPI(v1.Order_ORDER_DESC); err != nil || o != watermark.Desc {
		t.Errorf("order desc = %d, %v", o, err)
	}
	if o, err := convert.OrderFromAPI(v1.Order_ORDER_UNSPECIFIED); err != nil || o != watermark.Asc {
		t.Errorf("order unspecified = %d, %v", o, err)
	}
	if k, err := convert.KeepFromAPI(v1.Keep_KEEP_NEAR_BEGIN); err != nil || k != watermark.NearBegin {
		t.Errorf("keep near begin = %d, %v", k, err)
	}
	if k, err := convert.KeepFromAPI(v1.Keep_KEEP_UNSPECIFIED); err != nil || k != watermark.NearEnd {
		t.Errorf("keep unspecified = %d, %v", k, err)
	}
}

func TestUnknownEnumsAreRefused(t *testing.T) {
	check := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s 99 is accepted", name)
		}
	}
	_, err := convert.PolicyFromAPI(99)
	check("policy", err)
	_, err = convert.HistoryFromAPI(99)
	check("history", err)
	_, err = convert.BodyTypeFromAPI(99)
	check("body type", err)
	_, err = convert.OrderFromAPI(99)
	check("order", err)
	_, err = convert.KeepFromAPI(99)
	check("keep", err)
}

func TestRanges(t *testing.T) {
	got := convert.RangesToAPI(watermark.Intervals{{First: 1, Last: 3}, {First: 7, Last: watermark.MaxSeq}})
	if len(got) != 2 || got[0].GetBegin() != 1 || got[0].GetEnd() != 3 || got[1].GetBegin() != 7 || got[1].GetEnd() != int64(watermark.MaxSeq) {
		t.Errorf("ranges = %v", got)
	}
	if convert.RangesToAPI(nil) != nil || convert.RangeToAPI(nil) != nil {
		t.Error("nothing gives something")
	}
}
