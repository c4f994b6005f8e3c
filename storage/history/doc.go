// Package history is the history store on MongoDB, by its wire protocol and the
// official driver: messages, members and conversations in one database. It
// satisfies the contract of storage/storagetest.
//
// It promises:
//   - A row that stands is never overwritten, no mark and no bound falls, and
//     writing a Change again changes nothing, from however many processes.
//   - Write has returned without an error only when everything in it is on a
//     majority of the set's members and in their journals, including rows that
//     stood before: they are waited for too.
//   - No argument makes it read or allocate in proportion to its value: limits
//     above watermark.MaxPage count as watermark.MaxPage, lists of any length
//     are read in chunks of 500, and every range has both ends.
//
// It does not promise atomicity: a Write that fails has done any part of its
// work, in the order rows, revokes, members, conversations. Transactions are
// not used. Nor does it promise a snapshot across two calls or inside States.
//
// A Store is safe for concurrent use. New connects in the background and waits
// for nothing; Prepare makes and checks what the store needs of the database,
// and must have succeeded before any other call; Close ends what New began.
//
// Errors carry a fault class, by the server's code and never by its text: what
// heals by waiting (elections, the network, write concern, conflicts of
// writers) is Transient, what is the deployment's (credentials, indexes,
// options) is Fatal, a document that is too large is Poison. Credentials are in
// no error.
package history
