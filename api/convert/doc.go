// Package convert maps the wire contract (api/tidemark/v1) to the vocabulary
// of package watermark and back, and is the one place that checks what comes
// from outside.
//
// It promises:
//   - Whatever a From function or SendToMessage accepts keeps every rule of
//     its field: ids of their form, seqs within bounds, known enum values,
//     text that is UTF-8, lists within their limits. Code behind it need not
//     check again.
//   - Converting to the API and back gives an equal value, apart from what the
//     API does not carry: a member's Own and ChangedAt, which are derived from
//     the log, and a logged message's Revoked, which is an event of its own.
//   - An error names the field at fault, and all fields at fault at once. It
//     is a fault.Poison whose reason is watermark.ReasonInvalid, or
//     ReasonTooLarge or ReasonNotParticipant when that is all that is wrong.
//     It never shows a body or an attribute's value.
//
// It does not decide who may do what, save that a single conversation has two
// users, and it has no state: all functions are safe for concurrent use.
// Results share byte slices and maps with their arguments, so neither may be
// changed while the other is in use.
package convert
