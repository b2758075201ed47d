package gatereport

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Paper is what a report is written on.
type Paper struct {
	// Cells is its width.
	Cells int
	// Styles says whether styles are written.
	Styles display.Styles
}

// millis writes a time short and without loss for round ones.
func millis(ms float64) string {
	if ms >= 1000 && ms < 1e7 && ms == math.Trunc(ms/100)*100 {
		return fmt.Sprintf("%v s", ms/1000)
	}
	return display.Millis(ms)
}

// whole writes a number without its fraction, in groups of three digits.
func whole(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0 && !math.IsInf(v, 0); i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// percent writes a share with one decimal.
func percent(v float64) string {
	if math.IsNaN(v) {
		return display.Unknown
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// WriteText writes a report for people.
func (r *Report) WriteText(w io.Writer, p Paper) error {
	var lines []string
	put := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	put("%s", r.lead())
	for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
		put("  %d left out: %s", r.Skipped[reason], display.Plain(reason))
	}
	for i := range r.Gates {
		lines = append(lines, "")
		lines = append(lines, r.Gates[i].lines(r, p)...)
	}
	for _, note := range r.Notes {
		lines = append(lines, "")
		lines = append(lines, display.Wrap(note, "", p.Cells)...)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// lead says how many decisions of what time there are.
func (r *Report) lead() string {
	lead := whole(float64(r.Decisions)) + " decisions"
	if r.From.IsZero() {
		return lead
	}
	return fmt.Sprintf("%s, %s to %s UTC", lead, r.From.Format(time.DateTime), r.To.Format(time.DateTime))
}

func (g *Gate) lines(r *Report, p Paper) []string {
	lines := []string{p.Styles.In(display.Bold, display.Plain(g.Name)) + g.setting()}
	put := func(format string, args ...any) { lines = append(lines, "  "+fmt.Sprintf(format, args...)) }
	var verdicts []string
	for _, v := range slices.Sorted(maps.Keys(g.Verdicts)) {
		verdicts = append(verdicts, fmt.Sprintf("%s %d", v, g.Verdicts[v]))
	}
	put("%s", strings.Join(verdicts, ", "))
	if g.Compared == 0 {
		put("It never had a sticky endpoint and another one to compare.")
		return lines
	}
	known := "a known load"
	if g.Predicted {
		known = "a predicted time"
	}
	put("compared  %d decisions: a sticky endpoint and another one, both with %s", g.Compared, known)
	for i, q := range []*Quantiles{g.GapMs, g.GapTokens} {
		put("%s p50 %s, p90 %s, p99 %s, most %s %s", []string{"input    ", "         "}[i], whole(q.P50), whole(q.P90), whole(q.P99), whole(q.Max),
			[]string{"ms", "tokens"}[i])
	}
	if g.Name != NoGate {
		put("released  %d of %d, %s; %d of them left the prefix", g.Released, g.Compared, percent(share(g.Released, g.Compared)), g.Moved)
	}
	put("pinned    %d of %d, %s, while another endpoint was %s or more %s", g.Pinned, g.Compared,
		percent(share(g.Pinned, g.Compared)), millis(r.BehindMs), g.ahead())
	var steps []string
	for _, s := range g.Steps {
		if s.Held > 0 {
			steps = append(steps, fmt.Sprintf("≥ %s %s", millis(s.BehindMs), percent(share(s.Held, g.Compared))))
		}
	}
	if len(steps) > 0 {
		lines = append(lines, display.Wrap(strings.Join(steps, " · "), "            ", p.Cells)...)
	}
	lines = append(lines, "")
	lines = append(lines, g.whatIf(r, p)...)
	for _, parts := range [][]Part{g.Models, g.Periods} {
		if len(parts) > 1 {
			lines = append(lines, "")
			lines = append(lines, partLines(parts, p)...)
		}
	}
	return lines
}

// ahead is what an endpoint is that the gate would rather have.
func (g *Gate) ahead() string {
	if g.Predicted {
		return "earlier, as predicted"
	}
	return "less loaded"
}

func (g *Gate) setting() string {
	var all []string
	for _, b := range g.BarsMs {
		if b > 0 {
			all = append(all, "bar "+millis(b))
		}
	}
	for _, t := range g.PeaksPerS {
		all = append(all, fmt.Sprintf("%v tok/s", t))
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func (g *Gate) whatIf(r *Report, p Paper) []string {
	columns := []display.Column{
		{Head: "what if", Flexible: true}, {Head: "released", Right: true}, {Head: "", Right: true},
		{Head: "pinned ≥ " + millis(r.BehindMs), Right: true}, {Head: "changed", Right: true}, {Head: "gap each", Right: true},
		{Head: "tokens again each", Right: true},
	}
	var rows []display.Row
	for _, u := range g.WhatIf {
		rows = append(rows, display.Row{Cells: []string{
			"  " + display.Plain(u.Rule), fmt.Sprint(u.Released), percent(share(u.Released, u.Compared)), percent(share(u.Pinned, u.Compared)),
			fmt.Sprint(u.Changed), display.Millis(u.SparedMs / float64(u.Released)), display.Count(u.RecomputedTokens / float64(u.Released)),
		}})
	}
	return display.Table(columns, rows, p.Cells, p.Styles)
}

func partLines(parts []Part, p Paper) []string {
	head := "model"
	if parts[0].Model == "" && !parts[0].Begin.IsZero() {
		head = fmt.Sprintf("from (UTC), %v h each", parts[0].Hours)
	}
	columns := []display.Column{
		{Head: head, Flexible: true}, {Head: "compared", Right: true}, {Head: "p50", Right: true}, {Head: "p90", Right: true},
		{Head: "p99", Right: true}, {Head: "released", Right: true}, {Head: "pinned", Right: true},
	}
	var rows []display.Row
	for _, part := range parts {
		name := display.Plain(part.Model)
		if !part.Begin.IsZero() {
			name = part.Begin.Format("2006-01-02 15:04")
		}
		rows = append(rows, display.Row{Cells: []string{
			"  " + name, fmt.Sprint(part.Compared), display.Millis(part.GapMs.P50), display.Millis(part.GapMs.P90), display.Millis(part.GapMs.P99),
			percent(share(part.Released, part.Compared)), percent(share(part.Pinned, part.Compared)),
		}})
	}
	return display.Table(columns, rows, p.Cells, p.Styles)
}
