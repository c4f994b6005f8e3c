package syncapi

import (
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/tidemark-im/tidemark/watermark"
)

// ErrorDomain is the domain of the ErrorInfo that comes with every error.
const ErrorDomain = "tidemark.v1"

// The reasons that this package itself gives; owners' stand in watermark.
const (
	reasonUnknown         = "unknown_conversation"
	reasonTokenMissing    = "token_missing"
	reasonTokenInvalid    = "token_invalid"
	reasonTokenExpired    = "token_expired"
	reasonKeys            = "keys"
	reasonAdminRequired   = "admin_required"
	reasonOtherUser       = "other_user"
	reasonNotSender       = "not_sender"
	reasonNotSingle       = "not_single"
	reasonListMoved       = "list_moved"
	reasonBusy            = "busy"
	reasonInFlight        = "in_flight"
	reasonRequests        = "requests"
	reasonBytes           = "bytes"
	reasonWaitingCalls    = "waiting_calls"
	reasonMarks           = "marks_under_way"
	reasonRequestTooLarge = "request_too_large"
	reasonUnknownMethod   = "unknown_method"
	reasonUnknownPath     = "unknown_path"
	reasonNoAnswer        = "no_answer_yet"
	reasonDeadline        = "deadline"
	reasonCanceled        = "canceled"
	reasonSeqUnknown      = "seq_unknown"
	reasonStopping        = "stopping"
	reasonStore           = "store"
	reasonGap             = "gap"
	reasonInternal        = "internal"
)

// Reason is one word that says why a call, or an entry of one, was refused. The
// words and their codes do not change.
type Reason struct {
	Word    string
	Code    connect.Code
	Meaning string
}

// Reasons lists every reason.
func Reasons() []Reason {
	return []Reason{
		{watermark.ReasonInvalid, connect.CodeInvalidArgument, "A field breaks its rule, or the request cannot be decoded. Fields are named in BadRequest."},
		{watermark.ReasonTooLarge, connect.CodeInvalidArgument, "A message is larger than the deployment takes."},
		{watermark.ReasonUndecodable, connect.CodeInvalidArgument, "The conversation's owner could not read the record."},
		{reasonTokenMissing, connect.CodeUnauthenticated, "No bearer token came along."},
		{reasonTokenInvalid, connect.CodeUnauthenticated, "The token is not good here and will not be."},
		{reasonTokenExpired, connect.CodeUnauthenticated, "The token was good once. Get a new one."},
		{reasonAdminRequired, connect.CodePermissionDenied, "The call is for administrators."},
		{reasonOtherUser, connect.CodePermissionDenied, "The request names a user for whom the token does not speak."},
		{watermark.ReasonNotMember, connect.CodePermissionDenied, "The user was a member, and is none now."},
		{watermark.ReasonNotParticipant, connect.CodePermissionDenied, "The user is not one of the two that the conversation's id names."},
		{reasonNotSender, connect.CodePermissionDenied, "The seq is not a message of this user, or cannot be seen."},
		{reasonUnknown, connect.CodeNotFound, "There is no such conversation, or the user may not know of it."},
		{reasonUnknownPath, connect.CodeNotFound, "Nothing is served under this path."},
		{watermark.ReasonIDReused, connect.CodeAlreadyExists, "The sender gave this client message id to other content before."},
		{reasonNotSingle, connect.CodeFailedPrecondition, "The call is for single conversations."},
		{watermark.ReasonNoSuchSeq, connect.CodeFailedPrecondition, "The conversation has no such seq."},
		{watermark.ReasonWindowFull, connect.CodeFailedPrecondition, "The user joined and left too often."},
		{watermark.ReasonAttributesFull, connect.CodeFailedPrecondition, "The member has set as many attributes as there may be."},
		{watermark.ReasonSeqsExhausted, connect.CodeFailedPrecondition, "The conversation has no seq left."},
		{watermark.ReasonWrongPartition, connect.CodeFailedPrecondition, "The record stood in the wrong partition of Kafka twice: partition counts differ."},
		{reasonListMoved, connect.CodeAborted, "The walk over the list cannot go on. Begin it again, without the page token."},
		{reasonRequests, connect.CodeResourceExhausted, "The user calls too often."},
		{reasonBytes, connect.CodeResourceExhausted, "The user was sent too much."},
		{reasonInFlight, connect.CodeResourceExhausted, "Too many calls of the user are being served."},
		{reasonBusy, connect.CodeResourceExhausted, "Too many calls are being served."},
		{reasonWaitingCalls, connect.CodeResourceExhausted, "Too many calls wait for owners."},
		{reasonMarks, connect.CodeResourceExhausted, "Too many marks are being appended."},
		{reasonRequestTooLarge, connect.CodeResourceExhausted, "The request has too many bytes."},
		{reasonStore, connect.CodeUnavailable, "A store cannot be reached."},
		{reasonGap, connect.CodeUnavailable, "A message is missing where the page begins; it is being looked for."},
		{reasonStopping, connect.CodeUnavailable, "The process is stopping. Try another one."},
		{reasonSeqUnknown, connect.CodeUnavailable, "The message is accepted, its seq is not known yet."},
		{reasonKeys, connect.CodeUnavailable, "Tokens cannot be checked: the issuer's keys cannot be had."},
		{reasonNoAnswer, connect.CodeDeadlineExceeded, "What was asked for is accepted; the owner's answer did not come in time."},
		{reasonDeadline, connect.CodeDeadlineExceeded, "The call's own deadline has passed."},
		{reasonCanceled, connect.CodeCanceled, "The caller gave up."},
		{reasonUnknownMethod, connect.CodeUnimplemented, "The service has no such call."},
		{reasonInternal, connect.CodeInternal, "A fault of the service."},
	}
}

// ReasonTable gives the Markdown table of all reasons.
func ReasonTable() string {
	var b strings.Builder
	b.WriteString("| reason | code | meaning |\n| --- | --- | --- |\n")
	for _, r := range Reasons() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", r.Word, r.Code, r.Meaning)
	}
	return b.String()
}
