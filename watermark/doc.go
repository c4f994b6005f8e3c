// Package watermark is the pure core of Tidemark: ids, seqs, windows, pages,
// unread counts, and how the events of the sequenced log fold into the state
// of a conversation and its members. It has no I/O, no clock, no goroutine and
// imports nothing but the standard library.
//
// It promises:
//   - Every function is deterministic and total: any int64 is accepted as a seq
//     or a count, none makes it allocate or loop in proportion to its value.
//     Cost is O(intervals of one member), never O(messages).
//   - Folding is idempotent and independent of how the log is cut into records:
//     applying a record twice, or a superset of what another store has already
//     seen, changes nothing. That is what lets history, Redis and the tail be
//     merged without agreeing on a common point first.
//   - Pages are honest: a client that follows Page.Rest until it is nil has
//     seen each visible seq of its request once, and IsEnd is only said when
//     nothing is left in the page's direction.
//
// It does not decide who may ask, and knows nothing of storage. Values are not
// safe for concurrent use while one of them is being changed; all read-only
// methods are.
package watermark
