//go:build !real

package stack_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
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
