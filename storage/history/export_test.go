package history

import "context"

// Drop drops the database.
func (s *Store) Drop(ctx context.Context) error { return s.db.Drop(ctx) }
