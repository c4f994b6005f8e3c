package toredis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const group = "group:g1"

func handle(t testing.TB, s *toredis.Stage, records []wire.Record) int64 {
	t.Helper()
	durable, err := s.Handle(t.Context(), records)
	if err != nil {
		t.Fatalf("Handle: %v", err)
	}
	return durable
}

// story tells a partition of the log in one line an event.
func story(t testing.TB, w *world, p int32) []string {
	t.Helper()
	var out []string
	for _, rec := range w.sequenced(t, p) {
		for _, e := range rec.Events {
			switch e := e.(type) {
			case watermark.MessagesSequenced:
				for _, m := range e.Messages {
					out = append(out, fmt.Sprintf("%s %d %s/%s", rec.Conversation, m.Seq, m.Sender, m.ClientID))
				}
			case watermark.WindowChanged:
				out = append(out, fmt.Sprintf("%s %s %s v%d", rec.Conversation, e.Cause, e.Member.User, e.Member.Version))
			default:
				out = append(out, fmt.Sprintf("%s %T %+v", rec.Conversation, e, e))
			}
		}
	}
	return out
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func join(conv, user, op, caller string) *v1.Command {
	return &v1.Command{Conversation: conv, OpId: op, Caller: caller, Kind: &v1.Command_Join{
		Join: &v1.JoinCommand{User: user, History: v1.History_HISTORY_NONE}}}
}

func leave(conv, user, op, caller string) *v1.Command {
	return &v1.Command{Conversation: conv, OpId: op, Caller: caller, Kind: &v1.Command_Leave{
		Leave: &v1.LeaveCommand{User: user}}}
}

func revoke(conv string, seq int64, op, caller string) *v1.Command {
	return &v1.Command{Conversation: conv, OpId: op, Caller: caller, Kind: &v1.Command_Revoke{
		Revoke: &v1.RevokeCommand{Seq: seq}}}
}

func TestInputsBecomeEventsInOrder(t *testing.T) {
	w := newWorld(1)
	w.send(t, -1, group, "A", "1", "a", "caller")
	w.send(t, -1, "single:A:B", "B", "1", "b", "")
	w.command(t, join(group, "C", "op1", "caller"))
	w.send(t, -1, group, "C", "1", "c", "")
	w.send(t, -1, group, "A", "1", "a", "other") // resent

	s := w.stage(t, 0)
	if got := handle(t, s, w.input(0)); got != 5 {
		t.Errorf("durable = %d, want 5", got)
	}
	equal(t, "log", story(t, w, 0), []string{
		"group:g1 1 A/1", "group:g1 join C v1", "group:g1 2 C/1", "single:A:B 1 B/1",
	})
	equal(t, "inputs", w.sequenced(t, 0)[0].Inputs, []watermark.Origin{
		{Partition: watermark.Partition{TopicID: "id-toRedis"}, Offset: 4},
	})
	var got []string
	for k, a := range w.answers {
		got = append(got, fmt.Sprintf("%s %s: %d at %d", k.Caller, k.OpID, a.Verdict, a.Seq))
	}
	slices.Sort(got)
	equal(t, "answers", got, []string{"caller A/1: 0 at 1", "caller op1: 0 at 1", "other A/1: 2 at 1"})
	if d, err := s.Flush(t.Context()); d != 5 || err != nil {
		t.Errorf("Flush = %d, %v", d, err)
	}
}

func TestEffectsHappenInTheirOrder(t *testing.T) {
	w := newWorld(1)
	w.send(t, -1, group, "A", "1", "a", "caller")
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte{0xff, 0xff}})
	w.send(t, -1, group, "A", "1", "other", "")
	s := w.stage(t, 0)
	handle(t, s, w.input(0))
	equal(t, "cold", w.journal, []string{
		"settle", "malloc", "begin", "load", "install", "malloc", "append deadLetter", "append sequenced", "settle", "answers",
	})
	w.journal = nil
	w.send(t, -1, group, "A", "2", "a", "caller")
	handle(t, s, w.input(0)[3:])
	equal(t, "warm", w.journal, []string{"malloc", "append sequenced", "settle", "answers"})
}

