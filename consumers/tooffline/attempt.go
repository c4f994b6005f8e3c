package tooffline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// ReasonUndelivered is the reason of dead letters of notifications.
const ReasonUndelivered = "undelivered"

// attempt takes a note as far as it goes now.
func (s *Stage) attempt(ctx context.Context, n *note) {
	age := time.Since(n.latest.RecordTime)
	if n.tries == 0 && age > s.w.cfg.MaxAge {
		s.finish(n, "old")
		return
	}
	msg, outcome, err := s.prepare(ctx, n)
	switch {
	case ctx.Err() != nil:
		s.put(n, 0)
	case err != nil:
		s.putOff(ctx, n, err)
	case outcome != "":
		s.finish(n, outcome)
	case !s.w.breaker.TryAcquirePermit():
		// Opened meanwhile, or somebody else's attempt decides.
		s.put(n, max(s.w.breaker.RemainingDelay(), probeEvery))
	default:
		s.send(ctx, n, msg)
	}
}

// prepare looks at the state of the user; outcome says why it is not to be told.
func (s *Stage) prepare(ctx context.Context, n *note) (msg *Notification, outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.w.cfg.Timeout)
	defer cancel()
	st, err := s.w.cfg.Store.Look(ctx, n.key.conv, n.key.user, n.last)
	if err != nil {
		return nil, "", fmt.Errorf("look at %s for %s: %w", n.key.conv, n.key.user, err)
	}
	if why := silent(n, &st); why != "" {
		return nil, why, nil
	}
	msg = n.notification(s.w.cfg.Endpoint)
	msg.Latest.Text = beginning(msg.Latest.Text, s.w.cfg.Preview)
	visible := st.Member.Visible(st.Conversation.Min, max(st.Conversation.Max, n.last))
	msg.Unread = watermark.Unread(visible, st.Member.Read, st.Member.Own)
	if msg.Badge, err = s.w.cfg.Store.Badge(ctx, n.key.user); err != nil {
		return nil, "", fmt.Errorf("count what %s has not read: %w", n.key.user, err)
	}
	if s.w.cfg.Devices == nil {
		return msg, "", nil
	}
	devices, err := s.w.cfg.Devices.Devices(ctx, n.key.user)
	if err != nil {
		return nil, "", fmt.Errorf("read the devices of %s: %w", n.key.user, err)
	}
	for _, d := range devices {
		if !n.told[d.ID] {
			msg.Devices = append(msg.Devices, d)
		}
	}
	switch {
	case len(devices) == 0:
		return nil, "no_device", nil
	case len(msg.Devices) == 0: // the others were forgotten meanwhile
		return nil, "delivered", nil
	}
	return msg, "", nil
}

// putOff waits with n until the store may answer again.
func (s *Stage) putOff(ctx context.Context, n *note, err error) {
	s.w.metrics.lookups.Inc()
	if fault.ClassOf(err) == fault.Fatal {
		s.stop(n, err)
		return
	}
	if n.lookPause == nil {
		n.lookPause = pausesOf(s.w.cfg.FirstPause, s.w.cfg.LongestPause)
		s.log.LogAttrs(ctx, slog.LevelWarn, "notification waits for the state of its user",
			slog.String("conversation", string(n.key.conv)), slog.String("reason", fault.ReasonOf(err)), slog.Any("error", err))
	}
	s.put(n, n.lookPause.NextBackOff())
}

