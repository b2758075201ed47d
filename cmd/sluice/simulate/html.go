package simulate

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-epp/sluice/cmd/sluice/chart"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// mostDrawn is how many candidates are drawn in one plot: of more nobody could tell the lines apart.
const mostDrawn = 8

// WriteHTML writes the rows as a page with plots.
func WriteHTML(w io.Writer, rows []Row) error {
	page := chart.Page{Title: "Simulation", Wide: true, Lead: lead(rows)}
	page.Sections = append(page.Sections, families(rows)...)
	for _, group := range byScenario(rows) {
		page.Sections = append(page.Sections, section(group))
	}
	page.Sections = append(page.Sections, chart.Section{Title: "What the figures mean", Text: meanings})
	return page.Write(w)
}

func lead(rows []Row) string {
	runs, missing, scenarios := 0, 0, len(byScenario(rows))
	candidates, builds := map[string]bool{}, map[string]bool{}
	for i := range rows {
		runs, missing = runs+len(rows[i].Runs), missing+rows[i].Missing
		candidates[rows[i].Candidate] = true
		for _, l := range rows[i].Runs {
			builds[l.Build] = true
		}
	}
	text := fmt.Sprintf("%d runs: candidates %d, scenarios %d.", runs, len(candidates), scenarios)
	if missing > 0 {
		text += fmt.Sprintf(" %d runs are missing.", missing)
	}
	var names []string
	for b := range builds {
		names = append(names, b)
	}
	sort.Strings(names)
	return text + " Simulated by sluice " + strings.Join(names, ", ") + "." + comparison(rows)
}

// comparison says how the best are marked, or why none is.
func comparison(rows []Row) (text string) {
	groups := byScenario(rows)
	if slices.ContainsFunc(groups, compared) {
		text += " Of each scenario the best figure is bold; a dotted line is below those whose interval and the best one's overlap."
	}
	if slices.ContainsFunc(groups, single) {
		text += " Where there is " + oneSeed + "."
	}
	return text
}

// meanings are what somebody needs who sees the page without its documentation.
var meanings = []string{
	"Requests arrive as in the trace; modelled engines compute them in virtual time. The loop is closed: where a request is sent changes what the caches hold and how long others wait.",
	"TTFT is the time from a request's arrival to its first token, TPOT the time per further token, E2E that to the last one. Goodput is the share of requests within both bounds of the SLO; a request that nobody served is not. Hit is the share of prompt tokens that came out of an engine's cache. Max/mean is the prefill of the engine that computed most over the mean of all. Released is the share of the load gate's decisions that let a request go from who holds its prefix. The warm-up does not count, but in the plots over time it is shown.",
	"Figures are means over seeds. After ± stands half of the interval in which the true mean lies with 95 % confidence (Student's t); with one seed there is none, and differences may be chance.",
}

// drawn are the rows that plots show: those with the least mean TTFT, in the order of the plan.
func drawn(group []Row) []int {
	var all []int
	for i := range group {
		if len(group[i].Runs) > 0 {
			all = append(all, i)
		}
	}
	if len(all) > mostDrawn {
		mean := func(i int) float64 { return group[i].estimate(figures[0].of).Mean }
		slices.SortStableFunc(all, func(a, b int) int {
			if mean(a) < mean(b) {
				return -1
			}
			return 1
		})
		all = all[:mostDrawn]
		slices.Sort(all)
	}
	return all
}

