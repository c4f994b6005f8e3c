package tomongo_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	group  = watermark.ConversationID("group:g")
	single = watermark.ConversationID("single:A:B")
)

func TestMarksWaitAndCoverTheirOffsets(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1"), message(2, "B", "1")))
	w.append(t, single, said(message(1, "A", "1")))
	s := w.stage(t, asItIs)
	if d := handle(t, s, w.log); d != 0 {
		t.Errorf("durable = %d with marks pending, want 0", d)
	}
	equal(t, "calls", w.journal, []string{"write"})
	if len(w.rows[group]) != 2 || len(w.convs) != 0 {
		t.Errorf("%d rows, bounds %v: messages are written at once, bounds wait", len(w.rows[group]), w.convs)
	}
	if d := flush(t, s); d != 2 {
		t.Errorf("durable = %d after the flush, want 2", d)
	}
	equal(t, "calls", w.journal, []string{"write", "flush"})
	w.checkProjection(t)
}

// What follows from a message stands in Redis since the message has its seq, so
// telling it again would be a call for each message.
func TestRedisIsToldOfReadMarksOnly(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1"), message(2, "B", "1")))
	w.append(t, group, read("C", 1), read("A", 2))
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	flush(t, s)
	equal(t, "calls", w.journal, []string{"write", "flush", "raise"})
	told := map[watermark.UserID]watermark.Seq{}
	for _, r := range w.hot {
		told[r.Member.User] = r.Member.Read
	}
	equal(t, "told", told, map[watermark.UserID]watermark.Seq{"A": 2, "C": 1})
	w.append(t, group, said(message(3, "A", "2")))
	handle(t, s, w.log[2:])
	flush(t, s)
	equal(t, "calls", w.journal, []string{"write", "flush", "raise", "write", "flush"})
}

func TestWhatLeavesNothingPendingIsDurableAtOnce(t *testing.T) {
	w := newWorld()
	w.raw([]byte{0xff})
	s := w.stage(t, asItIs)
	if d := handle(t, s, w.log); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	if d := handle(t, s, nil); d != 1 {
		t.Errorf("durable of an empty batch = %d, want 1", d)
	}
	w.checkProjection(t)
}

func TestHistoryKnowsTheTopicsThatItIsFilledFrom(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1")))
	w.append(t, group, read("A", 1))
	w.raw([]byte{0xff}) // a dead letter is not missing either
	s := w.stage(t, func(c *tomongo.Config) { c.Inputs = "p.toRedis" })
	handle(t, s, w.log[:2])
	if len(w.known) != 0 {
		t.Errorf("positions before the marks are written: %v", w.known)
	}
	flush(t, s)
	handle(t, s, w.log[2:])
	equal(t, "positions", w.known, map[watermark.Position]int64{
		{Topic: wire.TopicSequenced, Partition: watermark.Partition{TopicID: "seq"}}: 3,
		{Topic: "p.toRedis", Partition: watermark.Partition{TopicID: "in"}}:          0,
	})
	if n := len(w.changes); n != 3 {
		t.Errorf("%d writes, want 3: a position has none of its own where there is another one", n)
	}
}

func TestFlushByCount(t *testing.T) {
	w := newWorld()
	s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 10 })
	for i := range 25 {
		w.append(t, group, read(watermark.UserID(fmt.Sprint("u", i%3)), watermark.Seq(i+1)))
	}
	var durables []int64
	for i := range w.log {
		durables = append(durables, handle(t, s, w.log[i:i+1]))
	}
	var want []int64
	for i := range int64(25) {
		want = append(want, (i+1)/10*10)
	}
	equal(t, "durable", durables, want)
	if len(w.changes) != 2 || len(w.changes[0].Members) != 3 {
		t.Errorf("%d writes, %d members in the first; want 2 and 3", len(w.changes), len(w.changes[0].Members))
	}
}

func TestFlushByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.stage(t, func(c *tomongo.Config) { c.FlushEvery = time.Second })
		for i := range 4 {
			w.append(t, group, read("A", watermark.Seq(i+1)))
		}
		time.Sleep(time.Hour) // idle before the first mark does not count
		var durables []int64
		for i := range w.log {
			durables = append(durables, handle(t, s, w.log[i:i+1]))
			time.Sleep(600 * time.Millisecond)
		}
		equal(t, "durable", durables, []int64{0, 0, 3, 3})
	})
}

func TestShutdownWritesAllPendingMarks(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			w := newWorld()
			many := func(c *tomongo.Config) { c.FlushMarks = 10_000 }
			s := w.stage(t, many)
			for i := range 500 {
				w.append(t, group, read(watermark.UserID(fmt.Sprint("u", i)), 7))
			}
			if d := handle(t, s, w.log); d != 0 {
				t.Fatalf("durable = %d with 500 marks pending", d)
			}
			if len(w.members[group]) != 0 {
				t.Fatal("marks are written already")
			}
			if killed { // another one gets everything again
				s = w.stage(t, many)
				handle(t, s, w.log)
			}
			if d := flush(t, s); d != 500 {
				t.Errorf("durable = %d, want 500", d)
			}
			w.checkProjection(t)
			if n := len(w.members[group]); n != 500 {
				t.Errorf("%d marks in history, want 500", n)
			}
		})
	}
}

// 1,000 members mark each of 100 messages: what is written is bounded by the
// members and by the flushes, not by the marks.
func TestGroupReceiptsCoalesce(t *testing.T) {
	w := newWorld()
	reg := prometheus.NewRegistry()
	s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 5000; c.FlushEvery = time.Hour; c.Registerer = reg })
	const members, msgs = 1000, 100
	for seq := 1; seq <= msgs; seq++ {
		for at := 0; at < members; at += 100 { // a record takes the marks of a few milliseconds
			var events []watermark.Event
			for u := at; u < at+100; u++ {
				events = append(events, read(watermark.UserID(fmt.Sprint("u", u)), watermark.Seq(seq)))
			}
			w.append(t, group, events...)
		}
	}
	for at := 0; at < len(w.log); at += 10 {
		handle(t, s, w.log[at:at+10])
	}
	flush(t, s)
	if n := len(w.members[group]); n != members {
		t.Errorf("%d watermark rows, want %d", n, members)
	}
	if n := len(w.changes); n != 20 {
		t.Errorf("%d writes for 100,000 marks, want 20", n)
	}
	written := 0
	for _, c := range w.changes {
		written += len(c.Members)
	}
	if written > members*msgs/5 {
		t.Errorf("%d watermarks written for %d marks", written, members*msgs)
	}
	for u, m := range w.members[group] {
		if m.Read != msgs {
			t.Fatalf("%s has read up to %d, want %d", u, m.Read, msgs)
		}
	}
}

func TestConflictGoesToTheOwner(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1"), message(2, "A", "2")))
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	flush(t, s)

	loser := message(2, "B", "9")
	w.append(t, group, said(loser, message(3, "C", "1")))
	w.onCall = func(op string) error {
		if op == "owner" {
			return errDied
		}
		return nil
	}
	if d, err := s.Handle(t.Context(), w.log[1:]); d != 1 || !errors.Is(err, errDied) {
		t.Fatalf("Handle = %d, %v: durable before the owner has it", d, err)
	}
	w.onCall = nil
	handle(t, s, w.log[1:])
	if d := flush(t, s); d != 2 {
		t.Errorf("durable = %d, want 2", d)
	}
	if len(w.owned) != 1 {
		t.Fatalf("%d commands, want 1", len(w.owned))
	}
	in := w.owned[0]
	if in.Act != watermark.ActResequence || in.Seq != 2 || in.Repair != 2 || !in.Message.SameAs(&loser) {
		t.Errorf("command = %+v", in)
	}
	if m := w.rows[group][2]; m.Sender != "A" {
		t.Errorf("seq 2 is %s's now", m.Sender)
	}
	if _, ok := w.members[group]["B"]; ok {
		t.Error("the loser's sender has a mark")
	}
	if w.convs[group].Max != 3 || w.members[group]["C"].Read != 3 {
		t.Error("the rest of the record is not written")
	}
	checkCommand(t, in)
}

// checkCommand sends in through the codec, as the owner will get it.
func checkCommand(t *testing.T, in watermark.Input) {
	t.Helper()
	out, err := wire.EncodeCommand(convert.InputToCommand(in))
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.Codec{}.DecodeInput(wire.Record{TopicID: "x", Value: out.Value, Headers: out.Headers})
	if err != nil {
		t.Fatalf("the owner cannot read the command: %v", err)
	}
	if got.Repair != in.Repair || got.Seq != in.Seq || got.OpID != in.OpID {
		t.Errorf("command = %+v, want %+v", got, in)
	}
}

