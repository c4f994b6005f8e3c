//go:build real

package transfer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

// serverEnv names the server that these tests use; each test makes a database
// of its own there and drops it.
const serverEnv = "TIDEMARK_TEST_MONGO"

// served opens a database that is dropped at the end of the test.
func served(t testing.TB) (*history.Store, *mongo.Database) {
	t.Helper()
	uri := os.Getenv(serverEnv)
	if uri == "" {
		t.Fatalf("%s is not set: it must hold the URI of a server", serverEnv)
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
	return s, db
}

func TestThereAndBackThroughMongoDB(t *testing.T) {
	first, last := opened(t, file(t)), opened(t, file(t))
	fill(t, first, 411)
	mongo, _ := served(t)
	there := copied(t, first, mongo)
	same(t, first, mongo)
	if n := copied(t, first, mongo); n.Sum() != 0 {
		t.Errorf("a second copy wrote %+v", n)
	}
	back := copied(t, mongo, last)
	same(t, mongo, last)
	rep := same(t, first, last)
	if there != back || there != rep.To.Counts {
		t.Errorf("wrote %+v there and %+v back, of %+v", there, back, rep.To.Counts)
	}
	model := storagetest.NewMemory()
	copied(t, mongo, model)
	wants := []watermark.Want{{Conversation: "group:big", Sent: true, Roster: true}, {Conversation: "group:g7-", Sent: true}}
	for _, h := range []storagetest.History{mongo, last} {
		states, err := h.States(t.Context(), wants)
		if err != nil {
			t.Fatal(err)
		}
		want, err := model.States(t.Context(), wants)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if len(states[i].Sent) != len(want[i].Sent) || len(states[i].Members) != len(want[i].Members) || states[i].Max != want[i].Max {
				t.Errorf("%T: state of %s differs", h, want[i].ID)
			}
		}
	}
}

func TestKilledOnTheWayToMongoDB(t *testing.T) {
	from := opened(t, file(t))
	fill(t, from, 60)
	mongo, _ := served(t)
	deaths := 0
	for n := 1; ; n += 3 {
		_, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: &mortal{mongo, n, n%2 == 0}, Page: 100})
		if err == nil {
			break
		}
		if deaths++; !errors.Is(err, errKilled) || deaths > 50 {
			t.Fatal(err)
		}
	}
	if deaths < 3 {
		t.Errorf("it was killed %d times", deaths)
	}
	same(t, from, mongo)
}

func TestCompareSeesAManipulatedDocument(t *testing.T) {
	from := opened(t, file(t))
	fill(t, from, 10)
	to, db := served(t)
	copied(t, from, to)
	for collection, at := range map[string]bson.D{
		"messages":      {{Key: "c", Value: "group:big"}, {Key: "s", Value: 1950}},
		"members":       {{Key: "_id", Value: "group:big/alice"}},
		"conversations": {{Key: "_id", Value: "group:big"}},
		"positions":     {{Key: "_id", Value: "toRedis/T2/0"}},
	} {
		var before bson.D
		coll := db.Collection(collection)
		if err := coll.FindOne(t.Context(), at).Decode(&before); err != nil {
			t.Fatal(err)
		}
		id := bson.D{{Key: "_id", Value: before[0].Value}}
		for _, field := range before[1:] {
			if field.Key == "adv" || collection == "positions" && field.Key != "n" || field.Key == "c" || field.Key == "u" || field.Key == "s" {
				continue // the highest max of the other policy; what the key says too
			}
			if _, err := coll.UpdateOne(t.Context(), id, bson.D{{Key: "$unset", Value: bson.D{{Key: field.Key, Value: ""}}}}); err != nil {
				t.Fatal(err)
			}
			rep, err := transfer.Compare(t.Context(), transfer.Config{From: from, To: to})
			if err == nil && rep.Same() {
				t.Errorf("%s without %s: not seen", collection, field.Key)
			}
			if _, err := coll.ReplaceOne(t.Context(), id, before); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(t, from, to)
}
