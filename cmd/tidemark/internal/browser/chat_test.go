//go:build browser

package browser_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// room gives a conversation that no other test has, and the address of its page.
func room(t *testing.T, users ...string) (conversation, hash string) {
	conversation = "group:" + strings.ReplaceAll(t.Name(), "/", ".")
	return conversation, "conversation=" + conversation + "&users=" + strings.Join(users, ",")
}

// send sends messages of a user as another client does.
func send(t *testing.T, conversation, user string, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, text := range texts {
		_, err := shared.client.Send(ctx, &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
			Conversation: conversation, Sender: user, Body: &tidemarkv1.SendMessage_Text{Text: text},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoUsersChatLive(t *testing.T) {
	_, hash := room(t, "alice", "bob")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.join("alice", "bob")
	d.write("alice", "hello bob")
	d.awaitSeen("bob", "1 hello bob")
	d.awaitSeen("alice", "1 hello bob")
	d.awaitNumbers("alice", "min", "1", "max", "1", "read", "1", "unread", "0", "window", "1–")
	d.awaitNumbers("bob", "min", "1", "max", "1", "read", "0", "unread", "1", "window", "1–")
	d.write("bob", "hello <b>alice</b>")
	d.awaitSeen("alice", "1 hello bob", "2 hello <b>alice</b>")
	// Sending marks read; alice has one to read now.
	d.awaitNumbers("bob", "max", "2", "read", "2", "unread", "0")
	d.awaitNumbers("alice", "max", "2", "read", "1", "unread", "1")
	d.press("alice", "Mark read")
	d.awaitNumbers("alice", "read", "2", "unread", "0")
	d.awaitLog("alice", "Marked read: up to 2, 0 unread.")
	// All of it was pushed.
	if pulls := d.pulls("alice"); len(pulls) > 0 {
		t.Errorf("pulled %q", pulls)
	}
}

// pulls gives what stands on the ruler of the pages that were pulled.
func (d *desk) pulls(user string) []string {
	d.t.Helper()
	return eval[[]string](d, `[...%s.querySelectorAll('.ruler .pull')].map(p => p.nextSibling?.textContent ?? '')`, pane(user))
}

func TestWhoWasOfflineCatchesUpThroughPulls(t *testing.T) {
	conversation, hash := room(t, "alice", "bob")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.join("alice", "bob")
	d.write("alice", "one")
	d.awaitSeen("bob", "1 one")
	d.press("bob", "Go offline")
	d.awaitState("bob", "Offline")
	for i := 2; i <= 8; i++ {
		send(t, conversation, "carol", fmt.Sprint(i))
	}
	d.awaitNumbers("alice", "max", "8")
	if got := d.seen("bob"); !slices.Equal(got, []string{"1 one"}) {
		t.Errorf("offline bob sees %q", got)
	}
	d.run(chromedp.SetValue(chromedp.CSS(".bar select"), "3"), chromedp.Evaluate[chromedp.Void](`document.querySelector('.bar select').dispatchEvent(new Event('change'))`))
	d.press("bob", "Come back")
	d.awaitState("bob", "Live")
	want := []string{"1 one", "2 2", "3 3", "4 4", "5 5", "6 6", "7 7", "8 8"}
	d.awaitSeen("bob", want...)
	// Seven were missed: pages of three each, oldest first, drawn as they came.
	if diff := cmp.Diff([]string{"2–8 gave 2–4", "5–8 gave 5–7", "8–8, that is all"}, d.pulls("bob")); diff != "" {
		t.Errorf("pulled (-want +got)\n%s", diff)
	}
	d.awaitNumbers("bob", "max", "8", "read", "0", "unread", "8")

	// What is written offline goes out beside the pulls, and the answer brings its
	// seq. So a page up to what the comparison knew need not be the end here.
	d.press("bob", "Go offline")
	d.awaitState("bob", "Offline")
	send(t, conversation, "carol", "9")
	d.write("bob", "written offline")
	d.await("what bob wrote waits", `%s.querySelector('.pending')?.textContent.includes('waits until bob is online')`, pane("bob"))
	d.awaitSeen("bob", want...)
	d.press("bob", "Come back")
	d.awaitState("bob", "Live")
	want = append(want, "9 9", "10 written offline")
	d.awaitSeen("bob", want...)
	d.awaitSeen("alice", want...)
	d.awaitNumbers("bob", "max", "10", "read", "10", "unread", "0")
}

func TestClearHidesWhatWasThere(t *testing.T) {
	_, hash := room(t, "alice", "bob")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.join("alice", "bob")
	d.write("alice", "one")
	d.awaitSeen("bob", "1 one")
	d.press("bob", "Clear")
	d.awaitLog("bob", "Cleared: nothing up to seq 1 is to be seen any more.")
	d.awaitSeen("bob")
	d.write("alice", "two")
	d.awaitSeen("bob", "2 two")
	d.awaitNumbers("bob", "min", "2", "max", "2", "unread", "1", "window", "2–")
	d.awaitSeen("alice", "1 one", "2 two")
	d.await("the ruler tells both bounds", `%s.querySelector('.ruler').getAttribute('aria-label') === 'Ruler of bob: the conversation has seq 1 to 2; may be seen: 2 to 2; read up to 1.'`, pane("bob"))
}

func TestWhoIsKickedIsPushedNothingAndARejoinerSeesFromTheJoin(t *testing.T) {
	_, hash := room(t, "alice", "bob", "carol")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.join("alice", "bob", "carol")
	d.write("alice", "one")
	d.awaitSeen("bob", "1 one")
	d.awaitSeen("carol", "1 one")
	d.press("bob", "Kick")
	d.awaitLog("bob", "Kicked by alice: sees nothing above seq 1.")
	d.await("bob cannot write", `%s.querySelector('.compose input').disabled`, pane("bob"))
	d.write("alice", "two")
	d.awaitSeen("carol", "1 one", "2 two")
	d.press("carol", "Go offline")
	d.awaitState("carol", "Offline")
	d.press("carol", "Kick") // offline users are kicked, too
	d.awaitLog("carol", "Kicked by alice: sees nothing above seq 2.")
	d.write("alice", "three")
	d.awaitSeen("alice", "1 one", "2 two", "3 three")
	d.press("carol", "Come back")
	d.awaitState("carol", "Live")
	d.awaitSeen("carol", "1 one", "2 two")
	d.awaitNumbers("bob", "max", "1", "window", "1")
	d.awaitNumbers("carol", "max", "2", "window", "1–2")
	if got := d.seen("bob"); !slices.Equal(got, []string{"1 one"}) {
		t.Errorf("kicked bob sees %q", got)
	}
	// What comes over the wire counts, not what is shown.
	for _, f := range d.received() {
		if strings.Contains(f, `"user:bob"`) && (strings.Contains(f, "two") || strings.Contains(f, "three")) {
			t.Errorf("kicked bob was pushed %s", f)
		}
	}
	if !slices.ContainsFunc(d.received(), func(f string) bool { return strings.Contains(f, `"user:carol"`) && strings.Contains(f, "two") }) {
		t.Error("no push to carol was seen, so none to bob would have been")
	}
	d.press("bob", "Rejoin")
	d.awaitLog("bob", "Joined: sees what comes after seq 3.")
	d.write("alice", "four")
	d.awaitSeen("bob", "1 one", "4 four")
	d.awaitNumbers("bob", "window", "1, 4–", "max", "4")
	d.await("the seqs between are named", `%s.querySelector('.gap')?.textContent === 'seqs 2–3 are outside of the window'`, pane("bob"))
	d.choose("carol", "HISTORY_ALL")
	d.press("carol", "Rejoin")
	d.awaitLog("carol", "Joined: sees everything.")
	d.awaitSeen("carol", "1 one", "2 two", "3 three", "4 four")
}

func TestRevokeLeavesATombstone(t *testing.T) {
	_, hash := room(t, "alice", "bob")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.join("alice", "bob")
	d.write("alice", "one")
	d.write("alice", "two")
	d.awaitSeen("bob", "1 one", "2 two")
	d.press("alice", "Revoke last")
	d.awaitSeen("bob", "1 one", "2 revoked by alice")
	d.awaitSeen("alice", "1 one", "2 revoked by alice")
	d.awaitLog("alice", "Revoked: seq 2 is a tombstone for everybody.")
	d.press("bob", "Go offline")
	d.awaitState("bob", "Offline")
	d.press("alice", "Revoke last")
	d.awaitSeen("alice", "1 revoked by alice", "2 revoked by alice")
	d.press("bob", "Come back")
	d.awaitSeen("bob", "1 revoked by alice", "2 revoked by alice")
}

func TestPeersLearnWhatIsRead(t *testing.T) {
	d := sit(t, shared.stack.ConsoleURL(), "conversation=single:ann:ben&users=ann,ben")
	d.awaitState("ann", "Live")
	d.awaitState("ben", "Live")
	d.write("ann", "hello")
	d.awaitSeen("ben", "1 hello")
	d.awaitNumbers("ben", "unread", "1")
	d.press("ben", "Read to here")
	d.awaitNumbers("ben", "read", "1", "unread", "0")
	d.await("ann is told", `%s.querySelector('.tick')?.textContent.includes('read')`, pane("ann"))
}

func TestOlderPagesArePulledOnDemand(t *testing.T) {
	conversation, hash := room(t, "alice")
	var texts []string
	for i := range 230 {
		texts = append(texts, fmt.Sprintf("m%d", i+1))
	}
	send(t, conversation, "zoe", texts...)
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.awaitState("alice", "Live")
	d.choose("alice", "HISTORY_ALL")
	d.press("alice", "Join")
	// The newest 200, not all.
	d.await("31..230 are there", `%s.length === 200 && %s[0] === '31 m31'`, seenBy("alice"), seenBy("alice"))
	d.press("alice", "Pull older")
	d.await("11..230 are there", `%s.length === 220 && %s[0] === '11 m11'`, seenBy("alice"), seenBy("alice"))
	d.press("alice", "Pull older")
	d.await("all are there", `%s.length === 230 && [...%s.querySelectorAll('.actions button')].find(b => b.textContent === 'Pull older').disabled`, seenBy("alice"), pane("alice"))
}

func TestTheKeyboardAloneIsEnough(t *testing.T) {
	_, hash := room(t, "alice", "bob")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.awaitState("alice", "Live")
	d.awaitState("bob", "Live")
	focused := func() string {
		return eval[string](d, `(() => { const e = document.activeElement; return (e.closest('article')?.dataset.user ?? '') + ' ' + (e.labels?.[0]?.textContent || e.getAttribute('aria-label') || e.textContent).trim() })()`)
	}
	// tab goes on until it stands on what is named, and gives what it passed.
	tab := func(to string) (passed []string) {
		for range 60 {
			d.run(chromedp.KeyEvent(kb.Tab))
			if passed = append(passed, focused()); passed[len(passed)-1] == to {
				return passed
			}
		}
		t.Fatalf("%q is not reached by Tab, which passes %q", to, passed)
		return nil
	}
	first := tab("alice Min")
	want := []string{" To the content", " Chat", " Pipeline", " Theme: Auto", " Conversation", " Open", " Another user", " Add", " Page of a pull", "alice Go offline", "alice Close the pane of alice", "alice Min"}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("order of Tab (-want +got):\n%s", diff)
	}
	shown := `[...document.querySelectorAll('.tip')].filter(x => x.checkVisibility()).map(x => x.textContent)`
	if tips := eval[[]string](d, "%s", shown); len(tips) != 1 || !strings.HasPrefix(tips[0], "The lowest seq") {
		t.Errorf("explanations that are shown: %q", tips)
	}
	d.run(chromedp.KeyEvent(kb.Escape))
	if tips := eval[[]string](d, "%s", shown); len(tips) != 0 {
		t.Errorf("after Escape: %q", tips)
	}
	tab("alice Join")
	d.run(chromedp.KeyEvent(kb.Enter))
	d.awaitLog("alice", "Joined")
	tab("bob Join")
	d.run(chromedp.KeyEvent(" "))
	d.awaitLog("bob", "Joined")
	tab("alice Message of alice")
	d.run(chromedp.KeyEvent("by keyboard" + kb.Enter))
	d.awaitSeen("bob", "1 by keyboard")
	tab("bob Read to here, seq 1")
	d.run(chromedp.KeyEvent(kb.Enter))
	d.awaitNumbers("bob", "read", "1", "unread", "0")
	tab(" Pipeline")
	d.run(chromedp.KeyEvent(kb.Enter))
	d.await("the pipeline is shown", `document.querySelector('[aria-label=Pipeline]').checkVisibility() && document.title === 'Pipeline · Tidemark console'`)
}

func TestWrongInputIsAnsweredInWords(t *testing.T) {
	_, hash := room(t, "alice")
	d := sit(t, shared.stack.ConsoleURL(), hash)
	d.awaitState("alice", "Live")
	d.run(chromedp.SetValue(chromedp.CSS("[name=conversation]"), "single:zoe:adam"), chromedp.SendKeys(chromedp.CSS("[name=conversation]"), kb.Enter))
	d.await("the order of names is explained", `document.querySelector('[role=alert]').textContent === 'The smaller name comes first: single:adam:zoe'`)
	d.run(chromedp.SendKeys(chromedp.CSS("[name=user]"), "al ice"+kb.Enter))
	d.await("a bad name is explained", `document.querySelector('[role=alert]').textContent.startsWith("A user's name is")`)
	d.run(chromedp.SetValue(chromedp.CSS("[name=user]"), "alice"), chromedp.SendKeys(chromedp.CSS("[name=user]"), kb.Enter))
	d.await("a second pane is refused", `document.querySelector('[role=alert]').textContent === 'alice has a pane already.'`)
	d.run(chromedp.SetValue(chromedp.CSS("[name=conversation]"), "single:bob:zoe"), chromedp.SendKeys(chromedp.CSS("[name=conversation]"), kb.Enter))
	d.await("alice is no party", `%s.querySelector('.empty').textContent === 'alice is not one of the two in this conversation.'`, pane("alice"))
}
