package calibrate

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Paper is what a report is written on.
type Paper struct {
	// Cells is its width.
	Cells int
	// Styles says whether styles are written.
	Styles display.Styles
}

// interval writes a value with its bounds.
func interval(i *Interval, unit string) string {
	if i == nil {
		return display.Unknown
	}
	if i.Low == i.High {
		return number(i.Value) + unit
	}
	return fmt.Sprintf("%s%s (%s to %s)", number(i.Value), unit, number(max(0, i.Low)), number(i.High))
}

// learning says which gates need nothing.
func (d *Deployment) learning() []string {
	lines := make([]string, len(d.Learning))
	for i, name := range d.Learning {
		lines[i] = name + ": nothing need be set: the gate measures it."
		if slices.ContainsFunc(d.Changes, func(c Change) bool { return c.Parameter == peakParameter && c.Type == ratesType }) {
			lines[i] = strings.TrimSuffix(lines[i], ".") + ", from where " + ratesType + " starts."
		}
	}
	return lines
}

// ratesType is the plugin that learns.
const ratesType = "learnt-rates-producer"

// number writes a number with three digits at least.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return display.Unknown
	case a >= 100 || a == 0:
		return display.Grouped(math.Round(v))
	}
	return fmt.Sprintf("%.3g", v)
}

// WriteText writes a report for people. configured is the name of the configuration that the changes are for.
func (r *Report) WriteText(w io.Writer, p Paper, configured string) error {
	var lines []string
	put := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.Probe == nil {
		put("%s decisions", display.Grouped(r.Decisions))
	} else {
		put("%s: %d requests, %s prompt tokens", r.Probe.Endpoint, r.Probe.Requests, display.Grouped(r.Probe.PromptTokens))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
		put("  %s do not count: %s", display.Grouped(r.Skipped[reason]), display.Plain(reason))
	}
	for i := range r.Deployments {
		lines = append(lines, "")
		lines = append(lines, r.Deployments[i].lines(r, p, configured)...)
	}
	for _, note := range r.Notes {
		lines = append(lines, "")
		lines = append(lines, display.Wrap(display.Plain(note), "", p.Cells)...)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

func (d *Deployment) lines(r *Report, p Paper, configured string) []string {
	lines := []string{p.Styles.In(display.Bold, display.Plain(shown(d.Name)))}
	put := func(format string, args ...any) { lines = append(lines, "  "+fmt.Sprintf(format, args...)) }
	if d.PeakPerS == nil {
		put("%s: too little to measure", display.Things(float64(d.Samples), "request"))
		return lines
	}
	put("%-22s %s, from %s requests", "prefill throughput", interval(d.PeakPerS, " tokens per second"), display.Grouped(d.Samples))
	if d.WaitPerS != nil {
		put("%-22s %s", "tokens ahead go by at", interval(d.WaitPerS, " tokens per second"))
	}
	put("%-22s %s", "nothing to compute", interval(d.BaseMs, " ms"))
	if d.BreakEvenMs != nil {
		put("%-22s %s, or %s tokens in flight", "break-even", interval(d.BreakEvenMs, " ms"), number(d.BreakEvenTokens))
		if d.P90Ms > 0 {
			put("%-22s %s ms at a tenth of decisions, %s ms at nine tenths", "", number(d.P10Ms), number(d.P90Ms))
		}
		put("%-22s %s with α %v, κ %v", "at its price to others", interval(d.PricedMs, " ms"), r.Alpha, r.Kappa)
	}
	if f := d.moved(); f > 0 {
		put("%-22s by a factor of %.1f between periods of %v h", "it moved", f, d.Periods[0].Hours)
	}
	if r.Probe != nil {
		lines = append(lines, r.Probe.lines()...)
	}
	if len(d.Changes)+len(d.Learning) > 0 {
		put("")
		put("For %s:", display.Plain(configured))
	}
	for _, l := range d.learning() {
		put("%s", display.Plain(l))
	}
	if len(d.Changes) > 0 {
		lines = append(lines, "")
		lines = append(lines, strings.Split(strings.TrimRight(YAML(d.Changes), "\n"), "\n")...)
	}
	return lines
}

// lines are a table of what was asked.
func (p *Probe) lines() []string {
	columns := []display.Column{{Head: "prompt tokens", Right: true}, {Head: "TTFT ms", Right: true}, {Head: "again", Right: true}, {Head: "cached", Right: true}}
	var rows []display.Row
	for _, a := range p.byLength() {
		cached := display.Unknown
		if a.CachedTokens >= 0 {
			cached = display.Grouped(a.CachedTokens)
		}
		rows = append(rows, display.Row{Cells: []string{display.Grouped(a.PromptTokens), number(a.ColdMs), number(a.WarmMs), cached}})
	}
	lines := []string{""}
	for _, l := range display.Table(columns, rows, 80, false) {
		lines = append(lines, "  "+l)
	}
	return lines
}

// byLength are the medians of each length: those within a tenth of each other are one.
func (p *Probe) byLength() []Alone {
	all := slices.Clone(p.Alone)
	slices.SortFunc(all, func(a, b Alone) int { return a.PromptTokens - b.PromptTokens })
	var lengths []Alone
	for begin := 0; begin < len(all); {
		end := begin + 1
		for end < len(all) && float64(all[end].PromptTokens) < 1.1*float64(all[begin].PromptTokens) {
			end++
		}
		of := func(f func(Alone) float64) float64 {
			var values []float64
			for _, a := range all[begin:end] {
				values = append(values, f(a))
			}
			return median(values)
		}
		lengths = append(lengths, Alone{
			PromptTokens: int(of(func(a Alone) float64 { return float64(a.PromptTokens) })),
			ColdMs:       of(func(a Alone) float64 { return a.ColdMs }), WarmMs: of(func(a Alone) float64 { return a.WarmMs }),
			CachedTokens: int(of(func(a Alone) float64 { return float64(a.CachedTokens) })),
		})
		begin = end
	}
	return lengths
}
