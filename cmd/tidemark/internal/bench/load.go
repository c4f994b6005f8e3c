package bench

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// Bounds of a Load: what a generator on one machine can hold.
const (
	maxConversations = 5_000_000
	maxMemberships   = 5_000_000
	maxSize          = 1 << 20
)

// Load says what is published.
type Load struct {
	// Conversations is how many there are. At least 1.
	Conversations int `json:"conversations"`
	// Members of each. 0: conversations of two users, who need not join; else
	// groups, whose members join before the load begins.
	Members int `json:"members"`
	// Size of a message's body in bytes. At least 1.
	Size int `json:"size"`
	// Skew of the conversations' shares of the traffic: the k-th of them has one
	// of 1/k^Skew. 0: all have the same.
	Skew float64 `json:"skew"`
	// Bursts are how many messages one conversation gets in a row, each number as
	// likely as the others. Empty: one.
	Bursts []int `json:"bursts"`
	// Seed makes two loads the same.
	Seed uint64 `json:"seed"`
}

// Validate reports every fault of l.
func (l Load) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(l.Conversations < 1 || l.Conversations > maxConversations, "conversations must be within 1..%d, are %d", maxConversations, l.Conversations)
	bad(l.Members < 0 || l.Members == 1, "members must be 0 or from 2 on, are %d", l.Members)
	bad(l.Members > 0 && l.Conversations > maxMemberships/max(l.Members, 1), "conversations times members must be at most %d", maxMemberships)
	bad(l.Size < 1 || l.Size > maxSize, "size must be within 1..%d, is %d", maxSize, l.Size)
	bad(l.Skew < 0 || l.Skew > 10 || math.IsNaN(l.Skew), "skew must be within 0..10, is %g", l.Skew)
	for _, b := range l.Bursts {
		bad(b < 1 || b > 10_000, "bursts must be within 1..10000, one is %d", b)
	}
	return errors.Join(errs...)
}

// world is the people of a load. A user of a single conversation has about as
// many of them as there are users on the other side.
type world struct {
	load Load
	side int // users on each side of single conversations
	pool int // users from whom groups take their members
	cdf  []float64
	body string
}

func newWorld(l Load) *world {
	w := &world{load: l}
	w.side = int(math.Ceil(math.Sqrt(float64(l.Conversations))))
	w.pool = max(2*l.Members, w.side)
	if l.Skew > 0 {
		w.cdf = make([]float64, l.Conversations)
		sum := 0.0
		for i := range w.cdf {
			sum += math.Pow(float64(i+1), -l.Skew)
			w.cdf[i] = sum
		}
	}
	// Text that compresses no better than people's does.
	words := strings.Fields("the message that somebody wrote on a train to a friend who reads it three days later and answers at once 48151623 or so")
	rng := rand.New(rand.NewPCG(l.Seed, 1))
	var b strings.Builder
	for b.Len() < 4*l.Size+4096 {
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteString(strconv.FormatUint(rng.Uint64()%1000, 36))
		b.WriteByte(' ')
	}
	w.body = b.String()
	return w
}

// conversation names one and its first two users.
func (w *world) conversation(i int) (id watermark.ConversationID, a, b watermark.UserID) {
	if w.load.Members == 0 {
		a, b = left(i%w.side), right(i/w.side)
		// Left sorts before right, so the name is in order.
		return watermark.ConversationID("single:" + string(a) + ":" + string(b)), a, b
	}
	return watermark.GroupOf("g" + strconv.Itoa(i)), w.member(i, 0), w.member(i, 1)
}

// member gives the k-th member of a group.
func (w *world) member(conversation, k int) watermark.UserID {
	return left((conversation*31 + k) % w.pool)
}

// membersOf gives all members of a group.
func (w *world) membersOf(id watermark.ConversationID) []watermark.UserID {
	n, err := strconv.Atoi(strings.TrimPrefix(string(id), string(watermark.GroupOf("g"))))
	if err != nil {
		return nil
	}
	out := make([]watermark.UserID, w.load.Members)
	for k := range out {
		out[k] = w.member(n, k)
	}
	return out
}

func left(n int) watermark.UserID  { return watermark.UserID("a" + strconv.Itoa(n)) }
func right(n int) watermark.UserID { return watermark.UserID("b" + strconv.Itoa(n)) }

// sequence gives the conversations of a load's messages, one after another.
type sequence struct {
	w    *world
	rng  *rand.Rand
	now  int
	left int
}

func (w *world) sequence() *sequence {
	return &sequence{w: w, rng: rand.New(rand.NewPCG(w.load.Seed, 2))}
}

func (s *sequence) next() int {
	if s.left > 0 {
		s.left--
		return s.now
	}
	if n := len(s.w.load.Bursts); n > 0 {
		s.left = s.w.load.Bursts[s.rng.IntN(n)] - 1
	}
	if s.w.cdf == nil {
		s.now = s.rng.IntN(s.w.load.Conversations)
		return s.now
	}
	at := s.rng.Float64() * s.w.cdf[len(s.w.cdf)-1]
	s.now = min(sort.SearchFloat64s(s.w.cdf, at), s.w.load.Conversations-1)
	return s.now
}

// idPrefix begins the client message ids of measured messages; the number after
// it says when one was meant to be sent.
const idPrefix = "m"

// message gives the n-th message, for a conversation.
func (w *world) message(n int64, conversation int, at time.Time) *tidemarkv1.SendMessage {
	id, a, b := w.conversation(conversation)
	sender := a
	if n%2 == 1 {
		sender = b
	}
	from := int(uint64(n) * 7919 % uint64(len(w.body)-w.load.Size))
	return &tidemarkv1.SendMessage{
		Conversation: string(id), Sender: string(sender), ClientMessageId: idPrefix + strconv.FormatInt(n, 10),
		Body: &tidemarkv1.SendMessage_Text{Text: w.body[from : from+w.load.Size]}, SendTimeMs: at.UnixMilli(), Device: "bench",
	}
}

// number is the way back from a client message id.
func number(clientID string) (n int64, ok bool) {
	digits, ok := strings.CutPrefix(clientID, idPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}
