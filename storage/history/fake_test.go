package history_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/tidemark-im/tidemark/storage/history"
)

// fake is a server that answers as a test says: what a real one does only in a
// race, in an election or when it is ill.
type fake struct {
	ln     net.Listener
	answer func(name string, cmd bson.Raw) bson.D // nil: the usual answer

	mu       sync.Mutex
	commands []bson.Raw
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

// hangUp as an answer closes the connection instead.
var hangUp = bson.D{{Key: "hang up", Value: true}}

func startFake(t testing.TB, answer func(name string, cmd bson.Raw) bson.D) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{ln: ln, answer: answer, conns: make(map[net.Conn]bool)}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		ln.Close()
		f.mu.Lock()
		for c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

// open gives a store on the fake.
func (f *fake) open(t testing.TB, cfg history.Config) *history.Store {
	t.Helper()
	if cfg.URI == "" {
		cfg.URI = "mongodb://" + f.ln.Addr().String() + "/"
	}
	s, err := history.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// sent gives the commands of a name.
func (f *fake) sent(names ...string) (out []bson.Raw) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.commands {
		for _, name := range names {
			if nameOf(c) == name {
				out = append(out, c)
			}
		}
	}
	return out
}

func nameOf(cmd bson.Raw) string { return cmd.Index(0).Key() }

func (f *fake) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[c] = true
		f.mu.Unlock()
		f.wg.Go(func() {
			f.serve(c)
			c.Close()
		})
	}
}

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

func (f *fake) serve(c net.Conn) {
	for {
		head := make([]byte, 16)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		body := make([]byte, binary.LittleEndian.Uint32(head)-16)
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		op := binary.LittleEndian.Uint32(head[12:])
		cmd, err := parse(op, body)
		if err != nil {
			panic(err)
		}
		reply := f.reply(cmd)
		if reply == nil {
			return
		}
		raw, err := bson.Marshal(reply)
		if err != nil {
			panic(err)
		}
		if _, err := c.Write(message(op, head[4:8], raw)); err != nil {
			return
		}
	}
}

// message gives a reply in the form of the request.
func message(op uint32, id, doc []byte) []byte {
	var body []byte
	if op == opQuery {
		op, body = opReply, make([]byte, 16, 20)
		body = binary.LittleEndian.AppendUint32(body, 1)
	} else {
		body = make([]byte, 5)
	}
	body = append(body, doc...)
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(body)+16))
	out = append(append(out, 0, 0, 0, 0), id...)
	out = binary.LittleEndian.AppendUint32(out, op)
	return append(out, body...)
}

// parse gives a request's document; a sequence of documents becomes an array.
func parse(op uint32, body []byte) (bson.Raw, error) {
	if op == opQuery {
		body = body[4:]
		for body[0] != 0 {
			body = body[1:]
		}
		return bson.Raw(body[9:]), nil
	}
	if op != opMsg {
		return nil, fmt.Errorf("opcode %d", op)
	}
	var cmd bson.D
	for body = body[4:]; len(body) > 4; {
		kind, size := body[0], binary.LittleEndian.Uint32(body[1:])
		section := body[1 : 1+size]
		body = body[1+size:]
		if kind == 0 {
			if err := bson.Unmarshal(section, &cmd); err != nil {
				return nil, err
			}
			continue
		}
		section = section[4:]
		end := 0
		for section[end] != 0 {
			end++
		}
		name, docs := string(section[:end]), bson.A{}
		for rest := section[end+1:]; len(rest) > 0; {
			n := binary.LittleEndian.Uint32(rest)
			docs, rest = append(docs, bson.Raw(rest[:n])), rest[n:]
		}
		cmd = append(cmd, bson.E{Key: name, Value: docs})
	}
	raw, err := bson.Marshal(cmd)
	return raw, err
}

func (f *fake) reply(cmd bson.Raw) any {
	name := nameOf(cmd)
	f.mu.Lock()
	f.commands = append(f.commands, cmd)
	f.mu.Unlock()
	if f.answer != nil {
		if d := f.answer(name, cmd); d != nil {
			if d[0].Key == hangUp[0].Key {
				return nil
			}
			return d
		}
	}
	switch name {
	case "hello", "isMaster", "ismaster":
		return bson.D{
			{Key: "ok", Value: 1}, {Key: "ismaster", Value: true}, {Key: "isWritablePrimary", Value: true},
			{Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21}, {Key: "setName", Value: "fake"},
			{Key: "me", Value: f.ln.Addr().String()}, {Key: "hosts", Value: bson.A{f.ln.Addr().String()}},
			{Key: "maxBsonObjectSize", Value: 16 << 20}, {Key: "maxMessageSizeBytes", Value: 48000000},
			{Key: "maxWriteBatchSize", Value: 100000}, {Key: "logicalSessionTimeoutMinutes", Value: 30},
			{Key: "saslSupportedMechs", Value: bson.A{"SCRAM-SHA-256"}},
		}
	case "find", "listIndexes", "listCollections":
		return found()
	case "insert", "update", "delete":
		return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "nModified", Value: 1}}
	}
	return bson.D{{Key: "ok", Value: 1}}
}

// found answers a query with documents.
func found(docs ...any) bson.D {
	return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "tidemark.x"}, {Key: "firstBatch", Value: append(bson.A{}, docs...)},
	}}}
}

// failed answers a command with an error.
func failed(code int) bson.D {
	return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: "a text that nobody compares"}}
}

// writeErrors answers a write with an error for each index.
func writeErrors(code int, indexes ...int) bson.D {
	var list bson.A
	for _, i := range indexes {
		list = append(list, bson.D{{Key: "index", Value: i}, {Key: "code", Value: code}, {Key: "errmsg", Value: "another text"}})
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}, {Key: "writeErrors", Value: list}}
}

// documents gives an array of a command.
func documents(t testing.TB, cmd bson.Raw, field string) []bson.Raw {
	t.Helper()
	values, err := cmd.Lookup(field).Array().Values()
	if err != nil {
		t.Fatal(errors.Join(err, fmt.Errorf("%s of %v", field, cmd)))
	}
	out := make([]bson.Raw, len(values))
	for i, v := range values {
		out[i] = v.Document()
	}
	return out
}
