package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	prom "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// datasource is the uid that deploy/grafana/provisioning gives Prometheus.
const datasource = "tidemark-prometheus"

// columns is how many panels stand side by side on Grafana's 24 columns.
const columns, height = 4, 8

// generate writes the dashboards into dir, and removes those that are no more.
func generate(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	for _, b := range boards() {
		built, err := build(b)
		if err != nil {
			return fmt.Errorf("%s: %w", b.title, err)
		}
		text, err := json.MarshalIndent(built, "", "  ")
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(b.uid, "tidemark-") + ".json"
		if err := os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func build(b board) (dashboard.Dashboard, error) {
	source := common.DataSourceRef{Type: new("prometheus"), Uid: new(datasource)}
	d := dashboard.NewDashboardBuilder(b.title).Uid(b.uid).Description(b.about).Tags([]string{"tidemark"}).
		Time("now-1h", "now").Refresh("10s").Timezone("browser").Readonly().Tooltip(dashboard.DashboardCursorSyncCrosshair)
	id := uint32(0)
	for _, r := range b.rows {
		id++
		d.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for _, p := range r.panels {
			id++
			d.WithPanel(graph(p, source).Id(id))
		}
	}
	return d.Build()
}

func graph(p panel, source common.DataSourceRef) *timeseries.PanelBuilder {
	g := timeseries.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(source).Unit(p.unit).Min(0).
		Span(24 / columns).Height(height).LineWidth(1).FillOpacity(8).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom))
	for i, q := range p.queries {
		g.WithTarget(prom.NewDataqueryBuilder().Datasource(source).Expr(q.expr).LegendFormat(q.legend).RefId(string(rune('A' + i))).Range())
	}
	return g
}