func TestWhatCannotBeAcceptedIsDeadLettered(t *testing.T) {
	w := newWorld(1)
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte{0xff, 0xff}})
	w.send(t, -1, group, "A", "1", "a", "")
	w.send(t, -1, group, "A", "1", "b", "")
	w.command(t, leave(group, "B", "op1", ""))
	w.send(t, -1, group, "B", "1", "b", "")
	w.command(t, revoke(group, 99, "op2", "caller"))
	w.command(t, revoke(group, 99, "op3", ""))
	w.send(t, -1, "single:A:B", "C", "1", "c", "")
	w.send(t, -1, group, "A", "2", "a", "")
	handle(t, w.stage(t, 0), w.input(0))

	letters := w.letters(t)
	slices.Sort(letters)
	equal(t, "letters", letters, []string{
		"0@0 undecodable", "0@2 id_reused", "0@4 not_member", "0@6 no_such_seq", "0@7 not_participant",
	})
	equal(t, "log", story(t, w, 0), []string{"group:g1 1 A/1", "group:g1 leave B v1", "group:g1 2 A/2"})
	if a := w.answers[watermark.AnswerKey{Conversation: group, Caller: "caller", OpID: "op2"}]; a.Reason != watermark.ReasonNoSuchSeq {
		t.Errorf("answer = %+v", a)
	}
	for _, r := range w.topics[wire.TopicDeadLetter][0] {
		d, _ := wire.DecodeDeadLetter(r)
		if d.Cause == "" || d.First.IsZero() || d.Tries != 1 {
			t.Errorf("dead letter of offset %d says too little: %+v", d.Record.Offset, d)
		}
	}
}

func TestMessageThatTheLogCannotTakeGetsNoSeq(t *testing.T) {
	w := newWorld(1)
	w.send(t, -1, group, "A", "1", strings.Repeat("x", 5000), "")
	w.send(t, -1, group, "A", "2", "x", "")
	seq := w.sequencer(t, func(c *toredis.Config) { c.Codec.MaxRecord = 4000 })
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	handle(t, s, w.input(0))
	equal(t, "letters", w.letters(t), []string{"0@0 too_large"})
	equal(t, "log", story(t, w, 0), []string{"group:g1 1 A/2"})
}

func TestNextRecordWaitsForTheLast(t *testing.T) {
	w := newWorld(1)
	for i := range 450 {
		w.send(t, -1, group, "A", fmt.Sprint(i), "a", "")
	}
	w.send(t, -1, "group:g2", "A", "1", "a", "")
	s := w.stage(t, 0)
	handle(t, s, w.input(0))
	var sizes []string
	for _, rec := range w.sequenced(t, 0) {
		n := 0
		for _, e := range rec.Events {
			n += len(e.(watermark.MessagesSequenced).Messages)
		}
		sizes = append(sizes, fmt.Sprintf("%s %d in=%d", rec.Conversation, n, rec.Inputs[0].Offset))
	}
	equal(t, "records", sizes, []string{"group:g1 200 in=199", "group:g2 1 in=450", "group:g1 200 in=399", "group:g1 50 in=449"})
	appends := slices.DeleteFunc(slices.Clone(w.journal), func(op string) bool { return op != "append sequenced" })
	if len(appends) != 3 {
		t.Errorf("%d appends, want 3 rounds", len(appends))
	}
}

func TestMisroutedRecordsAreForwardedOnce(t *testing.T) {
	const partitions = 4
	w := newWorld(partitions)
	home := wire.PartitionOf(group, partitions)
	wrong := (home + 1) % partitions
	w.send(t, wrong, group, "A", "", "no id", "")
	w.send(t, wrong, group, "A", "2", "two", "")
	at := w.input(wrong)
	before := decode(t, at[0])
	handle(t, w.stage(t, wrong), at)
	handle(t, w.stage(t, wrong), at) // redelivered: forwarded again

	moved := w.input(home)
	if len(moved) != 4 {
		t.Fatalf("%d records at home, want 4", len(moved))
	}
	equal(t, "input", decode(t, moved[0]), before)
	handle(t, w.stage(t, home), moved)
	id := before.Message.ClientID
	equal(t, "log", story(t, w, home), []string{
		"group:g1 1 A/" + id, "group:g1 2 A/2", "group:g1 1 A/" + id, "group:g1 2 A/2",
	})

	// A second hop would go round for ever, and stopping would be for ever too.
	far := w.stage(t, (home+2)%partitions)
	hop := moved[0]
	hop.Partition = (home + 2) % partitions
	letters := len(w.letters(t))
	if durable, err := far.Handle(t.Context(), []wire.Record{hop}); err != nil || durable != hop.Offset+1 {
		t.Fatalf("second hop: durable %d, %v", durable, err)
	}
	got := w.letters(t)
	if len(got) != letters+1 || !strings.HasSuffix(got[letters], watermark.ReasonWrongPartition) {
		t.Errorf("second hop: dead letters %v, want one more, wrong_partition", got)
	}
	if n := len(w.input(home)); n != 4 {
		t.Errorf("second hop: %d records at home, want 4 as before", n)
	}
}

