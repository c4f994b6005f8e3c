package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// SyncConfig says how the query service is measured: one user with many
// conversations, who asks again and again.
type SyncConfig struct {
	System System
	// Conversations of the user, 1..1000000; Messages in the one that is pulled,
	// 1..1000.
	Conversations, Messages int
	// Size of a body.
	Size int
	// Rounds is how often each call is made, at least 1.
	Rounds int
	// Forget empties Redis, so that the next round is cold. nil: only warm ones
	// are measured.
	Forget func(ctx context.Context) error
	// Progress is told what goes on. nil: nobody is.
	Progress func(what string, done, total int64)
}

// SyncReport is what it came to. A round of GetWatermarks is all of its pages.
type SyncReport struct {
	Machine       Machine `json:"machine"`
	Conversations int     `json:"conversations"`
	Messages      int     `json:"messages"`
	// Latencies are those of the client, which asks over HTTP and gets protobuf.
	WarmMarks Latency `json:"watermarks_warm"`
	ColdMarks Latency `json:"watermarks_cold"`
	WarmPage  Latency `json:"watermarks_page_warm"`
	WarmPull  Latency `json:"pull_warm"`
	ColdPull  Latency `json:"pull_cold"`
	Pages     int     `json:"pages"`
	// Server is what the server itself measured, from a call's arrival to its
	// answer: on average, of a warm page of GetWatermarks and of a warm Pull.
	ServerPage float64 `json:"server_watermarks_page_warm_mean_ms"`
	ServerPull float64 `json:"server_pull_warm_mean_ms"`
	WarmCounts []Count `json:"counts_of_a_warm_round"`
	ColdCounts []Count `json:"counts_of_a_cold_round"`
	// WarmUsage is what a warm round of GetWatermarks takes of each process, and
	// PullUsage a warm Pull: PerMessage is microseconds of processor time.
	WarmUsage []Usage `json:"processes_of_a_warm_round"`
	PullUsage []Usage `json:"processes_of_a_warm_pull"`
	Processes []Usage `json:"processes"`
}

