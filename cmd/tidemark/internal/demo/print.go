package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

func (d *show) say(format string, args ...any) { fmt.Fprintf(d.cfg.Out, format+"\n", args...) }

func (d *show) title(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	d.say("\n%s\n%s", s, strings.Repeat("-", len(s)))
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
	text := newest.GetText()
	if newest.GetRevoked() {
		text = "(revoked)"
	}
	if r := []rune(text); len(r) > 48 {
		text = string(r[:45]) + "..."
	}
	return fmt.Sprintf("%s: %q", newest.GetSender(), text)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }
