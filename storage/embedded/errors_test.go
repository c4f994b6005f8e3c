package embedded_test

import (
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/embedded"
)

func TestClassOf(t *testing.T) {
	tests := []struct {
		name   string
		code   int
		class  fault.Class
		reason string
	}{
		{"another writer", sqlite3.SQLITE_BUSY, fault.Transient, "busy"},
		{"another writer, snapshot too old", sqlite3.SQLITE_BUSY_SNAPSHOT, fault.Transient, "busy"},
		{"a table lock", sqlite3.SQLITE_LOCKED_SHAREDCACHE, fault.Transient, "busy"},
		{"full", sqlite3.SQLITE_FULL, fault.Transient, "disk_full"},
		{"a failed write", sqlite3.SQLITE_IOERR_WRITE, fault.Transient, "disk_full"},
		{"a failed sync", sqlite3.SQLITE_IOERR_FSYNC, fault.Transient, "disk_full"},
		{"interrupted", sqlite3.SQLITE_INTERRUPT, fault.Transient, "interrupted"},
		{"no memory", sqlite3.SQLITE_NOMEM, fault.Transient, "no_memory"},
		{"cannot open", sqlite3.SQLITE_CANTOPEN, fault.Transient, "cannot_open"},
		{"corrupt", sqlite3.SQLITE_CORRUPT, fault.Fatal, "corrupt"},
		{"corrupt index", sqlite3.SQLITE_CORRUPT_INDEX, fault.Fatal, "corrupt"},
		{"no database", sqlite3.SQLITE_NOTADB, fault.Fatal, "corrupt"},
		{"read-only", sqlite3.SQLITE_READONLY_DBMOVED, fault.Fatal, "not_writable"},
		{"permission", sqlite3.SQLITE_PERM, fault.Fatal, "not_writable"},
		{"too big", sqlite3.SQLITE_TOOBIG, fault.Poison, "too_large"},
		{"a wrong statement", sqlite3.SQLITE_ERROR, fault.Fatal, "sqlite"},
		{"a broken constraint", sqlite3.SQLITE_CONSTRAINT_NOTNULL, fault.Fatal, "sqlite"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if class, reason := embedded.ClassOf(tt.code); class != tt.class || reason != tt.reason {
				t.Errorf("%v %s, want %v %s", class, reason, tt.class, tt.reason)
			}
		})
	}
}
