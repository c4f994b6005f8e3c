package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rateInterval stands for what Grafana computes from the scrape interval.
const rateInterval = "30s"

// prometheus asks a server.
type prometheus struct{ url string }

// series is one line of an answer.
type series struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`  // of a query for one moment
	Values [][2]any          `json:"values"` // of one for a range
}

// errNoData is returned when a query is right and gives nothing.
var errNoData = errors.New("no data")

func (p *prometheus) get(ctx context.Context, path string, args url.Values) ([]series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(args.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []series }
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", res.Status, err)
	}
	if answer.Status != "success" {
		return nil, errors.New(answer.Error)
	}
	if len(answer.Data.Result) == 0 {
		return nil, errNoData
	}
	return answer.Data.Result, nil
}

func concrete(expr string) string {
	return strings.NewReplacer("$__rate_interval", rateInterval, "$__interval", rateInterval).Replace(expr)
}

func (p *prometheus) now(ctx context.Context, expr string) ([]series, error) {
	found, err := p.get(ctx, "/api/v1/query", url.Values{"query": {concrete(expr)}})
	if err != nil {
		return nil, err
	}
	// A quantile of nothing is not a number.
	for _, s := range found {
		if v, _ := s.Value[1].(string); v != "NaN" {
			return found, nil
		}
	}
	return nil, errNoData
}

func (p *prometheus) since(ctx context.Context, expr string, d time.Duration) ([]series, error) {
	now := time.Now()
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	return p.get(ctx, "/api/v1/query_range", url.Values{
		"query": {concrete(expr)}, "start": {seconds(now.Add(-d))}, "end": {seconds(now)}, "step": {"1"},
	})
}

// shown is a query as it stands in a dashboard's file.
type shown struct{ board, panel, expr string }

// inFiles reads the queries of all dashboards.
func inFiles(dir string) ([]shown, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []shown
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var b struct {
			Title  string
			Panels []struct {
				Title, Type string
				Targets     []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, p := range b.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				return nil, fmt.Errorf("%s: panel %q asks for nothing", name, p.Title)
			}
			for _, t := range p.Targets {
				out = append(out, shown{b.Title, p.Title, t.Expr})
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no dashboards", dir)
	}
	return out, nil
}

// prove asks every query until it has returned data, for at most wait.
func prove(ctx context.Context, p *prometheus, dir string, wait time.Duration) error {
	queries, err := inFiles(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	open := queries
	for {
		var failed []error
		var left []shown
		for _, q := range open {
			if _, err := p.now(ctx, q.expr); err != nil {
				left = append(left, q)
				failed = append(failed, fmt.Errorf("%s, %s: %s: %w", q.board, q.panel, q.expr, err))
			}
		}
		if open = left; len(open) == 0 {
			fmt.Printf("%d queries of %d dashboards return data\n", len(queries), len(boards()))
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(failed...)
		case <-time.After(time.Second):
		}
		if ctx.Err() != nil {
			return errors.Join(failed...)
		}
	}
}
