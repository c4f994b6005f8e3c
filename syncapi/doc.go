// Package syncapi answers what a client missed, takes its marks and commands,
// and speaks gRPC, gRPC-Web and Connect (JSON over HTTP POST) on one port.
//
// It promises:
//   - Every range that a Pull asks for is in the answer, with the bounds that
//     held, or with an error of its own. Who follows "rest" until it is absent
//     has every visible seq of the request once. A row that cannot be found is
//     never served as a deleted one: the page ends before it.
//   - What a user may not see is told from what does not exist by nothing in an
//     answer, nor by which stores were asked for it.
//   - Every error has a reason of a fixed list, and names the fields it is about.
//   - A mark is answered after it stands in the sequenced log and in Redis,
//     also when it says nothing new: the one before may have been lost on its
//     way.
//   - While history or the log is out of reach, what Redis may be believed about
//     is served, and the rest is Unavailable with a time to try again.
//   - A conversation that is read often while it is cold is made warm by its
//     owner, who is asked at most once a minute for each and fifty times a
//     second in all. Going through a long list asks for none.
//   - Every number in a request is harmless. What one call may make the process
//     hold is bounded by constants: ranges, rows and bytes of a Pull, marks
//     under way, waiting calls.
//
// With an Authenticate function every call needs a token, and what a user may do
// is decided before a store is asked; without one every caller is trusted. It
// does not sequence: sends and commands are appended for the owner of the
// conversation, whose answer is handed back through Redis.
//
// A Service is safe for concurrent use. Calls that wait for an owner's answer
// are served while Run runs; Serve runs it too. On failure of a store the
// entries that need it, or the call, are answered with Unavailable and a time
// to try again; nothing is served from half of the truth.
package syncapi
