package importer

import (
	"bufio"
	"container/heap"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidemark-im/tidemark/api/convert"
)

// sortBytes is how much is sorted in memory at once. Only tests change it.
var sortBytes = 64 << 20

// sortRuns is how many files are merged at once.
const sortRuns = 64

// Sorted is an input that was brought into order in temporary files.
type Sorted struct {
	*sorter
	parse func() func(rec record) []*entry
}

// Sort reads the JSON lines of a file in any order and sorts them: the
// conversations, and in each its own line, its messages, its members. step is
// told of each line; nil: nobody is. Close removes what it wrote.
func Sort(ctx context.Context, path string, l convert.Limits, step func()) (_ *Sorted, err error) {
	s, err := newSorter()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	err = s.addFile(ctx, path, 0, step, lineKey)
	if err != nil {
		return nil, err
	}
	parse := func(rec record) []*entry {
		return []*entry{parseLine(fmt.Sprintf("line %d", rec.line), rec.text, l)}
	}
	return &Sorted{sorter: s, parse: func() func(record) []*entry { return parse }}, s.done()
}

func (s *Sorted) open() (feed, error) {
	m, err := s.merge(s.runs)
	return &sortedFeed{merger: m, parse: s.parse()}, err
}

type sortedFeed struct {
	*merger
	parse func(record) []*entry
	queue []*entry
}

func (f *sortedFeed) next() (*entry, error) {
	for len(f.queue) == 0 {
		rec, err := f.merger.next()
		if err != nil {
			return nil, err
		}
		f.queue = f.parse(rec)
	}
	e := f.queue[0]
	f.queue = f.queue[1:]
	return e, nil
}

// sortKey gives what a record is sorted by. Equal ones stay in the order of the
// input.
func sortKey(conv string, k kind, place string, line int64) string {
	return fmt.Sprintf("%s\x00%d%s\x00%016x", conv, k, place, line)
}

// numberKey sorts as numbers do.
func numberKey(n int64) string { return fmt.Sprintf("%016x", uint64(n)^1<<63) }

// lineKey is the place of a line. One that is wrong is told of when it is read
// again.
func lineKey(n int64, text []byte) string {
	var l struct {
		Type         string `json:"type"`
		Conversation string `json:"conversation"`
		Seq          int64  `json:"seq"`
		Order        *order `json:"order"`
		User         string `json:"user"`
	}
	_ = json.Unmarshal(text, &l)
	if strings.Contains(l.Conversation, "\x00") {
		l.Conversation = ""
	}
	switch {
	case l.Type == "conversation":
		return sortKey(l.Conversation, headEntry, "", n)
	case l.Type == "member":
		return sortKey(l.Conversation, memberEntry, l.User, n)
	case l.Order != nil && l.Order.isText:
		return sortKey(l.Conversation, messageEntry, "t"+l.Order.text, n)
	case l.Order != nil:
		return sortKey(l.Conversation, messageEntry, "n"+numberKey(l.Order.number), n)
	}
	return sortKey(l.Conversation, messageEntry, "n"+numberKey(l.Seq), n)
}

// record is a line with what it is sorted by, and the file that it is of.
type record struct {
	key  string
	file int64
	line int64
	text []byte
}

func (r *record) write(w *bufio.Writer) error {
	var head [4 * binary.MaxVarintLen64]byte
	b := head[:0]
	for _, n := range []int64{int64(len(r.key)), r.file, r.line, int64(len(r.text))} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	_, err1 := w.Write(b)
	_, err2 := w.WriteString(r.key)
	_, err3 := w.Write(r.text)
	return errors.Join(err1, err2, err3)
}

func (r *record) read(in *bufio.Reader) error {
	var n [4]uint64
	for i := range n {
		var err error
		if n[i], err = binary.ReadUvarint(in); err != nil {
			if i == 0 && errors.Is(err, io.EOF) {
				return io.EOF
			}
			return fmt.Errorf("a temporary file is cut off: %w", io.ErrUnexpectedEOF)
		}
	}
	// A key is made of its line, and shorter than one of twice its bytes.
	if n[0] > 2*MaxLine || n[3] > MaxLine {
		return fmt.Errorf("a temporary file is damaged: a line of %d bytes with a key of %d", n[3], n[0])
	}
	b := make([]byte, n[0]+n[3])
	if _, err := io.ReadFull(in, b); err != nil {
		return fmt.Errorf("a temporary file is cut off: %w", err)
	}
	r.key, r.file, r.line, r.text = string(b[:n[0]]), int64(n[1]), int64(n[2]), b[n[0]:]
	return nil
}

// sorter sorts more than fits into memory.
type sorter struct {
	dir   string
	runs  []string // sorted files
	made  int
	have  []record
	bytes int
}

func newSorter() (*sorter, error) {
	dir, err := os.MkdirTemp("", "tidemark-import-")
	return &sorter{dir: dir}, err
}

// Close removes the temporary files.
func (s *sorter) Close() error { return os.RemoveAll(s.dir) }

// addFile adds the lines of a file.
func (s *sorter) addFile(ctx context.Context, path string, number int64, step func(), key func(n int64, text []byte) string) error {
	return eachLine(ctx, path, step, func(n int64, text []byte) error {
		return s.add(record{key(n, text), number, n, text})
	})
}

func (s *sorter) add(r record) error {
	s.have = append(s.have, r)
	if s.bytes += len(r.key) + len(r.text) + 64; s.bytes < sortBytes {
		return nil
	}
	return s.spill()
}

// spill writes what is in memory as a sorted file.
func (s *sorter) spill() error {
	slices.SortFunc(s.have, func(a, b record) int { return strings.Compare(a.key, b.key) })
	have := s.have
	s.have, s.bytes = nil, 0
	return s.run(func(w *bufio.Writer) error {
		for i := range have {
			if err := have[i].write(w); err != nil {
				return err
			}
		}
		return nil
	})
}

// run makes another sorted file.
func (s *sorter) run(fill func(*bufio.Writer) error) error {
	s.made++
	path := filepath.Join(s.dir, fmt.Sprint(s.made))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	s.runs = append(s.runs, path)
	return errors.Join(fill(w), w.Flush(), f.Close())
}

// done ends the adding.
func (s *sorter) done() error {
	if err := s.spill(); err != nil {
		return err
	}
	for len(s.runs) > sortRuns {
		some := s.runs[:sortRuns]
		s.runs = s.runs[sortRuns:]
		m, err := s.merge(some)
		if err != nil {
			return err
		}
		err = s.run(func(w *bufio.Writer) error {
			for {
				rec, err := m.next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err == nil {
					err = rec.write(w)
				}
				if err != nil {
					return err
				}
			}
		})
		for _, path := range some {
			err = errors.Join(err, os.Remove(path))
		}
		if err := errors.Join(err, m.close()); err != nil {
			return err
		}
	}
	return nil
}

// merger gives the records of sorted files in order.
type merger struct{ heads headHeap }

type fileHead struct {
	record
	f *os.File
	r *bufio.Reader
}

type headHeap []*fileHead

func (h headHeap) Len() int           { return len(h) }
func (h headHeap) Less(i, j int) bool { return h[i].key < h[j].key }
func (h headHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *headHeap) Push(x any)        { *h = append(*h, x.(*fileHead)) }
func (h *headHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (s *sorter) merge(runs []string) (*merger, error) {
	m := &merger{}
	for _, path := range runs {
		f, err := os.Open(path)
		if err != nil {
			return m, errors.Join(err, m.close())
		}
		h := &fileHead{f: f, r: bufio.NewReaderSize(f, 256<<10)}
		m.heads = append(m.heads, h)
		if err := h.read(h.r); errors.Is(err, io.EOF) {
			m.heads = m.heads[:len(m.heads)-1]
			err = f.Close()
			if err != nil {
				return m, errors.Join(err, m.close())
			}
		} else if err != nil {
			return m, errors.Join(err, m.close())
		}
	}
	heap.Init(&m.heads)
	return m, nil
}

func (m *merger) next() (record, error) {
	if len(m.heads) == 0 {
		return record{}, io.EOF
	}
	h := m.heads[0]
	out := h.record
	switch err := h.read(h.r); {
	case err == nil:
		heap.Fix(&m.heads, 0)
	case errors.Is(err, io.EOF):
		heap.Pop(&m.heads)
		return out, h.f.Close()
	default:
		return record{}, err
	}
	return out, nil
}

func (m *merger) close() (err error) {
	for _, h := range m.heads {
		err = errors.Join(err, h.f.Close())
	}
	m.heads = nil
	return err
}

// Spool keeps a stream in a temporary file, since an import reads its input
// several times. What is read of a terminal cannot be broken off, so when ctx
// ends it is left behind.
func Spool(ctx context.Context, r io.Reader) (path string, remove func() error, err error) {
	f, err := os.CreateTemp("", "tidemark-import-")
	if err != nil {
		return "", nil, err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(f, r)
		copied <- errors.Join(err, f.Close())
	}()
	select {
	case err = <-copied:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), func() error { return os.Remove(f.Name()) }, nil
}
