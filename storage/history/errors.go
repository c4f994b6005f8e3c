package history

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/tidemark-im/tidemark/internal/fault"
)

var (
	// errDiffers is returned when the database has a collection or an index of
	// ours that is not as it must be.
	errDiffers = errors.New("differs from what the history needs")
	// errNewer is returned when a later version has prepared the database.
	errNewer = errors.New("the database was prepared by a newer version of tidemark")
	// errCorrupt is returned when a document is not one of ours.
	errCorrupt = errors.New("not a document of the history")
	// errRace is returned when other writers were faster too many times.
	errRace = errors.New("other writers were faster each time")
)

// Codes of the server, as its error_codes.yml lists them. Texts are never
// compared: they differ between versions and between servers.
const (
	codeDuplicateKey = 11000
	codeExists       = 48 // NamespaceExists
)

// families sorts codes. The first family that has one of an error's codes
// decides, so the worse classes stand first: what is fatal does not heal
// because something else beside it would. The transient ones only give a
// reason: a code that stands nowhere is transient too.
var families = []struct {
	class  fault.Class
	reason string
	codes  []int
}{
	// Who may not log in or write now may not in a minute either. UserNotFound,
	// Unauthorized, AuthenticationFailed, MechanismUnavailable, and Atlas' own.
	{fault.Fatal, "auth", []int{11, 13, 18, 334, 8000}},
	// This server does not do what is asked: BadValue,
	// FailedToParse, TypeMismatch, IllegalOperation,
	// ConflictingUpdateOperators, CommandNotFound, InvalidOptions,
	// InvalidNamespace, CommandNotSupported, CommandNotSupportedOnView,
	// NotImplemented.
	{fault.Fatal, "server", []int{2, 9, 14, 20, 40, 59, 72, 73, 115, 166, 238}},
	// IndexNotFound, CannotCreateIndex, IndexAlreadyExists, IndexOptionsConflict,
	// IndexKeySpecsConflict, InvalidIndexSpecificationOption.
	{fault.Fatal, "index", []int{27, 67, 68, 85, 86, 197}},
	// UnknownReplWriteConcern, and UnsatisfiableWriteConcern: more than there
	// are members.
	{fault.Fatal, "write_concern", []int{79, 100}},
	{fault.Fatal, "validation", []int{121}}, // a validator that is not ours
	{fault.Fatal, "database", []int{13297}}, // one whose name differs in case
	// BSONObjectTooLarge, KeyTooLong, and what an update would make.
	{fault.Poison, "too_large", []int{10334, 17280, 17419, 17420}},
	// Not a primary, not yet or not any more.
	{fault.Transient, "election", []int{189, 10058, 10107, 11602, 13435, 13436}},
	{fault.Transient, "shutdown", []int{91, 11600}},
	{fault.Transient, "interrupted", []int{175, 237, 11601}},
	// HostUnreachable, HostNotFound, NetworkTimeout,
	// NetworkInterfaceExceededTimeLimit, SocketException: between the members.
	{fault.Transient, "network", []int{6, 7, 89, 202, 9001}},
	{fault.Transient, "timeout", []int{50, 262}},
	{fault.Transient, "write_concern", []int{64}}, // written, not on a majority yet
	// LockTimeout, LockBusy, LockFailed, WriteConflict, TransactionTooOld,
	// NoSuchTransaction: writers that touch the same documents, deadlocks too.
	{fault.Transient, "conflict", []int{24, 46, 107, 112, 225, 251}},
	{fault.Transient, "race", []int{codeDuplicateKey}}, // of upserts, again and again
	{fault.Transient, "cursor", []int{43, 234}},
	{fault.Transient, "routing", []int{63, 133, 150, 249, 13388}}, // shards are being moved
	{fault.Transient, "read_concern", []int{123, 134}},
	{fault.Transient, "disk_full", []int{14031}},
	{fault.Transient, "no_memory", []int{146}},
	{fault.Transient, "overload", []int{365, 462}},
	{fault.Transient, "index_build", []int{276, 12587}},
}

func isDuplicate(c int) bool { return c == codeDuplicateKey }

// sorted gives err its class, and takes secrets out of its text.
func (s *Store) sorted(err error) error {
	if err == nil {
		return nil
	}
	class, reason := classOf(err)
	return fault.New(class, reason, mask(err, s.secrets))
}

// classOf sorts an error of the driver.
func classOf(err error) (fault.Class, string) {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Class, e.Reason
	}
	switch {
	case errors.Is(err, errDiffers):
		return fault.Fatal, "index"
	case errors.Is(err, errNewer):
		return fault.Fatal, "schema_newer"
	case errors.Is(err, errCorrupt):
		return fault.Fatal, "corrupt"
	case errors.Is(err, errRace):
		return fault.Transient, "race"
	case errors.Is(err, driver.ErrDocumentTooLarge):
		return fault.Poison, "too_large" // found by the driver, before it sends anything
	}
	codes := mongo.ErrorCodes(err)
	// A duplicate is the usual thing beside what is really wrong.
	if others := slices.DeleteFunc(slices.Clone(codes), isDuplicate); len(others) > 0 {
		codes = others
	}
	for _, f := range families {
		if slices.ContainsFunc(codes, func(c int) bool { return slices.Contains(f.codes, c) }) {
			return f.class, f.reason
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return fault.Transient, "interrupted"
	case mongo.IsTimeout(err):
		return fault.Transient, "timeout"
	case mongo.IsNetworkError(err):
		return fault.Transient, "network"
	}
	return fault.Transient, "unavailable"
}
