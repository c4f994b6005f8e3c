//go:build real

package history_test

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/storagetest"
)

// serverEnv names the server that these tests use; each test makes a database
// of its own there and drops it.
const serverEnv = "TIDEMARK_TEST_MONGO"

// slow is what the slowest of the servers needs for its slowest query.
const slow = 5 * time.Minute

func server(t testing.TB) string {
	t.Helper()
	uri := os.Getenv(serverEnv)
	if uri == "" {
		t.Fatalf("%s is not set: it must hold the URI of a server", serverEnv)
	}
	return uri
}

// store is a history that can be reopened.
type store struct {
	*history.Store
	database string
	closed   bool
}

// openStore opens a database that is dropped at the end of the test.
func openStore(t testing.TB, database string) *store {
	t.Helper()
	s, err := history.New(history.Config{URI: server(t), Database: database, Timeout: slow})
	if err != nil {
		t.Fatal(err)
	}
	st := &store{Store: s, database: database}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if st.closed {
			return
		}
		if err := s.Drop(ctx); err != nil {
			t.Errorf("drop: %v", err)
		}
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

func freshDatabase() string { return "tidemark_test_" + strings.ToLower(rand.Text()[:12]) }

func (s *store) Reopen(t testing.TB) storagetest.History {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.closed = true
	return openStore(t, s.database)
}

func TestContract(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storagetest.History { return openStore(t, freshDatabase()) })
}
