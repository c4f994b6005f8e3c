package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

func (d *show) say(format string, args ...any) { fmt.Fprintf(d.cfg.Out, format+"\n", args...) }

// title begins the next section.
func (d *show) title(format string, args ...any) {
	d.section++
	s := fmt.Sprintf("%d. "+format, append([]any{d.section}, args...)...)
	d.say("\n%s\n%s", s, strings.Repeat("-", utf8.RuneCountInString(s)))
}

// count gives a number of things.
func count[N int | int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func (d *show) table(marks []*tidemarkv1.Watermarks) {
	tw := tabwriter.NewWriter(d.cfg.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  conversation\tmin\tmax\tread\tunread\tlatest")
	for _, w := range marks {
		fmt.Fprintf(tw, "  %s\t%d\t%d\t%d\t%d\t%s\n", w.GetConversation(), w.GetMinSeq(), w.GetMaxSeq(), w.GetReadSeq(), w.GetUnread(),
			time.UnixMilli(w.GetLastTimeMs()).Format(time.TimeOnly))
	}
	// Out's own errors show at the next line that is written.
	_ = tw.Flush()
}

// sample shows the newest message of a page.
func sample(msgs []*tidemarkv1.Message) string {
	newest := msgs[0]
	if last := msgs[len(msgs)-1]; last.GetSeq() > newest.GetSeq() {
		newest = last
	}
	return newest.GetSender() + ": " + short(newest)
}

// short gives a message's content in a few words.
func short(m *tidemarkv1.Message) string {
	const most = 48
	switch b := m.GetBody().(type) {
	case *tidemarkv1.Message_Text:
		return strconv.Quote(clip(b.Text, most))
	case *tidemarkv1.Message_Json:
		// protojson varies white space on purpose.
		j, err := protojson.Marshal(b.Json)
		var line bytes.Buffer
		if err == nil && json.Compact(&line, j) == nil {
			return clip(line.String(), most)
		}
	case *tidemarkv1.Message_Data:
		return count(len(b.Data), "byte")
	}
	if m.GetRevoked() {
		return "(revoked)"
	}
	return "(" + m.GetKind() + ")"
}

// clip shortens text to most characters, and shows those that a terminal
// would act on as '?'.
func clip(text string, most int) string {
	r := []rune(text)
	if len(r) > most {
		r = append(r[:most-3], []rune("...")...)
	}
	for i := range r {
		if !unicode.IsPrint(r[i]) {
			r[i] = '?'
		}
	}
	return string(r)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }
