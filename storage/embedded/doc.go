// Package embedded is the history store on SQLite, for one machine: messages,
// members and conversations in one file, or in memory. It satisfies the
// contract of storage/storagetest.
//
// It promises:
//   - One Write is one transaction: it is there as a whole or not at all, and
//     when Write has returned without an error it survives a kill of the process
//     and a loss of power (a file store; what is in memory goes with Close).
//   - Nothing that stands is overwritten by another message, no mark falls, and
//     writing a Change again changes nothing.
//   - No argument makes it allocate or read in proportion to its value: limits
//     above watermark.MaxPage count as watermark.MaxPage, and lists of any
//     length are read in chunks with a fixed number of queries each.
//
// It does not promise a snapshot across two calls, nor inside States, which
// needs several queries.
//
// A Store is safe for concurrent use: one connection writes, several read, and
// neither waits for the other. In memory there is one connection for all. Two
// processes may open one file; their writes take turns.
//
// Errors carry a fault class: a store that is busy or full is Transient, one
// that is corrupt, of a newer version or not a Tidemark store is Fatal. A write
// whose context ends is rolled back.
package embedded