// section is a scenario.
func section(group []Row) chart.Section {
	s := chart.Section{Title: group[0].Scenario, Table: htmlTable(group, true), More: htmlTable(group, false), MoreTitle: "All figures"}
	if in := group[0].In; in != nil {
		s.Text = append(s.Text, in.describe()+ran(group))
		if note := in.rounded(); note != "" {
			s.Text = append(s.Text, "Warning: "+note+".")
		}
	}
	shown := drawn(group)
	if with := len(group); len(shown) == mostDrawn && with > mostDrawn {
		s.Text = append(s.Text, fmt.Sprintf("The plots show the %d of %d candidates with the lowest mean TTFT.", mostDrawn, with))
	}
	if len(shown) == 0 {
		return s
	}
	for colour, i := range shown {
		s.Legend = append(s.Legend, chart.Key{Name: group[i].Candidate, Colour: colour})
	}
	s.Plots = []chart.Plot{quantiles(group, shown), over(group, shown), hits(group, shown)}
	s.Figures = []template.HTML{goodput(group, shown), prefill(group, shown)}
	return s
}

// htmlTable has the figures of the table for terminals, or all of them and the gates' verdicts.
func htmlTable(group []Row, brief bool) *chart.Table {
	t := &chart.Table{Head: []string{"candidate", "runs"}}
	var shown []*figure
	var marked [][]string
	for i := range figures {
		if f := &figures[i]; f.shown || !brief {
			shown, marked = append(shown, f), append(marked, marks(group, f))
			t.Head = append(t.Head, f.name(brief))
		}
	}
	var verdicts []string
	if !brief {
		verdicts = verdictsOf(group)
	}
	for _, v := range verdicts {
		t.Head = append(t.Head, "gate: "+strings.ReplaceAll(v, "_", " ")+" %")
	}
	classes := map[string]string{markBest: "best", markEqual: "near"}
	for i := range group {
		r := &group[i]
		line, class := []string{r.Candidate, fmt.Sprint(len(r.Runs))}, []string{"", ""}
		for j, f := range shown {
			line, class = append(line, strings.TrimSpace(r.cell(f, markNone))), append(class, classes[marked[j][i]])
		}
		for _, v := range verdicts {
			line = append(line, r.verdict(v))
		}
		t.Rows, t.Classes = append(t.Rows, line), append(t.Classes, class)
	}
	return t
}

// name is the figure's heading, with what its quantiles are of where they are far from it.
func (f *figure) name(brief bool) string {
	if of, _, _ := strings.Cut(f.key, "_"); !brief && strings.HasPrefix(f.head, "p") {
		return strings.ToUpper(of) + " " + f.head
	}
	return f.head
}

// verdictsOf are the names of the load gates' verdicts.
func verdictsOf(group []Row) []string {
	var names []string
	for i := range group {
		for _, l := range group[i].Runs {
			for verdict := range l.Curves.Verdicts {
				if !slices.Contains(names, verdict) {
					names = append(names, verdict)
				}
			}
		}
	}
	sort.Strings(names)
	return names
}

// verdict is the share of a verdict in all that the candidate's gates decided.
func (r *Row) verdict(name string) string {
	n, total := 0, 0
	for _, l := range r.Runs {
		for verdict, count := range l.Curves.Verdicts {
			total += count
			if verdict == name {
				n += count
			}
		}
	}
	if total == 0 {
		return display.Unknown
	}
	return fmt.Sprintf("%.1f", 100*float64(n)/float64(total))
}

// mean is that of a series of curves over a row's runs, value by value. Values below 0 stand for none.
func (r *Row) mean(of func(*fleet.Curves) []float64) []float64 {
	var sum []float64
	var n []int
	for _, l := range r.Runs {
		for i, v := range of(&l.Curves) {
			if i >= len(sum) {
				sum, n = append(sum, 0), append(n, 0)
			}
			if v >= 0 {
				sum[i] += v
				n[i]++
			}
		}
	}
	for i := range sum {
		if n[i] == 0 {
			sum[i] = math.NaN()
		} else {
			sum[i] /= float64(n[i])
		}
	}
	return sum
}

// nines is where a share of requests stands along an axis on which 90, 99 and 99.9 % are equally far apart.
func nines(share float64) float64 { return -math.Log10(max(1-share, 1e-4)) }

