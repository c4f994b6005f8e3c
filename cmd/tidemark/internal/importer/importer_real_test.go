//go:build real

package importer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/storagetest"
)

// served opens a MongoDB history in a database that is dropped at the end.
func served(t testing.TB) *history.Store {
	t.Helper()
	uri := os.Getenv("TIDEMARK_TEST_MONGO")
	if uri == "" {
		t.Fatal(`TIDEMARK_TEST_MONGO is not set; eval "$(deploy/local/up --mongo)"`)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	db := client.Database("tidemark_test_" + strings.ToLower(rand.Text()[:12]))
	s, err := history.New(history.Config{URI: uri, Database: db.Name(), Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(s.Close(ctx), db.Drop(ctx), client.Disconnect(ctx)); err != nil {
			t.Error(err)
		}
	})
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReal_ImportIntoMongoDB imports into MongoDB what is known to be right in
// memory: the same stands there, a second run writes nothing, and one that dies
// at any write is gone on with.
func TestReal_ImportIntoMongoDB(t *testing.T) {
	inputs := [][]string{story}
	for i := range 3 {
		inputs = append(inputs, rapid.Custom(drawn).Example(i+1))
	}
	for _, lines := range inputs {
		path := file(t, lines...)
		want, h := storagetest.NewMemory(), served(t)
		cfg := importer.Config{Source: importer.Lines(path, convert.Limits{}), To: want, Page: 3}
		first, err := importer.Import(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for at := range 3 {
			cfg.To = &mortal{h, at + 1, at}
			if _, err := importer.Import(t.Context(), cfg); err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
		}
		cfg.To = h
		rep, err := importer.Import(t.Context(), cfg)
		if err != nil || rep.Imported != first.Imported {
			t.Fatalf("%v: %+v, in memory %+v", err, rep, first)
		}
		if diff := cmp.Diff(dump(t, want), dump(t, h)); diff != "" {
			t.Errorf("%s\n(-in memory +in MongoDB)\n%s", strings.Join(lines, "\n"), diff)
		}
		if again, err := importer.Import(t.Context(), cfg); err != nil || again.Written != (importer.Counts{}) {
			t.Errorf("a second run: %v, %+v", err, again)
		}
	}
}
