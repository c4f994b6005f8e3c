//go:build !real

package stack_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// saboteur reaches past every role into what stands.
type saboteur struct {
	*rig
	db    *sql.DB
	redis *redis.Client
	conv  watermark.ConversationID
}

func (s *saboteur) sql(text string, args ...any) {
	s.t.Helper()
	res, err := s.db.Exec(text, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		s.t.Fatalf("%s: changed nothing", text)
	}
}

func (s *saboteur) key(p keyspace.Part) string {
	return keyspace.Space{Prefix: s.emb.Config.Redis.Prefix}.Key(s.conv, p)
}

func (s *saboteur) redisDo(args ...any) {
	s.t.Helper()
	if err := s.redis.Do(s.ctx(), args...).Err(); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}

func (s *saboteur) meta(pairs ...any) {
	s.t.Helper()
	s.redisDo(append([]any{"HSET", s.key(keyspace.Meta)}, pairs...)...)
}

func (s *saboteur) cold() { s.forget(string(s.conv)) }

// member changes what Redis has of a member's windows.
func (s *saboteur) member(u watermark.UserID, change func(*watermark.Member)) {
	s.t.Helper()
	text, err := s.redis.HGet(s.ctx(), s.key(keyspace.Members), string(u)).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := keyspace.ParseMember(u, text)
	if err != nil {
		s.t.Fatal(err)
	}
	change(&m)
	s.redisDo("HSET", s.key(keyspace.Members), string(u), keyspace.MemberText(&m))
}

// rewrite writes the hot log anew, the entry at a seq with another body.
func (s *saboteur) rewrite(seq watermark.Seq, text string) {
	s.t.Helper()
	entries, err := s.redis.XRange(s.ctx(), s.key(keyspace.Log), "-", "+").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	s.redisDo("DEL", s.key(keyspace.Log))
	for _, e := range entries {
		h, b := []byte(e.Values["h"].(string)), []byte(e.Values["b"].(string))
		if e.ID == fmt.Sprintf("%d-0", seq) {
			h, b = s.entry(seq, text)
		}
		s.redisDo("XADD", s.key(keyspace.Log), e.ID, "h", h, "b", b)
	}
}

func (s *saboteur) entry(seq watermark.Seq, text string) (header, body []byte) {
	m := watermark.Message{Seq: seq, Sender: "ann", ClientID: text, BodyType: watermark.BodyText, Body: []byte(text), RecordTime: 1}
	m.Hash = m.SumHash()
	return wire.EncodeMessage(&m)
}

// fault is one thing that is made wrong. Each is found as what it is, and as
// nothing else.
type fault struct {
	name string
	// do makes it wrong. The conversation has 6 messages of ann, who is no
	// member; bob joined before them and has read 4; eve joined and was kicked
	// after 4. Redis is warm.
	do   func(*saboteur)
	log  bool // the audit reads the log
	want audit.Kind
	also audit.Kind // what comes with it, if anything
	// mends says that the audit can mend it.
	mends bool
}