func quantiles(group []Row, shown []int) chart.Plot {
	p := chart.Plot{
		Title: "TTFT by quantile", X: "share of requests that are at least as quick", Y: "TTFT, s", LogY: true, Least: 1e-3, Small: true,
		TicksX:  []float64{0, nines(0.5), nines(0.9), nines(0.99), nines(0.999)},
		FormatX: func(v float64) string { return fmt.Sprintf("%.4g %%", 100*(1-math.Pow(10, -v))) },
	}
	for colour, i := range shown {
		line := chart.Line{Name: group[i].Candidate, Colour: colour + 1}
		for j, v := range group[i].mean(func(c *fleet.Curves) []float64 { return c.TTFT }) {
			if share := fleet.QuantileShares[j]; share < 1 {
				line.Points = append(line.Points, chart.Point{X: nines(share), Y: v})
			}
		}
		p.Lines = append(p.Lines, line)
	}
	return p
}

// span is the mean length of a row's runs, in seconds.
func (r *Row) span() float64 {
	return r.estimate(func(l *Line) float64 { return l.Curves.Span }).Mean
}

func over(group []Row, shown []int) chart.Plot {
	p := chart.Plot{Title: "Mean TTFT over time", X: "time of arrival, s", Y: "TTFT, s", Small: true}
	low, high := math.Inf(1), 0.0
	for colour, i := range shown {
		line := timeLine(&group[i], colour, 1, func(c *fleet.Curves) []float64 { return c.Over })
		for _, pt := range line.Points {
			if pt.Y > 0 {
				low, high = min(low, pt.Y), max(high, pt.Y)
			}
		}
		p.Lines = append(p.Lines, line)
	}
	if high > 30*low { // what is small is to be seen beside what is large
		p.LogY, p.Least = true, low
	}
	return p
}

func hits(group []Row, shown []int) chart.Plot {
	p := chart.Plot{Title: "Hit rate over time", X: "time of arrival, s", Y: "hit rate, %", TopY: 100, Small: true}
	for colour, i := range shown {
		p.Lines = append(p.Lines, timeLine(&group[i], colour, 100, func(c *fleet.Curves) []float64 { return c.Hits }))
	}
	return p
}

// timeLine is a series over the time of the run, four parts of it drawn as one point so that lines can be told apart.
func timeLine(r *Row, colour int, scale float64, of func(*fleet.Curves) []float64) chart.Line {
	const together = 4
	line := chart.Line{Name: r.Candidate, Colour: colour + 1}
	values, span := r.mean(of), r.span()
	for from := 0; from < len(values); from += together {
		sum, n := 0.0, 0.0
		part := values[from:min(len(values), from+together)]
		for _, v := range part {
			if !math.IsNaN(v) {
				sum, n = sum+v, n+1
			}
		}
		if n > 0 {
			x := (float64(from) + float64(len(part))/2) / float64(len(values)) * span
			line.Points = append(line.Points, chart.Point{X: x, Y: scale * sum / n})
		}
	}
	return line
}

// goodputFigure is the figure of goodput.
func goodputFigure() *figure {
	return &figures[slices.IndexFunc(figures, func(f figure) bool { return f.key == "goodput" })]
}

func goodput(group []Row, shown []int) template.HTML {
	f := goodputFigure()
	var bars []chart.Bar
	for colour, i := range shown {
		e := group[i].estimate(f.of)
		text := fmt.Sprintf("%.1f %%", 100*e.Mean)
		if e.Half > 0 {
			text += fmt.Sprintf(" ±%.1f", 100*e.Half)
		}
		bars = append(bars, chart.Bar{Name: group[i].Candidate, Colour: colour, Value: e.Mean, Half: e.Half, Text: text})
	}
	return chart.Bars("Goodput", 1, bars)
}

