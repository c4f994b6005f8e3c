package topush_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func traceOf(t testing.TB, id string) trace.SpanContext {
	t.Helper()
	tid, err1 := trace.TraceIDFromHex(strings.Repeat(id, 32))
	sid, err2 := trace.SpanIDFromHex(strings.Repeat("1", 16))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: sid, TraceFlags: trace.FlagsSampled, Remote: true})
}

// letterOf gives the letter that a trace is made of; "-": there is none.
func letterOf(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return "-"
	}
	return sc.TraceID().String()[:1]
}

type traceDesk struct{ got []string }

func (d *traceDesk) Offer(_ context.Context, offers []topush.Offer) error {
	for _, o := range offers {
		d.got = append(d.got, fmt.Sprint(o.Message.Seq, " ", letterOf(o.Trace)))
	}
	return nil
}

// TestMessagesAreHandedOnWithTheirTrace: to devices and to those who are absent,
// each with its own and none with another's, also where one message takes
// several hand-offs, and in a crowd.
func TestMessagesAreHandedOnWithTheirTrace(t *testing.T) {
	for name, change := range map[string]func(*topush.Config){
		"members": func(*topush.Config) {},
		"crowd":   func(c *topush.Config) { c.CrowdAbove, c.CrowdBelow = 2, 1 },
		"lane":    func(c *topush.Config) { c.LaneCost = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			d, w := new(traceDesk), newWorld()
			w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0), member("C", 0, 0), member("D", 0, 1)}
			s := w.stage(t, func(c *topush.Config) { c.Offline, c.Crowds = d, w; change(c) })
			run := watermark.MessagesSequenced{}
			for seq := range watermark.Seq(3) {
				run.Messages = append(run.Messages, said(seq+1, "A", "").Messages...)
			}
			w.append(t, group, run, watermark.ReadAdvanced{User: "B", Read: 3})
			w.log[0].Headers = wire.SequencedTraces([]wire.Traced{{SpanContext: traceOf(t, "a"), Seq: 1}, {SpanContext: traceOf(t, "c"), Seq: 3}})
			handle(t, s, w.log)
			var got []string
			for _, x := range w.got {
				if m, ok := x.Event.(watermark.MessagesSequenced); ok {
					got = append(got, fmt.Sprint(m.Messages[0].Seq, " ", letterOf(x.Trace)))
				} else if x.Trace.IsValid() {
					t.Errorf("%T has trace %s", x.Event, letterOf(x.Trace))
				}
			}
			want := []string{"1 a", "2 -", "3 c"}
			equal(t, "delivered", slices.Compact(got), want)
			equal(t, "offered", d.got, want)
		})
	}
}

// TestAnAbsentUsersRecordHasTheTrace: so that the worker that tells them goes on
// from there.
func TestAnAbsentUsersRecordHasTheTrace(t *testing.T) {
	topic := &appended{}
	log, err := topush.NewOfflineLog(topush.OfflineLog{Log: topic, Topic: "offline", Presence: nobody{}})
	if err != nil {
		t.Fatal(err)
	}
	users := make([]watermark.UserID, wire.MaxOfflineUsers+1)
	for i := range users {
		users[i] = watermark.UserID(fmt.Sprint("u", i))
	}
	m := said(1, "A", "").Messages[0]
	if err := log.Offer(t.Context(), []topush.Offer{
		{Conversation: group, Message: m, Users: users, Trace: traceOf(t, "a")}, {Conversation: group, Message: m, Users: users[:1]},
	}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range topic.outs {
		traces := wire.TracesOf(&wire.Record{Headers: o.Headers})
		if len(traces) == 0 {
			traces = append(traces, trace.SpanContext{})
		}
		got = append(got, letterOf(traces[0]))
	}
	equal(t, "traces", got, []string{"a", "a", "-"})
}

type appended struct{ outs []wire.Out }

func (a *appended) Append(_ context.Context, outs []wire.Out) error {
	a.outs = append(a.outs, outs...)
	return nil
}

type nobody struct{}

func (nobody) Online(context.Context, []watermark.UserID) (map[watermark.UserID]bool, error) {
	return nil, nil
}
