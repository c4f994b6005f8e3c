// Package sqlite keeps a device's state in one SQLite file: the numbers and
// messages of its conversations, the version of its list, and its outbox. It is
// a client.Store, client.ListStore and client.Outbox, and its Keep is an
// OnMessage.
//
// It promises that the file is right whenever the process dies: each call is a
// transaction, and the client saves a number after what the number covers, so a
// device that was killed has, for each conversation, all messages that were
// delivered up to its seq and perhaps one more, which comes again and replaces
// itself. After a loss of power the last transactions may be gone; they are so
// from the end, so that the same holds.
//
// It does not promise that two processes with one file make sense: the file is
// of one user, which New checks, and of one device, which nobody does. All
// methods are safe for concurrent use.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	_ "modernc.org/sqlite" // registers the driver "sqlite"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/watermark"
)

// ErrOtherUser is returned by New, wrapped, for a file that keeps the state of
// another user.
var ErrOtherUser = errors.New("the file is another user's")

// schema is what a file has. A later one is told by user_version.
const schema = `
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (
	conversation TEXT PRIMARY KEY,
	seq INTEGER NOT NULL, read INTEGER NOT NULL, repair INTEGER NOT NULL, listed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
	conversation TEXT NOT NULL, seq INTEGER NOT NULL, message BLOB NOT NULL,
	PRIMARY KEY (conversation, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	conversation TEXT NOT NULL, id TEXT NOT NULL, message BLOB NOT NULL,
	UNIQUE (conversation, id)
) STRICT;
PRAGMA user_version = 1;`

// Config says which file a Store has.
type Config struct {
	// Path is the file, which is made when it does not exist; its directory must
	// exist. Required.
	Path string
	// User is whose state it keeps. Required.
	User watermark.UserID
}

// Store is a device's state.
type Store struct{ db *sql.DB }

var (
	_ client.Store     = (*Store)(nil)
	_ client.ListStore = (*Store)(nil)
	_ client.Outbox    = (*Store)(nil)
)

// New opens the file, or makes it. It returns ErrOtherUser for one that is not
// the user's.
func New(cfg Config) (*Store, error) {
	var errs []error
	if cfg.Path == "" {
		errs = append(errs, errors.New("sqlite: Path is missing"))
	}
	if _, err := watermark.ParseUserID(string(cfg.User)); err != nil {
		errs = append(errs, fmt.Errorf("sqlite: User: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(cfg.Path))
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", cfg.Path, err)
	}
	// One connection: a device does one thing at a time, and nothing waits for
	// a lock that this process holds.
	db.SetMaxOpenConns(1)
	if err := prepare(db, cfg.User); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %s: %w", cfg.Path, err), db.Close())
	}
	return &Store{db: db}, nil
}

// dsn gives the driver's name of the file. A commit is in the file when it
// returns, for every process of the machine, and on the disk a little later.
func dsn(path string) string {
	q := url.Values{}
	q.Add("_pragma", "busy_timeout(5000)")
	q.Add("_pragma", "journal_mode(WAL)")
	q.Add("_pragma", "synchronous(NORMAL)")
	q.Add("_txlock", "immediate")
	q.Add("_dqs", "0")
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath(), RawQuery: q.Encode()}
	return u.String()
}

func prepare(db *sql.DB, user watermark.UserID) error {
	var version int
	if err := db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > 1 {
		return fmt.Errorf("the file has schema %d, this program knows 1", version)
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.Exec(schema); err != nil {
		return err
	}
	if _, err := tx.Exec("INSERT OR IGNORE INTO meta VALUES ('user', ?)", string(user)); err != nil {
		return err
	}
	var whose string
	if err := tx.QueryRow("SELECT value FROM meta WHERE key = 'user'").Scan(&whose); err != nil {
		return err
	}
	if whose != string(user) {
		return fmt.Errorf("%w: %s, not %s", ErrOtherUser, whose, user)
	}
	return tx.Commit()
}

// Close closes the file. Calls under way fail.
func (s *Store) Close() error { return s.db.Close() }

func (s *Store) exec(ctx context.Context, what, query string, args ...any) error {
	if _, err := s.db.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("sqlite: %s: %w", what, err)
	}
	return nil
}

