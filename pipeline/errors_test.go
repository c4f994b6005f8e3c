package pipeline_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

func TestErrorsAreSorted(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		class  fault.Class
		reason string
	}{
		{"record too large", sarama.ErrMessageSizeTooLarge, fault.Poison, "too_large"},
		{"batch too large", sarama.ErrMessageSetSizeTooLarge, fault.Poison, "too_large"},
		{"record refused", sarama.ErrInvalidRecord, fault.Poison, "invalid_record"},

		{"wrong password", sarama.ErrSASLAuthenticationFailed, fault.Fatal, "auth"},
		{"wrong password behind dead brokers", sarama.Wrap(sarama.ErrOutOfBrokers, io.EOF, sarama.ErrSASLAuthenticationFailed), fault.Fatal, "auth"},
		{"wrong password behind another answer", errors.Join(sarama.ErrLeaderNotAvailable, sarama.ErrSASLAuthenticationFailed), fault.Fatal, "auth"},
		{"no right on the topic", &sarama.ConsumerError{Err: sarama.ErrTopicAuthorizationFailed}, fault.Fatal, "not_authorized"},
		{"no right on the group", sarama.ErrGroupAuthorizationFailed, fault.Fatal, "not_authorized"},
		{"offset gone", fmt.Errorf("read: %w", sarama.ErrOffsetOutOfRange), fault.Fatal, "offset_out_of_range"},
		{"topic name", &sarama.TopicError{Err: sarama.ErrInvalidTopic}, fault.Fatal, "config"},
		{"replication", &sarama.TopicError{Err: sarama.ErrInvalidReplicationFactor}, fault.Fatal, "config"},
		{"old broker", sarama.ErrUnsupportedVersion, fault.Fatal, "unsupported_version"},
		{"another program's group", sarama.ErrInconsistentGroupProtocol, fault.Fatal, "group_protocol"},
		{"driver configuration", sarama.ConfigurationError("x"), fault.Fatal, "config"},
		{"unencodable request", sarama.PacketEncodingError{Info: "x"}, fault.Fatal, "encoding"},
		{"no such partition", sarama.ErrInvalidPartition, fault.Fatal, "no_such_partition"},
		{"unknown signer", sarama.Wrap(sarama.ErrOutOfBrokers, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), fault.Fatal, "tls"},
		{"plain port", tls.RecordHeaderError{Msg: "x"}, fault.Fatal, "tls"},
		{"other host's certificate", x509.HostnameError{Certificate: &x509.Certificate{}}, fault.Fatal, "tls"},

		{"decompression bomb", fmt.Errorf("fetch: %w", sarama.ErrDecompressedBatchTooLarge), fault.Fatal, "batch_too_large"},

		{"unknown topic", sarama.ErrUnknownTopicOrPartition, fault.Transient, "unknown_topic"},
		{"election", sarama.ErrNotLeaderForPartition, fault.Transient, "leader"},
		{"replicas", sarama.ErrNotEnoughReplicasAfterAppend, fault.Transient, "replicas"},
		{"slow broker", sarama.ErrRequestTimedOut, fault.Transient, "timeout"},
		{"disk", sarama.ErrKafkaStorageError, fault.Transient, "storage"},
		{"checksum", sarama.ErrInvalidMessage, fault.Transient, "corrupt"},
		{"quota", sarama.ErrThrottlingQuotaExceeded, fault.Transient, "throttled"},
		{"coordinator loads", sarama.ErrOffsetsLoadInProgress, fault.Transient, "coordinator"},
		{"coordinator moved", sarama.ErrNotCoordinatorForConsumer, fault.Transient, "coordinator"},
		{"rebalance", sarama.ErrRebalanceInProgress, fault.Transient, "rebalance"},
		{"forgotten member", sarama.ErrUnknownMemberId, fault.Transient, "rebalance"},
		{"hole in the numbering", sarama.ErrOutOfOrderSequenceNumber, fault.Transient, "producer_epoch"},
		{"forgotten producer", sarama.ErrUnknownProducerID, fault.Transient, "producer_epoch"},
		{"no broker", sarama.ErrOutOfBrokers, fault.Transient, "network"},
		{"refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, fault.Transient, "network"},
		{"name not found", &net.DNSError{Err: "no such host"}, fault.Transient, "network"},
		{"cut", io.ErrUnexpectedEOF, fault.Transient, "network"},
		{"canceled", context.Canceled, fault.Transient, "canceled"},
		{"closing", sarama.ErrShuttingDown, fault.Transient, "closed"},
		{"a code of a later kafka", sarama.KError(3000), fault.Transient, "unsorted"},
		{"anything", errors.New("x"), fault.Transient, "unsorted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			class, reason := pipeline.Classify(tt.err)
			if class != tt.class || reason != tt.reason {
				t.Errorf("= %v %s, want %v %s", class, reason, tt.class, tt.reason)
			}
			err := pipeline.SortError(fmt.Errorf("act: %w", tt.err))
			if fault.ClassOf(err) != tt.class || fault.ReasonOf(err) != tt.reason || !errors.Is(err, tt.err) && tt.name != "topic name" {
				t.Errorf("sorted = %#v", err)
			}
		})
	}
}