func TestConflictInsideOneBatch(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1")))
	w.append(t, group, said(message(1, "B", "9")))
	w.append(t, group, said(message(1, "A", "1")))
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	if d := flush(t, s); d != 3 {
		t.Errorf("durable = %d, want 3", d)
	}
	if w.rows[group][1].Sender != "A" || len(w.owned) != 1 || w.owned[0].Message.Sender != "B" {
		t.Errorf("rows %v, owned %v: the first in the log must stand", w.rows[group], w.owned)
	}
	for _, c := range w.changes {
		if len(c.Rows) > 1 {
			t.Error("two messages for one place in one change: the store would choose")
		}
	}
}

func TestMemberConflictGoesToTheOwner(t *testing.T) {
	w := newWorld()
	first, _, _ := watermark.Member{User: "A"}.Join("op1", 3, watermark.HistoryNone, 0)
	second, _ := watermark.Member{User: "A"}.Leave("op2", 5, 0)
	third, _ := first.Leave("op3", 7, 0)
	w.append(t, group, watermark.WindowChanged{Member: first, Cause: "join"})
	w.append(t, group, watermark.WindowChanged{Member: second, Cause: "leave"}, watermark.WindowChanged{Member: third, Cause: "leave"})
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	if d := flush(t, s); d != 2 {
		t.Errorf("durable = %d, want 2", d)
	}
	if len(w.owned) != 1 || w.owned[0].Member.Ops[0].ID != "op2" || w.owned[0].Repair != 2 {
		t.Fatalf("owned = %+v, want op2", w.owned)
	}
	checkCommand(t, w.owned[0])
	if got := w.members[group]["A"]; got.Version != 2 || got.Ops[1].ID != "op3" {
		t.Errorf("member = %+v, want version 2 by op3", got)
	}
}

func TestRaisedMinimumDeletesInSteps(t *testing.T) {
	w := newWorld()
	var ms []watermark.Message
	for seq := watermark.Seq(1); seq <= 25; seq++ {
		ms = append(ms, message(seq, "A", fmt.Sprint(seq)))
	}
	w.append(t, group, said(ms...))
	w.append(t, group, watermark.MinSeqRaised{Min: 21})
	s := w.stage(t, func(c *tomongo.Config) { c.DeleteStep = 8 })
	handle(t, s, w.log)
	flush(t, s)
	equal(t, "calls", w.journal, []string{"write", "bounds", "delete", "delete", "delete", "delete", "flush"})
	w.checkProjection(t)
	if w.convs[group].Max != 25 || w.convs[group].Min != 21 {
		t.Errorf("conversation = %+v", w.convs[group])
	}
	handle(t, w.stage(t, asItIs), w.log) // redelivered: they stay deleted
	if n := len(w.rows[group]); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
}

func TestHistoryDoesNotWaitForRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 1 })
		down := true
		w.onCall = func(op string) error {
			if op == "raise" && down {
				return errors.New("connection refused")
			}
			return nil
		}
		for i := range 5 {
			w.append(t, group, read(watermark.UserID(fmt.Sprint("u", i)), 3))
			if d := handle(t, s, w.log[i:]); d != int64(i+1) {
				t.Fatalf("durable = %d, want %d", d, i+1)
			}
		}
		if n := strings.Count(strings.Join(w.journal, " "), "raise"); n != 1 {
			t.Errorf("redis was asked %d times within its pause, want once", n)
		}
		down = false
		time.Sleep(2 * time.Second)
		flush(t, s)
		if len(w.hot) != 5 {
			t.Errorf("%d marks reached redis after it came back, want 5", len(w.hot))
		}
	})
}

func TestFatalErrorOfRedisEndsTheFlush(t *testing.T) {
	w := newWorld()
	w.append(t, group, read("A", 3))
	s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 1 })
	w.onCall = func(op string) error {
		if op == "raise" {
			return fault.New(fault.Fatal, "auth", errors.New("wrong password"))
		}
		return nil
	}
	if _, err := s.Handle(t.Context(), w.log); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("err = %v, want a fatal one", err)
	}
}

