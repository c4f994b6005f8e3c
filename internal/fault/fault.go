// Package fault is the one vocabulary for what an error means to a worker:
// wait and try again, set the record aside, or stop.
//
// Packages that own a driver (pipeline for sarama, storage and seqalloc for
// go-redis, storage/embedded for SQLite) sort that driver's errors at their
// boundary, in one function with a table test, and wrap them with a class. The
// partition runner asks ClassOf and decides; nobody else does.
//
// An error that nobody sorted counts as Transient: the partition waits, which
// is seen in readiness and in a metric, and nothing is lost. The other two
// classes lose the record's place or the process, so they must be chosen.
package fault

import "errors"

// Class says what a worker does about an error.
type Class int

const (
	// Transient errors heal by themselves: the same work is tried again in
	// place, after a back-off, for as long as it takes.
	Transient Class = iota
	// Poison errors are the record's own and will never heal: it goes to the
	// dead letter topic with its cause.
	Poison
	// Fatal errors are the deployment's or the program's: going on could lose
	// or corrupt, so the process stops with one clear line.
	Fatal
)

// String gives the class as a word, as used in metric labels.
func (c Class) String() string {
	switch c {
	case Poison:
		return "poison"
	case Fatal:
		return "fatal"
	default:
		return "transient"
	}
}

// Error is an error with its class and a reason, which is one word from a
// bounded set, fit for a metric label or a dead letter.
type Error struct {
	Class  Class
	Reason string
	Err    error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// New wraps err with a class and a reason. A nil err gives nil.
func New(class Class, reason string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Class: class, Reason: reason, Err: err}
}

// ClassOf tells the class of the outermost Error in err's tree, Transient
// where there is none.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Transient
}

// ReasonOf tells the reason of the outermost Error in err's tree, "unsorted"
// where there is none.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return "unsorted"
}
