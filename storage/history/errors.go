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

// code is an error code of the server. They are listed in its source,
// error_codes.yml; texts are not compared, since they differ between versions
// and between servers.
type code int

const (
	codeDuplicateKey code = 11000
	codeExists       code = 48
)

var fatalCodes = map[code]string{
	11: "auth", 13: "auth", 18: "auth", // UserNotFound, Unauthorized, AuthenticationFailed
	8000: "auth", // Atlas, for its own refusals; wrong credentials above all
	334:  "auth", // MechanismUnavailable
	2:    "server", 9: "server", 14: "server", 20: "server", 40: "server", 59: "server", 72: "server", 73: "server",
	115: "server", 238: "server", // BadValue, FailedToParse, TypeMismatch, IllegalOperation,
	// ConflictingUpdateOperators, CommandNotFound, InvalidOptions, InvalidNamespace,
	// CommandNotSupported, NotImplemented: this server does not do what is asked.
	67: "index", 68: "index", 85: "index", 86: "index", 197: "index", // CannotCreateIndex, IndexAlreadyExists,
	// IndexOptionsConflict, IndexKeySpecsConflict, InvalidIndexSpecificationOption
	27:    "index",         // IndexNotFound: a hint names an index that somebody dropped
	79:    "write_concern", // UnknownReplWriteConcern
	100:   "write_concern", // UnsatisfiableWriteConcern: w above the number of members
	121:   "validation",    // DocumentValidationFailure: a validator that is not ours
	166:   "server",        // CommandNotSupportedOnView
	13297: "database",      // DatabaseDifferCase
}

var poisonCodes = map[code]string{
	10334: "too_large",                     // BSONObjectTooLarge
	17280: "too_large", 10003: "too_large", // KeyTooLong, CannotGrowDocumentInCappedNamespace
	17419: "too_large", 17420: "too_large", // an update's result is too large
	15: "too_large", // Overflow
}

// transientCodes only gives reasons: a code that is in no table is transient
// too.
var transientCodes = map[code]string{
	10107: "election", 13435: "election", 13436: "election", 10058: "election", // not (yet) a primary
	189: "election", 11602: "election", // PrimarySteppedDown, InterruptedDueToReplStateChange
	91: "shutdown", 11600: "shutdown", 11601: "interrupted", 237: "interrupted", 175: "interrupted",
	6: "network", 7: "network", 89: "network", 9001: "network", 202: "network", // HostUnreachable, HostNotFound,
	// NetworkTimeout, SocketException, NetworkInterfaceExceededTimeLimit
	50: "timeout", 262: "timeout", // MaxTimeMSExpired, ExceededTimeLimit
	64:  "write_concern",                                             // WriteConcernTimeout: written, but not on a majority yet
	112: "conflict", 24: "conflict", 46: "conflict", 107: "conflict", // WriteConflict, LockTimeout, LockBusy, LockFailed
	225: "conflict", 251: "conflict", // TransactionTooOld, NoSuchTransaction
	codeDuplicateKey: "race", // of two upserts, tried again often enough
	43:               "cursor", 234: "cursor",
	63: "routing", 13388: "routing", 150: "routing", 249: "routing", 133: "routing", // shards are being moved
	134: "read_concern", 123: "read_concern",
	14031: "disk_full", 146: "no_memory", 365: "overload", 462: "overload",
	12587: "index_build", 276: "index_build",
}

func isDuplicate(c int) bool { return code(c) == codeDuplicateKey }

// sorted gives err its class, and takes secrets out of its text.
func (s *Store) sorted(err error) error {
	if err == nil {
		return nil
	}
	class, reason := classOf(err)
	return fault.New(class, reason, mask(err, s.secrets))
}

// classOf sorts an error of the driver. Of several codes in one error the
// worst for a repetition counts: what is fatal does not heal because something
// else beside it would.
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
	for _, t := range []struct {
		class fault.Class
		codes map[code]string
	}{{fault.Fatal, fatalCodes}, {fault.Poison, poisonCodes}, {fault.Transient, transientCodes}} {
		for _, c := range codes {
			if reason, ok := t.codes[code(c)]; ok {
				return t.class, reason
			}
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
