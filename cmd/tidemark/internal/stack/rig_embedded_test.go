//go:build !real

package stack_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/storage/embedded"
)

// onServices leaves a rig on the embedded servers. With the build tag "real" it
// moves to those that the environment names.
func onServices(testing.TB, *config.Config) {}

// forget deletes every Redis key of a conversation.
func (r *rig) forget(conv string) {
	redis := r.emb.Cluster.Redis()
	for _, k := range redis.Keys() {
		if strings.Contains(k, "{"+conv+"}") {
			redis.Del(k)
		}
	}
}

// flush empties Redis.
func (r *rig) flush() { r.emb.Cluster.FlushRedis() }

// history opens the history beside its writer.
func (r *rig) history() *embedded.Store {
	r.t.Helper()
	h, err := embedded.New(embedded.Config{Path: r.emb.Config.History.Path})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { h.Close() })
	return h
}

// historyLock gives what makes every write to history fail, as another writer
// does that does not come to an end. It is asked for before a role starts.
func (r *rig) historyLock() (lock func() (unlock func())) {
	return func() func() {
		r.t.Helper()
		db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(r.emb.Config.History.Path)+"?_txlock=immediate&_pragma=busy_timeout(20000)")
		if err != nil {
			r.t.Fatal(err)
		}
		tx, err := db.BeginTx(context.WithoutCancel(r.ctx()), nil)
		if err != nil {
			r.t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			if err := tx.Rollback(); err != nil {
				r.t.Error(err)
			}
			db.Close()
		})
	}
}

// gatewayClients is how many devices see a gateway die.
const gatewayClients = 200
