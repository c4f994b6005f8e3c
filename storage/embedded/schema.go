package embedded

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
)

// applicationID marks the file as Tidemark's ("TDMK"), so that another
// program's database is never taken for an empty history.
const applicationID = 0x54444d4b

// migrations lead from each schema version to the next one; the file's
// user_version counts how many it has had. What has been released is never
// edited: a change is a new entry.
var migrations = []string{
	// Everything is clustered on what it is read by. The body stands last: it may
	// spill to overflow pages, and what is read without it does not touch them.
	`
CREATE TABLE conversations (
	id            TEXT    NOT NULL PRIMARY KEY,
	min           INTEGER NOT NULL,
	max           INTEGER NOT NULL,
	policy        INTEGER NOT NULL,
	repair_number INTEGER NOT NULL,
	repair_from   INTEGER NOT NULL,
	last_time     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE inputs (
	conversation TEXT    NOT NULL,
	topic        TEXT    NOT NULL,
	partition    INTEGER NOT NULL,
	offset       INTEGER NOT NULL,
	PRIMARY KEY (conversation, topic, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
	conversation    TEXT    NOT NULL,
	user            TEXT    NOT NULL,
	version         INTEGER NOT NULL,
	last_membership INTEGER NOT NULL,
	read            INTEGER NOT NULL,
	receipt         INTEGER NOT NULL,
	changed_at      INTEGER NOT NULL,
	own_count       INTEGER NOT NULL,
	memberships     TEXT    NOT NULL,
	ops             TEXT    NOT NULL,
	PRIMARY KEY (conversation, user)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_user ON members (user, conversation);

CREATE TABLE own (
	conversation TEXT    NOT NULL,
	user         TEXT    NOT NULL,
	seq          INTEGER NOT NULL,
	PRIMARY KEY (conversation, user, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
	conversation TEXT    NOT NULL,
	seq          INTEGER NOT NULL,
	sender       TEXT    NOT NULL,
	client_id    TEXT    NOT NULL,
	hash         BLOB    NOT NULL,
	gone         INTEGER NOT NULL DEFAULT 0,
	kind         TEXT    NOT NULL,
	send_time    INTEGER NOT NULL,
	record_time  INTEGER NOT NULL,
	device       TEXT    NOT NULL,
	revoked_by   TEXT,
	revoked_at   INTEGER,
	body_type    INTEGER NOT NULL,
	mentions     TEXT,
	attributes   TEXT,
	body         BLOB,
	PRIMARY KEY (conversation, seq)
) STRICT, WITHOUT ROWID;
`,
	`
CREATE TABLE positions (
	topic     TEXT    NOT NULL,
	topic_id  TEXT    NOT NULL,
	partition INTEGER NOT NULL,
	next      INTEGER NOT NULL,
	PRIMARY KEY (topic, topic_id, partition)
) STRICT, WITHOUT ROWID;
`,
	// The table of mentions follows the messages by itself, whatever takes a
	// message's content: a revoke, retention.
	`
ALTER TABLE conversations ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN override INTEGER NOT NULL DEFAULT 0;
ALTER TABLE members ADD COLUMN attributes TEXT;

CREATE TABLE mentions (
	conversation TEXT    NOT NULL,
	user         TEXT    NOT NULL,
	seq          INTEGER NOT NULL,
	PRIMARY KEY (conversation, user, seq)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO mentions (conversation, user, seq)
	SELECT m.conversation, j.value, m.seq FROM messages m, json_each(m.mentions) j WHERE m.mentions IS NOT NULL;
CREATE TRIGGER mentions_come AFTER INSERT ON messages WHEN NEW.mentions IS NOT NULL BEGIN
	INSERT OR IGNORE INTO mentions (conversation, user, seq) SELECT NEW.conversation, j.value, NEW.seq FROM json_each(NEW.mentions) j;
END;
CREATE TRIGGER mentions_go AFTER UPDATE OF mentions ON messages WHEN OLD.mentions IS NOT NULL AND NEW.mentions IS NULL BEGIN
	DELETE FROM mentions WHERE conversation = OLD.conversation AND seq = OLD.seq
		AND user IN (SELECT j.value FROM json_each(OLD.mentions) j);
END;
CREATE TRIGGER mentions_die AFTER DELETE ON messages WHEN OLD.mentions IS NOT NULL BEGIN
	DELETE FROM mentions WHERE conversation = OLD.conversation AND seq = OLD.seq
		AND user IN (SELECT j.value FROM json_each(OLD.mentions) j);
END;
`,
	`
CREATE TABLE devices (
	key           BLOB    NOT NULL PRIMARY KEY,
	user          TEXT    NOT NULL,
	device        TEXT    NOT NULL,
	platform      TEXT    NOT NULL,
	token         TEXT    NOT NULL,
	registered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX devices_by_user ON devices (user, device);
`,
	// What was revoked before is told to nobody who was away.
	`
ALTER TABLE messages ADD COLUMN revoked_offset INTEGER;
CREATE INDEX revokes_by_offset ON messages (conversation, revoked_offset) WHERE revoked_offset IS NOT NULL;
`,
}

// migrate brings the schema to the latest version, each step in a transaction
// of its own that holds the write lock from its first read on, so that of two
// processes that open a new file one waits for the other.
func migrate(db *sql.DB, log *slog.Logger) error {
	for {
		done, err := migrateOnce(db, log)
		if done || err != nil {
			return err
		}
	}
}

func migrateOnce(db *sql.DB, log *slog.Logger) (done bool, err error) {
	tx, err := db.Begin()
	if err != nil {
		return false, err
	}
	defer func() {
		if e := tx.Rollback(); !errors.Is(e, sql.ErrTxDone) {
			err = errors.Join(err, e)
		}
	}()
	var app, version, tables int
	if err := tx.QueryRow("SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_schema)"+
		" FROM pragma_application_id a, pragma_user_version v").Scan(&app, &version, &tables); err != nil {
		return false, fmt.Errorf("read schema version: %w", err)
	}
	switch {
	case app != applicationID && (app != 0 || version != 0 || tables != 0):
		return false, errForeign
	case version > len(migrations):
		return false, fmt.Errorf("%w: schema %d, this one knows %d", errNewer, version, len(migrations))
	case version == len(migrations):
		return true, nil
	}
	text := fmt.Sprintf("%s; PRAGMA application_id = %d; PRAGMA user_version = %d;", migrations[version], applicationID, version+1)
	if _, err := tx.Exec(text); err != nil {
		return false, fmt.Errorf("migrate schema to version %d: %w", version+1, err)
	}
	log.Info("history schema migrated", "version", version+1)
	return false, tx.Commit()
}
