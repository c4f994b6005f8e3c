package gateway_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	centrifugo "github.com/centrifugal/centrifuge-go"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// connect opens a device and gives the stream of what it receives.
func connect(t *testing.T, url, user, device string) <-chan *tidemarkv1.PushEvent {
	t.Helper()
	events := make(chan *tidemarkv1.PushEvent, 100)
	c := centrifugo.NewJsonClient(url, centrifugo.Config{Data: []byte(`{"user":"` + user + `","device":"` + device + `"}`)})
	subscribed := make(chan struct{}, 1)
	c.OnSubscribed(func(centrifugo.ServerSubscribedEvent) { subscribed <- struct{}{} })
	c.OnPublication(func(e centrifugo.ServerPublicationEvent) {
		ev := &tidemarkv1.PushEvent{}
		if err := protojson.Unmarshal(e.Data, ev); err != nil {
			t.Errorf("decode event: %v", err)
		}
		events <- ev
	})
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	select {
	case <-subscribed:
	case <-time.After(10 * time.Second):
		t.Fatal("not connected within 10 s")
	}
	return events
}

func message(seq int64) *tidemarkv1.PushEvent {
	return &tidemarkv1.PushEvent{Conversation: "group:g", MaxSeq: seq, Kind: &tidemarkv1.PushEvent_Message{Message: &tidemarkv1.Message{Conversation: "group:g", Seq: seq}}}
}

func next(t *testing.T, events <-chan *tidemarkv1.PushEvent) int64 {
	t.Helper()
	select {
	case e := <-events:
		return e.GetMessage().GetSeq()
	case <-time.After(10 * time.Second):
		t.Fatal("no event within 10 s")
		return 0
	}
}

func TestDeliverReachesEveryDeviceInOrderSaveTheExcepted(t *testing.T) {
	g, url := start(t, nil)
	phone, laptop := connect(t, url, "A", "phone"), connect(t, url, "A", "laptop")
	bob, carol := connect(t, url, "B", ""), connect(t, url, "C", "x")
	var ds []gateway.Delivery
	for seq := range int64(50) {
		ds = append(ds, gateway.Delivery{Users: []watermark.UserID{"A", "B"}, Event: message(seq + 1), ExceptUser: "A", ExceptDevice: "phone"})
	}
	ds = append(ds, gateway.Delivery{Users: []watermark.UserID{"A", "C"}, Event: message(99)})
	if err := g.Deliver(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	for want := range int64(50) {
		if got := next(t, laptop); got != want+1 {
			t.Fatalf("laptop got seq %d, want %d", got, want+1)
		}
		if got := next(t, bob); got != want+1 {
			t.Fatalf("B got seq %d, want %d", got, want+1)
		}
	}
	// The last event is the first that the sending phone and C are named in.
	if got := next(t, phone); got != 99 {
		t.Errorf("the sending phone got seq %d, want 99 only", got)
	}
	if got := next(t, carol); got != 99 {
		t.Errorf("C got seq %d, want 99 only", got)
	}
	if n := g.Connections(); n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}

func TestTrusting(t *testing.T) {
	tests := []struct {
		name, data string
		user       watermark.UserID
		refused    bool
	}{
		{"user and device", `{"user":"A","device":"d"}`, "A", false},
		{"no data", ``, "", true},
		{"bad id", `{"user":"a:b"}`, "", true},
		{"not JSON", `{`, "", true},
		{"long device", `{"user":"A","device":"` + strings.Repeat("d", 65) + `"}`, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			who, err := gateway.Trusting(t.Context(), "", []byte(tt.data))
			if errors.Is(err, gateway.ErrRefused) != tt.refused || who.User != tt.user {
				t.Errorf("got %+v, %v", who, err)
			}
		})
	}
}

func TestRefusedConnectionIsClosedForGood(t *testing.T) {
	_, url := start(t, nil)
	c := centrifugo.NewJsonClient(url, centrifugo.Config{Data: []byte(`{"user":"a:b"}`)})
	reason := make(chan string, 1)
	c.OnDisconnected(func(e centrifugo.DisconnectedEvent) { reason <- e.Reason })
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case r := <-reason:
		if !strings.Contains(r, "bad id") {
			t.Errorf("reason %q does not say what is wrong", r)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still trying after 10 s")
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := gateway.New(gateway.Config{QueueBytes: -1, UserConnections: -1, Drain: -1, TransientRate: -1, Origins: []string{"chat.example.com"}})
	for _, want := range []string{"Authenticate", "Logger", "QueueBytes", "UserConnections", "Drain", "TransientRate", "chat.example.com"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// Who delivers before the node runs is told to come again: the broker in memory
// would have nobody to hand it to.
func TestDeliverBeforeItRuns(t *testing.T) {
	g, err := gateway.New(gateway.Config{Authenticate: gateway.Trusting, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	err = g.Deliver(t.Context(), nil)
	if fault.ClassOf(err) != fault.Transient {
		t.Errorf("got %v", err)
	}
}