func TestFlushAfterAFailedBatchSaysNothingOfIt(t *testing.T) {
	w := newWorld()
	w.append(t, group, read("A", 1))
	w.append(t, group, read("A", 2))
	s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 2 })
	handle(t, s, w.log[:1])
	w.onCall = func(op string) error {
		if op == "flush" {
			return errDied
		}
		return nil
	}
	if _, err := s.Handle(t.Context(), w.log[1:]); err == nil {
		t.Fatal("want an error")
	}
	w.onCall = nil
	if d := flush(t, s); d != 1 {
		t.Errorf("durable = %d, want 1: the second batch failed", d)
	}
	if d := handle(t, s, w.log[1:]); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	if d := flush(t, s); d != 2 {
		t.Errorf("durable = %d, want 2", d)
	}
}

func TestNoRecordOfTheLogIsSetAside(t *testing.T) {
	for _, op := range []string{"write", "flush", "bounds", "owner", "delete"} {
		w := newWorld()
		w.append(t, group, said(message(1, "A", "1")))
		w.append(t, group, said(message(1, "B", "1")), watermark.MinSeqRaised{Min: 2})
		w.onCall = func(at string) error {
			if at == op {
				return fault.New(fault.Poison, "too_large", errDied)
			}
			return nil
		}
		s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks = 1 })
		if _, err := s.Handle(t.Context(), w.log); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("%s: %v, want a fatal error", op, err)
		}
	}
}

func TestUndecodableRecordIsDeadLettered(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1")))
	w.raw([]byte{0xff, 0xff})
	w.append(t, group, said(message(2, "A", "2")))
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	if d := flush(t, s); d != 3 {
		t.Errorf("durable = %d, want 3", d)
	}
	if len(w.letters) != 1 || w.letters[0].Topic != wire.TopicDeadLetter {
		t.Fatalf("letters = %+v", w.letters)
	}
	w.checkProjection(t)
}

func TestPeerOfASingleConversationExists(t *testing.T) {
	w := newWorld()
	w.append(t, single, said(message(1, "A", "1")))
	w.append(t, single, said(message(2, "A", "2")))
	s := w.stage(t, asItIs)
	for i := range w.log {
		handle(t, s, w.log[i:i+1])
		flush(t, s)
	}
	w.checkProjection(t)
	if last := w.changes[len(w.changes)-1].Members; len(last) != 1 {
		t.Errorf("the peer is written again for every message: %+v", last)
	}
}