func prefill(group []Row, shown []int) template.HTML {
	var strips []chart.Strip
	for colour, i := range shown {
		imbalance := group[i].estimate(func(l *Line) float64 { return l.Summary.Imbalance }).Mean
		strips = append(strips, chart.Strip{
			Name: group[i].Candidate, Colour: colour, Shares: group[i].mean(func(c *fleet.Curves) []float64 { return c.Prefill }),
			Text: fmt.Sprintf("%.2f", imbalance),
		})
	}
	return chart.Strips("Prefill by endpoint, and the most over the mean", strips)
}

// families are plots over the load, for scenarios that differ in nothing else.
func families(rows []Row) []chart.Section {
	var order []string
	groups := map[string][][]Row{}
	for _, group := range byScenario(rows) {
		if in := group[0].In; in != nil && in.Axis != "" {
			if groups[in.Family] == nil {
				order = append(order, in.Family)
			}
			groups[in.Family] = append(groups[in.Family], group)
		}
	}
	var all []chart.Section
	for _, family := range order {
		if len(groups[family]) > 1 {
			all = append(all, overLoad(family, groups[family]))
		}
	}
	return all
}

// overLoad plots what candidates do as the load grows.
func overLoad(family string, groups [][]Row) chart.Section {
	s := chart.Section{Title: family + ", by load"}
	names := commonNames(groups)
	if len(names) > mostDrawn {
		s.Text = append(s.Text, fmt.Sprintf("The plots show the %d of %d candidates with the lowest mean TTFT at the highest load.", mostDrawn, len(names)))
		names = quickest(groups[len(groups)-1], names)
	}
	for colour, name := range names {
		s.Legend = append(s.Legend, chart.Key{Name: name, Colour: colour})
	}
	axis := groups[0][0].In.Axis
	for _, key := range []string{"ttft_mean_s", "ttft_p99_s", "goodput", "hit_rate"} {
		f := &figures[slices.IndexFunc(figures, func(f figure) bool { return f.key == key })]
		title := map[string]string{"ttft_mean_s": "Mean TTFT, s", "ttft_p99_s": "TTFT p99, s", "goodput": "Goodput, %", "hit_rate": "Hit rate, %"}[key]
		p := chart.Plot{Title: title, X: axis, Y: title, Small: true, LogY: strings.HasPrefix(key, "ttft"), Least: 1e-3}
		if f.better == higher {
			p.TopY = 100
		}
		for _, group := range groups {
			p.TicksX = append(p.TicksX, group[0].In.Value)
		}
		for colour, name := range names {
			line := chart.Line{Name: name, Colour: colour + 1, Marked: true}
			for _, group := range groups {
				i := slices.IndexFunc(group, func(r Row) bool { return r.Candidate == name })
				if i < 0 || len(group[i].Runs) == 0 {
					continue
				}
				e := group[i].estimate(f.of)
				line.Points = append(line.Points, chart.Point{X: group[0].In.Value, Y: e.Mean * f.scale})
				line.Halves = append(line.Halves, e.Half*f.scale)
			}
			p.Lines = append(p.Lines, line)
		}
		p.Least = half(p.Lines) // an interval that reaches below 0 ends there
		s.Plots = append(s.Plots, p)
	}
	return s
}

// half is half of the smallest value above 0 that lines have.
func half(lines []chart.Line) float64 {
	least := math.Inf(1)
	for _, l := range lines {
		for _, pt := range l.Points {
			if pt.Y > 0 {
				least = min(least, pt.Y)
			}
		}
	}
	if math.IsInf(least, 1) {
		return 1
	}
	return least / 2
}

// commonNames are the candidates of all groups, in their order.
func commonNames(groups [][]Row) []string {
	var names []string
	for _, group := range groups {
		for i := range group {
			if name := group[i].Candidate; len(group[i].Runs) > 0 && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// quickest are the names that are drawn of a group.
func quickest(group []Row, names []string) []string {
	var kept []string
	for _, i := range drawn(group) {
		if slices.Contains(names, group[i].Candidate) {
			kept = append(kept, group[i].Candidate)
		}
	}
	return kept
}
