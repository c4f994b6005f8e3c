package hot_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// What a batch has decided is told once its place is settled, and not before.
func TestWhatIsNotSettledIsNotTold(t *testing.T) {
	e := newEnv(t)
	e.patience(5 * time.Millisecond)
	e.meta(group, "full", "1", "bt", "topic/3|7")
	settled := func(name string, n int) { e.do("ZADD", e.space.SettledKey(), "GT", n, name) }

	cold := watermark.View{Temperature: watermark.Cold}
	cold.ID, cold.Member.User = group, "ann"
	diff(t, "nothing is settled", e.view(group, "ann"), cold)
	settled("topic/3", 6)
	settled("topic/2", 9)
	diff(t, "an earlier batch, and one of another partition", e.view(group, "ann"), cold)
	settled("topic/3", 7)
	if v := e.view(group, "ann"); v.Temperature != watermark.Warm || v.Max != 10 {
		t.Errorf("settled: %+v", v)
	}
	// It stays known: nothing more is asked, and a Redis that forgets it changes
	// nothing.
	e.do("DEL", e.space.SettledKey())
	before := e.trips.n.Load()
	if v := e.view(group, "ann"); v.Temperature != watermark.Warm {
		t.Errorf("settled before: %+v", v)
	}
	if n := e.trips.n.Load() - before; n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
	e.meta(group, "full", "1", "bt", "topic/3|8")
	diff(t, "the next batch", e.view(group, "ann"), cold)
}

// A batch that is under way is waited for: an append takes milliseconds.
func TestViewsWaitForABatchThatIsUnderWay(t *testing.T) {
	e := newEnv(t)
	e.patience(time.Minute)
	e.meta(group, "full", "1", "bt", "topic/3|7")
	views := make(chan watermark.View)
	go func() { views <- e.view(group, "ann") }()
	e.trip(4, views) // it has asked after the batch three times
	e.do("ZADD", e.space.SettledKey(), "GT", 7, "topic/3")
	if v := <-views; v.Temperature != watermark.Warm || v.Max != 10 {
		t.Errorf("settled meanwhile: %+v", v)
	}
}

// A batch is settled without what was parked of it. So a conversation that became
// cold while a view waited is not told as it was seen, however settled its batch.
func TestAConversationThatBeganAnewMeanwhileIsCold(t *testing.T) {
	for name, change := range map[string]func(e *env){
		"warm again": func(e *env) { e.meta(group, "full", "1", "bt", "topic/3|8", "tok", "t2") },
		"gone":       func(e *env) { e.do("DEL", e.space.Key(group, keyspace.Meta)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.patience(time.Minute)
			e.meta(group, "full", "1", "bt", "topic/3|7")
			views := e.ask(t, group, "ann")
			e.trip(3, views)
			change(e)
			e.do("ZADD", e.space.SettledKey(), "GT", 7, "topic/3")
			want := watermark.View{Temperature: watermark.Cold}
			want.ID, want.Member.User = group, "ann"
			diff(t, "its batch is settled", <-views, want)
		})
	}
}

// A conversation in which batch follows batch is told as it was seen, when that
// batch is settled; whoever looked again would always find the next one.
func TestABusyConversationIsToldAsItWasSeen(t *testing.T) {
	e := newEnv(t)
	e.patience(time.Minute)
	e.meta(group, "full", "1", "bt", "topic/3|7")
	views := e.ask(t, group, "ann")
	e.trip(3, views) // it has looked, and asked after the batch twice
	e.meta(group, "full", "1", "bt", "topic/3|8", "max", "11")
	e.do("ZADD", e.space.SettledKey(), "GT", 7, "topic/3")
	if v := <-views; v.Temperature != watermark.Warm || v.Max != 10 {
		t.Errorf("the next batch is under way: %+v", v)
	}
}

// ask asks for a view in one of both ways, and gives it when it is told.
func (e *env) ask(t *testing.T, c watermark.ConversationID, u watermark.UserID) <-chan watermark.View {
	views := make(chan watermark.View, 1)
	go func() {
		seen, err := e.Views(t.Context(), []hot.Ask{{Conversation: c, User: u}})
		if err != nil {
			t.Errorf("views: %v", err)
			seen = make([]watermark.View, 1)
		}
		views <- seen[0]
	}()
	return views
}

// trip waits until there were n round trips in all, before any view is told.
func (e *env) trip(n int64, views <-chan watermark.View) {
	e.tb.Helper()
	for e.trips.n.Load() < n {
		select {
		case v := <-views:
			e.tb.Fatalf("it did not wait: %+v", v)
		case <-time.After(time.Millisecond):
		}
	}
}

// patience makes Views wait for so long.
func (e *env) patience(d time.Duration) {
	e.tb.Helper()
	e.reg, e.scriptedReg = prometheus.NewRegistry(), prometheus.NewRegistry()
	e.Hot = e.hot(hot.Config{Redis: e.client, SettleWait: d, Registerer: e.reg})
	e.scripted = e.hot(hot.Config{Redis: e.unseen, SettleWait: d, Registerer: e.scriptedReg})
	e.scripted.ByScript()
}
