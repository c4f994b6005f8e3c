package syncapi_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/syncapi"
)

// told is everything that an answer says, with the conversation's name taken
// out, and what was asked of the stores for it.
func told(t *testing.T, w *world, conv convID, do func() (any, error)) string {
	t.Helper()
	w.mu.Lock()
	before := maps.Clone(w.calls)
	w.mu.Unlock()
	res, err := do()
	var b strings.Builder
	if err != nil {
		e, ok := err.(*connect.Error)
		if !ok {
			t.Fatalf("%v is no Connect error", err)
		}
		fmt.Fprintf(&b, "%s %s retry %s", e.Code(), e.Message(), e.Meta().Get("Retry-After"))
		for _, d := range e.Details() {
			v, err := d.Value()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, " %s%x", d.Type(), must(proto.MarshalOptions{Deterministic: true}.Marshal(v)))
		}
	} else {
		b.Write(must(protojson.Marshal(res.(proto.Message))))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.calls)) {
		if n := w.calls[name] - before[name]; n > 0 {
			fmt.Fprintf(&b, " %s:%d", name, n)
		}
	}
	text := strings.ReplaceAll(b.String(), string(conv), "CONVERSATION")
	// Details are bytes: hex of the name.
	text = strings.ReplaceAll(text, fmt.Sprintf("%x", string(conv)), "CONVERSATION")
	return strings.ReplaceAll(text, " ", "") // the spaces of protojson are random
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// Whatever has happened in a conversation of others, and whatever of it Redis
// holds or a store that is away says, a stranger is told of it what is told of
// one that was never there, by every call, at every repetition. The stores are
// asked the same number of times.
func TestStrangersCannotTellWhatIsThere(t *testing.T) {
	rows := slices.Sorted(maps.Keys(calls))
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		conv, nowhere := convID("group:there"), convID("group:where")
		if rnd.IntN(3) == 0 {
			conv, nowhere = "single:P:Q", "single:P:R"
		}
		w := newWorld()
		for range rnd.IntN(3) + 1 {
			w.say(t, conv, "P", 1+rnd.IntN(20))
		}
		if rnd.IntN(2) == 0 {
			w.settle(conv, "P", 0, seq(rnd.IntN(2)*5))
		}
		w.say(t, "group:mine", "C", 3) // so that Redis knows C
		w.settle("group:mine", "C", 0, 0)
		w.with(conv, func(t *talk) {
			t.warm = rnd.IntN(4) > 0
			t.unknown["C"] = rnd.IntN(2) == 0
			t.unknown["P"] = rnd.IntN(2) == 0
			t.hotFrom = seq(rnd.IntN(10))
			if rnd.IntN(3) == 0 {
				t.Min = t.Max/2 + 1
			}
		})
		w.set(func() {
			w.hotDown, w.truthDown, w.logDown = rnd.IntN(8) == 0, rnd.IntN(5) == 0, rnd.IntN(8) == 0
		})
		url := serve(t, newService(t, w, func(c *syncapi.Config) {
			c.Authenticate = tokens
			c.ClosedGroups = rnd.IntN(2) == 0
		}))
		c := as(t, url, "user:C")
		for range 25 {
			row := rows[rnd.IntN(len(rows))]
			user := []string{"", "C", "P"}[rnd.IntN(3)]
			ask := func(conv convID) string {
				return told(t, w, conv, func() (any, error) { return calls[row](context.WithoutCancel(t.Context()), c, conv, user) })
			}
			if there, not := ask(conv), ask(nowhere); there != not {
				t.Fatalf("seed %d: %s as %q of %s:\n there: %s\n not:   %s", seed, row, user, conv, there, not)
			}
		}
		w.mu.Lock()
		made := w.convs[nowhere] != nil
		w.mu.Unlock()
		if made {
			t.Fatalf("seed %d: a stranger made %s", seed, nowhere)
		}
	}
}

// A former member is told the same of a group whether it went on or not.
func TestFormerMembersCannotTellWhetherItWentOn(t *testing.T) {
	for row, make1 := range calls {
		var answers []string
		for _, more := range []int{0, 30} {
			w := community(t)
			w.with(group, func(t *talk) {
				for s := seq(5); s <= t.Max; s++ {
					delete(t.rows, s)
				}
				t.Max = 4
				t.LastTime = 4
			})
			if more > 0 {
				w.with(group, func(t *talk) { clear(t.ids) })
				w.say(t, group, "B", more)
			}
			if row == "GetWatermarks, all" || row == "SyncConversations" {
				w.set(func() { delete(w.convs, single); delete(w.convs, "group:others") })
			}
			c := as(t, serve(t, newService(t, w, withTokens)), "user:K")
			text := told(t, w, group, func() (any, error) { return make1(t.Context(), c, group, "") })
			answers = append(answers, scrub(text))
		}
		if answers[0] != answers[1] {
			t.Errorf("%s:\n stopped: %s\n went on: %s", row, answers[0], answers[1])
		}
	}
}

// scrub takes out what is made anew for each call, the time of the last message,
// which tells the order of a list, and a list's version, which is about the log
// of all conversations.
func scrub(s string) string {
	for _, key := range []string{`"opId":"`, `"clientMessageId":"`, `"lastTimeMs":"`, `"version":"`} {
		if i := strings.Index(s, key); i >= 0 {
			rest := s[i+len(key):]
			s = s[:i] + rest[strings.IndexByte(rest, '"')+1:]
		}
	}
	return s
}