// An origin that no forwarder can have written would raise the input mark of a
// partition that the record never stood in, and what stands there would be lost;
// on a wrong partition it would stop every owner, for ever.
func TestForgedOriginsAreDeadLetters(t *testing.T) {
	const partitions = 4
	w := newWorld(partitions)
	home := wire.PartitionOf(group, partitions)
	w.send(t, -1, group, "A", "1", "a", "")
	honest := w.input(home)[0]
	forge := func(at int64, partition int32, origin string) wire.Record {
		r := honest
		r.Offset, r.Partition = at, partition
		r.Headers = append(slices.Clone(r.Headers), wire.Header{Key: wire.HeaderOrigin, Value: []byte(origin)})
		return r
	}
	high := "/9223372036854775807/0"
	s := w.stage(t, home)
	handle(t, s, []wire.Record{
		forge(0, home, "X/0"+high),
		forge(1, home, fmt.Sprintf("%s/%d", honest.TopicID, home)+high),
		forge(2, home, fmt.Sprintf("%s/%d", honest.TopicID, partitions)+high),
	})
	honest.Offset = 3
	handle(t, s, []wire.Record{honest})
	wrong := (home + 1) % partitions
	handle(t, w.stage(t, wrong), []wire.Record{forge(0, wrong, "X/0/0/0")})
	equal(t, "letters", w.letters(t), []string{
		fmt.Sprintf("%d@0 invalid", home), fmt.Sprintf("%d@1 invalid", home), fmt.Sprintf("%d@2 invalid", home), fmt.Sprintf("%d@0 invalid", wrong),
	})
	equal(t, "log", story(t, w, home), []string{"group:g1 1 A/1"})
}

// Of two strays of one conversation the second must not arrive without the
// first: the first's retry would then stand below the input mark, and be lost.
func TestStraysOfOneConversationArriveInOrder(t *testing.T) {
	const partitions = 4
	for failAt := 1; failAt <= 2; failAt++ {
		w := newWorld(partitions)
		home := wire.PartitionOf(group, partitions)
		wrong := (home + 1) % partitions
		w.send(t, wrong, group, "A", "1", "a", "")
		w.send(t, wrong, group, "A", "2", "a", "")
		w.failAt, w.failHow = failAt, before
		s := w.stage(t, wrong)
		if _, err := s.Handle(t.Context(), w.input(wrong)); err == nil {
			t.Fatal("want an error")
		}
		handle(t, s, w.input(wrong))
		handle(t, w.stage(t, home), w.input(home))
		equal(t, "log", story(t, w, home), []string{"group:g1 1 A/1", "group:g1 2 A/2"})
	}
}

func decode(t testing.TB, r wire.Record) watermark.Input {
	t.Helper()
	in, err := wire.Codec{}.DecodeInput(r)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestUnknownMembersAreLoaded(t *testing.T) {
	w := newWorld(1)
	w.roster = false
	w.command(t, leave(group, "B", "op1", ""))
	w.send(t, -1, group, "A", "1", "a", "")
	handle(t, w.stage(t, 0), w.input(0)) // cold: A and B are loaded
	w.redis.FlushAll()
	s := w.stage(t, 0)
	w.send(t, -1, group, "A", "2", "a", "")
	handle(t, s, w.input(0)[2:])
	w.journal = nil
	w.send(t, -1, group, "B", "1", "b", "") // warm, B is not known
	w.send(t, -1, group, "D", "1", "d", "") // nor D, who never was there
	handle(t, s, w.input(0)[3:])
	equal(t, "calls", w.journal, []string{
		"malloc", "load", "members", "malloc", "append deadLetter", "append sequenced", "settle",
	})
	equal(t, "letters", w.letters(t), []string{"0@3 not_member"})
	equal(t, "seqs", story(t, w, 0)[1:], []string{"group:g1 1 A/1", "group:g1 2 A/2", "group:g1 3 D/1"})
}

func TestResequenceStartsFromTheTruth(t *testing.T) {
	w := newWorld(1)
	s := w.stage(t, 0)
	w.send(t, -1, group, "A", "1", "a", "")
	handle(t, s, w.input(0))
	lost := decode(t, w.input(0)[0]).Message
	cmd := &v1.Command{Conversation: group, OpId: "op", Kind: &v1.Command_Resequence{Resequence: &v1.ResequenceCommand{
		RepairNumber: 8,
		Message: &v1.LoggedMessage{Seq: 1, Sender: "B", ClientMessageId: "9", Hash: lost.Hash[:], Kind: "text",
			BodyType: v1.BodyType_BODY_TYPE_TEXT, Body: []byte("b")},
	}}}
	w.journal = nil
	w.command(t, cmd)
	handle(t, s, w.input(0)[1:])
	equal(t, "calls", w.journal, []string{"begin", "load", "install", "malloc", "append sequenced", "settle"})
	equal(t, "log", story(t, w, 0)[1:], []string{
		"group:g1 2 B/9", "group:g1 watermark.Repaired {Number:8 From:1}",
	})
	w.command(t, cmd) // once more: it stands elsewhere by now, and is said to
	handle(t, s, w.input(0)[2:])
	equal(t, "log", story(t, w, 0)[3:], story(t, w, 0)[1:3])
}

func TestFloorIsWhatWasAcknowledged(t *testing.T) {
	w := newWorld(1)
	s := w.stage(t, 0)
	w.send(t, -1, group, "A", "1", "a", "")
	w.send(t, -1, group, "A", "2", "a", "")
	handle(t, s, w.input(0))
	if got := w.mallocs[len(w.mallocs)-1].Floor; got != 0 {
		t.Errorf("floor of the first batch = %d, want 0", got)
	}

	// The append fails, and Redis loses what it allocated: nothing that was
	// acknowledged is gone, so this must heal.
	w.send(t, -1, group, "A", "3", "a", "")
	w.onCall = func(op string) error {
		if op == "append sequenced" {
			return errDied
		}
		return nil
	}
	if _, err := s.Handle(t.Context(), w.input(0)[2:]); err == nil {
		t.Fatal("want an error")
	}
	if got := w.mallocs[len(w.mallocs)-1].Floor; got != 2 {
		t.Errorf("floor = %d, want 2", got)
	}
	w.onCall = nil
	w.redis.FlushAll()
	handle(t, s, w.input(0)[2:])
	equal(t, "log", story(t, w, 0), []string{"group:g1 1 A/1", "group:g1 2 A/2", "group:g1 3 A/3"})

	// The counter falls back while Redis looks warm: the truth is asked.
	w.redis.Undo(1)
	w.send(t, -1, group, "A", "4", "a", "")
	handle(t, s, w.input(0)[3:])
	equal(t, "after a fall-back", story(t, w, 0)[3:], []string{"group:g1 4 A/4"})
}

// The owner before gave four seqs and died before it appended them. Those that
// were not appended again yet are no floor, though the counter includes them.
func TestSeqsOfADeadOwnerAreNoFloor(t *testing.T) {
	w := newWorld(1)
	for i := range 4 {
		w.send(t, -1, group, "A", fmt.Sprint(i), "a", "")
	}
	w.onCall = func(op string) error {
		if op == "append sequenced" {
			return errDied
		}
		return nil
	}
	if _, err := w.stage(t, 0).Handle(t.Context(), w.input(0)); err == nil {
		t.Fatal("want an error")
	}
	w.onCall = nil
	s := w.stage(t, 0)
	handle(t, s, w.input(0)[:2])
	w.redis.FlushAll()
	handle(t, s, w.input(0)[2:])
	equal(t, "log", story(t, w, 0), []string{"group:g1 1 A/0", "group:g1 2 A/1", "group:g1 3 A/2", "group:g1 4 A/3"})
}

func TestLogThatLostRecordsStopsTheOwner(t *testing.T) {
	w := newWorld(1)
	s := w.stage(t, 0)
	for i := range 3 {
		w.send(t, -1, group, "A", fmt.Sprint(i), "a", "")
		handle(t, s, w.input(0)[i:])
	}
	w.topics[wire.TopicSequenced][0] = w.topics[wire.TopicSequenced][0][:2]
	w.redis.FlushAll()
	w.send(t, -1, group, "A", "4", "a", "")
	_, err := s.Handle(t.Context(), w.input(0)[3:])
	if fault.ClassOf(err) != fault.Fatal || !strings.Contains(err.Error(), "the log lost records") {
		t.Errorf("err = %v, want fatal: the log lost records", err)
	}
	// A new claim knows no floors: another owner may have been there.
	w.redis.FlushAll()
	handle(t, w.stage(t, 0), w.input(0)[3:])
}

func TestFloorsAreBounded(t *testing.T) {
	w := newWorld(1)
	seq := w.sequencer(t, func(c *toredis.Config) { c.FloorEntries = 2 })
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		w.send(t, -1, fmt.Sprint("group:", i), "A", "1", "a", "")
	}
	handle(t, s, w.input(0))
	for i := range 3 {
		w.send(t, -1, fmt.Sprint("group:", i), "A", "2", "a", "")
	}
	w.mallocs = nil
	handle(t, s, w.input(0)[3:])
	var floors []watermark.Seq
	for _, b := range w.mallocs {
		floors = append(floors, b.Floor)
	}
	equal(t, "floors", floors, []watermark.Seq{0, 1, 1})
}

// restless is a Redis in which somebody always begins again.
type restless struct{ *world }

func (r restless) Install(context.Context, []watermark.Loaded) ([]bool, error) {
	return []bool{false}, nil
}

func TestRoundsAreBounded(t *testing.T) {
	w := newWorld(1)
	w.send(t, -1, group, "A", "1", "a", "")
	seq := w.sequencer(t, func(c *toredis.Config) { c.Allocator = restless{w} })
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	durable, err := s.Handle(t.Context(), w.input(0))
	if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "unsettled" || durable != 0 {
		t.Errorf("Handle = %d, %v, want a transient error, reason unsettled", durable, err)
	}
	if len(w.sequenced(t, 0)) != 0 {
		t.Error("something was appended")
	}
}

func TestRetryRepeatsNoDeadLetter(t *testing.T) {
	w := newWorld(1)
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte{0xff}})
	w.send(t, -1, group, "A", "1", "a", "")
	w.onCall = func(op string) error {
		if op == "append sequenced" {
			return errDied
		}
		return nil
	}
	s := w.stage(t, 0)
	for range 3 {
		if _, err := s.Handle(t.Context(), w.input(0)); err == nil {
			t.Fatal("want an error")
		}
	}
	w.onCall = nil
	handle(t, s, w.input(0))
	equal(t, "letters", w.letters(t), []string{"0@0 undecodable"})
	equal(t, "log", story(t, w, 0), []string{"group:g1 1 A/1"})
}

// A poison error makes the runner set the record aside. Where the record may
// have a seq that would be a hole.
func TestWhatHasASeqIsNeverSetAside(t *testing.T) {
	for _, op := range []string{"malloc", "load", "append deadLetter", "append sequenced", "answers"} {
		w := newWorld(1)
		w.send(t, -1, group, "A", "1", "a", "caller")
		w.send(t, -1, group, "A", "1", "b", "")
		w.onCall = func(at string) error {
			if at == op {
				return fault.New(fault.Poison, watermark.ReasonTooLarge, errDied)
			}
			return nil
		}
		if _, err := w.stage(t, 0).Handle(t.Context(), w.input(0)); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("%s: %v, want a fatal error", op, err)
		}
	}
}

func TestStrayThatCannotBeForwardedIsPoison(t *testing.T) {
	w := newWorld(4)
	wrong := (wire.PartitionOf(group, 4) + 1) % 4
	w.send(t, wrong, group, "A", "1", "a", "")
	w.onCall = func(string) error { return fault.New(fault.Poison, watermark.ReasonTooLarge, errDied) }
	if _, err := w.stage(t, wrong).Handle(t.Context(), w.input(wrong)); fault.ClassOf(err) != fault.Poison {
		t.Errorf("err = %v, want poison", err)
	}
}

// small is a Kafka that takes no value above 100 bytes on the dead letters.
type small struct{ *world }

func (s small) Append(ctx context.Context, outs []wire.Out) error {
	for _, o := range outs {
		if o.Topic == wire.TopicDeadLetter && len(o.Value) > 100 {
			return fault.New(fault.Poison, watermark.ReasonTooLarge, errors.New("too large"))
		}
	}
	return s.world.Append(ctx, outs)
}

func TestDeadLetterThatIsTooLargeKeepsItsPlace(t *testing.T) {
	w := newWorld(1)
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte(strings.Repeat("\xff", 200))})
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte{0xff}})
	seq := w.sequencer(t, func(c *toredis.Config) { c.Log = small{w} })
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	if d := handle(t, s, w.input(0)); d != 2 {
		t.Errorf("durable = %d, want 2", d)
	}
	equal(t, "letters", w.letters(t), []string{"0@0 undecodable", "0@1 undecodable"})
}
