package toredis

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// forgeries gives the offsets of those records that name a place they did not
// come from. Anybody who may produce may write that header, and an owner that
// believed it would raise the input mark of a partition that the record never
// stood in: what is on its way from there would be taken for decided. So the
// record at that place is read back, and has to be the same.
//
// A place that the log has given up cannot be read, and is believed: an honest
// forward must count the same before and after, and a mark below the log's start
// passes over nothing that could still be read.
func (s *Stage) forgeries(ctx context.Context, records []wire.Record) (map[int64]struct{}, error) {
	var hops map[int32][]*wire.Record // by the partition that they name
	for i := range records {
		r := &records[i]
		from, ok := r.From()
		if !ok || from.Partition.Number >= s.cfg.Partitions || s.parked.has(r.Offset) {
			continue
		}
		if _, done := s.done[r.Offset]; done {
			continue
		}
		if hops == nil {
			hops = make(map[int32][]*wire.Record)
		}
		hops[from.Partition.Number] = append(hops[from.Partition.Number], r)
	}
	forged := make(map[int64]struct{})
	for _, p := range slices.Sorted(maps.Keys(hops)) {
		if err := s.reread(ctx, p, hops[p], forged); err != nil {
			return nil, err
		}
	}
	return forged, nil
}

// reread adds to forged those of hops that did not come from partition p.
func (s *Stage) reread(ctx context.Context, p int32, hops []*wire.Record, forged map[int64]struct{}) error {
	by := make(map[int64][]*wire.Record) // by the offset that they name
	for _, r := range hops {
		from, _ := r.From()
		by[from.Offset] = append(by[from.Offset], r)
		forged[r.Offset] = struct{}{}
	}
	start, err := s.cfg.Origins.Reread(ctx, hops[0].Topic, p, slices.Sorted(maps.Keys(by)), func(origin wire.Record) {
		for _, r := range by[origin.Offset] {
			if r.IsForwardOf(&origin) {
				delete(forged, r.Offset)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("toredis: read back where %d records say that they were forwarded from: %w", len(hops), err)
	}
	for offset, named := range by {
		for _, r := range named {
			if offset < start {
				delete(forged, r.Offset)
			}
		}
	}
	return nil
}

// tellForged counts and logs the forgeries of a batch that is taken.
func (s *Stage) tellForged(ctx context.Context, forged []wire.Record) {
	for i := range forged {
		r := &forged[i]
		from, _ := r.From()
		s.metrics.forged.Inc()
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "what a record names as its origin holds something else; it counts at its own place",
			slog.String("topic", r.Topic), slog.Int("partition", int(r.Partition)), slog.Int64("offset", r.Offset),
			slog.Int("named partition", int(from.Partition.Number)), slog.Int64("named offset", from.Offset))
	}
}
