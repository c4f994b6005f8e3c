package topush

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// standing asks which of the rosters that are large enough are crowds: that
// they were is lost with Redis.
func (w *worker) standing(ctx context.Context, rs ...*roster) error {
	if w.cfg.Crowds == nil {
		return nil
	}
	var large []*roster
	var ids []watermark.ConversationID
	for _, r := range rs {
		if r.crowd || r.open >= w.cfg.CrowdBelow && !r.state.ID.Single() {
			large, ids = append(large, r), append(ids, r.state.ID)
		}
	}
	if len(large) == 0 {
		return nil
	}
	left, err := w.cfg.Crowds.StandingCrowds(ctx, ids)
	if err != nil {
		return fmt.Errorf("topush: ask which of %d conversations are crowds: %w", len(ids), err)
	}
	if len(left) != len(large) {
		return fault.New(fault.Fatal, "contract", fmt.Errorf("topush: %d answers for %d conversations", len(left), len(large)))
	}
	now := w.cfg.Now()
	for i, r := range large {
		r.crowd, r.stands = left[i] > 0, now.Add(left[i])
	}
	return nil
}

// unsettled tells whether r has to become a crowd, to cease to be one, or to be
// enlisted again.
func (w *worker) unsettled(r *roster) bool {
	return w.cfg.Crowds != nil && (w.rises(r) || w.falls(r) || w.fades(r))
}

func (w *worker) rises(r *roster) bool {
	return !r.crowd && r.open > w.cfg.CrowdAbove && !r.state.ID.Single()
}

func (w *worker) falls(r *roster) bool { return r.crowd && r.open < w.cfg.CrowdBelow }

func (w *worker) fades(r *roster) bool {
	return r.crowd && r.stands.Sub(w.cfg.Now()) < crowdTTL/2
}

// settle makes r what it has to be. It costs as much as r has members, for once.
//
// Until all are enlisted messages go to each member, and from then on to the
// crowd. A member who is connected is seated while that goes on; whoever is
// seated late is told so by the gateway, and pulls what it missed.
func (w *worker) settle(ctx context.Context, r *roster) error {
	switch {
	case !w.unsettled(r):
		return nil
	case w.falls(r):
		return w.fall(ctx, r)
	}
	rising := !r.crowd
	users := r.those((*watermark.Member).Open).open
	for page := range slices.Chunk(users, w.cfg.MaxUsers) {
		if err := w.cfg.Crowds.Enlist(ctx, r.state.ID, page, crowdTTL); err != nil {
			return fmt.Errorf("topush: enlist members of %s: %w", r.state.ID, err)
		}
		if !rising {
			continue
		}
		d := Delivery{Conversation: r.state.ID, Reach: Seat, Users: page}
		if err := w.cfg.Deliverer.Deliver(ctx, []Delivery{d}); err != nil {
			return fmt.Errorf("topush: seat members of %s: %w", r.state.ID, err)
		}
	}
	if err := w.cfg.Crowds.StandCrowd(ctx, r.state.ID, crowdTTL); err != nil {
		return fmt.Errorf("topush: note the crowd of %s: %w", r.state.ID, err)
	}
	r.crowd, r.stands = true, w.cfg.Now().Add(crowdTTL)
	if rising {
		w.metrics.crowds.WithLabelValues("risen").Inc()
	} else {
		w.metrics.crowds.WithLabelValues("renewed").Inc()
	}
	return nil
}

// fall makes r a conversation whose messages go to each member. The note goes
// first: from there on they do, whatever becomes of the rest.
func (w *worker) fall(ctx context.Context, r *roster) error {
	if err := w.cfg.Crowds.FallCrowd(ctx, r.state.ID); err != nil {
		return fmt.Errorf("topush: forget the crowd of %s: %w", r.state.ID, err)
	}
	r.crowd, r.stands = false, time.Time{}
	if err := w.cfg.Deliverer.Deliver(ctx, []Delivery{{Conversation: r.state.ID, Reach: Dissolve}}); err != nil {
		return fmt.Errorf("topush: dissolve the crowd of %s: %w", r.state.ID, err)
	}
	for page := range slices.Chunk(slices.Sorted(maps.Keys(r.state.Members)), w.cfg.MaxUsers) {
		if err := w.cfg.Crowds.Delist(ctx, r.state.ID, page); err != nil {
			return fmt.Errorf("topush: delist members of %s: %w", r.state.ID, err)
		}
	}
	w.metrics.crowds.WithLabelValues("fallen").Inc()
	return nil
}