var faults = []fault{
	{name: "nothing", do: func(*saboteur) {}, log: true},
	{name: "a Redis of another incarnation", log: true, do: func(s *saboteur) { s.meta("inc", "another", "max", 2) }},
	{name: "a Redis that is warming", log: true, do: func(s *saboteur) { s.meta("st", keyspace.StateWarming, "max", 2) }},
	{name: "nothing, and Redis is cold", do: (*saboteur).cold, log: true},

	{name: "hole", want: audit.Hole, do: func(s *saboteur) {
		s.cold()
		s.sql("DELETE FROM messages WHERE conversation = ? AND seq = 3", s.conv)
	}},
	{name: "rows lost at the top", want: audit.MaxAboveRows, do: func(s *saboteur) {
		s.cold()
		s.sql("DELETE FROM messages WHERE conversation = ? AND seq >= 5", s.conv)
	}},
	{name: "maximum fell", want: audit.RowsAboveMax, mends: true, log: true, do: func(s *saboteur) {
		s.sql("UPDATE conversations SET max = 2 WHERE id = ?", s.conv)
	}},
	{name: "conversation lost", want: audit.RowsAboveMax, mends: true, do: func(s *saboteur) {
		s.cold()
		s.sql("DELETE FROM conversations WHERE id = ?", s.conv)
		s.sql("UPDATE members SET read = 0 WHERE conversation = ? AND read > 0", s.conv)
	}},
	{name: "rows past retention", want: audit.PastRetention, mends: true, log: true, do: func(s *saboteur) {
		s.raiseMin(3)
		s.sql("UPDATE messages SET gone = 0 WHERE conversation = ? AND seq < 3", s.conv)
	}},
	{name: "one id twice", want: audit.TwoSeqs, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE messages SET client_id = 'm2' WHERE conversation = ? AND seq = 5", s.conv)
	}},
	{name: "damaged row", want: audit.DamagedRow, log: true, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE messages SET body = x'726f74' WHERE conversation = ? AND seq = 4", s.conv)
	}},
	{name: "mark above the maximum", want: audit.MarkUnseen, log: true, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE members SET read = 60 WHERE conversation = ? AND user = 'bob'", s.conv)
	}},
	{name: "mark above the kick", want: audit.MarkUnseen, log: true, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE members SET read = 6 WHERE conversation = ? AND user = 'eve'", s.conv)
	}},

	{name: "row missing", want: audit.MissingRow, mends: true, log: true, do: func(s *saboteur) {
		s.sql("DELETE FROM messages WHERE conversation = ? AND seq = 3", s.conv)
	}},
	{name: "revoke missing", want: audit.MissingRevoke, mends: true, log: true, do: func(s *saboteur) {
		s.sql("CREATE TEMP TABLE before AS SELECT * FROM messages WHERE conversation = ? AND seq = 3", s.conv)
		if _, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: string(s.conv), Seq: 3, OpId: s.op()}); err != nil {
			s.t.Fatal(err)
		}
		s.settle()
		s.sql("DELETE FROM messages WHERE conversation = ? AND seq = 3", s.conv)
		s.sql("INSERT INTO messages SELECT * FROM before")
	}},
	{name: "mark missing", want: audit.MissingMark, mends: true, log: true, do: func(s *saboteur) {
		s.sql("UPDATE members SET read = 1 WHERE conversation = ? AND user = 'bob'", s.conv)
	}},
	{name: "sender's mark missing", want: audit.MissingMark, mends: true, log: true, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE members SET read = 5 WHERE conversation = ? AND user = 'ann'", s.conv)
	}},
	{name: "window missing", want: audit.MissingWindow, mends: true, log: true, do: func(s *saboteur) {
		s.sql("UPDATE members SET version = 1, memberships = '[]', ops = '[]' WHERE conversation = ? AND user = 'eve'", s.conv)
	}},
	{name: "repair missing", want: audit.MissingBounds, mends: true, log: true, do: func(s *saboteur) {
		s.append(watermark.Record{Conversation: s.conv, Events: []watermark.Event{watermark.Repaired{Number: 7, From: 2}}})
		s.settle()
		s.cold()
		s.sql("UPDATE conversations SET repair_number = 0 WHERE id = ?", s.conv)
	}},
	{name: "message lost", want: audit.LostMessage, log: true, do: func(s *saboteur) {
		s.cold()
		s.sql("UPDATE messages SET client_id = 'another' WHERE conversation = ? AND seq = 5", s.conv)
	}},

	{name: "counter fell", want: audit.RedisBehind, mends: true, log: true, do: func(s *saboteur) { s.meta("max", 4) }},
	{name: "counter fell with its log", want: audit.RedisBehind, mends: true, log: true, do: func(s *saboteur) {
		s.meta("max", 4)
		s.redisDo("XDEL", s.key(keyspace.Log), "5-0", "6-0")
	}},
	{name: "hot log ahead of its counter", want: audit.RedisBehind, mends: true, log: true, do: func(s *saboteur) {
		h, b := s.entry(7, "stray")
		s.redisDo("XADD", s.key(keyspace.Log), "7-0", "h", h, "b", b)
	}},
	{name: "never appended", want: audit.NeverAppended, also: audit.ChangeNeverAppended, mends: true, log: true, do: func(s *saboteur) {
		h, b := s.entry(7, "skipped")
		s.redisDo("XADD", s.key(keyspace.Log), "7-0", "h", h, "b", b)
		s.redisDo("ZADD", s.key(keyspace.Read), 7, "ann") // as the script does for who sends
		s.meta("max", 7)
	}},
	{name: "never appended, in between", want: audit.NeverAppended, mends: true, do: func(s *saboteur) {
		s.sql("DELETE FROM messages WHERE conversation = ? AND seq IN (3, 4)", s.conv)
	}},
	{name: "counter ahead of everything", want: audit.NeverAppended, log: true, do: func(s *saboteur) { s.meta("max", 9) }},
	{name: "another message in the hot log", want: audit.HotRow, mends: true, log: true, do: func(s *saboteur) { s.rewrite(3, "forged") }},
	{name: "damage in the hot log", want: audit.HotRow, mends: true, log: true, do: func(s *saboteur) {
		h, b := s.entry(7, "x")
		s.redisDo("DEL", s.key(keyspace.Log))
		s.redisDo("XADD", s.key(keyspace.Log), "6-0", "h", append(h, 0xff), "b", b)
	}},
	{name: "revoked in history only", want: audit.HotRow, mends: true, do: func(s *saboteur) {
		s.sql("UPDATE messages SET revoked_at = 1, revoked_by = '', body_type = 0, body = NULL WHERE conversation = ? AND seq = 3", s.conv)
	}},
	{name: "revoked in Redis only", want: audit.HotRow, do: func(s *saboteur) {
		s.redisDo("HSET", s.key(keyspace.Revoked), "3", keyspace.Tombstone{Time: 1}.String())
		s.redisDo("XDEL", s.key(keyspace.Log), "3-0")
	}},
	{name: "minimum fell in Redis", want: audit.RedisBounds, mends: true, log: true, do: func(s *saboteur) {
		s.raiseMin(3)
		s.meta("min", 0)
	}},
	{name: "repair number fell in Redis", want: audit.RedisBounds, mends: true, do: func(s *saboteur) {
		s.sql("UPDATE conversations SET repair_number = 9 WHERE id = ?", s.conv)
	}},
	{name: "policy fell in Redis", want: audit.RedisPolicy, mends: true, log: true, do: func(s *saboteur) {
		s.keepOnSend()
		s.override(0)
	}},
	{name: "another policy of the same version", want: audit.RedisPolicy, mends: true, log: true, do: func(s *saboteur) {
		s.keepOnSend()
		s.override(5)
	}},
	{name: "policy missing", want: audit.MissingBounds, mends: true, log: true, do: func(s *saboteur) {
		s.keepOnSend()
		s.cold()
		s.sql("UPDATE conversations SET override = 0 WHERE id = ?", s.conv)
	}},
	{name: "window fell in Redis", want: audit.RedisMember, mends: true, log: true, do: func(s *saboteur) {
		s.member("eve", func(m *watermark.Member) { m.Version, m.Memberships[0].Upper, m.Ops = 1, 0, m.Ops[:1] })
	}},
	{name: "another window of the same version", want: audit.RedisMember, mends: true, log: true, do: func(s *saboteur) {
		s.member("eve", func(m *watermark.Member) { m.Memberships[0].Upper = 3 })
	}},
	{name: "member forgotten by Redis", want: audit.RedisMember, mends: true, log: true, do: func(s *saboteur) {
		s.meta("full", "1")
		s.redisDo("HDEL", s.key(keyspace.Members), "eve")
	}},
	{name: "mark fell in Redis", want: audit.RedisMark, mends: true, log: true, do: func(s *saboteur) {
		s.redisDo("ZADD", s.key(keyspace.Read), 2, "bob")
	}},
	{name: "mark only in Redis", want: audit.ChangeNeverAppended, mends: true, log: true, do: func(s *saboteur) {
		s.redisDo("ZADD", s.key(keyspace.Read), 6, "bob")
	}},
	{name: "window only in Redis", want: audit.ChangeNeverAppended, mends: true, log: true, do: func(s *saboteur) {
		s.member("bob", func(m *watermark.Member) { *m, _ = m.Leave("gone", 6, 0) })
	}},
	{name: "member only in Redis", want: audit.ChangeNeverAppended, mends: true, log: true, do: func(s *saboteur) {
		m, _, _ := watermark.Member{User: "zoe"}.Join("in", 6, watermark.HistoryNone, 0)
		s.redisDo("HSET", s.key(keyspace.Members), "zoe", keyspace.MemberText(&m))
	}},
	{name: "minimum only in Redis", want: audit.ChangeNeverAppended, log: true, do: func(s *saboteur) { s.meta("min", 2) }},
	{name: "repair number only in Redis", want: audit.ChangeNeverAppended, log: true, do: func(s *saboteur) { s.meta("rn", 5, "rf", 2) }},
	{name: "mark above the maximum in Redis", want: audit.MarkUnseen, do: func(s *saboteur) {
		s.redisDo("ZADD", s.key(keyspace.Read), 60, "bob")
		s.sql("UPDATE members SET read = 60 WHERE conversation = ? AND user = 'bob'", s.conv)
	}},
}