// send makes one attempt, and decides what follows.
func (s *Stage) send(ctx context.Context, n *note, msg *Notification) {
	n.lookPause = nil
	within, cancel := context.WithTimeout(ctx, s.w.cfg.Timeout)
	end := s.traced(msg)
	start := time.Now()
	err := s.w.cfg.Sender.Send(within, msg)
	cancel()
	end(err)
	s.w.metrics.seconds.Observe(time.Since(start).Seconds())
	n.tell(slices.Concat(msg.told, msg.refused, msg.gone))
	s.forget(ctx, n, msg)
	said, _ := errors.AsType[*SendError](err)
	switch {
	case err == nil, said != nil && said.Final:
		s.w.breaker.RecordSuccess() // it answers
	case ctx.Err() != nil:
		// Broken off by us: it says nothing of the endpoint, but a permit has to be
		// given back.
		s.w.breaker.RecordFailure()
		s.put(n, 0)
		return
	default:
		s.w.breaker.RecordFailure()
	}
	if err == nil {
		s.w.metrics.attempts.WithLabelValues("ok").Inc()
		outcome := "delivered"
		if len(msg.gone) > 0 && len(msg.gone) == len(n.told) {
			outcome = "no_device" // all that there were
		}
		s.finish(n, outcome)
		return
	}
	n.tries++
	if said != nil && said.Final {
		s.w.metrics.attempts.WithLabelValues("refused").Inc()
		s.bury(ctx, n, err)
		return
	}
	s.w.metrics.attempts.WithLabelValues("retry").Inc()
	switch {
	case n.tries >= s.w.cfg.Tries:
		s.bury(ctx, n, err)
		return
	case n.hurried:
		s.bury(ctx, n, fmt.Errorf("given up early, everything else waited for it: %w", err))
		return
	}
	if n.pauses == nil {
		n.pauses = pausesOf(s.w.cfg.FirstPause, s.w.cfg.LongestPause)
	}
	pause := n.pauses.NextBackOff()
	if said != nil && said.RetryAfter > 0 {
		asked := min(said.RetryAfter, s.w.cfg.MaxRetryAfter)
		pause = max(pause, asked)
		if said.Whole {
			s.w.hush(asked)
		}
	}
	s.put(n, pause)
}

// forget takes away the registrations of devices that are gone. Where that
// fails, the next notification of the user finds them gone again.
func (s *Stage) forget(ctx context.Context, n *note, msg *Notification) {
	for _, d := range msg.Devices {
		if !slices.Contains(msg.gone, d.ID) {
			continue
		}
		s.w.metrics.gone.Inc()
		if err := s.w.cfg.Devices.Forget(ctx, n.key.user, d); err != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "device that is gone not forgotten", slog.String("user", string(n.key.user)), slog.Any("error", err))
		}
	}
}

// bury writes n to the dead letters. Until they have taken it, it is not done
// with.
func (s *Stage) bury(ctx context.Context, n *note, cause error) {
	out, err := s.letter(n, cause)
	pauses := pausesOf(s.w.cfg.FirstPause, s.w.cfg.LongestPause)
	for err == nil {
		if err = s.w.cfg.DeadLetters.Append(ctx, []wire.Out{out}); err == nil {
			s.log.LogAttrs(ctx, slog.LevelError, "notification given up",
				slog.String("conversation", string(n.key.conv)), slog.String("user", string(n.key.user)),
				slog.Int64("seq", int64(n.last)), slog.Int("tries", n.tries), slog.Any("cause", cause))
			s.finish(n, "dead_letter")
			return
		}
		if fault.ClassOf(err) != fault.Transient {
			break
		}
		timer := time.NewTimer(pauses.NextBackOff())
		select {
		case <-timer.C:
			err = nil
		case <-ctx.Done():
			timer.Stop()
			s.put(n, 0)
			return
		}
	}
	s.stop(n, fault.New(fault.Fatal, fault.ReasonOf(err), fmt.Errorf("tooffline: dead letter of %s: %w", n.key.conv, err)))
}

// letter gives the dead letter of n: the last record that n stands for, with
// its user alone and for this endpoint alone. Several users and endpoints may
// fail with one record, and each letter is one thing to replay, so the topic id
// of its place says which.
func (s *Stage) letter(n *note, cause error) (wire.Out, error) {
	var mentions []watermark.UserID
	if n.mentioned {
		mentions = []watermark.UserID{n.key.user}
	}
	rec, err := wire.EncodeOffline(n.latest.For([]watermark.UserID{n.key.user}, mentions), s.w.cfg.Endpoint)
	if err != nil {
		return wire.Out{}, err
	}
	from := n.record().Record
	from.Value, from.Key = rec.Value, []byte(rec.Key)
	from.Headers = append(rec.Headers, from.Headers...)
	if n.trace.IsValid() {
		from.Headers = wire.WithTraces(from.Headers, n.trace)
	}
	part := sha256.Sum256([]byte(s.w.cfg.Endpoint + "\n" + string(n.key.user)))
	from.TopicID += "+" + hex.EncodeToString(part[:6])
	out, err := wire.EncodeDeadLetter(wire.DeadLetter{
		Record: from, Reason: ReasonUndelivered, Cause: fmt.Sprintf("%s: user %s: %v", s.w.cfg.Endpoint, n.key.user, cause),
		First: n.made, Last: time.Now(), Tries: n.tries,
	})
	out.Topic = s.w.cfg.DeadLetter
	return out, err
}

// beginning gives at most n bytes of s, cut between characters.
func beginning(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
