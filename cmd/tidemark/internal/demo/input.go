package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxLine bounds a line of the input: a message of the largest size as JSON.
	maxLine = 4 << 20
	// maxFaults and maxNamed bound what is told about an input that is wrong.
	maxFaults = 20
	maxNamed  = 10
)

// readInput is readStory, and ends with ctx too: the input may be a terminal
// whose Read nothing breaks off, which is then left alone.
func readInput(ctx context.Context, r io.Reader, limits convert.Limits) (*story, error) {
	type result struct {
		s   *story
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := readStory(r, limits)
		done <- result{s, err}
	}()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("demo: read the input: %w", context.Cause(ctx))
	case res := <-done:
		return res.s, res.err
	}
}

// readStory reads the user's own messages. Every bad line is reported, up to
// maxFaults of them.
func readStory(r io.Reader, limits convert.Limits) (*story, error) {
	s := &story{given: true}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var errs []error
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		m := &tidemarkv1.SendMessage{}
		hash, err := parseLine(lines.Bytes(), m, limits)
		if err == nil {
			s.acts = append(s.acts, act{send: m, line: n, hash: hash})
			continue
		}
		errs = append(errs, fmt.Errorf("demo: line %d: %w", n, err))
		if len(errs) == maxFaults {
			errs = append(errs, fmt.Errorf("demo: what follows line %d was not looked at", n))
			break
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		errs = append(errs, fmt.Errorf("demo: line %d: is longer than %d MiB, the most that a line may have; what follows was not looked at", n+1, maxLine>>20))
	case err != nil:
		errs = append(errs, fmt.Errorf("demo: line %d: read the input: %w", n+1, err))
	}
	if len(errs) == 0 && len(s.acts) == 0 {
		errs = append(errs, errors.New("demo: the input has no message"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// place is how the JSON decoder names a place in what it was given, which is
// one line of the input.
var place = regexp.MustCompile(`\(line 1:(\d+)\)`)

func parseLine(line []byte, m *tidemarkv1.SendMessage, limits convert.Limits) (watermark.Hash, error) {
	if err := protojson.Unmarshal(line, m); err != nil {
		_, text, _ := strings.Cut(err.Error(), "proto:")
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
		return watermark.Hash{}, fmt.Errorf("is not a message: %s", place.ReplaceAllString(text, "(column $1)"))
	}
	_, msg, err := convert.SendToMessage(m, limits)
	return msg.Hash, err
}

// choose sets who returns: user, or the one with most conversations.
func (s *story) choose(user watermark.UserID) error {
	convs := s.conversationsOf()
	if user != "" {
		if len(convs[user]) == 0 {
			return fmt.Errorf("demo: user %q is in no conversation of these messages; there %s", user, named(slices.Sorted(maps.Keys(convs))))
		}
		s.returning = user
		return nil
	}
	for _, u := range slices.Sorted(maps.Keys(convs)) {
		if s.returning == "" || (s.given && len(convs[u]) > len(convs[s.returning])) {
			s.returning = u
		}
	}
	return nil
}

// named lists users, the first maxNamed of them.
func named(users []watermark.UserID) string {
	is := "are "
	if len(users) == 1 {
		is = "is "
	}
	var names []string
	for _, u := range users[:min(len(users), maxNamed)] {
		names = append(names, string(u))
	}
	text := is + strings.Join(names, ", ")
	if more := len(users) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// conversationsOf gives every user's conversations: where they sent, where they
// joined, and single ones that somebody sent to.
func (s *story) conversationsOf() map[watermark.UserID]map[watermark.ConversationID]bool {
	convs := map[watermark.UserID]map[watermark.ConversationID]bool{}
	has := func(u watermark.UserID, c watermark.ConversationID) {
		if convs[u] == nil {
			convs[u] = map[watermark.ConversationID]bool{}
		}
		convs[u][c] = true
	}
	for _, a := range s.acts {
		switch {
		case a.send != nil:
			conv := watermark.ConversationID(a.send.GetConversation())
			has(watermark.UserID(a.send.GetSender()), conv)
			if x, y, ok := conv.Users(); ok {
				has(x, conv)
				has(y, conv)
			}
		case a.join != nil:
			has(watermark.UserID(a.join.GetUser()), watermark.ConversationID(a.join.GetConversation()))
		}
	}
	return convs
}

// counted is what must come of a story's messages.
type counted struct {
	// messages of each conversation.
	messages map[string]int64
	resends  int
}

// count tells what must come of the messages, given which lines became dead
// letters: a repeated client message id is a resend when the content is the
// same, as long as its first seq is within the horizon, and a dead letter when
// it is another.
func (s *story) count(dead map[int]string) (counted, error) {
	type key struct{ conv, sender, id string }
	type sent struct {
		seq  int64
		hash watermark.Hash
	}
	c, ids := counted{messages: map[string]int64{}}, map[key]sent{}
	var errs []error
	for _, a := range s.acts {
		if a.send == nil {
			continue
		}
		conv := a.send.GetConversation()
		k := key{conv, a.send.GetSender(), a.send.GetClientMessageId()}
		old, again := ids[k]
		again = again && k.id != "" && old.seq > c.messages[conv]-watermark.DedupeHorizon
		_, isDead := dead[a.line]
		switch {
		case again && old.hash == a.hash && !isDead:
			c.resends++
		case again && old.hash != a.hash && !isDead:
			errs = append(errs, fmt.Errorf("demo: line %d has the client message id of another message, and is no dead letter", a.line))
		case !isDead:
			c.messages[conv]++
			ids[k] = sent{c.messages[conv], a.hash}
		}
	}
	return c, errors.Join(errs...)
}
