// Package pipeline is how Tidemark speaks to Kafka, and the only package that
// knows its driver: topics, an appending producer, the runner that feeds a
// stage from a consumer group, dead letters, and the sorting of Kafka's errors
// into the classes of package fault.
//
// It promises:
//   - An offset is marked only after the stage has said that everything below
//     it is durable, in order, and never resets by itself. A committed offset
//     that the log no longer holds stops the process.
//   - A transient error is retried in place: the partition waits, no later
//     record overtakes. A poison record is found by halving its batch and goes
//     to the dead letters, acknowledged, with its cause. A fatal error and a
//     panic stop the whole group, and Run returns them.
//   - Append returns nil only when every record is acknowledged by all in-sync
//     replicas. A produce error is never final unless it is the record's own
//     fault. Of two records with one key in one call the second is not even
//     sent before the first is acknowledged.
//   - A process is never alive with a dead consumer: Run returns nil only after
//     its context is done and everything is drained.
//
// It does not promise exactly once: a crash delivers records again, and a lost
// acknowledgement may write one twice. What follows must be idempotent. Two
// calls of Append are not ordered against each other.
//
// All exported methods are safe for concurrent use. A Stage is called by one
// goroutine at a time. DESIGN.md has the crash table, all settings of the
// driver with their reasons, and what was tried and dropped.
package pipeline