func TestKeepOnSendListsOwnMessages(t *testing.T) {
	w := newWorld()
	w.append(t, group, watermark.MessagesSequenced{Policy: watermark.KeepOnSend,
		Messages: []watermark.Message{message(1, "A", "1"), message(2, "A", "2")}})
	w.append(t, group, read("A", 1))
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	flush(t, s)
	w.checkProjection(t)
	equal(t, "own", w.members[group]["A"].Own, []watermark.Seq{2})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := tomongo.New(tomongo.Config{WriteEvery: -1, FlushMarks: -1, FlushEvery: -1, DeleteStep: -1})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, want := range []string{"History", "Hot", "Owner", "Log", "WriteEvery", "FlushMarks", "FlushEvery", "DeleteStep"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld()
	w.append(t, group, said(message(1, "A", "1"), message(2, "A", "2")), read("A", 1))
	w.append(t, group, said(message(2, "B", "2")), watermark.MinSeqRaised{Min: 2})
	w.raw([]byte{0xff})
	w.append(t, group, read("C", 2), read("C", 1))
	w.append(t, group, read("C", 2))
	w.onCall = func(op string) error {
		if op == "raise" {
			return errDied
		}
		return nil
	}
	clock := time.Now()
	s := w.stage(t, func(c *tomongo.Config) {
		c.Registerer, c.FlushEvery, c.Now = reg, time.Hour, func() time.Time { return clock }
	})
	handle(t, s, w.log[:2])
	flush(t, s)
	handle(t, s, w.log[2:4])
	clock = clock.Add(5 * time.Second)
	handle(t, s, w.log[4:])
	clock = clock.Add(2 * time.Second)
	equal(t, "metrics", gather(t, reg), []string{
		"# tidemark_tomongo_advances_total: Watermark advances taken from the sequenced log.",
		"tidemark_tomongo_advances_total{} 7",
		"# tidemark_tomongo_conflicts_total: Events that found another one in their place and were handed back to the owner, by kind (message, member).",
		"tidemark_tomongo_conflicts_total{kind=member} 0",
		"tidemark_tomongo_conflicts_total{kind=message} 1",
		"# tidemark_tomongo_deleted_rows_total: Message rows deleted below a raised minimum.",
		"tidemark_tomongo_deleted_rows_total{} 1",
		"# tidemark_tomongo_flushed_conversations_total: Coalesced bounds of conversations written.",
		"tidemark_tomongo_flushed_conversations_total{} 1",
		"# tidemark_tomongo_flushed_members_total: Coalesced watermarks written; against the advances it gives the ratio of coalescing.",
		"tidemark_tomongo_flushed_members_total{} 1",
		"# tidemark_tomongo_flushes_total: Writes of what is coalesced, by reason (count, size, time, idle).",
		"tidemark_tomongo_flushes_total{reason=count} 0",
		"tidemark_tomongo_flushes_total{reason=idle} 1",
		"tidemark_tomongo_flushes_total{reason=size} 0",
		"tidemark_tomongo_flushes_total{reason=time} 0",
		"# tidemark_tomongo_hot_errors_total: Flushes whose watermarks could not be merged into Redis.",
		"tidemark_tomongo_hot_errors_total{} 1",
		"# tidemark_tomongo_pending_age_seconds: Age of the oldest watermark or bound that is not written yet; 0 when there is none.",
		"tidemark_tomongo_pending_age_seconds{} 7",
		"# tidemark_tomongo_pending_conversations: Coalesced bounds of conversations that are not written yet.",
		"tidemark_tomongo_pending_conversations{} 0",
		"# tidemark_tomongo_pending_members: Coalesced watermarks that are not written yet.",
		"tidemark_tomongo_pending_members{} 1",
		"# tidemark_tomongo_persisted_seconds: Time from a message's record, as its producer gave it, until the message stands in history.",
		"tidemark_tomongo_persisted_seconds{} 2",
		"# tidemark_tomongo_poison_records_total: Records of the sequenced log that could not be decoded and went to the dead letters.",
		"tidemark_tomongo_poison_records_total{} 1",
		"# tidemark_tomongo_rows_total: Message rows handed to history, by what became of them.",
		"tidemark_tomongo_rows_total{fate=conflict} 1",
		"tidemark_tomongo_rows_total{fate=inserted} 2",
		"tidemark_tomongo_rows_total{fate=replay} 0",
		"tidemark_tomongo_rows_total{fate=retired} 0",
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := gather(t, reg); !slices.Contains(got, "tidemark_tomongo_pending_members{} 0") {
		t.Errorf("a closed stage leaves marks pending: %v", got)
	} else if !slices.Contains(got, "tidemark_tomongo_pending_age_seconds{} 0") {
		t.Errorf("a closed stage leaves an old mark: %v", got)
	}
}

// The load that budgets are of: 15,000 messages a second to 10,000 conversations of
// two, of which one of four partitions has a quarter. Watermarks are written once
// for ten advances or more (design: write-behind), by the defaults.
func TestATenthOfTheWatermarksIsWrittenUnderLoad(t *testing.T) {
	const convs, rate, step, seconds = 2500, 3750, 50 * time.Millisecond, 45
	w, reg, clock := newWorld(), prometheus.NewRegistry(), time.Unix(0, 0)
	s := w.stage(t, func(c *tomongo.Config) {
		c.FlushEvery, c.Registerer, c.Now = 0, reg, func() time.Time { return clock }
	})
	ids, users := make([]watermark.ConversationID, convs), [2]watermark.UserID{"a", "b"}
	for i := range ids {
		ids[i] = watermark.ConversationID(fmt.Sprint("group:g", i))
	}
	taken := 0
	for n := 0; n < rate*seconds; {
		clock = clock.Add(step)
		for range int(rate * step.Seconds()) {
			conv, seq := ids[n%convs], watermark.Seq(n/convs+1)
			w.append(t, conv, said(message(seq, users[seq%2], fmt.Sprint(seq))))
			n++
		}
		handle(t, s, w.log[taken:])
		taken = len(w.log)
	}
	flush(t, s)
	written := 0
	for _, c := range w.changes {
		written += len(c.Members)
	}
	if advances := len(w.log); written == 0 || written*10 > advances {
		t.Errorf("%d watermarks written for %d advances, want a tenth at most", written, advances)
	}
}
