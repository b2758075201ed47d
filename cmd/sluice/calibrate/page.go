package calibrate

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/chart"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// WriteHTML writes a report as a page. configured is the name of the configuration that the changes are for.
func (r *Report) WriteHTML(w io.Writer, configured string) error {
	page := chart.Page{Title: "What prefill costs here", Lead: fmt.Sprintf("From %s decisions.", display.Grouped(r.Decisions))}
	if r.Probe != nil {
		page.Lead = fmt.Sprintf("Asked of %s, model %s: %d requests with %s prompt tokens.", r.Probe.Endpoint, r.Probe.Model,
			r.Probe.Requests, display.Grouped(r.Probe.PromptTokens))
	}
	for i := range r.Deployments {
		page.Sections = append(page.Sections, r.Deployments[i].section(r, configured))
	}
	page.Sections = append(page.Sections, chart.Section{Title: "Read this too", Text: slices.Clone(r.Notes)})
	return page.Write(w)
}

func (d *Deployment) section(r *Report, configured string) chart.Section {
	s := chart.Section{Title: shown(d.Name)}
	if d.PeakPerS == nil {
		s.Text = []string{display.Things(float64(d.Samples), "request") + ": too little to measure."}
		return s
	}
	s.Table = &chart.Table{Head: []string{"", "value", "from", "to"}}
	row := func(name string, i *Interval) {
		if i != nil {
			s.Table.Rows = append(s.Table.Rows, []string{name, number(i.Value), number(i.Low), number(i.High)})
		}
	}
	row("prefill throughput, tokens per second", d.PeakPerS)
	row("tokens ahead go by, per second", d.WaitPerS)
	row("nothing to compute, ms", d.BaseMs)
	row("break-even, ms", d.BreakEvenMs)
	row(fmt.Sprintf("at its price to others (α %v, κ %v), ms", r.Alpha, r.Kappa), d.PricedMs)
	if len(d.Periods) > 1 {
		begin := d.Periods[0].Begin
		line := chart.Line{Name: "median"}
		for _, p := range d.Periods {
			line.Points = append(line.Points, chart.Point{X: p.Begin.Sub(begin).Hours() + p.Hours/2, Y: p.BreakEvenMs})
		}
		s.Plots = append(s.Plots, chart.Plot{
			Title: "The break-even over time", X: "UTC", Y: "ms", LogY: true, FormatY: display.Millis, Lines: []chart.Line{line},
			FormatX: func(v float64) string { return begin.Add(time.Duration(v * float64(time.Hour))).Format("01-02 15:04") },
		})
	}
	if r.Probe != nil {
		plot := chart.Plot{Title: "Time to the first token, alone", X: "prompt tokens", Y: "ms", Lines: []chart.Line{{Name: "new", Dots: true}, {Name: "again", Dots: true}}}
		for _, a := range r.Probe.Alone {
			plot.Lines[0].Points = append(plot.Lines[0].Points, chart.Point{X: float64(a.PromptTokens), Y: a.ColdMs})
			plot.Lines[1].Points = append(plot.Lines[1].Points, chart.Point{X: float64(a.PromptTokens), Y: a.WarmMs})
		}
		s.Plots = append(s.Plots, plot)
	}
	s.Text = append(s.Text, d.learning()...)
	if len(d.Changes) > 0 {
		s.Code = "# for " + configured + "\n" + YAML(d.Changes)
	}
	return s
}
