package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// busyTimeout is how long one connection waits for the lock of another.
const busyTimeout = 5 * time.Second

// readers is how many connections read a file store at once.
const readers = 4

// Config says where a Store keeps its data.
type Config struct {
	// Path is the file, which is made when it does not exist; its directory must
	// exist. Empty: in memory, gone with Close.
	Path string
	// Logger; nil: none.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: they are counted and not shown.
	Registerer prometheus.Registerer
}

// Store is a history store on SQLite.
type Store struct {
	writer  *sql.DB // one connection
	reader  *sql.DB // the writer itself when in memory
	stmts   map[query]*sql.Stmt
	metrics *metrics
	log     *slog.Logger
}

// New opens a store, makes or migrates its schema, and prepares its statements.
func New(cfg Config) (*Store, error) {
	s := &Store{metrics: newMetrics(cfg.Registerer), log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	// SQLite does not wait when a new file is turned to WAL while another
	// process does the same: there busy_timeout has no say, so opening is
	// repeated, for as long as that would have waited.
	for pause := time.Millisecond; ; pause *= 2 {
		s.stmts = make(map[query]*sql.Stmt)
		err := s.open(cfg.Path)
		if err == nil {
			return s, nil
		}
		err = errors.Join(sorted(fmt.Errorf("open history %q: %w", cfg.Path, err)), s.Close())
		if fault.ReasonOf(err) != reasonBusy || pause > busyTimeout/2 {
			return nil, err
		}
		time.Sleep(pause)
	}
}

func (s *Store) open(path string) (err error) {
	if s.writer, err = sql.Open("sqlite", dsn(path, true)); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	s.reader = s.writer
	if err := migrate(s.writer, s.log); err != nil {
		return err
	}
	if path != "" {
		if s.reader, err = sql.Open("sqlite", dsn(path, false)); err != nil {
			return err
		}
		s.reader.SetMaxOpenConns(readers)
		s.reader.SetMaxIdleConns(readers)
	}
	for q, text := range writes {
		if s.stmts[q], err = s.writer.Prepare(text); err != nil {
			return fmt.Errorf("prepare %s: %w", q, err)
		}
	}
	for q, b := range bulks {
		for _, n := range bulkSizes {
			if s.stmts[sized(q, n)], err = s.writer.Prepare(b.text(n)); err != nil {
				return fmt.Errorf("prepare %s: %w", q, err)
			}
		}
	}
	for q, text := range reads {
		if s.stmts[q], err = s.reader.Prepare(text); err != nil {
			return fmt.Errorf("prepare %s: %w", q, err)
		}
	}
	return nil
}

// dsn gives the driver's name of the store.
//
// synchronous is FULL: in WAL mode NORMAL does not sync at a commit, so a loss
// of power could take back a Write whose Kafka offsets are committed elsewhere,
// and those messages would never come again.
func dsn(path string, write bool) string {
	q := url.Values{}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()))
	q.Add("_pragma", "secure_delete(FAST)") // what is revoked is overwritten, not only unlinked
	if write {
		q.Add("_pragma", "cache_size(-65536)") // a leaf for each of ten thousand conversations
	} else {
		q.Add("_pragma", "cache_size(-16384)")
	}
	q.Add("_pragma", "temp_store(MEMORY)") // what a statement notes to be undone
	q.Add("_txlock", "immediate")
	q.Add("_dqs", "0")
	if path == "" {
		return ":memory:?" + q.Encode()
	}
	q.Add("_pragma", "journal_mode(WAL)")
	q.Add("_pragma", "synchronous(FULL)")
	// A page that every change changes is brought into the file once for many: 125
	// MiB of log. It is kept at that, so that it need not grow again each time.
	q.Add("_pragma", "journal_size_limit(201326592)")
	q.Add("_pragma", "wal_autocheckpoint(32000)")
	if !write {
		q.Add("_pragma", "query_only(1)")
	}
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath(), RawQuery: q.Encode()}
	return u.String()
}

// Close closes the store. Calls in flight fail.
func (s *Store) Close() error {
	var errs []error
	for _, st := range s.stmts {
		if st != nil {
			errs = append(errs, st.Close())
		}
	}
	if s.reader != nil && s.reader != s.writer {
		errs = append(errs, s.reader.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	return errors.Join(errs...)
}

// Check tells whether the store can be read and written; it is for readiness.
func (s *Store) Check(ctx context.Context) error {
	var n int
	err := s.reader.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM conversations LIMIT 1)").Scan(&n)
	if err != nil {
		return sorted(fmt.Errorf("check history: %w", err))
	}
	return nil
}
