package stack_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestField_S1_CacheLostOnAQuietConversation(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const c = "single:A:B"
	if seq := r.send(c, "B", "m1"); seq != 1 {
		t.Fatalf("first seq = %d", seq)
	}
	r.read("A", c, 1)
	r.settle()
	r.forget(c)
	if w := r.marks("A", c); w.GetMaxSeq() != 1 || w.GetReadSeq() != 1 || w.GetUnread() != 0 {
		t.Errorf("after the loss: %v", w)
	}
	if seq := r.send(c, "B", "m2"); seq != 2 {
		t.Errorf("seq after the loss = %d, want 2", seq)
	}
	wantSeqs(t, r.pullAll("A", c, 1, 2), 1, 2)
	if w := r.marks("A", c); w.GetMaxSeq() != 2 || w.GetReadSeq() != 1 || w.GetUnread() != 1 {
		t.Errorf("after the second message: %v", w)
	}
	wantIDs(t, auditConversation(r, c), "m1", "m2")
}

// TestField_S2_CounterRolledBack has one conversation whose counter and hot log
// fall back, as a careless hand does it, and one of which every key does, as a
// promoted replica that lags has it.
func TestField_S2_CounterRolledBack(t *testing.T) {
	variants := []struct {
		name    string
		between func(r *rig) // after the fall, before the next message
		repairs bool
	}{
		{"a_NewIncarnation", func(r *rig) {
			r.stop(stack.Roles()...)
			r.emb.Config.Redis.Incarnation += "-promoted"
			r.start(stack.Roles()...)
		}, false},
		{"b_WorkerAlive", func(*rig) {}, false},
		{"c_WorkerRestarted", func(r *rig) { r.restart(stack.ToRedis) }, true},
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			r := startAll(t, nil)
			byHand, whole := "single:A:B", "single:A:C"
			convs := []string{byHand, whole}
			lines, ids := map[string][]string{}, map[string][]string{}
			for _, c := range convs {
				lines[c], ids[c] = numbered(c, "A", "m", 13)
				r.produce(c, lines[c][:9]...)
			}
			r.settle()
			old := copyOf(r, whole)
			for _, c := range convs {
				r.produce(c, lines[c][9:12]...)
			}
			r.settle()
			r.cutBack(byHand, 9)
			old.restore(r, whole)
			v.between(r)
			for _, c := range convs {
				r.produce(c, lines[c][12])
			}
			for _, c := range convs {
				r.eventually("m13 of "+c+" at seq 13", func() error {
					page := r.pull("A", &tidemarkv1.PullRange{Conversation: c, Begin: 13, End: 13})
					if len(page.GetMessages()) != 1 || page.GetMessages()[0].GetClientMessageId() != "m13" {
						return fmt.Errorf("page = %v", page)
					}
					return nil
				})
			}
			r.settle()
			for _, c := range convs {
				if w := r.marks("A", c); w.GetMaxSeq() != 13 || (w.GetRepairNumber() > 0) != v.repairs || (w.GetRepairFrom() == 10) != v.repairs {
					t.Errorf("%s in the end: %v, repaired should be %v", c, w, v.repairs)
				}
				if seq := r.send(c, "A", "m13"); seq != 13 {
					t.Errorf("%s: a resend of m13 has seq %d", c, seq)
				}
			}
			for c, msgs := range auditConversations(r, convs...) {
				wantIDs(t, msgs, ids[c]...)
			}
			if letters := r.deadLetters(); len(letters) > 0 {
				t.Errorf("dead letters: %v", letters)
			}
		})
	}
}

// cutBack sets the counter of a conversation to max and cuts its hot log back
// to it, as if what came later had never reached this server.
func (r *rig) cutBack(conv string, max int64) {
	r.t.Helper()
	redis := r.emb.Cluster.Redis()
	keys := keyspace.Space{}.Keys(watermark.ConversationID(conv), keyspace.Meta, keyspace.Log)
	redis.HSet(keys[0], "max", fmt.Sprint(max))
	entries, err := redis.Stream(keys[1])
	if err != nil {
		r.t.Fatal(err)
	}
	redis.Del(keys[1])
	for _, e := range entries {
		if seq, err := strconv.ParseInt(strings.TrimSuffix(e.ID, "-0"), 10, 64); err != nil || seq > max {
			continue
		}
		if _, err := redis.XAdd(keys[1], e.ID, e.Values); err != nil {
			r.t.Fatal(err)
		}
	}
}

