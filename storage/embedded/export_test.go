package embedded

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// ClassOf is the table of SQLite's codes.
var ClassOf = classOf

// Settings reads the pragmas of a connection.
func (s *Store) Settings(ctx context.Context, writer bool) (map[string]string, error) {
	db := s.reader
	if writer {
		db = s.writer
	}
	out := make(map[string]string)
	for _, name := range []string{"journal_mode", "synchronous", "busy_timeout", "secure_delete"} {
		var v string
		if err := db.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v); err != nil {
			return nil, err
		}
		out[name] = v
	}
	return out, nil
}

// LimitPages makes the disk as large as n pages.
func (s *Store) LimitPages(ctx context.Context, n int) error {
	_, err := s.writer.ExecContext(ctx, fmt.Sprint("PRAGMA max_page_count = ", n))
	return err
}

// ShortenBusyTimeout lets the writer wait for another process only for a moment.
func (s *Store) ShortenBusyTimeout(ctx context.Context) error {
	_, err := s.writer.ExecContext(ctx, "PRAGMA busy_timeout = 20")
	return err
}

// Queries counts the statements that read lists.
func (s *Store) Queries() (n float64) {
	ch := make(chan prometheus.Metric, 100)
	s.metrics.queries.Collect(ch)
	close(ch)
	for m := range ch {
		n += valueOf(m)
	}
	return n
}

func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetCounter().GetValue()
}
