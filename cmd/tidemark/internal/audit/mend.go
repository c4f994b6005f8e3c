package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidemark-im/tidemark/watermark"
)

// Mender has what mending needs. All of it is required; each is what some role
// does every day.
type Mender struct {
	History Writer
	// Cool makes conversations cold, so that their owner rebuilds them from
	// history and the log.
	Cool func(ctx context.Context, convs []watermark.ConversationID) error
	// Raise raises marks in Redis.
	Raise func(ctx context.Context, rows []watermark.MemberRow) error
	// Append appends a record to the sequenced log.
	Append func(ctx context.Context, rec watermark.Record) error
}

// Writer is how history is written.
type Writer interface {
	Write(ctx context.Context, change watermark.Change) (watermark.Written, error)
	DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error)
}

func (m *Mender) check() error {
	if m.History == nil || m.Cool == nil || m.Raise == nil || m.Append == nil {
		return errors.New("the mender lacks something")
	}
	return nil
}

// mend mends what f tells of and says what it did; "" when it could do nothing.
type mend func(ctx context.Context, a *Auditor, f *Finding) (did string, err error)

func (f Finding) with(m mend) Finding {
	f.mend = m
	return f
}

func cool(ctx context.Context, a *Auditor, f *Finding) (string, error) {
	return "made cold; its owner rebuilds it", a.cfg.Mender.Cool(ctx, []watermark.ConversationID{f.Conversation})
}

func raiseMarks(marks watermark.Member) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		row := watermark.MemberRow{Conversation: f.Conversation, Member: watermark.Member{User: f.User, Read: marks.Read, Receipt: marks.Receipt}}
		return fmt.Sprintf("raised in redis to %d and %d", marks.Read, marks.Receipt), a.cfg.Mender.Raise(ctx, []watermark.MemberRow{row})
	}
}

// raiseMax raises history's maximum to the highest row: what stands must never
// be given again.
func raiseMax(conv watermark.Conversation) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		c := watermark.Conversation{ID: conv.ID, Policy: conv.Policy}
		in := watermark.Interval{First: conv.Max + 1, Last: watermark.MaxSeq}
		for {
			rows, err := a.cfg.History.Messages(ctx, conv.ID, in, pageRows)
			if err != nil {
				return "", err
			}
			for i := range rows {
				c.Max, c.LastTime = rows[i].Seq, max(c.LastTime, rows[i].RecordTime)
			}
			if len(rows) < pageRows {
				break
			}
			in.First = c.Max + 1
		}
		if c.Max == 0 {
			return "", nil
		}
		_, err := a.cfg.Mender.History.Write(ctx, watermark.Change{Conversations: []watermark.Conversation{c}})
		return fmt.Sprintf("maximum raised to %d", c.Max), err
	}
}

// retire deletes what is below a minimum, as history's writer does.
func retire(low watermark.Seq) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		total := 0
		for {
			n, err := a.cfg.Mender.History.DeleteBelow(ctx, f.Conversation, low, watermark.MaxPage)
			total += n
			if err != nil || n < watermark.MaxPage {
				return fmt.Sprintf("%d rows deleted", total), err
			}
			if err := a.pace.wait(ctx, n); err != nil {
				return "", err
			}
		}
	}
}

// appendMessages appends what the hot log has of a run of seqs: it was given,
// and may have been seen.
func appendMessages(policy watermark.UnreadPolicy, run watermark.Interval) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		done, left := 0, []string(nil)
		for in := run; !in.Empty(); {
			entries, warm, err := a.cfg.Redis.Entries(ctx, f.Conversation, in)
			if err != nil {
				return "", err
			}
			if !warm || len(entries) == 0 {
				break
			}
			for _, e := range entries {
				in.First = e.Seq + 1
				if e.Revoked || e.Damaged != nil {
					left = append(left, e.Seq.String())
					continue
				}
				rec := watermark.Record{Conversation: f.Conversation, Events: []watermark.Event{
					watermark.MessagesSequenced{Policy: policy, Messages: []watermark.Message{e.Message}},
				}}
				if err := a.cfg.Mender.Append(ctx, rec); err != nil {
					return "", err
				}
				done++
			}
		}
		if done == 0 {
			return "", nil
		}
		if len(left) > 0 {
			f.Detail += "; redis has no content of " + strings.Join(left, ", ")
		}
		return fmt.Sprintf("%d messages appended to the log, whence history gets them", done), nil
	}
}

// appendMember appends a member as Redis has it.
func appendMember(m watermark.Member) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		rec := watermark.Record{Conversation: f.Conversation}
		if m.Known() {
			rec.Events = append(rec.Events, watermark.WindowChanged{Member: m, Cause: "audit"})
		}
		if m.Read > 0 || m.Receipt > 0 {
			rec.Events = append(rec.Events, watermark.ReadAdvanced{User: m.User, Read: m.Read, Receipt: m.Receipt})
		}
		if len(rec.Events) == 0 {
			return "", nil
		}
		return "appended to the log, whence history gets it", a.cfg.Mender.Append(ctx, rec)
	}
}

// write writes to history what the log says.
func write(change watermark.Change) mend {
	return func(ctx context.Context, a *Auditor, f *Finding) (string, error) {
		w, err := a.cfg.Mender.History.Write(ctx, change)
		if err != nil {
			return "", err
		}
		if len(w.MemberConflicts) > 0 || len(w.Rows) > 0 && w.Rows[0] != watermark.Inserted {
			return "", nil
		}
		return "written from the log", nil
	}
}
