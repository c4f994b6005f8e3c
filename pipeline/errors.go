package pipeline

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// Reasons, fit for a metric label. Poison and fatal ones appear in dead letters
// and in the last line of a process too.
const (
	ReasonTooLarge         = "too_large"
	ReasonInvalidRecord    = "invalid_record"
	ReasonAuth             = "auth"
	ReasonNotAuthorized    = "not_authorized"
	ReasonTLS              = "tls"
	ReasonConfig           = "config"
	ReasonVersion          = "unsupported_version"
	ReasonOffsetOutOfRange = "offset_out_of_range"
	ReasonGroupProtocol    = "group_protocol"
	ReasonMissingTopic     = "missing_topic"
	ReasonNoPartition      = "no_such_partition"
	ReasonBatchTooLarge    = "batch_too_large"
	ReasonPanic            = "panic"
	ReasonContract         = "contract"
)

// kerrors sorts what a broker answers. What is not listed is transient and
// unsorted.
var kerrors = map[sarama.KError]struct {
	class  fault.Class
	reason string
}{
	// The record's own: no broker will ever take it.
	sarama.ErrMessageSizeTooLarge:    {fault.Poison, ReasonTooLarge},
	sarama.ErrMessageSetSizeTooLarge: {fault.Poison, ReasonTooLarge},
	sarama.ErrInvalidRecord:          {fault.Poison, ReasonInvalidRecord},
	sarama.ErrInvalidTimestamp:       {fault.Poison, ReasonInvalidRecord},

	// Credentials and rights do not heal by waiting, and a process that waits
	// looks alive: whoever can mend it must see it at once.
	sarama.ErrSASLAuthenticationFailed:           {fault.Fatal, ReasonAuth},
	sarama.ErrUnsupportedSASLMechanism:           {fault.Fatal, ReasonAuth},
	sarama.ErrIllegalSASLState:                   {fault.Fatal, ReasonAuth},
	sarama.ErrSecurityDisabled:                   {fault.Fatal, ReasonAuth},
	sarama.ErrTopicAuthorizationFailed:           {fault.Fatal, ReasonNotAuthorized},
	sarama.ErrGroupAuthorizationFailed:           {fault.Fatal, ReasonNotAuthorized},
	sarama.ErrClusterAuthorizationFailed:         {fault.Fatal, ReasonNotAuthorized},
	sarama.ErrTransactionalIDAuthorizationFailed: {fault.Fatal, ReasonNotAuthorized},

	// The log no longer holds what was not yet read, or never did: going on at
	// any other offset would skip or repeat without anybody's decision.
	sarama.ErrOffsetOutOfRange: {fault.Fatal, ReasonOffsetOutOfRange},

	sarama.ErrInvalidTopic:                {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidRequiredAcks:         {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidConfig:               {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidPartitions:           {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidReplicationFactor:    {fault.Fatal, ReasonConfig},
	sarama.ErrPolicyViolation:             {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidGroupId:              {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidSessionTimeout:       {fault.Fatal, ReasonConfig},
	sarama.ErrInvalidCommitOffsetSize:     {fault.Fatal, ReasonConfig},
	sarama.ErrOffsetMetadataTooLarge:      {fault.Fatal, ReasonConfig},
	sarama.ErrUnsupportedVersion:          {fault.Fatal, ReasonVersion},
	sarama.ErrUnsupportedForMessageFormat: {fault.Fatal, ReasonVersion},
	sarama.ErrUnsupportedCompressionType:  {fault.Fatal, ReasonVersion},
	// Another program uses the group's name with other strategies.
	sarama.ErrInconsistentGroupProtocol: {fault.Fatal, ReasonGroupProtocol},
	sarama.ErrFencedInstancedId:         {fault.Fatal, ReasonGroupProtocol},

	// A broker that has not yet heard of a new topic says the same as one that
	// never will. EnsureTopics decides at start which it is, and stops the
	// process then; later on a topic's absence is an operator's act that can be
	// undone, and stopping would only add restarts to it.
	sarama.ErrUnknownTopicOrPartition: {fault.Transient, "unknown_topic"},

	sarama.ErrLeaderNotAvailable:           {fault.Transient, "leader"},
	sarama.ErrNotLeaderForPartition:        {fault.Transient, "leader"},
	sarama.ErrReplicaNotAvailable:          {fault.Transient, "leader"},
	sarama.ErrFencedLeaderEpoch:            {fault.Transient, "leader"},
	sarama.ErrUnknownLeaderEpoch:           {fault.Transient, "leader"},
	sarama.ErrPreferredLeaderNotAvailable:  {fault.Transient, "leader"},
	sarama.ErrEligibleLeadersNotAvailable:  {fault.Transient, "leader"},
	sarama.ErrOffsetNotAvailable:           {fault.Transient, "leader"},
	sarama.ErrNotController:                {fault.Transient, "leader"},
	sarama.ErrNotEnoughReplicas:            {fault.Transient, "replicas"},
	sarama.ErrNotEnoughReplicasAfterAppend: {fault.Transient, "replicas"},
	sarama.ErrRequestTimedOut:              {fault.Transient, "timeout"},
	sarama.ErrBrokerNotAvailable:           {fault.Transient, "network"},
	sarama.ErrNetworkException:             {fault.Transient, "network"},
	sarama.ErrKafkaStorageError:            {fault.Transient, "storage"},
	sarama.ErrLogDirNotFound:               {fault.Transient, "storage"},
	// A checksum that broke on the way is right the next time.
	sarama.ErrInvalidMessage:          {fault.Transient, "corrupt"},
	sarama.ErrThrottlingQuotaExceeded: {fault.Transient, "throttled"},

	sarama.ErrOffsetsLoadInProgress:           {fault.Transient, "coordinator"},
	sarama.ErrConsumerCoordinatorNotAvailable: {fault.Transient, "coordinator"},
	sarama.ErrNotCoordinatorForConsumer:       {fault.Transient, "coordinator"},
	sarama.ErrUnstableOffsetCommit:            {fault.Transient, "coordinator"},
	sarama.ErrRebalanceInProgress:             {fault.Transient, "rebalance"},
	sarama.ErrIllegalGeneration:               {fault.Transient, "rebalance"},
	sarama.ErrUnknownMemberId:                 {fault.Transient, "rebalance"},
	sarama.ErrMemberIdRequired:                {fault.Transient, "rebalance"},
	sarama.ErrGroupMaxSizeReached:             {fault.Transient, "rebalance"},

	// The broker forgot this producer, or a failed batch tore a hole into its
	// numbering. sarama begins a new epoch, and the record is sent again.
	sarama.ErrOutOfOrderSequenceNumber:     {fault.Transient, "producer_epoch"},
	sarama.ErrInvalidProducerEpoch:         {fault.Transient, "producer_epoch"},
	sarama.ErrUnknownProducerID:            {fault.Transient, "producer_epoch"},
	sarama.ErrInvalidProducerIDMapping:     {fault.Transient, "producer_epoch"},
	sarama.ErrProducerFenced:               {fault.Transient, "producer_epoch"},
	sarama.ErrTransactionCoordinatorFenced: {fault.Transient, "producer_epoch"},
}

// sortError wraps an error of the driver with its class. An error that has one
// keeps it; nil stays nil.
//
// sarama wraps what its brokers said into "ran out of available brokers" and
// the like, so the most telling cause is looked for first: a wrong password
// must not look like an absent network.
func sortError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	class, reason := classify(err)
	return fault.New(class, reason, err)
}

func classify(err error) (fault.Class, string) {
	for k, s := range fatalFirst {
		if errors.Is(err, k) {
			return s.class, s.reason
		}
	}
	if k, ok := errors.AsType[sarama.KError](err); ok {
		if s, ok := kerrors[k]; ok {
			return s.class, s.reason
		}
		return fault.Transient, "unsorted"
	}
	if isTLS(err) {
		return fault.Fatal, ReasonTLS
	}
	if _, ok := errors.AsType[sarama.ConfigurationError](err); ok {
		return fault.Fatal, ReasonConfig
	}
	if _, ok := errors.AsType[sarama.PacketEncodingError](err); ok {
		// A request that cannot be written down is a fault of this program.
		return fault.Fatal, "encoding"
	}
	switch {
	case errors.Is(err, sarama.ErrInvalidPartition):
		return fault.Fatal, ReasonNoPartition
	case errors.Is(err, sarama.ErrDecompressedBatchTooLarge):
		// The driver meets it before it knows a record, again at every fetch, and
		// in all partitions of that broker: waiting would look like an outage.
		return fault.Fatal, ReasonBatchTooLarge
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.Transient, "canceled"
	case errors.Is(err, sarama.ErrShuttingDown), errors.Is(err, sarama.ErrClosedClient),
		errors.Is(err, sarama.ErrClosedConsumerGroup), errors.Is(err, ErrClosed):
		return fault.Transient, "closed"
	case isNetwork(err):
		return fault.Transient, "network"
	}
	return fault.Transient, "unsorted"
}

// fatalFirst are the fatal answers of a broker that errors.Is must find behind
// several errors joined, where errors.AsType would stop at the first KError.
var fatalFirst = func() map[sarama.KError]struct {
	class  fault.Class
	reason string
} {
	out := make(map[sarama.KError]struct {
		class  fault.Class
		reason string
	})
	for k, s := range kerrors {
		if s.class == fault.Fatal {
			out[k] = s
		}
	}
	return out
}()

// isTLS tells a handshake that cannot succeed: a certificate that nobody
// signed, another host's, or a broker that does not speak TLS at all.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok
}

func isNetwork(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, known := range []error{
		sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrControllerNotAvailable, sarama.ErrBrokerNotFound,
		sarama.ErrIncompleteResponse, sarama.ErrConsumerRetriesExhausted,
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// ErrClosed is returned when a Producer is used after Close.
var ErrClosed = errors.New("producer is closed")

// RejectedError names a record that Kafka will never take. It comes wrapped in
// a fault of class Poison.
type RejectedError struct {
	Index int // place in the slice given to Append
	Topic string
	Key   string
	Err   error
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("append record %d (key %q) to %s: %v", e.Index, e.Key, e.Topic, e.Err)
}

// Unwrap gives the cause.
func (e *RejectedError) Unwrap() error { return e.Err }
