// Package wire is the vocabulary and the codec of Tidemark's Kafka records: a
// record without its driver, and how inputs, events of the sequenced log,
// stored messages and dead letters are read and written.
//
// It promises:
//   - Decoders are total: any bytes give a value that keeps every rule of its
//     fields or a fault.Poison that says what is wrong, in one of the reasons
//     watermark.ReasonUndecodable, ReasonInvalid, ReasonTooLarge and
//     ReasonNotParticipant. None panics, and none allocates in proportion to a
//     number that it read.
//   - What an encoder accepts its decoder accepts, as an equal value.
//   - What a record means depends on the record alone: its client message id,
//     its times and its origin are the same at every redelivery, also after it
//     was forwarded to another partition.
//   - Decoded values share no memory with the record's value, so that keeping
//     a message does not keep the batch it was fetched with.
//
// It does not know topic prefixes, offsets that are marked or who owns what,
// and it does not check that a record stands on its conversation's partition:
// PartitionOf tells, the caller decides. Everything here is safe for
// concurrent use, apart from a Packer, which is one goroutine's.
package wire
