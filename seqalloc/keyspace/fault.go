package keyspace

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// Reasons of the faults that Classify gives.
const (
	ReasonScript      = "redis_script"      // the script, its arguments or a key's type: the program's fault
	ReasonAuth        = "redis_auth"        // wrong or missing credentials, or no permission
	ReasonReadOnly    = "redis_readonly"    // a replica, after a failover
	ReasonLoading     = "redis_loading"     // the server reads its data from disk
	ReasonBusy        = "redis_busy"        // a script runs too long
	ReasonClusterDown = "redis_clusterdown" // slots without a master
	ReasonTryAgain    = "redis_tryagain"    // a slot is being moved
	ReasonMoved       = "redis_moved"       // redirected more often than the client follows
	ReasonMasterDown  = "redis_masterdown"  // replica without its master
	ReasonReplicas    = "redis_noreplicas"  // min-replicas-to-write not met
	ReasonMisconf     = "redis_misconf"     // the server cannot persist
	ReasonOOM         = "redis_oom"         // maxmemory reached
	ReasonClients     = "redis_maxclients"  // maxclients reached
	ReasonNoScript    = "redis_noscript"    // script cache emptied again and again
	ReasonTimeout     = "redis_timeout"     // no answer in time
	ReasonPool        = "redis_pool"        // no connection free in time
	ReasonNet         = "redis_net"         // no connection
	ReasonClosed      = "redis_closed"      // the client was closed
	ReasonContext     = "context"           // the caller gave up
)

// byWord sorts a server's error by its first word, which is what Redis's
// protocol sets aside for the kind of error. "ERR" and every word that is not
// here mean that the program asked for something impossible.
var byWord = map[string]struct {
	class  fault.Class
	reason string
}{
	"WRONGPASS":   {fault.Fatal, ReasonAuth},
	"NOAUTH":      {fault.Fatal, ReasonAuth},
	"NOPERM":      {fault.Fatal, ReasonAuth},
	"DENIED":      {fault.Fatal, ReasonAuth},
	"READONLY":    {fault.Transient, ReasonReadOnly},
	"LOADING":     {fault.Transient, ReasonLoading},
	"BUSY":        {fault.Transient, ReasonBusy},
	"CLUSTERDOWN": {fault.Transient, ReasonClusterDown},
	"TRYAGAIN":    {fault.Transient, ReasonTryAgain},
	"MOVED":       {fault.Transient, ReasonMoved},
	"ASK":         {fault.Transient, ReasonMoved},
	"MASTERDOWN":  {fault.Transient, ReasonMasterDown},
	"NOREPLICAS":  {fault.Transient, ReasonReplicas},
	"MISCONF":     {fault.Transient, ReasonMisconf},
	"OOM":         {fault.Transient, ReasonOOM},
	"NOSCRIPT":    {fault.Transient, ReasonNoScript},
}

// Classify wraps an error of go-redis with its fault class and reason. nil and
// redis.Nil give nil; an error that has a class already keeps it.
//
// Whatever may heal is Transient, also where it needs an operator (full
// memory, lost replicas): the partition waits and nothing is lost.
func Classify(err error) error {
	if err == nil || errors.Is(err, redis.Nil) {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		// The only kind that shares the word ERR with program errors; the
		// client tells it apart.
		if redis.IsMaxClientsError(e) {
			return fault.New(fault.Transient, ReasonClients, err)
		}
		word, _, _ := strings.Cut(e.Error(), " ")
		if k, ok := byWord[word]; ok {
			return fault.New(k.class, k.reason, err)
		}
		return fault.New(fault.Fatal, ReasonScript, err)
	}
	return fault.New(fault.Transient, localReason(err), err)
}

// localReason sorts errors that the client made itself. Pool and dial errors
// wrap a context's error where the client's own time limit ended them, so the
// context is asked last.
func localReason(err error) string {
	switch {
	case errors.Is(err, redis.ErrClosed):
		return ReasonClosed
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return ReasonPool
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Timeout() && op.Op != "dial" {
			return ReasonTimeout
		}
		return ReasonNet
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ReasonContext
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ReasonNet
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return ReasonTimeout
	}
	return ReasonNet
}
