package history_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/watermark"
)

func concernText(wc *writeconcern.WriteConcern) string {
	journal := "<nil>"
	if wc.Journal != nil {
		journal = fmt.Sprint(*wc.Journal)
	}
	return fmt.Sprint(wc.W, " ", journal)
}

func TestMessageKeepsEveryField(t *testing.T) {
	full := text(watermark.MaxSeq, "id")
	full.Kind, full.SendTime, full.RecordTime, full.Device = "chat", -5, 1<<42, "phone"
	full.Mentions, full.Attributes = []watermark.UserID{"bob", "ann"}, map[string]string{"": "empty", "a.b": "dot", "$set": "dollar", "é": "\x00"}
	dead := full.Tombstone(watermark.Revoked{Seq: full.Seq, By: "admin", Time: 0})
	for _, m := range []watermark.Message{full, dead, {Seq: 1, Sender: "ann", ClientID: "x"}} {
		raw, err := history.EncodeMessage(group, &m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := history.DecodeMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// TestKeysSortBySeq: keys of one conversation have one length and sort by seq,
// and no key of another one lies between two of them.
func TestKeysSortBySeq(t *testing.T) {
	seq := rapid.Int64Range(0, math.MaxInt64)
	conv := rapid.SampledFrom([]watermark.ConversationID{"group:a", "group:b", "group:a-", "single:a:b", "group:aa"})
	// As BSON compares: the length, the subtype, the bytes.
	compare := func(a, b bson.Binary) int {
		if len(a.Data) != len(b.Data) {
			return len(a.Data) - len(b.Data)
		}
		return bytes.Compare(a.Data, b.Data)
	}
	rapid.Check(t, func(t *rapid.T) {
		c, a, b := conv.Draw(t, "conversation"), seq.Draw(t, "a"), seq.Draw(t, "b")
		low, high := history.RowKey(c, watermark.Seq(min(a, b))), history.RowKey(c, watermark.Seq(max(a, b)))
		if got := compare(low, high); got > 0 || (got == 0) != (a == b) {
			t.Fatalf("%d and %d compare as %d", a, b, got)
		}
		o := conv.Draw(t, "other")
		k := history.RowKey(o, watermark.Seq(seq.Draw(t, "seq")))
		if o != c && compare(low, k) <= 0 && compare(k, high) <= 0 {
			t.Fatalf("a key of %s lies among those of %s", o, c)
		}
	})
}

func TestInputFields(t *testing.T) {
	for _, p := range []watermark.Partition{
		{}, {TopicID: "T-1_x", Number: 41}, {TopicID: "a.b$c/d%", Number: math.MaxInt32}, {TopicID: "$x", Number: -1}, {TopicID: "ü\x00"},
	} {
		field := history.InputField(p)
		if bytes.ContainsAny([]byte(field), ".$\x00") {
			t.Errorf("%q is not a field name", field)
		}
		if got, err := history.ParseInput(field); err != nil || got != p {
			t.Errorf("%q gives %v, %v", field, got, err)
		}
	}
	for _, field := range []string{"", "x", "/", "x/", "x/1/2", "x/+1", "x/01", "%/1", "x/99999999999", "%41/1"} {
		if p, err := history.ParseInput(field); err == nil {
			t.Errorf("%q gives %v", field, p)
		}
	}
}

func TestPolicyIsThatOfTheHigherMax(t *testing.T) {
	for _, tt := range []struct {
		adv, keep int64
		want      watermark.UnreadPolicy
	}{{0, 0, watermark.AdvanceOnSend}, {5, 4, watermark.AdvanceOnSend}, {4, 5, watermark.KeepOnSend}, {0, 1, watermark.KeepOnSend}} {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: "group:x"}, {Key: "adv", Value: tt.adv}, {Key: "keep", Value: tt.keep}})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := history.DecodeConversation(raw); err != nil || c.Policy != tt.want {
			t.Errorf("%d and %d: %v, %v", tt.adv, tt.keep, c.Policy, err)
		}
	}
}

// FuzzDecode: what stands in a database may be anything; it is decoded or
// refused.
func FuzzDecode(f *testing.F) {
	m := text(1, "a")
	m.Mentions, m.Attributes, m.Revoked = []watermark.UserID{"b"}, map[string]string{"k": "v"}, &watermark.Revoked{Seq: 1}
	raw, err := history.EncodeMessage(group, &m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	for _, d := range []bson.D{
		{{Key: "_id", Value: "group:g/ann"}, {Key: "c", Value: "group:g"}, {Key: "u", Value: "ann"}, {Key: "own", Value: bson.A{int64(1)}}, {Key: "w", Value: bson.A{bson.D{{Key: "n", Value: 1}}}}},
		{{Key: "_id", Value: "group:g"}, {Key: "in", Value: bson.D{{Key: "t/1", Value: int64(4)}}}},
	} {
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if m, err := history.DecodeMessage(raw); err == nil {
			again, err := history.EncodeMessage(group, &m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := history.DecodeMessage(again); err != nil || !got.SameAs(&m) {
				t.Errorf("%+v, then %+v, %v", m, got, err)
			}
		}
		_, _ = history.DecodeMember(raw)
		_, _ = history.DecodeConversation(raw)
	})
}

// TestBytesOfARow holds what docs/sizing.md reckons with against what is stored.
func TestBytesOfARow(t *testing.T) {
	m := watermark.Message{
		Seq: 1_000_000, Sender: "user-1234567890", ClientID: "6f1c2a90-3f5e-4c1e-9d55-0a8f6b3b2f10", Kind: "text", SendTime: 1_767_323_045_000,
		RecordTime: 1_767_323_045_000, Device: "phone", BodyType: watermark.BodyText, Body: make([]byte, 300),
	}
	m.Hash = m.SumHash()
	raw, err := history.EncodeMessage("group:1234567890123456", &m)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(raw)-len(m.Body), 242; got != want {
		t.Errorf("a row takes %d bytes beside its body, docs/sizing.md says %d", got, want)
	}
}
