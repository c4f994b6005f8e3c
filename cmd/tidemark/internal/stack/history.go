package stack

import (
	"context"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/truth"
)

// historyStore is what the roles need of a history: all of its readers, and its
// one writer.
type historyStore interface {
	truth.History
	tomongo.History
	audit.History
}

// openStore opens the history that the configuration chooses.
func (s *Stack) openStore(ctx context.Context) error {
	if s.cfg.History.Backend != "mongodb" {
		store, err := embedded.New(embedded.Config{Path: s.cfg.History.Path, Logger: s.cfg.Logger, Registerer: s.cfg.Registry})
		if err != nil {
			return err
		}
		s.history = store
		s.onClose(store.Close)
		return nil
	}
	store, err := history.New(history.Config{
		URI: s.cfg.History.URI, Username: s.cfg.History.Username, Password: s.cfg.History.Password,
		Database: s.cfg.History.Database, Timeout: s.cfg.History.Timeout,
		Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return err
	}
	s.history = store
	s.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return store.Close(ctx)
	})
	return store.Prepare(ctx)
}