// Load implements client.Store.
func (s *Store) Load(ctx context.Context) (map[string]client.Numbers, error) {
	out := map[string]client.Numbers{}
	err := s.each(ctx, func(rows *sql.Rows) error {
		var conv string
		var n client.Numbers
		if err := rows.Scan(&conv, &n.Seq, &n.Read, &n.Repair, &n.Listed); err != nil {
			return err
		}
		out[conv] = n
		return nil
	}, "SELECT conversation, seq, read, repair, listed FROM numbers")
	return out, err
}

// Save implements client.Store.
func (s *Store) Save(ctx context.Context, conversation string, n client.Numbers) error {
	return s.exec(ctx, "save numbers", "INSERT OR REPLACE INTO numbers VALUES (?, ?, ?, ?, ?)", conversation, n.Seq, n.Read, n.Repair, n.Listed)
}

// LoadVersion implements client.ListStore.
func (s *Store) LoadVersion(ctx context.Context) (string, error) {
	var v string
	err := s.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'version'").Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("sqlite: load the version: %w", err)
	}
	return v, nil
}

// SaveVersion implements client.ListStore.
func (s *Store) SaveVersion(ctx context.Context, version string) error {
	return s.exec(ctx, "save the version", "INSERT OR REPLACE INTO meta VALUES ('version', ?)", version)
}

// Put implements client.Outbox.
func (s *Store) Put(ctx context.Context, m *tidemarkv1.SendMessage) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("sqlite: encode a message: %w", err)
	}
	return s.exec(ctx, "put into the outbox", "INSERT OR IGNORE INTO outbox (conversation, id, message) VALUES (?, ?, ?)",
		m.GetConversation(), m.GetClientMessageId(), b)
}

// Waiting implements client.Outbox.
func (s *Store) Waiting(ctx context.Context) (out []*tidemarkv1.SendMessage, err error) {
	err = s.each(ctx, func(rows *sql.Rows) error {
		m := new(tidemarkv1.SendMessage)
		out = append(out, m)
		return scanMessage(rows, m)
	}, "SELECT message FROM outbox ORDER BY number")
	return out, err
}

// Remove implements client.Outbox.
func (s *Store) Remove(ctx context.Context, conversation, clientMessageID string) error {
	return s.exec(ctx, "remove from the outbox", "DELETE FROM outbox WHERE conversation = ? AND id = ?", conversation, clientMessageID)
}

// Keep keeps a message at its seq, in the place of what stood there. It is made
// to be an OnMessage, or to be called by one.
func (s *Store) Keep(ctx context.Context, u client.Update) error {
	b, err := proto.Marshal(u.Message)
	if err != nil {
		return fmt.Errorf("sqlite: encode a message: %w", err)
	}
	return s.exec(ctx, "keep a message", "INSERT OR REPLACE INTO messages VALUES (?, ?, ?)", u.Message.GetConversation(), u.Message.GetSeq(), b)
}

// Messages gives at most limit messages of a conversation that were kept, those
// that follow the seq after, ascending.
func (s *Store) Messages(ctx context.Context, conversation string, after int64, limit int) (out []*tidemarkv1.Message, err error) {
	err = s.each(ctx, func(rows *sql.Rows) error {
		m := new(tidemarkv1.Message)
		out = append(out, m)
		return scanMessage(rows, m)
	}, "SELECT message FROM messages WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?", conversation, after, limit)
	return out, err
}

// Forget deletes the messages of a conversation outside of what is visible, which
// is what a removed entry of the list asks for.
func (s *Store) Forget(ctx context.Context, conversation string, visible []*tidemarkv1.Range) error {
	query, args := "DELETE FROM messages WHERE conversation = ?", []any{conversation}
	for _, r := range visible {
		query += " AND NOT seq BETWEEN ? AND ?"
		args = append(args, r.GetBegin(), r.GetEnd())
	}
	return s.exec(ctx, "forget messages", query, args...)
}

func scanMessage(rows *sql.Rows, m proto.Message) error {
	var b []byte
	if err := rows.Scan(&b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

func (s *Store) each(ctx context.Context, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("sqlite: read: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return fmt.Errorf("sqlite: read: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("sqlite: read: %w", err)
	}
	return nil
}