func (c *SyncConfig) fill() error {
	var errs []error
	if c.Conversations < 1 || c.Conversations > 1_000_000 || c.Messages < 1 || c.Messages > watermark.MaxPage || c.Rounds < 1 {
		errs = append(errs, fmt.Errorf("conversations must be within 1..1000000, messages within 1..%d, rounds from 1 on", watermark.MaxPage))
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	return invalid(errs...)
}

// RunSync measures GetWatermarks and Pull, warm and cold.
func RunSync(ctx context.Context, cfg SyncConfig) (_ *SyncReport, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	load := Load{Conversations: cfg.Conversations, Size: cfg.Size, Seed: 1}
	s, err := Open(ctx, Config{System: cfg.System, Load: load, Rate: 1, Duration: time.Second, Progress: cfg.Progress, oneUser: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	conv, user, _ := s.world.conversation(0)
	for n := range int64(cfg.Messages) {
		m := s.world.message(n, 0, time.Now())
		if _, err := s.sys.sync.Send(ctx, &tidemarkv1.SendRequest{Message: m, WaitForSeq: n == int64(cfg.Messages)-1}); err != nil {
			return nil, err
		}
	}
	r := &SyncReport{Machine: thisMachine(), Conversations: cfg.Conversations, Messages: cfg.Messages}
	page := newHist()
	marks := func() (pages int, err error) { return s.watermarks(ctx, string(user), cfg.Conversations, page) }
	pull := func() (int, error) {
		res, err := s.sys.sync.Pull(ctx, &tidemarkv1.PullRequest{User: string(user), Ranges: []*tidemarkv1.PullRange{{
			Conversation: string(conv), Begin: 1, End: int64(watermark.MaxSeq), Num: int64(cfg.Messages)}}})
		if err == nil && len(res.GetPages()[0].GetMessages()) != cfg.Messages {
			err = fmt.Errorf("a pull gave %d messages of %d: %v", len(res.GetPages()[0].GetMessages()), cfg.Messages, res.GetPages()[0].GetError())
		}
		return 1, err
	}
	// The first round loads what nobody has asked for yet.
	if _, err := marks(); err != nil {
		return nil, err
	}
	page = newHist()
	before, err := s.sys.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if r.WarmMarks, r.Pages, err = s.rounds(ctx, cfg.Rounds, "GetWatermarks, warm", marks); err != nil {
		return nil, err
	}
	after, err := s.sys.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	r.WarmPage, r.ServerPage = page.latency(), served(before, after, "GetWatermarks")
	r.WarmCounts, r.WarmUsage = counts(before, after, float64(cfg.Rounds)), usage(before, after, float64(cfg.Rounds))
	if r.WarmPull, _, err = s.rounds(ctx, 20*cfg.Rounds, "Pull, warm", pull); err != nil {
		return nil, err
	}
	pulled, err := s.sys.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	r.ServerPull, r.PullUsage = served(after, pulled, "Pull"), usage(after, pulled, 20*float64(cfg.Rounds))
	if cfg.Forget != nil {
		if err := s.cold(ctx, &cfg, r, marks, pull); err != nil {
			return nil, err
		}
	}
	last, err := s.sys.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	r.Processes = usage(before, last, 0)
	return r, nil
}

func (s *Session) cold(ctx context.Context, cfg *SyncConfig, r *SyncReport, marks, pull func() (int, error)) (err error) {
	forgetting := func(call func() (int, error), h *hist) error {
		if err := cfg.Forget(ctx); err != nil {
			return err
		}
		begun := time.Now()
		_, err := call()
		h.add(time.Since(begun))
		return err
	}
	coldMarks, coldPull := newHist(), newHist()
	before, err := s.sys.snapshot(ctx)
	if err != nil {
		return err
	}
	for range cfg.Rounds {
		if err := forgetting(marks, coldMarks); err != nil {
			return err
		}
	}
	after, err := s.sys.snapshot(ctx)
	if err != nil {
		return err
	}
	r.ColdCounts = counts(before, after, float64(cfg.Rounds))
	for range cfg.Rounds {
		if err := forgetting(pull, coldPull); err != nil {
			return err
		}
	}
	r.ColdMarks, r.ColdPull = coldMarks.latency(), coldPull.latency()
	return nil
}

// served gives what the server took for a call on average, in milliseconds.
func served(before, after *snapshot, method string) float64 {
	const name = "tidemark_syncapi_call_seconds"
	label := "{method=" + method + "}"
	n := after.meters[name+label] - before.meters[name+label]
	if n == 0 {
		return 0
	}
	return (after.meters[name+sumOf+label] - before.meters[name+sumOf+label]) / n * 1000
}

// watermarks asks for all pages, and adds how long each took to h.
func (s *Session) watermarks(ctx context.Context, user string, want int, h *hist) (pages int, err error) {
	token, got := "", 0
	for {
		begun := time.Now()
		res, err := s.sys.sync.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: user, PageToken: token})
		if err != nil {
			return pages, err
		}
		h.add(time.Since(begun))
		pages++
		got += len(res.GetWatermarks())
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if got != want {
		return pages, fmt.Errorf("%d conversations are in the list, want %d", got, want)
	}
	return pages, nil
}

func (s *Session) rounds(ctx context.Context, n int, what string, call func() (int, error)) (_ Latency, pages int, err error) {
	h := newHist()
	for i := range n {
		begun := time.Now()
		if pages, err = call(); err != nil {
			return Latency{}, 0, err
		}
		h.add(time.Since(begun))
		s.cfg.Progress(what, int64(i+1), int64(n))
		if ctx.Err() != nil {
			return Latency{}, 0, ctx.Err()
		}
	}
	return h.latency(), pages, nil
}

const historyReads = "history reads"

// counts gives what was done for each round.
func counts(before, after *snapshot, rounds float64) []Count {
	out := redisCounts(before.redis, after.redis, rounds)
	for _, name := range []string{"tidemark_embedded_queries_total", "tidemark_history_commands_total"} {
		if d := after.meters[name] - before.meters[name]; d > 0 {
			out = append(out, Count{historyReads, d / rounds})
		}
	}
	return out
}
