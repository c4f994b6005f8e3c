package bench

import (
	"context"
	"time"
)

// maxTrials bounds the search for the highest rate.
const maxTrials = 14

// Highest finds the highest rate that is sustained, to a tenth: it doubles the
// rate until one is not, then halves what lies in between. Each trial is told to
// each; the best one is given, nil when not even the first rate is sustained.
func (s *Session) Highest(ctx context.Context, first float64, warmUp, duration time.Duration, each func(*Report)) (*Report, error) {
	var best *Report
	low, high := 0.0, 0.0
	rate := first
	for range maxTrials {
		r, err := s.Trial(ctx, rate, warmUp, duration)
		if err != nil {
			return best, err
		}
		each(r)
		if r.Sustained {
			low, best = rate, r
		} else {
			high = rate
		}
		switch {
		case high == 0:
			rate *= 2
		case low == 0:
			rate /= 2
		default:
			if high <= low*1.1 {
				return best, nil
			}
			rate = (low + high) / 2
		}
	}
	return best, nil
}
