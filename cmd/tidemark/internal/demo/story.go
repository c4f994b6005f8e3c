package demo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// act is one thing that happens: a message is published, somebody joins or is
// kicked.
type act struct {
	send *tidemarkv1.SendMessage
	join *tidemarkv1.JoinRequest
	kick *tidemarkv1.LeaveRequest
	told bool // worth a line

	line int            // of the input, or the number of the message; set with send
	hash watermark.Hash // of send's content
}

// story is what happens while somebody is away.
type story struct {
	returning watermark.UserID
	given     bool // the messages are the input
	acts      []act
	watched   []watched // who else is looked at
}

type watched struct{ user, conversation string }

func (s *story) sends() int {
	n := 0
	for _, a := range s.acts {
		if a.send != nil {
			n++
		}
	}
	return n
}

// sees tells whether the returning user sees the whole of a conversation.
func (s *story) sees(user, conversation string) bool {
	for _, a := range s.acts {
		if a.kick != nil && a.kick.GetUser() == user && a.kick.GetConversation() == conversation {
			return false
		}
	}
	return true
}

// say adds a message whose client message id no other content has.
func (s *story) say(m *tidemarkv1.SendMessage) {
	s.acts = append(s.acts, act{send: m, line: s.sends() + 1})
}

// senderOf gives somebody who sent to a conversation and may still do so.
func (s *story) senderOf(conversation string) string {
	kicked := map[string]bool{}
	for _, a := range s.acts {
		if a.kick != nil && a.kick.GetConversation() == conversation {
			kicked[a.kick.GetUser()] = true
		}
	}
	for _, a := range s.acts {
		if a.send != nil && a.send.GetConversation() == conversation && !kicked[a.send.GetSender()] {
			return a.send.GetSender()
		}
	}
	return string(s.returning)
}

// What people write, so that the pages read like a chat.
var (
	hiking = []string{
		"who is in for Saturday?", "the north ridge or the lake?", "lake, my knees vote lake", "forecast says rain after four",
		"then we start at seven", "seven in the morning?!", "I bring coffee", "and I bring the dog", "map is in the shared folder",
		"do we need two cars?", "I can take three people", "train leaves 6:42 from platform 9", "bring layers, it is windy up there",
		"who has the first-aid kit?", "me, also the rope nobody ever needs", "photos from last time are up", "the hut is open until six",
		"reserve a table?", "done, table for six at one", "parking is full by eight, be early",
	}
	release = []string{
		"build 42 is green", "the flaky test is back", "which one?", "the one with the clock again", "fixed, it slept instead of waiting",
		"changelog is up for review", "two comments, otherwise good", "tagging at noon", "canary looks fine, error rate flat",
		"rolling out to ten percent", "p99 went up a bit", "that was the cache warming, it is down again", "fifty percent",
		"all of it", "dashboards are quiet", "nice work everybody", "retro on Thursday", "who writes the notes?",
	}
	chat = []string{
		"are you back on Monday?", "Tuesday, the train was full", "did you get the tickets?", "yes, row 12", "perfect, thanks!",
		"can you send me the recipe?", "the one with lentils?", "yes please", "sent", "it was great, I put more lemon in",
		"call me when you land", "the parcel is at the neighbour's", "ok, I get it tomorrow", "happy birthday again!", "thank you :)",
		"do you still have my umbrella?", "it is in the hall", "I keep forgetting it",
	}
)

// ownStory is a few hundred messages of six people over three days.
func ownStory() *story {
	const (
		away   = "alice"
		trip   = "group:hiking"
		launch = "group:release-42"
	)
	s := &story{returning: away, watched: []watched{{"dave", trip}, {"erin", trip}}}
	rng := rand.New(rand.NewPCG(42, 7))
	members := map[string][]string{trip: {away, "bob", "carol", "dave"}, launch: {away, "bob", "frank"}}
	for _, g := range []string{trip, launch} {
		for _, u := range members[g] {
			s.acts = append(s.acts, act{join: &tidemarkv1.JoinRequest{Conversation: g, User: u, History: tidemarkv1.History_HISTORY_ALL, OpId: "demo-join-" + u, Actor: "bob"}})
		}
	}
	const total = 320
	clock := time.Now().Add(-72 * time.Hour)
	said := map[string]int{}
	for i := range total {
		clock = clock.Add(72 * time.Hour / (total + 1))
		switch i {
		case 110:
			s.acts = append(s.acts, act{told: true, kick: &tidemarkv1.LeaveRequest{Conversation: trip, User: "dave", OpId: "demo-kick-dave", Actor: "bob"}})
			members[trip] = []string{away, "bob", "carol"}
		case 200:
			s.acts = append(s.acts, act{told: true, join: &tidemarkv1.JoinRequest{Conversation: trip, User: "erin", History: tidemarkv1.History_HISTORY_NONE, OpId: "demo-join-erin", Actor: "bob"}})
			members[trip] = []string{away, "bob", "carol", "erin"}
		}
		conv, bank := trip, hiking
		switch n := rng.IntN(100); {
		case n < 45:
		case n < 75:
			conv, bank = launch, release
		case n < 90:
			conv, bank = string(watermark.SingleOf(away, "bob")), chat
		default:
			conv, bank = string(watermark.SingleOf(away, "carol")), chat
		}
		sender := ""
		if peer, ok := watermark.ConversationID(conv).Peer(away); ok {
			sender = string(peer)
		} else {
			others := slices.DeleteFunc(slices.Clone(members[conv]), func(u string) bool { return u == away })
			sender = others[rng.IntN(len(others))]
		}
		m := &tidemarkv1.SendMessage{
			Conversation: conv, Sender: sender, ClientMessageId: fmt.Sprintf("demo-%03d", i),
			Body: &tidemarkv1.SendMessage_Text{Text: bank[said[conv]%len(bank)]}, SendTimeMs: clock.UnixMilli(),
		}
		said[conv]++
		s.say(m)
		// A producer that lost its acknowledgement sends again.
		if i%40 == 39 {
			s.say(m)
		}
	}
	return s
}
