package embedded

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// errForeign is returned when the file is an SQLite database of something else.
var errForeign = errors.New("the file is a database, but not a tidemark history")

// errNewer is returned when the file was written by a later version.
var errNewer = errors.New("the file was written by a newer version of tidemark")

// sorted gives err its class. SQLite's extended codes carry their family in the
// lowest byte.
func sorted(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, errForeign):
		return fault.New(fault.Fatal, "not_a_history", err)
	case errors.Is(err, errNewer):
		return fault.New(fault.Fatal, "schema_newer", err)
	}
	se, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		// A cancelled context, a closed store: nothing is wrong with the data.
		return fault.New(fault.Transient, "unavailable", err)
	}
	class, reason := classOf(se.Code())
	return fault.New(class, reason, err)
}

// reasonBusy is the reason of an error that another connection's lock caused.
const reasonBusy = "busy"

func classOf(code int) (fault.Class, string) {
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fault.Transient, reasonBusy // another writer; it will be done
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR:
		// A disk that is full or away heals when somebody makes room; stopping
		// would only add a restart to it, and offsets are not marked meanwhile.
		return fault.Transient, "disk_full"
	case sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_ABORT:
		return fault.Transient, "interrupted" // the context ended
	case sqlite3.SQLITE_NOMEM:
		return fault.Transient, "no_memory"
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fault.Fatal, "corrupt" // writing on would make it worse
	case sqlite3.SQLITE_CANTOPEN:
		// Out of file descriptors, or a path that is not there; New fails with it
		// in any case, a reader that opens later may have better luck.
		return fault.Transient, "cannot_open"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return fault.Fatal, "not_writable" // a wrong owner or mount does not heal
	case sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return fault.Poison, "too_large" // the row's own, far above any limit
	default:
		// ERROR, CONSTRAINT, MISUSE, SCHEMA: a statement that does not fit the
		// schema is the program's fault.
		return fault.Fatal, "sqlite"
	}
}
