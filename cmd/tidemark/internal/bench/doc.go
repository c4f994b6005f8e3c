// Package bench measures Tidemark from outside: it publishes at a rate that
// nothing slows down, and looks when each message is sequenced, in history, to
// be pulled, and on a device.
//
// It promises:
//   - Latency counts from the moment at which a message was meant to be sent,
//     not from the one at which there was room for it. A system that stalls is
//     so charged for everything that had to wait (no coordinated omission).
//   - What the generator itself costs, and how late it was, is told apart: its
//     driver is another one than Tidemark's, and the roles run in processes of
//     their own.
//   - Every figure comes with what it was measured on.
//
// It promises no precision beyond that of its looks: history and the query
// service are asked every millisecond or so, of a sample of the messages, and
// only once the message was seen on the sequenced log. What it says of them is
// never too good.
//
// A run leaves nothing behind but what the services keep of deleted topics; its
// topics, keys and history have names of their own.
package bench
