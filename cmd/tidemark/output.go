package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// emit prints v as a line of JSON, or what text prints.
func (a *app) emit(v any, text func()) {
	if a.output != "json" {
		text()
		return
	}
	b, err := marshalLine(v)
	if err != nil {
		// Only values of this program come here, so it is a fault of its own.
		panic(err)
	}
	fmt.Fprintf(a.out, "%s\n", b)
}

// marshalLine gives v as one line of JSON. Every field is there, also an empty
// one, and the same value always gives the same bytes.
func marshalLine(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return json.Marshal(v)
	}
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return compact(b)
}

// compact takes out the white space, which protojson varies on purpose.
func compact(b []byte) ([]byte, error) {
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return nil, err
	}
	return line.Bytes(), nil
}

// table prints rows with aligned columns. Cells are made safe to print.
func (a *app) table(header []string, rows [][]string) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = oneLine(c)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	// What cannot be written to the terminal cannot be reported there either.
	_ = w.Flush()
}

// oneLine makes text from others safe for a terminal: control characters,
// which could move the cursor or forge lines, are shown as escapes.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unprintable(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && r != '\u200d' && r != '\ufe0f' }

// clock gives a time in milliseconds as local time; "-" for none.
func clock(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Local().Format(time.RFC3339)
}

// count gives a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
