package stack_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// traffic is everything that clients and operators do, at once and without a
// pause.
type traffic struct {
	*rig
	convs []string
	users []string
	done  atomic.Int64
}

// act does one thing by chance. What the service cannot do at the moment is
// nobody's fault.
func (x *traffic) act(ctx context.Context, rng *rand.Rand, id string) error {
	c := x.convs[rng.IntN(len(x.convs))]
	u := x.users[rng.IntN(len(x.users))]
	top := int64(rng.IntN(2000))
	var err error
	switch n := rng.IntN(100); {
	case n < 40:
		sender := u
		if n < 30 {
			sender = "bot" // never was a member, so nobody kicks it
		}
		outs := make([]wire.Out, 1+rng.IntN(20))
		for i := range outs {
			outs[i] = wire.Out{
				Topic: x.topic(wire.TopicToRedis), Partition: -1, Key: c,
				Value: []byte(line(c, sender, fmt.Sprint(id, "-", i%15), "text")), // the last ones are sent twice
			}
		}
		err = x.producer.Append(ctx, outs)
	case n < 75:
		_, err = x.svc.SetReadSeq(ctx, &tidemarkv1.SetReadSeqRequest{User: u, Conversation: c, ReadSeq: top})
	case n < 80:
		_, err = x.svc.Join(ctx, &tidemarkv1.JoinRequest{Conversation: c, User: u, History: tidemarkv1.History(1 + rng.IntN(2)), OpId: id})
	case n < 85:
		_, err = x.svc.Leave(ctx, &tidemarkv1.LeaveRequest{Conversation: c, User: u, OpId: id, Actor: "admin"})
	case n < 88:
		_, err = x.svc.Clear(ctx, &tidemarkv1.ClearRequest{Conversation: c, User: u, OpId: id})
	case n < 91:
		_, err = x.svc.Revoke(ctx, &tidemarkv1.RevokeRequest{Conversation: c, Seq: top, OpId: id})
	case n < 93:
		_, err = x.svc.RaiseMinSeq(ctx, &tidemarkv1.RaiseMinSeqRequest{Conversation: c, MinSeq: top / 4, OpId: id})
	default:
		_, err = x.svc.Pull(ctx, &tidemarkv1.PullRequest{User: u, Ranges: []*tidemarkv1.PullRange{{Conversation: c, Begin: 1, End: 1 << 40}}})
	}
	x.done.Add(1)
	if code := connect.CodeOf(err); code == connect.CodeUnavailable || code == connect.CodeInvalidArgument ||
		code == connect.CodeFailedPrecondition || code == connect.CodeNotFound || code == connect.CodeOutOfRange || code == connect.CodePermissionDenied {
		return nil
	}
	return err
}

func TestAuditBesideTrafficReportsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.ToRedis, stack.ToMongo, stack.Sync)
	x := &traffic{rig: r, users: []string{"ann", "bob", "cyd", "dan", "eve"}}
	for i := range 6 {
		x.convs = append(x.convs, fmt.Sprint("group:busy-", i))
	}
	ctx, stop := context.WithCancel(r.ctx())
	var wg sync.WaitGroup
	failed := make(chan error, 10)
	for w := range 12 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for n := 0; ctx.Err() == nil; n++ {
				if err := x.act(ctx, rng, fmt.Sprint("w", w, "-", n)); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(700 * time.Millisecond):
				r.flush()
			}
		}
	})
	defer func() {
		stop()
		wg.Wait()
	}()

	suspicions, warm := 0, 0
	for n, deadline := 0, time.Now().Add(8*time.Second); time.Now().Before(deadline); n++ {
		var found []audit.Finding
		rep, err := r.roles[stack.ToMongo].stack.Audit(r.ctx(), stack.AuditConfig{
			ReadLog: n%2 == 0, Patience: patience, Found: func(f audit.Finding) { found = append(found, f) },
		}, audit.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		if !rep.Clean() {
			t.Fatalf("a false alarm, or not a false one: %+v\n%v", rep, found)
		}
		suspicions, warm = suspicions+rep.Suspicions, warm+rep.Warm
		select {
		case err := <-failed:
			t.Fatalf("traffic: %v", err)
		default:
		}
	}
	stop()
	wg.Wait()
	r.settle()
	rep, err := r.roles[stack.ToMongo].stack.Audit(r.ctx(), stack.AuditConfig{ReadLog: true}, audit.Scope{})
	if err := errors.Join(err, notClean(rep)); err != nil {
		t.Error(err)
	}
	if suspicions == 0 || warm == 0 {
		t.Errorf("%d suspicions, %d warm conversations: nothing was under way", suspicions, warm)
	}
	t.Logf("%d acts, %d suspicions, %d times warm; at the end %+v", x.done.Load(), suspicions, warm, *rep)
}

func notClean(rep *audit.Report) error {
	if rep != nil && !rep.Clean() {
		return fmt.Errorf("not clean: %+v", *rep)
	}
	return nil
}
