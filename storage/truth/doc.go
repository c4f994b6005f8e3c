// Package truth answers what is so about a conversation when Redis has nothing
// to say: history ⊕ tail. History is what toMongo has stored; the tail is what
// the sequenced log holds beyond toMongo's committed offset. Every role that
// reads a cold conversation does it here, so that there is one order of reading
// and one merge.
//
// It promises:
//   - What it gives covers at least everything that was appended to the
//     sequenced log before the call began, wherever toMongo stands and whatever
//     it does meanwhile. The order of reading is what makes that so: pin the
//     tail, then history, then the tail. See DESIGN.md.
//   - The number of history queries grows with the number of conversations
//     divided by the chunk, and the tail of a partition is read once per call.
//   - A member that is in the answer is in it whole. Of a large conversation of
//     which only some members were asked for, the others are absent, even where
//     the tail knows a part of them.
//
// It does not promise that two conversations of one call are of the same
// moment, and it writes nothing anywhere: whether to make a conversation warm is
// the owner's business. It clips nothing by windows or bounds; that is for those
// who know who asks.
//
// A Truth is safe for concurrent use and holds nothing between calls. When
// history or the tail cannot be read, or the context ends, the call returns that
// error, with its fault class, and no partial answer.
package truth
