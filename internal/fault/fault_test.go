package fault_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/tidemark-im/tidemark/internal/fault"
)

func TestClassOf(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		class  fault.Class
		reason string
	}{
		{"unsorted errors wait", io.ErrUnexpectedEOF, fault.Transient, "unsorted"},
		{"wrapped", fmt.Errorf("write: %w", fault.New(fault.Fatal, "auth", io.EOF)), fault.Fatal, "auth"},
		{"outermost wins", fault.New(fault.Poison, "invalid", fault.New(fault.Fatal, "x", io.EOF)), fault.Poison, "invalid"},
		{"joined", errors.Join(io.EOF, fault.New(fault.Poison, "invalid", io.EOF)), fault.Poison, "invalid"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := fault.ClassOf(tt.err); got != tt.class {
				t.Errorf("class = %v, want %v", got, tt.class)
			}
			if got := fault.ReasonOf(tt.err); got != tt.reason {
				t.Errorf("reason = %q, want %q", got, tt.reason)
			}
		})
	}
}

func TestNewKeepsNilAndCause(t *testing.T) {
	if err := fault.New(fault.Fatal, "x", nil); err != nil {
		t.Errorf("New(nil) = %v, want nil", err)
	}
	if err := fault.New(fault.Fatal, "x", io.EOF); !errors.Is(err, io.EOF) || err.Error() != "EOF" {
		t.Errorf("cause is lost: %v", err)
	}
}
