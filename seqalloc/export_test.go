package seqalloc

// DecodeReply is open to the fuzz test.
var DecodeReply = decodeReply
