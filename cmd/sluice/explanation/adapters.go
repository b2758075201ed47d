package explanation

import (
	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// adapters say what the engines do with the adapter that the request names, as far as they tell.
func (p *page) adapters() {
	columns := []display.Column{{}, endpointColumn, {Head: "the request's adapter"}, {Head: "in use", Right: true}, {Head: "of", Right: true}}
	var rows []display.Row
	for _, e := range p.ranked() {
		for _, m := range e.GetEngineMetrics()[:min(1, len(e.GetEngineMetrics()))] {
			use := explain.AdapterUse(m)
			if use == "" {
				continue
			}
			rows = append(rows, display.Row{Style: p.style(e), Cells: []string{
				p.mark(e), p.name(e.GetOrdinal()), use, display.Count(float64(m.GetAdapters())), most(m),
			}})
		}
	}
	if len(rows) > 0 {
		p.section("Adapters")
		p.lines = append(p.lines, display.Table(columns, rows, p.Width, p.Styles)...)
	}
}

// most is how many adapters an engine computes with at once.
func most(m *decisionv1.EngineMetrics) string {
	if m.GetMaxAdapters() == 0 {
		return display.Unknown
	}
	return display.Count(float64(m.GetMaxAdapters()))
}
