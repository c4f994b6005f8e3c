package hot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// PutAnswers hands answers over to whoever waits for them, for Config.AnswerTTL.
// An answer put again under the same key replaces the one before and lives
// anew.
func (h *Hot) PutAnswers(ctx context.Context, answers []watermark.KeyedAnswer) (err error) {
	defer h.observe("put_answers", &err)()
	texts := make([]string, len(answers))
	for i := range answers {
		if texts[i], err = encodeAnswer(&answers[i].Answer); err != nil {
			return fmt.Errorf("encode the answer to %q in %s: %w", answers[i].Key.OpID, answers[i].Key.Conversation, err)
		}
	}
	cmds := make([]*redis.StatusCmd, len(answers))
	h.plain(ctx, len(answers), func(p redis.Pipeliner, i int) {
		cmds[i] = p.Set(ctx, h.space.AnswerKey(answers[i].Key), texts[i], h.answerTTL)
	})
	for i, cmd := range cmds {
		if cmd.Err() != nil {
			return failed("answer", answers[i].Key.Conversation, cmd.Err())
		}
	}
	return nil
}

// Answers gives the answers that wait under keys, nil where there is none yet.
// Taking an answer leaves it there, so that a caller who tries again, on this
// node or another, reads it again.
func (h *Hot) Answers(ctx context.Context, keys []watermark.AnswerKey) (answers []*watermark.Answer, err error) {
	defer h.observe("answers", &err)()
	cmds := make([]*redis.StringCmd, len(keys))
	h.plain(ctx, len(keys), func(p redis.Pipeliner, i int) {
		cmds[i] = p.Get(ctx, h.space.AnswerKey(keys[i]))
	})
	answers = make([]*watermark.Answer, len(keys))
	for i, cmd := range cmds {
		text, err := cmd.Result()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case err != nil:
			return nil, failed("answer", keys[i].Conversation, err)
		}
		if answers[i], err = decodeAnswer(text); err != nil {
			return nil, fmt.Errorf("answer to %q in %s: %w", keys[i].OpID, keys[i].Conversation, err)
		}
	}
	return answers, nil
}

// answerRow is an Answer as it stands in Redis. Unknown fields are ignored, so
// that nodes of two versions can answer one another.
type answerRow struct {
	Verdict string     `json:"verdict"`
	Reason  string     `json:"reason,omitempty"`
	Seq     int64      `json:"seq,omitempty"`
	Min     int64      `json:"min,omitempty"`
	Changed bool       `json:"changed,omitempty"`
	Member  *memberRow `json:"member,omitempty"`
}

type memberRow struct {
	User           string          `json:"user"`
	Version        int64           `json:"version,omitempty"`
	Memberships    []membershipRow `json:"memberships,omitempty"`
	LastMembership int32           `json:"last,omitempty"`
	Ops            []opRow         `json:"ops,omitempty"`
	Read           int64           `json:"read,omitempty"`
	Receipt        int64           `json:"receipt,omitempty"`
	Own            []watermark.Seq `json:"own,omitempty"`
	ChangedAt      int64           `json:"changedAt,omitempty"`

	Attributes map[string]string `json:"attributes,omitempty"`
}

type membershipRow struct {
	Number int32 `json:"n"`
	Lower  int64 `json:"lo,omitempty"`
	Upper  int64 `json:"up,omitempty"`
}

type opRow struct {
	ID   string `json:"id"`
	Edge int64  `json:"edge,omitempty"`
}

var verdictWords = map[watermark.Verdict]string{
	watermark.Accepted: "accepted",
	watermark.Again:    "again",
	watermark.Resent:   "resent",
	watermark.Known:    "known",
	watermark.Refused:  "refused",
}

func encodeAnswer(a *watermark.Answer) (string, error) {
	row := answerRow{
		Verdict: verdictWords[a.Verdict], Reason: a.Reason,
		Seq: int64(a.Seq), Min: int64(a.Min), Changed: a.Changed,
	}
	if row.Verdict == "" {
		return "", fault.New(fault.Fatal, "bug", fmt.Errorf("verdict %d has no word", a.Verdict))
	}
	if m := a.Member; m != nil {
		row.Member = &memberRow{
			User: string(m.User), Version: m.Version, LastMembership: m.LastMembership,
			Read: int64(m.Read), Receipt: int64(m.Receipt), Own: m.Own, ChangedAt: m.ChangedAt,
			Attributes: m.Attributes,
		}
		for _, w := range m.Memberships {
			row.Member.Memberships = append(row.Member.Memberships, membershipRow{w.Number, int64(w.Lower), int64(w.Upper)})
		}
		for _, op := range m.Ops {
			row.Member.Ops = append(row.Member.Ops, opRow{op.ID, int64(op.Edge)})
		}
	}
	text, err := json.Marshal(row)
	return string(text), err
}

func decodeAnswer(text string) (*watermark.Answer, error) {
	var row answerRow
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return nil, fault.New(fault.Transient, "answer", fmt.Errorf("decode: %w", err))
	}
	a := &watermark.Answer{
		Reason: row.Reason, Seq: watermark.Seq(row.Seq), Min: watermark.Seq(row.Min), Changed: row.Changed,
	}
	known := false
	for verdict, word := range verdictWords {
		if word == row.Verdict {
			a.Verdict, known = verdict, true
		}
	}
	if !known {
		return nil, fault.New(fault.Transient, "answer", fmt.Errorf("decode: unknown verdict %.20q", row.Verdict))
	}
	if r := row.Member; r != nil {
		a.Member = &watermark.Member{
			User: watermark.UserID(r.User), Version: r.Version, LastMembership: r.LastMembership,
			Read: watermark.Seq(r.Read), Receipt: watermark.Seq(r.Receipt), Own: r.Own, ChangedAt: r.ChangedAt,
			Attributes: r.Attributes,
		}
		for _, w := range r.Memberships {
			a.Member.Memberships = append(a.Member.Memberships, watermark.Membership{
				Number: w.Number, Lower: watermark.Seq(w.Lower), Upper: watermark.Seq(w.Upper),
			})
		}
		for _, op := range r.Ops {
			a.Member.Ops = append(a.Member.Ops, watermark.AppliedOp{ID: op.ID, Edge: watermark.Seq(op.Edge)})
		}
	}
	return a, nil
}
