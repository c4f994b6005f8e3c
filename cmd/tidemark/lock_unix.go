//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes a lock on f that ends with the process; false: another has it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
