//go:build browser

package browser_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// story fills a page with something of everything.
func story(t *testing.T, more ...step) *desk {
	t.Helper()
	conversation := "group:hut-" + t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	d := sit(t, shared.stack.ConsoleURL(), "conversation="+conversation+"&users=alice,bob", more...)
	d.join("alice", "bob")
	d.write("alice", "Is the hut booked?")
	d.awaitSeen("bob", "1 Is the hut booked?")
	d.write("bob", "Yes, from Friday on")
	d.awaitNumbers("alice", "max", "2")
	d.press("bob", "Kick")
	d.awaitLog("bob", "Kicked by alice")
	send(t, conversation, "carol", "A surprise for bob:", "we bring the cake", "and the lamps")
	d.awaitNumbers("alice", "max", "5")
	d.press("bob", "Rejoin")
	d.awaitLog("bob", "Joined")
	d.write("alice", "Who drives?")
	d.awaitNumbers("bob", "max", "6")
	d.press("bob", "Go offline")
	d.awaitState("bob", "Offline")
	send(t, conversation, "carol", "I do", "There is room for four", "and for the dog", "Train tickets are cheap, too", "Friday at four then")
	d.awaitNumbers("alice", "max", "11")
	d.run(chromedp.SetValue(chromedp.CSS(".bar select"), "3"), chromedp.Evaluate[chromedp.Void](`document.querySelector('.bar select').dispatchEvent(new Event('change'))`))
	d.press("bob", "Come back")
	d.await("bob has all", `%s.length === 8`, seenBy("bob"))
	d.write("alice", "a slip of the finger")
	d.await("bob has that, too", `%s.length === 9`, seenBy("bob"))
	d.press("alice", "Revoke last")
	d.await("it is revoked", `%s.at(-1) === '12 revoked by alice'`, seenBy("bob"))
	d.awaitNumbers("bob", "unread", "7")
	return d
}

// axe gives what axe-core has to say of the page: nothing, if all is well.
func (d *desk) axe() []string {
	d.t.Helper()
	file := os.Getenv("TIDEMARK_TEST_AXE")
	source, err := os.ReadFile(file)
	if err != nil {
		d.t.Fatalf("TIDEMARK_TEST_AXE must name axe.min.js, as .ci/browser fetches it: %v", err)
	}
	d.run(chromedp.Evaluate[chromedp.Void](string(source) + ";0"))
	return eval[[]string](d, `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ': ' + n.html.slice(0, 120) + ' ' + n.failureSummary)))`)
}

// wide tells by how many pixels the page is wider than its window.
func (d *desk) wide() float64 {
	d.t.Helper()
	return eval[float64](d, `document.documentElement.scrollWidth - innerWidth`)
}

func TestLookEverywhere(t *testing.T) {
	for name, tc := range map[string]struct {
		theme         string
		width, height int64
	}{
		"light":  {"light", 1280, 900},
		"dark":   {"dark", 1280, 900},
		"narrow": {"light", 360, 740},
		"phone":  {"dark", 360, 740},
	} {
		t.Run(name, func(t *testing.T) {
			d := story(t, theme(tc.theme), chromedp.EmulateViewport(tc.width, tc.height))
			ground := eval[string](d, `getComputedStyle(document.body).backgroundColor`)
			if light := ground == "rgb(245, 247, 248)"; light != (tc.theme == "light") {
				t.Errorf("the ground is %s", ground)
			}
			for _, view := range []string{"chat", "pipeline"} {
				d.run(chromedp.Click(chromedp.CSS("#to-" + view)))
				if view == "pipeline" {
					d.await("rates are known", `document.querySelector('[data-tile=in]').textContent.endsWith('/s')`)
					send(t, "group:hut-busy", "carol", slices.Repeat([]string{"and so on"}, 25)...)
					d.await("they move", `/^[0-9.]*[1-9]/.test(document.querySelector('[data-tile=in]').textContent)`)
				}
				for _, fault := range d.axe() {
					t.Errorf("%s: %s", view, fault)
				}
				if over := d.wide(); over > 0 {
					t.Errorf("%s is %v pixels wider than the window", view, over)
				}
				d.picture(fmt.Sprintf("%s-%s", view, name))
			}
		})
	}
}