func (s *saboteur) raiseMin(to int64) {
	s.t.Helper()
	if _, err := s.svc.RaiseMinSeq(s.ctx(), &tidemarkv1.RaiseMinSeqRequest{Conversation: string(s.conv), MinSeq: to, OpId: s.op()}); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
}

func (s *saboteur) keepOnSend() {
	s.t.Helper()
	req := &tidemarkv1.SetUnreadPolicyRequest{Conversation: string(s.conv), Policy: tidemarkv1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND, OpId: s.op()}
	if _, err := s.svc.SetUnreadPolicy(s.ctx(), req); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
}

// override changes what Redis has of the conversation's own policy, as
// watermark.PolicyChanged.Code gives it.
func (s *saboteur) override(code int64) {
	s.t.Helper()
	own, err := s.redis.HGet(s.ctx(), s.key(keyspace.Meta), "own").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	s.meta("own", fmt.Sprint(own[:strings.LastIndexByte(own, ' ')+1], code))
}

func (s *saboteur) prepare() {
	s.t.Helper()
	c := string(s.conv)
	s.join(c, "bob", tidemarkv1.History_HISTORY_ALL)
	s.join(c, "eve", tidemarkv1.History_HISTORY_ALL)
	for i := 1; i <= 6; i++ {
		s.send(c, "ann", fmt.Sprint("m", i))
		if i == 4 {
			s.read("bob", c, 4)
			s.leave(c, "eve")
		}
	}
}

func TestAuditFindsEachFaultAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.ToRedis, stack.ToMongo, stack.Sync)
	db, err := sql.Open("sqlite", r.emb.Config.History.Path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	defer db.Close()
	client := redis.NewClient(&redis.Options{Addr: r.emb.Cluster.RedisAddr()})
	defer client.Close()
	for _, log := range []bool{false, true} {
		var group []spoiled
		for i, f := range faults {
			if f.log == log {
				s := &saboteur{rig: r, db: db, redis: client, conv: watermark.GroupOf(fmt.Sprint("fault-", i))}
				s.prepare()
				group = append(group, spoiled{f, s})
			}
		}
		r.settle()
		for _, x := range group {
			x.fault.do(x.saboteur)
		}
		auditSpoiled(t, r, log, group)
	}
}

// spoiled is a conversation with its fault.
type spoiled struct {
	fault
	*saboteur
}

// auditSpoiled audits all conversations at once, finds in each what was made
// wrong there, mends it, and finds nothing any more where it can be mended.
func auditSpoiled(t *testing.T, r *rig, log bool, group []spoiled) {
	scope := audit.Scope{}
	for _, x := range group {
		scope.Conversations = append(scope.Conversations, x.conv)
	}
	run := func(when string, repair bool, want func(fault) map[audit.Kind]int, each func(fault, audit.Finding)) {
		t.Helper()
		found := map[watermark.ConversationID][]audit.Finding{}
		rep, err := r.roles[stack.ToMongo].stack.Audit(r.ctx(), stack.AuditConfig{ReadLog: log, Repair: repair, Found: func(f audit.Finding) {
			found[f.Conversation] = append(found[f.Conversation], f)
		}}, scope)
		if err != nil || rep.Undecided > 0 || rep.Conversations != len(group) {
			t.Fatalf("%s: %v, %+v", when, err, rep)
		}
		for _, x := range group {
			t.Run(x.name+"/"+when, func(t *testing.T) {
				got := map[audit.Kind]int{}
				for _, f := range found[x.conv] {
					got[f.Kind]++
					if (f.Mended == "") == (f.Step == "") || f.Detail == "" {
						t.Errorf("finding %+v", f)
					}
					each(x.fault, f)
				}
				if d := cmp.Diff(want(x.fault), got); d != "" {
					t.Errorf("findings (-want +got)\n%s%v", d, found[x.conv])
				}
			})
		}
	}
	one := func(f fault) map[audit.Kind]int {
		if f.want == "" {
			return map[audit.Kind]int{}
		}
		kinds := map[audit.Kind]int{f.want: 1}
		if f.also != "" {
			kinds[f.also] = 1
		}
		return kinds
	}
	left := func(f fault) map[audit.Kind]int {
		if f.mends {
			return map[audit.Kind]int{}
		}
		return one(f)
	}
	untouched := func(_ fault, f audit.Finding) {
		if f.Mended != "" {
			t.Errorf("%+v: an audit alone mended it", f)
		}
	}
	run("audit", false, one, untouched)
	run("audit again", false, one, untouched)
	run("repair", true, one, func(f fault, x audit.Finding) {
		if (x.Mended != "") != f.mends {
			t.Errorf("%s: %+v", f.name, x)
		}
	})
	r.settle()
	run("after the repair", false, left, untouched)
	for _, x := range group {
		if x.mends {
			r.send(string(x.conv), "ann", "after") // and the deployment goes on
		}
	}
	r.settle()
	run("after the next message", false, left, untouched)
}

// The role finds by itself what is wrong, says so in its metrics, and stays
// ready: it is not its fault.
func TestAuditRole(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.ToRedis, stack.ToMongo, stack.Sync)
	const c = "group:g"
	r.say(c, "ann", 1, 5)
	r.settle()
	db, err := sql.Open("sqlite", r.emb.Config.History.Path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE messages SET body = x'00' WHERE conversation = ? AND seq = 2", c); err != nil {
		t.Fatal(err)
	}
	r.open(stack.Audit, stack.Audit)
	r.eventually("a finding", func() error {
		if n := r.metric(stack.Audit, "tidemark_audit_findings_total", "kind", string(audit.DamagedRow)); n != 1 {
			return fmt.Errorf("%v findings", n)
		}
		return nil
	})
	if report, ready := r.roles[stack.Audit].stack.Health().Report(); !ready {
		t.Errorf("readiness: %v", report)
	}
	if n := r.metric(stack.Audit, "tidemark_audit_findings_total"); n != 1 {
		t.Errorf("%v findings of all kinds", n)
	}
	r.stop(stack.Audit)
}
