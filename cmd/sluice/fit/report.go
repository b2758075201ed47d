package fit

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/cmd/sluice/chart"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	simfit "github.com/sluice-epp/sluice/sim/fit"
)

// Report is a fit and what it is made of.
type Report struct {
	// Samples are what was fitted, Result is the fit, Budget the tokens of a step that it took for granted.
	Samples *Samples
	Result  *simfit.Result
	Budget  int
}

// units are what the costs are shown in, with what they are of.
var units = []struct {
	scale float64
	unit  string
	of    string
}{
	{1e3, "ms", "per step"},
	{1e6, "µs", "per prompt token computed"},
	{1e9, "ns", "per pair of prompt token and token that it attends to"},
	{1e6, "µs", "per sequence that decodes"},
	{1e9, "ns", "per token of context of a sequence that decodes"},
}

// Profile is a file for `sluice engine --profile` and `sluice simulate --profile`.
func (r *Report) Profile() string {
	c := r.Result.Cost
	var b strings.Builder
	fmt.Fprintf(&b, "# Fitted to %d times to the first token and %d per token, R² %.4f, mean error %.1f %%.\n",
		r.Result.TTFTs, r.Result.TPOTs, r.Result.R2, 100*r.Result.MAPE)
	fmt.Fprintf(&b, "maxBatchedTokens: %d\ncost: # seconds\n", r.Budget)
	for i, v := range []float64{c.Base, c.PrefillToken, c.Attention, c.DecodeSeq, c.DecodeContext} {
		e := r.Result.Estimates[i]
		note := fmt.Sprintf("%.3g to %.3g", e.Low, e.High)
		if !e.Identified {
			note = "default: " + e.Why
		}
		fmt.Fprintf(&b, "  %s: %.4g # %s\n", e.Name, v, note)
	}
	return b.String()
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer, cells int) error {
	for _, line := range r.lead() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	columns := []display.Column{{Head: "cost"}, {Head: "fitted", Right: true}, {Head: "95 %", Right: true}, {Head: "", Flexible: true}}
	var rows []display.Row
	for _, cells := range r.table() {
		rows = append(rows, display.Row{Cells: cells})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	for _, line := range display.Table(columns, rows, cells, false) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	for _, line := range r.defaults() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nFor --profile of sluice engine and sluice simulate:\n\n%s", r.Profile())
	return err
}

func (r *Report) table() (rows [][]string) {
	for i, e := range r.Result.Estimates {
		u := units[i]
		interval := fmt.Sprintf("%.3g to %.3g %s", e.Low*u.scale, e.High*u.scale, u.unit)
		if !e.Identified {
			interval = "-"
		}
		rows = append(rows, []string{e.Name, fmt.Sprintf("%.4g %s", e.Value*u.scale, u.unit), interval, u.of})
	}
	return rows
}

// defaults say which costs were not fitted, and why.
func (r *Report) defaults() (all []string) {
	for _, e := range r.Result.Estimates {
		if !e.Identified {
			all = append(all, fmt.Sprintf("%s keeps its default: %s", e.Name, e.Why))
		}
	}
	return all
}

// plural is a number of things, with the verb behind it.
func plural(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// lead says what was read and how good the fit is.
func (r *Report) lead() []string {
	f := r.Result
	all := []string{fmt.Sprintf("%s, of which %s fitted: %s to the first token, %d per further token.", plural(r.Samples.Read, "row", "rows"),
		plural(len(r.Samples.Kept), "sample was", "samples were"), plural(f.TTFTs, "time", "times"), f.TPOTs)}
	for _, why := range slices.Sorted(maps.Keys(r.Samples.Skipped)) {
		all = append(all, fmt.Sprintf("%s left out: %s.", plural(r.Samples.Skipped[why], "row was", "rows were"), why))
	}
	share := float64(f.Outliers) / float64(f.TTFTs+f.TPOTs)
	all = append(all, fmt.Sprintf("R² of the times to the first token %.4f, mean error %.1f %%, without %s (%.1f %%).", f.R2, 100*f.MAPE,
		plural(f.Outliers, "outlier", "outliers"), 100*share))
	if share > 0.2 {
		all = append(all, "So many outliers mean that requests waited for others, or that times are noisy or too short: measure an idle engine, one "+
			"request at a time, or tell in_flight.")
	}
	if f.MAPE > 0.15 {
		all = append(all, "The costs do not describe these times well: is the budget of a step (--max-batched-tokens) the engine's?")
	}
	return append(all, fmt.Sprintf("A cold step of %d tokens goes at %.0f tokens a second.", r.Budget, f.Peak))
}

// WriteJSON writes the report for programs: costs in seconds.
func (r *Report) WriteJSON(w io.Writer) error {
	type estimate struct {
		Name       string  `json:"name"`
		Value      float64 `json:"value"`
		Low        float64 `json:"low"`
		High       float64 `json:"high"`
		Identified bool    `json:"identified"`
		Why        string  `json:"why,omitzero"`
	}
	f := r.Result
	out := struct {
		Rows      int            `json:"rows"`
		Samples   int            `json:"samples"`
		Skipped   map[string]int `json:"skipped,omitzero"`
		TTFTs     int            `json:"ttfts"`
		TPOTs     int            `json:"tpots"`
		Outliers  int            `json:"outliers"`
		R2        float64        `json:"r2"`
		MAPE      float64        `json:"mape"`
		Peak      float64        `json:"peak_prefill_tokens_per_s"`
		Budget    int            `json:"max_batched_tokens"`
		Estimates []estimate     `json:"cost"`
	}{r.Samples.Read, len(r.Samples.Kept), r.Samples.Skipped, f.TTFTs, f.TPOTs, f.Outliers, f.R2, f.MAPE, f.Peak, r.Budget, nil}
	for _, e := range f.Estimates {
		out.Estimates = append(out.Estimates, estimate(e))
	}
	return json.MarshalWrite(w, out, json.Deterministic(true), jsontext.WithIndent("  "))
}

// maxDots is how many points a plot has; of more, every so many-th.
const maxDots = 3000

// WriteHTML writes the report as a page.
func (r *Report) WriteHTML(w io.Writer) error {
	p := chart.Page{Title: "Costs of an engine's steps", Lead: strings.Join(r.lead(), " ")}
	var table [][]string
	for _, row := range r.table() {
		table = append(table, []string{row[0] + ", " + row[3], row[1], row[2]})
	}
	p.Sections = append(p.Sections,
		chart.Section{Title: "Costs", Text: r.defaults(), Table: &chart.Table{Head: []string{"cost", "fitted", "95 %"}, Rows: table}},
		chart.Section{Title: "Measured against fitted", Text: []string{
			"A point is a measured time. What the fit describes is on the line; what lies above it took longer than it says, " +
				"as requests do that wait for others. Outliers have no say.",
		}},
	)
	at := &p.Sections[1]
	for _, kind := range []struct {
		tpot  bool
		title string
	}{{false, "Time to the first token"}, {true, "Time per further token"}} {
		if plot, any := r.plot(kind.tpot); any {
			plot.Title = kind.title
			at.Plots = append(at.Plots, plot)
		}
	}
	p.Sections = append(p.Sections, chart.Section{
		Title: "Profile", Text: []string{"For --profile of sluice engine and sluice simulate."}, Code: r.Profile(),
	})
	return p.Write(w)
}

func (r *Report) plot(tpot bool) (p chart.Plot, any bool) {
	p = chart.Plot{X: "fitted, ms", Y: "measured, ms", LogX: true, LogY: true, Least: 1e-3}
	dots := chart.Line{Name: "measured", Dots: true}
	outliers := chart.Line{Name: "outliers", Dots: true}
	line := chart.Line{Name: "as fitted"}
	every := max(1, len(r.Result.Points)/maxDots)
	for i, point := range r.Result.Points {
		if point.TPOT != tpot {
			continue
		}
		any = true
		at := chart.Point{X: 1e3 * point.Fitted, Y: 1e3 * point.Measured}
		if len(line.Points) == 0 {
			line.Points = []chart.Point{{X: at.X, Y: at.X}, {X: at.X, Y: at.X}}
		}
		line.Points[0].X, line.Points[1].X = min(line.Points[0].X, at.X), max(line.Points[1].X, at.X)
		switch {
		case point.Outlier:
			outliers.Points = append(outliers.Points, at)
		case i%every == 0:
			dots.Points = append(dots.Points, at)
		}
	}
	for i := range line.Points {
		line.Points[i].Y = line.Points[i].X
	}
	if len(outliers.Points) > maxDots {
		outliers.Points = outliers.Points[:maxDots]
	}
	p.Lines = []chart.Line{line, dots, outliers}
	return p, any
}
