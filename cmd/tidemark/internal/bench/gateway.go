package bench

import (
	"context"

	"github.com/tidemark-im/tidemark/internal/gateload"
)

// RunGateway measures a gateway by itself, in this process; cfg.Devices runs in
// another one.
func RunGateway(ctx context.Context, cfg gateload.Config) (*gateload.Report, error) {
	cfg.Usage = func() (float64, int64, error) { return stat(ownPID()) }
	return gateload.Measure(ctx, cfg)
}
