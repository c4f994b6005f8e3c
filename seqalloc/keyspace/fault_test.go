package keyspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// serverError is an error as a server says it.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestErrorsAreSorted(t *testing.T) {
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		err    error
		class  fault.Class
		reason string
	}{
		{serverError("READONLY You can't write against a read only replica."), fault.Transient, keyspace.ReasonReadOnly},
		{serverError("READONLY You can't write against a read only replica. script: 4b, on @user_script:12."), fault.Transient, keyspace.ReasonReadOnly},
		{serverError("LOADING Redis is loading the dataset in memory"), fault.Transient, keyspace.ReasonLoading},
		{serverError("BUSY Redis is busy running a script."), fault.Transient, keyspace.ReasonBusy},
		{serverError("CLUSTERDOWN Hash slot not served"), fault.Transient, keyspace.ReasonClusterDown},
		{serverError("TRYAGAIN Multiple keys request during rehashing of slot"), fault.Transient, keyspace.ReasonTryAgain},
		{serverError("MASTERDOWN Link with MASTER is down"), fault.Transient, keyspace.ReasonMasterDown},
		{serverError("MOVED 3999 127.0.0.1:6381"), fault.Transient, keyspace.ReasonMoved},
		{serverError("ASK 3999 127.0.0.1:6381"), fault.Transient, keyspace.ReasonMoved},
		{serverError("NOREPLICAS Not enough good replicas to write."), fault.Transient, keyspace.ReasonReplicas},
		{serverError("MISCONF Redis is configured to save RDB snapshots"), fault.Transient, keyspace.ReasonMisconf},
		{serverError("OOM command not allowed when used memory > 'maxmemory'."), fault.Transient, keyspace.ReasonOOM},
		{serverError("NOSCRIPT No matching script."), fault.Transient, keyspace.ReasonNoScript},
		{serverError("ERR max number of clients reached"), fault.Transient, keyspace.ReasonClients},
		{serverError("WRONGPASS invalid username-password pair"), fault.Fatal, keyspace.ReasonAuth},
		{serverError("NOAUTH Authentication required."), fault.Fatal, keyspace.ReasonAuth},
		{serverError("NOPERM this user has no permissions"), fault.Fatal, keyspace.ReasonAuth},
		{serverError("DENIED Redis is running in protected mode"), fault.Fatal, keyspace.ReasonAuth},
		{serverError("WRONGTYPE Operation against a key"), fault.Fatal, keyspace.ReasonScript},
		{serverError("ERR user_script:3: attempt to index a nil value"), fault.Fatal, keyspace.ReasonScript},
		{serverError("CROSSSLOT Keys in request don't hash to the same slot"), fault.Fatal, keyspace.ReasonScript},
		// A text that only mentions a word is not of its kind.
		{serverError("ERR user_script:1: LOADING"), fault.Fatal, keyspace.ReasonScript},
		{redis.ErrPoolTimeout, fault.Transient, keyspace.ReasonPool},
		{redis.ErrPoolExhausted, fault.Transient, keyspace.ReasonPool},
		{redis.ErrClosed, fault.Transient, keyspace.ReasonClosed},
		{context.Canceled, fault.Transient, keyspace.ReasonContext},
		{context.DeadlineExceeded, fault.Transient, keyspace.ReasonContext},
		{timeout, fault.Transient, keyspace.ReasonTimeout},
		{&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}, fault.Transient, keyspace.ReasonNet},
		{&net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}, fault.Transient, keyspace.ReasonNet},
		{io.EOF, fault.Transient, keyspace.ReasonNet},
		{io.ErrUnexpectedEOF, fault.Transient, keyspace.ReasonNet},
		{errors.New("who knows"), fault.Transient, keyspace.ReasonNet},
		{fault.New(fault.Poison, "mine", io.EOF), fault.Poison, "mine"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			got := keyspace.Classify(err)
			if fault.ClassOf(got) != c.class || fault.ReasonOf(got) != c.reason {
				t.Errorf("%v: %v %s, want %v %s", err, fault.ClassOf(got), fault.ReasonOf(got), c.class, c.reason)
			}
			if !errors.Is(got, c.err) {
				t.Errorf("%v lost its cause", err)
			}
		}
	}
	for _, err := range []error{nil, redis.Nil, fmt.Errorf("wrapped: %w", redis.Nil)} {
		if got := keyspace.Classify(err); got != nil {
			t.Errorf("%v gave %v", err, got)
		}
	}
}
