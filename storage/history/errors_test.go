package history_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/history"
)

func TestClassOf(t *testing.T) {
	command := func(code int32) error { return mongo.CommandError{Code: code, Message: "text"} }
	label := func(l string) error { return mongo.CommandError{Labels: []string{l}} }
	bulk := func(concern int, codes ...int) error {
		e := mongo.BulkWriteException{}
		for i, c := range codes {
			e.WriteErrors = append(e.WriteErrors, mongo.BulkWriteError{WriteError: mongo.WriteError{Index: i, Code: c}})
		}
		if concern > 0 {
			e.WriteConcernError = &mongo.WriteConcernError{Code: concern}
		}
		return e
	}
	const transient, poison, fatal = fault.Transient, fault.Poison, fault.Fatal
	tests := []struct {
		name   string
		err    error
		class  fault.Class
		reason string
	}{
		{"not a primary", command(10107), transient, "election"},
		{"not a primary, as reads say it", command(13435), transient, "election"},
		{"not a primary nor a secondary", command(13436), transient, "election"},
		{"stepped down", command(189), transient, "election"},
		{"interrupted by an election", command(11602), transient, "election"},
		{"shutting down", command(91), transient, "shutdown"},
		{"interrupted by a shutdown", command(11600), transient, "shutdown"},
		{"a member cannot be reached", command(6), transient, "network"},
		{"a member is slow", command(89), transient, "network"},
		{"a broken connection", label("NetworkError"), transient, "network"},
		{"out of time on the server", command(50), transient, "timeout"},
		{"out of time here", fmt.Errorf("find: %w", context.DeadlineExceeded), transient, "timeout"},
		{"the caller has gone", context.Canceled, transient, "interrupted"},
		{"not on a majority yet", bulk(64), transient, "write_concern"},
		{"a write conflict", command(112), transient, "conflict"},
		{"a lock that takes too long", command(24), transient, "conflict"},
		{"upserts that race", bulk(0, 11000), transient, "race"},
		{"a conflict beside duplicates", bulk(0, 11000, 112, 11000), transient, "conflict"},
		{"write concern beside duplicates", bulk(64, 11000), transient, "write_concern"},
		{"a cursor that timed out", command(43), transient, "cursor"},
		{"chunks are moved", command(13388), transient, "routing"},
		{"disk full", command(14031), transient, "disk_full"},
		{"an index is being built", command(12587), transient, "index_build"},
		{"a code that nobody knows", command(987654), transient, "unavailable"},
		{"an error that nobody knows", errors.New("boom"), transient, "unavailable"},
		{"a document too large", command(10334), poison, "too_large"},
		{"an update's result too large", bulk(0, 17419), poison, "too_large"},
		{"too large, found by the driver", fmt.Errorf("insert: %w", driver.ErrDocumentTooLarge), poison, "too_large"},
		{"too large beside duplicates", bulk(0, 11000, 10334), poison, "too_large"},
		{"wrong credentials", command(18), fatal, "auth"},
		{"no credentials, or not enough", command(13), fatal, "auth"},
		{"not enough beside a conflict", bulk(0, 112, 13), fatal, "auth"},
		{"w above the number of members", bulk(100), fatal, "write_concern"},
		{"a w that is not defined", bulk(79), fatal, "write_concern"},
		{"a validator", bulk(0, 121), fatal, "validation"},
		{"a command that this server has not", command(59), fatal, "server"},
		{"an index with other options", command(85), fatal, "index"},
		{"an index with other keys", command(86), fatal, "index"},
		{"sorted already", fmt.Errorf("x: %w", fault.New(fatal, "schema_newer", errors.New("y"))), fatal, "schema_newer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if class, reason := history.ClassOf(fmt.Errorf("write: %w", tt.err)); class != tt.class || reason != tt.reason {
				t.Errorf("%v %s, want %v %s", class, reason, tt.class, tt.reason)
			}
		})
	}
}
