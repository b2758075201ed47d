package gatereport

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/chart"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// WriteHTML writes a report as a page.
func (r *Report) WriteHTML(w io.Writer) error {
	p := chart.Page{Title: "What the gates saw", Lead: r.lead() + "."}
	for i := range r.Gates {
		p.Sections = append(p.Sections, r.Gates[i].sections(r)...)
	}
	notes := chart.Section{Title: "Read this first", Text: slices.Clone(r.Notes)}
	for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
		notes.Text = append(notes.Text, fmt.Sprintf("%d left out: %s.", r.Skipped[reason], reason))
	}
	p.Sections = append([]chart.Section{notes}, p.Sections...)
	return p.Write(w)
}

func formatShare(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

func (g *Gate) sections(r *Report) []chart.Section {
	var verdicts []string
	for _, v := range slices.Sorted(maps.Keys(g.Verdicts)) {
		verdicts = append(verdicts, fmt.Sprintf("%s %d", v, g.Verdicts[v]))
	}
	first := chart.Section{Title: g.Name + g.setting(), Text: []string{strings.Join(verdicts, ", ") + "."}}
	if g.Compared == 0 {
		first.Text = append(first.Text, "It never had a sticky endpoint and another one to compare.")
		return []chart.Section{first}
	}
	first.Text = append(first.Text, fmt.Sprintf("Of %d decisions with a sticky endpoint and another one, %d (%s) were released, of which %d left the prefix; "+
		"%d (%s) were held while another endpoint was %s or more %s. The gate's input: p50 %s, p90 %s, p99 %s ms.",
		g.Compared, g.Released, percent(share(g.Released, g.Compared)), g.Moved, g.Pinned, percent(share(g.Pinned, g.Compared)), millis(r.BehindMs),
		g.ahead(), whole(g.GapMs.P50), whole(g.GapMs.P90), whole(g.GapMs.P99)))
	first.Plots = g.plots()
	whatIf := chart.Section{Title: g.Name + ": what each rule would have done", Text: []string{openLoop}, Table: &chart.Table{
		Head: []string{"rule", "released", "share", "pinned ≥ " + millis(r.BehindMs), "changed", "gap each", "tokens again each"},
	}}
	for _, u := range g.WhatIf {
		whatIf.Table.Rows = append(whatIf.Table.Rows, []string{
			u.Rule, fmt.Sprint(u.Released), percent(share(u.Released, u.Compared)), percent(share(u.Pinned, u.Compared)), fmt.Sprint(u.Changed),
			display.Millis(u.SparedMs / float64(u.Released)), display.Count(u.RecomputedTokens / float64(u.Released)),
		})
	}
	sections := []chart.Section{first, whatIf}
	if len(g.Models) > 1 {
		sections = append(sections, chart.Section{Title: g.Name + ": by model", Table: partTable("model", g.Models)})
	}
	if len(g.Periods) > 1 {
		sections = append(sections, chart.Section{
			Title: fmt.Sprintf("%s: by time, %v h each", g.Name, g.Periods[0].Hours), Plots: g.overTime(), Table: partTable("from (UTC)", g.Periods),
		})
	}
	return sections
}

// plots are the input's distribution with the bars in it, and the share that a bar or a multiple of the match releases.
func (g *Gate) plots() []chart.Plot {
	input := chart.Plot{
		Title: "The gate's input: how much later the sticky endpoint is than the best other one", X: "gap in ms (1 and less at the left)",
		Y: "share of decisions", LogX: true, TopY: 1, FormatX: display.Millis, FormatY: formatShare,
		Lines: []chart.Line{{Name: "gap", Steps: true, Points: points(g.CDF, false)}},
	}
	for _, bar := range g.BarsMs {
		if bar > 0 {
			input.Marks = append(input.Marks, chart.Mark{X: bar, Name: "bar " + millis(bar)})
		}
	}
	bar := chart.Plot{
		Title: "What a static bar would release", X: "maxTTFTPenaltyMs", Y: "share released", LogX: true, FormatX: display.Millis, FormatY: formatShare,
		Lines: []chart.Line{{Name: "released", Steps: true, Points: points(g.BarCDF, true)}},
	}
	if len(g.PeaksPerS) == 1 || g.Predicted { // the bar is of the same ms
		bar.Marks = input.Marks
	}
	plots := []chart.Plot{input, bar}
	if len(g.Ratios) > 1 {
		plots = append(plots, chart.Plot{
			Title: "What a multiple of the match would release", X: "gap in tokens ÷ matched tokens", Y: "share released", LogX: true, Least: 0.01,
			FormatY: formatShare, Marks: []chart.Mark{{X: 1, Name: "matchedTokens"}},
			Lines: []chart.Line{{Name: "released", Steps: true, Points: points(g.Ratios, true)}},
		})
	}
	return plots
}

// points are a distribution's; above turns shares of what is at most as large into shares of what is larger.
func points(all []Point, above bool) []chart.Point {
	to := make([]chart.Point, len(all))
	for i, p := range all {
		to[i] = chart.Point{X: p.Value, Y: p.Share}
		if above {
			to[i].Y = 1 - p.Share
		}
	}
	return to
}

func (g *Gate) overTime() []chart.Plot {
	begin := g.Periods[0].Begin
	format := func(v float64) string { return begin.Add(time.Duration(v * float64(time.Hour))).Format("01-02 15:04") }
	gaps := chart.Plot{
		Title: "The gate's input over time", X: "UTC", Y: "gap in ms", LogY: true, FormatX: format, FormatY: display.Millis,
		Lines: []chart.Line{{Name: "p50"}, {Name: "p90"}, {Name: "p99"}},
	}
	shares := chart.Plot{
		Title: "Released, and pinned far behind", X: "UTC", Y: "share of decisions", FormatX: format, FormatY: formatShare,
		Lines: []chart.Line{{Name: "released"}, {Name: "pinned"}},
	}
	for _, p := range g.Periods {
		x := p.Begin.Sub(begin).Hours() + p.Hours/2
		for i, y := range []float64{p.GapMs.P50, p.GapMs.P90, p.GapMs.P99} {
			gaps.Lines[i].Points = append(gaps.Lines[i].Points, chart.Point{X: x, Y: y})
		}
		for i, y := range []float64{share(p.Released, p.Compared), share(p.Pinned, p.Compared)} {
			shares.Lines[i].Points = append(shares.Lines[i].Points, chart.Point{X: x, Y: y})
		}
	}
	return []chart.Plot{gaps, shares}
}

func partTable(head string, parts []Part) *chart.Table {
	t := &chart.Table{Head: []string{head, "compared", "p50", "p90", "p99", "released", "pinned"}}
	for _, p := range parts {
		name := p.Model
		if !p.Begin.IsZero() {
			name = p.Begin.Format("2006-01-02 15:04")
		}
		t.Rows = append(t.Rows, []string{
			name, fmt.Sprint(p.Compared), display.Millis(p.GapMs.P50), display.Millis(p.GapMs.P90), display.Millis(p.GapMs.P99),
			percent(share(p.Released, p.Compared)), percent(share(p.Pinned, p.Compared)),
		})
	}
	return t
}
