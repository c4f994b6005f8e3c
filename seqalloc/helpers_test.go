package seqalloc_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	group  = watermark.ConversationID("group:g1")
	single = watermark.ConversationID("single:alice:bob")
)

var inputs = watermark.Partition{TopicID: "topic", Number: 3}

// redisEnv names a real Redis 7 on which all tests run too: an address, or
// several of a Cluster, with commas between them.
const redisEnv = "TIDEMARK_TEST_REDIS"

// fixture is one conversation's owner on one Redis.
type fixture struct {
	*seqalloc.Allocator
	client redis.UniversalClient
	space  keyspace.Space
	// server is nil on a real Redis.
	server *miniredis.Miniredis
	conv   watermark.ConversationID
	policy watermark.UnreadPolicy
	floor  watermark.Seq
	token  string
	offset int64 // of the last input made
	ctx    context.Context
}

// onEachRedis runs f on the embedded Redis and, where one is named, a real one.
func onEachRedis(t *testing.T, f func(t *testing.T, x *fixture)) {
	t.Run("embedded", func(t *testing.T) { f(t, embedded(t)) })
	if addr := os.Getenv(redisEnv); addr != "" {
		t.Run("real", func(t *testing.T) { f(t, realRedis(t, addr)) })
	}
}

func embedded(t testing.TB) *fixture {
	t.Helper()
	s := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1})
	x := newFixture(t, client, keyspace.Space{Incarnation: "boot-1"})
	x.server = s
	return x
}

func realRedis(t testing.TB, addr string) *fixture {
	t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(addr, ",")})
	x := newFixture(t, client, keyspace.Space{Prefix: rand.Text() + ":"})
	t.Cleanup(func() { x.del(t, context.WithoutCancel(t.Context())) })
	return x
}

func newFixture(t testing.TB, client redis.UniversalClient, space keyspace.Space) *fixture {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	a, err := seqalloc.New(seqalloc.Config{Redis: client, Space: space, Append: encode})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{Allocator: a, client: client, space: space, conv: group}
}

func encode(b []byte, m *watermark.Message) (out []byte, header int) {
	header = len("h:") + len(m.ClientID)
	return append(append(append(b, "h:"...), m.ClientID...), m.Body...), header
}

// keys lists the conversation's keys that exist.
func (x *fixture) keys(t testing.TB) []string {
	t.Helper()
	var mu sync.Mutex
	var keys []string
	list := func(ctx context.Context, c *redis.Client) error {
		some, err := c.Keys(ctx, x.space.Prefix+"tm:*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, some...)
		return err
	}
	var err error
	switch c := x.client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(context.WithoutCancel(t.Context()), list)
	case *redis.Client:
		err = list(context.WithoutCancel(t.Context()), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// del deletes everything, key by key since they may lie in several slots.
func (x *fixture) del(t testing.TB, ctx context.Context) {
	t.Helper()
	for _, k := range x.keys(t) {
		if err := x.client.Del(ctx, k).Err(); err != nil {
			t.Error(err)
		}
	}
}

func (x *fixture) key(p keyspace.Part) string { return x.space.Key(x.conv, p) }

// warm installs a state as the truth.
func (x *fixture) warm(t testing.TB, s *watermark.State) {
	t.Helper()
	s.ID = x.conv
	tokens, err := x.Begin(t.Context(), []watermark.ConversationID{x.conv})
	if err != nil {
		t.Fatal(err)
	}
	ok, err := x.Install(t.Context(), []seqalloc.Loaded{{Token: tokens[0], State: s}})
	if err != nil || !ok[0] {
		t.Fatalf("installed %v, %v", ok, err)
	}
}

// fresh is a conversation of which nothing is known, complete as a small one
// is after its load.
func fresh() *watermark.State { return &watermark.State{Complete: true} }

// call hands over a batch and gives what came back.
func (x *fixture) call(t testing.TB, ins ...watermark.Input) watermark.Allocation {
	t.Helper()
	allocs, err := x.Malloc(t.Context(), []watermark.Batch{{Conversation: x.conv, Floor: x.floor, Token: x.token, Policy: x.policy, Inputs: ins}})
	if err != nil {
		t.Fatal(err)
	}
	return allocs[0]
}

// decide is call for a batch that must be decided.
func (x *fixture) decide(t testing.TB, ins ...watermark.Input) []watermark.Outcome {
	t.Helper()
	a := x.call(t, ins...)
	if a.Temperature != watermark.Warm {
		t.Fatalf("not decided: %+v", a)
	}
	return a.Outcomes
}

// verdicts shows outcomes as "accepted 5" or "refused not_member".
func verdicts(outs []watermark.Outcome) []string {
	words := map[watermark.Verdict]string{
		watermark.Accepted: "accepted", watermark.Again: "again", watermark.Resent: "resent", watermark.Known: "known", watermark.Refused: "refused",
	}
	var s []string
	for _, o := range outs {
		if o.Verdict == watermark.Refused {
			s = append(s, "refused "+o.Reason)
		} else {
			s = append(s, fmt.Sprintf("%s %d", words[o.Verdict], o.Seq))
		}
	}
	return s
}

func wantVerdicts(t testing.TB, outs []watermark.Outcome, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, verdicts(outs)); d != "" {
		t.Errorf("verdicts (-want +got):\n%s", d)
	}
}

func (x *fixture) origin() watermark.Origin {
	x.offset++
	return watermark.Origin{Partition: inputs, Offset: x.offset}
}

func (x *fixture) send(u watermark.UserID, id string) watermark.Input {
	m := &watermark.Message{Sender: u, ClientID: id, RecordTime: 1000 + x.offset, BodyType: watermark.BodyText, Body: []byte("body of " + id)}
	m.Hash = m.SumHash()
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActSend, Message: m}
}

// sends makes n messages of u with ids that are used once.
func (x *fixture) sends(u watermark.UserID, n int) []watermark.Input {
	var ins []watermark.Input
	for range n {
		ins = append(ins, x.send(u, fmt.Sprintf("id-%d", x.offset+1)))
	}
	return ins
}

func (x *fixture) join(u watermark.UserID, op string, h watermark.History, from watermark.Seq) watermark.Input {
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActJoin, OpID: op, User: u, History: h, Seq: from}
}

func (x *fixture) leave(u watermark.UserID, op string, number int32) watermark.Input {
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActLeave, OpID: op, User: u, Membership: number}
}

func (x *fixture) clear(u watermark.UserID, op string) watermark.Input {
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActClear, OpID: op, User: u}
}

func (x *fixture) raiseMin(seq watermark.Seq) watermark.Input {
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActRaiseMin, OpID: "min", Seq: seq}
}

func (x *fixture) revoke(actor watermark.UserID, seq watermark.Seq) watermark.Input {
	return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActRevoke, OpID: "rev", Actor: actor, Seq: seq, Time: 77}
}

func (x *fixture) score(t testing.TB, p keyspace.Part, u watermark.UserID) watermark.Seq {
	t.Helper()
	f, err := x.client.ZScore(t.Context(), x.key(p), string(u)).Result()
	if err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	return watermark.Seq(f)
}
