package syncapi

import (
	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
)

// packing is how answers are packed for clients that take gzip: fast rather than
// small. The standard library's default took half of the processor time of a Pull
// and a tenth of a list; this takes a seventh of that and gives a tenth more bytes.
func packing() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return new(gzip.Reader) },
		func() connect.Compressor {
			w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
			if err != nil {
				panic(err) // only for a level that there is not
			}
			return w
		})
}
