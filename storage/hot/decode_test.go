package hot_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// items makes a reply of text: "|" separates items, "[" and "]" around an item
// make it a list of the items that ";" separates, "#" makes it a number.
func items(text string) any {
	var out []any
	for s := range strings.SplitSeq(text, "|") {
		switch {
		case s == "nil":
			out = append(out, nil)
		case strings.HasPrefix(s, "#"):
			out = append(out, int64(len(s)))
		case strings.HasPrefix(s, "["):
			l := []any{}
			for x := range strings.SplitSeq(strings.Trim(s, "[]"), ";") {
				if x != "" {
					l = append(l, x)
				}
			}
			out = append(out, l)
		default:
			out = append(out, s)
		}
	}
	return out
}

func FuzzDecodeView(f *testing.F) {
	for _, s := range []string{
		"cold|absent", "warm|t1|0|10|0|0|5|1||3|4|2|||", "warm|t1|0|10|0|0|5|1|t/0|5|-|4|2|-||", "warm|t1|0|10|0|0|5|1|x|3|4|2|||",
		"partial|t1|0|10|0|0|5|1|||4|2|-||ann\x000000000000000005,ann\x000000000000000006", "warm|t1|0|10|0|0|5|1||3|0|1:0:0|x;5|4|2||",
		"warm|t1", "", "other", "warm|t1|9007199254740991|1e15|-1|x", "cold|absent|x", "warm|t1|0|10|0|0|5|1||-|4|2|||5",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := strings.ReplaceAll(s, "|", "\n")
		ask := hot.Ask{Conversation: single, User: "ann"}
		var v watermark.View
		_, _, err := hot.DecodeView(&ask, text, &v)
		lines := map[watermark.Temperature]int{watermark.Cold: 2, watermark.Warm: 15, watermark.Partial: 15}[v.Temperature]
		if err == nil && (v.Member.User != "ann" || strings.Count(text, "\n")+1 != lines) {
			t.Errorf("%q gave %+v", s, v)
		}
	})
}

func FuzzDecodeMessages(f *testing.F) {
	for _, s := range []string{"cold|absent", "warm", "warm|1|m|ann|x", "warm|1|t|5|mod|ann|", "warm|1|m|ann", "warm|#|#|#|#", ""} {
		f.Add(s)
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	f.Cleanup(func() { client.Close() })
	h, err := hot.New(hot.Config{Redis: client, Decode: decode})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		value := items(s)
		if n, err := h.DecodeMessages(value); err == nil && n > len(value.([]any))/4 {
			t.Errorf("%q gave %d messages", s, n)
		}
	})
}

func FuzzDecodeAnswer(f *testing.F) {
	for _, s := range []string{
		`{"verdict":"accepted","seq":5}`, `{"verdict":"again","member":{"user":"ann","memberships":[{"n":1}],"ops":[{"id":"x"}],"own":[1]}}`,
		"{}", "null", "", `{"verdict":"known","seq":1e3}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := hot.DecodeAnswer(s)
		if err != nil {
			return
		}
		text, err := hot.EncodeAnswer(a)
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", a, err)
		}
		again, err := hot.DecodeAnswer(text)
		if err != nil || !cmp.Equal(a, again, emptyIsNil) {
			t.Errorf("%q became %+v, then %+v, %v", s, a, again, err)
		}
	})
}

// emptyIsNil takes an empty list for none.
var emptyIsNil = cmp.FilterValues(func(a, b []watermark.Seq) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())

func TestParseNumber(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		bad  bool
	}{
		{"", 0, false}, {"0", 0, false}, {"-7", -7, false}, {"9007199254740991", 9007199254740991, false},
		{"9.007199254740991e+15", 9007199254740991, false}, {"1e3", 1000, false},
		{"9223372036854775807", 9223372036854775807, false},
		{"0.5", 0, true}, {"inf", 0, true}, {"-inf", 0, true}, {"nan", 0, true}, {"1e300", 0, true}, {"9.3e18", 0, true}, {"x", 0, true},
	}
	for _, tt := range tests {
		got, err := hot.ParseNumber(tt.in)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q = %d, %v, want %d, an error: %v", tt.in, got, err, tt.want, tt.bad)
		}
	}
}