// redisCopy is what Redis held of a conversation at some time, as functions
// that bring each key back.
type redisCopy []func()

func copyOf(r *rig, conv string) redisCopy {
	r.t.Helper()
	redis := r.emb.Cluster.Redis()
	var out redisCopy
	for _, k := range redis.Keys() {
		if !strings.Contains(k, "{"+conv+"}") {
			continue
		}
		switch redis.Type(k) {
		case "hash":
			fields, err := redis.HKeys(k)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, f := range fields {
				v := redis.HGet(k, f)
				out = append(out, func() { redis.HSet(k, f, v) })
			}
		case "zset":
			members, err := redis.SortedSet(k)
			if err != nil {
				r.t.Fatal(err)
			}
			for m, score := range members {
				out = append(out, func() { _, _ = redis.ZAdd(k, score, m) })
			}
		case "stream":
			entries, err := redis.Stream(k)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, e := range entries {
				out = append(out, func() { _, _ = redis.XAdd(k, e.ID, e.Values) })
			}
		case "string":
			v, err := redis.Get(k)
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, func() { _ = redis.Set(k, v) })
		}
	}
	return out
}

func (c redisCopy) restore(r *rig, conv string) {
	r.forget(conv)
	for _, f := range c {
		f()
	}
}

// TestField_S3_EverythingFlushedUnderLoad is not parallel: it keeps a small
// machine busy by itself.
func TestField_S3_EverythingFlushedUnderLoad(t *testing.T) {
	const producers, each, conversations = 4, 1000, 50
	r := startAll(t, nil)
	convs, want := make([]string, conversations), map[string]map[string]bool{}
	for i := range convs {
		convs[i] = fmt.Sprint("group:g", i)
		want[convs[i]] = map[string]bool{}
	}
	// Each producer walks over all conversations in batches of 20, and sends
	// every seventh message twice.
	var running sync.WaitGroup
	for p := range producers {
		sender := fmt.Sprint("p", p)
		var outs []wire.Out
		for i := range each {
			conv := convs[(i*7+p*13)%conversations]
			id := fmt.Sprint(sender, "-", i)
			want[conv][sender+"/"+id] = true
			for range 1 + (i%7)/6 {
				outs = append(outs, wire.Out{
					Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: conv, Value: []byte(line(conv, sender, id, "text of "+id)),
				})
			}
		}
		running.Go(func() {
			for batch := range slices.Chunk(outs, 20) {
				if err := r.producer.Append(t.Context(), batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for flushes := range 3 {
		r.eventually(fmt.Sprint("flush ", flushes+1), func() error {
			if n := r.metric(stack.ToRedis, "tidemark_pipeline_handled_records_total"); n < float64((flushes+1)*producers*each/5) {
				return fmt.Errorf("only %v records are handled", n)
			}
			return nil
		})
		r.flush()
	}
	running.Wait()
	r.settle()
	total := 0
	for conv, msgs := range auditConversations(r, convs...) {
		total += len(msgs)
		got := map[string]bool{}
		for _, m := range msgs {
			got[m.Sender+"/"+m.ClientID] = true
		}
		if !maps.Equal(got, want[conv]) {
			t.Errorf("%s has %d messages, %d were sent", conv, len(got), len(want[conv]))
		}
	}
	if total != producers*each {
		t.Errorf("%d messages in all, want %d", total, producers*each)
	}
	if n := r.metric(stack.ToRedis, "tidemark_toredis_cold_loads_total"); n <= conversations {
		t.Errorf("only %v cold loads: the flushes met nothing", n)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}

func TestField_S4_BurstWhileTheWorkerIsDown(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	for _, n := range []int{101, 250, 1000} {
		g := fmt.Sprint("group:g", n)
		r.stop(stack.ToRedis)
		lines, ids := numbered(g, "A", "m", n)
		r.produce(g, lines...)
		r.start(stack.ToRedis)
		r.settle()
		wantIDs(t, auditConversation(r, g), ids...)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("%d dead letters, the first is %v", len(letters), letters[0])
	}
}

func TestField_S5_ResendIsTheSameMessage(t *testing.T) {
	const c = "single:A:B"
	x := line(c, "B", "x", "text of x")
	// A producer that tries again fills in times and devices anew.
	again := strings.TrimSuffix(x, "}") + `,"sendTimeMs":"1","device":"d2"}`
	for name, produce := range map[string]func(r *rig){
		"Later": func(r *rig) {
			r.produce(c, x)
			r.settle()
			r.produce(c, again)
		},
		"AfterAWorkerRestart": func(r *rig) {
			r.produce(c, x)
			r.settle()
			r.restart(stack.ToRedis)
			r.produce(c, again)
		},
		"AfterARestartAndALostCache": func(r *rig) {
			r.produce(c, x)
			r.settle()
			r.stop(stack.ToRedis)
			r.flush()
			r.start(stack.ToRedis)
			r.produce(c, again)
		},
		"WhileHistoryIsBehind": func(r *rig) {
			r.stop(stack.ToMongo)
			r.produce(c, x)
			r.settle()
			r.flush()
			r.produce(c, again)
			r.settle()
			r.start(stack.ToMongo)
		},
		"TwiceInOneBatch": func(r *rig) {
			r.stop(stack.ToRedis)
			r.produce(c, x, again)
			r.start(stack.ToRedis)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startAll(t, nil)
			a := r.connect("A", r.roles[stack.ToPush].stack.GatewayURL())
			produce(r)
			if seq := r.send(c, "B", "x"); seq != 1 {
				t.Errorf("a third time: seq %d, want 1", seq)
			}
			if seq := r.send(c, "B", "y"); seq != 2 {
				t.Errorf("the next message has seq %d, want 2", seq)
			}
			r.awaitPushed(a, "1 x", "2 y")
			r.settle()
			if w := r.marks("A", c); w.GetMaxSeq() != 2 || w.GetUnread() != 2 {
				t.Errorf("watermarks of A: %v", w)
			}
			wantIDs(t, auditConversation(r, c), "x", "y")
			if letters := r.deadLetters(); len(letters) > 0 {
				t.Errorf("dead letters: %v", letters)
			}
		})
	}
}

func TestField_S6_IDReusedForOtherContent(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const c = "single:A:B"
	r.produce(c, line(c, "B", "x", "text of x"), line(c, "B", "x", "another text"), line(c, "A", "x", "x of A is another"))
	r.settle()
	letters := r.deadLetters()
	if len(letters) != 1 || letters[0].Reason != "id_reused" || !strings.Contains(string(letters[0].Record.Value), "another text") {
		t.Fatalf("dead letters: %v", letters)
	}
	_, err := r.svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: c, Sender: "B", ClientMessageId: "x", Body: &tidemarkv1.SendMessage_Text{Text: "a third"},
	}})
	if connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("send of other content under the same id: %v", err)
	}
	// Nor when the first one is only known from history.
	r.settle()
	r.flush()
	r.produce(c, line(c, "B", "x", "a fourth"))
	r.settle()
	if letters := r.deadLetters(); len(letters) != 3 || letters[2].Reason != "id_reused" {
		t.Errorf("dead letters: %v", letters)
	}
	msgs := auditConversation(r, c)
	wantIDs(t, msgs, "x", "x")
	if msgs[0].It != "text of x" || msgs[1].It != "x of A is another" {
		t.Errorf("messages = %v", msgs)
	}
}

func TestField_S7_NewGroupStartsLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const g = "group:g1"
	lines, ids := numbered(g, "A", "m", 5)
	r.produce(g, lines...)
	r.start(stack.Roles()...)
	r.settle()
	wantIDs(t, auditConversation(r, g), ids...)
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}
