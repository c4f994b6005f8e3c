//go:build unix

package embedded_test

import (
	"syscall"
	"testing"
	"time"
)

// cpu gives the processor time that this process has taken.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
