// Package storagetest is the contract of a history store, as an interface and
// as tests that every implementation passes unchanged. Memory is the smallest
// implementation: a model to compare with, and a fake for tests of whoever uses
// a history.
//
// What a history promises:
//   - A row that stands is never overwritten. Write tells of each row what became
//     of it: inserted, a replay of what stands, a conflict with what stands, or
//     retired, which is below the conversation's minimum and gone.
//   - Writing is idempotent: the same Change again, in whole or in part, in any
//     order and from several writers, ends in the same state.
//   - Marks and bounds only rise, windows follow the member's version, own
//     messages are a set: Member.Merge and Conversation.Merge, done by the store.
//   - Write has no effect that could be lost once it has returned without an
//     error. With one, any part may have been done, in the order rows, revokes,
//     members, conversations: no max ever stands without its rows. Transactions
//     are not needed.
//   - Reads are bounded by what the caller may say: a limit above
//     watermark.MaxPage counts as watermark.MaxPage, one that is not positive
//     gives nothing, and an interval may be of any size.
//
// A history knows no users' rights: it clips nothing by windows or minima.
// Whether a message of a single conversation is read is not stored: it follows
// from the peer's receipt and window.
package storagetest
