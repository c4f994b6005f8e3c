package stack

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// historyStore is what the roles need of a history: all of its readers, and its
// one writer.
type historyStore interface {
	truth.History
	tomongo.History
	pipeline.History
	audit.History
	syncapi.Devices
	DevicesOf(ctx context.Context, user watermark.UserID) ([]watermark.Device, error)
}

// History is a store for tools that read or write all of it.
type History interface {
	historyStore
	transfer.Target
	Sizes(ctx context.Context) (watermark.Sizes, error)
	// Prepare makes what the store needs to be written and read at speed, and
	// checks it. Until then nothing is changed.
	Prepare(ctx context.Context) error
}

// OpenHistory opens the history that cfg names.
func OpenHistory(ctx context.Context, cfg config.History, logger *slog.Logger) (h History, closing func() error, err error) {
	return openHistory(ctx, cfg, logger, prometheus.NewRegistry())
}

func openHistory(ctx context.Context, cfg config.History, logger *slog.Logger, registry prometheus.Registerer) (History, func() error, error) {
	if cfg.Backend != "mongodb" {
		store, err := embedded.New(embedded.Config{Path: cfg.Path, Logger: logger, Registerer: registry})
		if err != nil {
			return nil, nil, err
		}
		return prepared{store}, store.Close, nil
	}
	store, err := history.New(history.Config{
		URI: cfg.URI, Username: cfg.Username, Password: cfg.Password, Database: cfg.Database, Timeout: cfg.Timeout,
		Logger: logger, Registerer: registry,
	})
	if err != nil {
		return nil, nil, err
	}
	return store, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return store.Close(ctx)
	}, nil
}

// prepared is a file, which was prepared when it was opened.
type prepared struct{ *embedded.Store }

func (prepared) Prepare(context.Context) error { return nil }

// openStore opens the history that the configuration chooses.
func (s *Stack) openStore(ctx context.Context) error {
	store, closing, err := openHistory(ctx, s.cfg.History, s.cfg.Logger, s.cfg.Registry)
	if err != nil {
		return err
	}
	s.history = store
	s.onClose(closing)
	return s.reach(ctx, "history", func(ctx context.Context) error {
		err := store.Prepare(ctx)
		if err != nil && s.cfg.History.Backend == "mongodb" {
			return fmt.Errorf("%s: %w", history.Masked(s.cfg.History.URI), err)
		}
		return err
	})
}
