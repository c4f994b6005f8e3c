package embedded_test

import (
	"path/filepath"
	"testing"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/storage/storagetest"
)

// file is a store that can be reopened.
type file struct {
	*embedded.Store
	path string
}

func openFile(t testing.TB, path string) *file {
	t.Helper()
	s, err := embedded.New(embedded.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &file{s, path}
}

func (f *file) Reopen(t testing.TB) storagetest.History {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return openFile(t, f.path)
}

func TestContractFile(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storagetest.History {
		return openFile(t, filepath.Join(t.TempDir(), "history.db"))
	})
}

func TestContractInMemory(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storagetest.History {
		return openFile(t, "").Store
	})
}