// TestEveryAnswerOfABrokerHasItsClass pins the whole table, so that a row is
// only ever changed on purpose.
func TestEveryAnswerOfABrokerHasItsClass(t *testing.T) {
	tests := []struct {
		class  fault.Class
		reason string
		codes  []sarama.KError
	}{
		{fault.Poison, "too_large", []sarama.KError{sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge}},
		{fault.Poison, "invalid_record", []sarama.KError{sarama.ErrInvalidRecord, sarama.ErrInvalidTimestamp}},
		{fault.Fatal, "auth", []sarama.KError{
			sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState,
			sarama.ErrSecurityDisabled,
		}},
		{fault.Fatal, "not_authorized", []sarama.KError{
			sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
			sarama.ErrTransactionalIDAuthorizationFailed,
		}},
		{fault.Fatal, "offset_out_of_range", []sarama.KError{sarama.ErrOffsetOutOfRange}},
		{fault.Fatal, "config", []sarama.KError{
			sarama.ErrInvalidTopic, sarama.ErrInvalidRequiredAcks, sarama.ErrInvalidConfig,
			sarama.ErrInvalidPartitions, sarama.ErrInvalidReplicationFactor, sarama.ErrPolicyViolation,
			sarama.ErrInvalidGroupId, sarama.ErrInvalidSessionTimeout, sarama.ErrInvalidCommitOffsetSize,
			sarama.ErrOffsetMetadataTooLarge,
		}},
		{fault.Fatal, "unsupported_version", []sarama.KError{
			sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedForMessageFormat, sarama.ErrUnsupportedCompressionType,
		}},
		{fault.Fatal, "group_protocol", []sarama.KError{sarama.ErrInconsistentGroupProtocol, sarama.ErrFencedInstancedId}},
		{fault.Transient, "unknown_topic", []sarama.KError{sarama.ErrUnknownTopicOrPartition}},
		{fault.Transient, "leader", []sarama.KError{
			sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrReplicaNotAvailable,
			sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrPreferredLeaderNotAvailable,
			sarama.ErrEligibleLeadersNotAvailable, sarama.ErrOffsetNotAvailable, sarama.ErrNotController,
		}},
		{fault.Transient, "replicas", []sarama.KError{sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend}},
		{fault.Transient, "timeout", []sarama.KError{sarama.ErrRequestTimedOut}},
		{fault.Transient, "network", []sarama.KError{sarama.ErrBrokerNotAvailable, sarama.ErrNetworkException}},
		{fault.Transient, "storage", []sarama.KError{sarama.ErrKafkaStorageError, sarama.ErrLogDirNotFound}},
		{fault.Transient, "corrupt", []sarama.KError{sarama.ErrInvalidMessage}},
		{fault.Transient, "throttled", []sarama.KError{sarama.ErrThrottlingQuotaExceeded}},
		{fault.Transient, "coordinator", []sarama.KError{
			sarama.ErrOffsetsLoadInProgress, sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrNotCoordinatorForConsumer,
			sarama.ErrUnstableOffsetCommit,
		}},
		{fault.Transient, "rebalance", []sarama.KError{
			sarama.ErrRebalanceInProgress, sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId,
			sarama.ErrMemberIdRequired, sarama.ErrGroupMaxSizeReached,
		}},
		{fault.Transient, "producer_epoch", []sarama.KError{
			sarama.ErrOutOfOrderSequenceNumber, sarama.ErrInvalidProducerEpoch, sarama.ErrUnknownProducerID,
			sarama.ErrInvalidProducerIDMapping, sarama.ErrProducerFenced, sarama.ErrTransactionCoordinatorFenced,
		}},
	}
	n := 0
	for _, tt := range tests {
		for _, code := range tt.codes {
			n++
			if class, reason := pipeline.Classify(code); class != tt.class || reason != tt.reason {
				t.Errorf("%v: %v %s, want %v %s", code, class, reason, tt.class, tt.reason)
			}
		}
	}
	if want := pipeline.Answers(); n != want {
		t.Errorf("%d answers are tested, the table has %d", n, want)
	}
}

func TestASortedErrorKeepsItsClass(t *testing.T) {
	err := fault.New(fault.Poison, "mine", sarama.ErrOffsetOutOfRange)
	if got := pipeline.SortError(err); fault.ClassOf(got) != fault.Poison || fault.ReasonOf(got) != "mine" {
		t.Errorf("= %v %s", fault.ClassOf(got), fault.ReasonOf(got))
	}
	if pipeline.SortError(nil) != nil {
		t.Error("nil does not stay nil")
	}
}
