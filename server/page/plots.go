package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// gates are the verdicts of the newest decisions.
type gates struct {
	verdicts [16]int // by scheduling.GateVerdict
	ms       []sample
	tokens   []sample
}

// sample is one gap that a gate saw.
type sample struct {
	gap, bar float64 // bar is NaN where there was none
	released bool
}

func (g *gates) add(reports []scheduling.GateReport) {
	for i := range reports {
		r := &reports[i]
		if int(r.Verdict) < len(g.verdicts) {
			g.verdicts[r.Verdict]++
		}
		released := r.Verdict >= scheduling.GateReleasedStatic && r.Verdict <= scheduling.GateReleasedBreakEven
		if !math.IsNaN(r.GapMs) {
			bar := r.BarMs
			if bar <= 0 {
				bar = math.NaN()
			}
			g.ms = append(g.ms, sample{r.GapMs, bar, released})
		}
		if !math.IsNaN(r.GapTokens) {
			g.tokens = append(g.tokens, sample{r.GapTokens, r.BarTokens, released})
		}
	}
}

// plot is a histogram.
type plot struct {
	Title, About string
	Summary      string
	Empty        string // what is missing, where there is nothing to draw
	Bars         []column
	Labels       []mark
	Bar          *mark // what gaps are held against
	Chips        []chip
	Top          string // what the highest column stands for
	Unit         string // of the axis
}

// column is one column of a plot: two parts on one another, in the plot's units.
type column struct {
	X, Width    float64
	Low, High   float64 // heights
	LowY, HighY float64
	Title       string
}

// mark is a place on the axis.
type mark struct {
	X      float64
	Text   string
	Anchor string
}

// chip is a number with a name.
type chip struct {
	Text, Class, Number string
}

// The size of a plot in its own units.
const (
	plotWidth  = 340.0
	plotLeft   = 6.0
	plotTop    = 36.0
	plotBottom = 136.0
)

// plots are the plots of the gate.
func plots(g gates, endpoints []*schedulerv1.Endpoint) []piece {
	verdicts := plot{Title: "Verdicts", About: fmt.Sprintf("What the load gates decided, over the newest %s decisions at most.", count(measuredDecisions))}
	for v, n := range g.verdicts {
		if n > 0 {
			text, class := verdict(decisionv1.GateVerdict(v) + decisionv1.GateVerdict_GATE_VERDICT_NONE)
			verdicts.Chips = append(verdicts.Chips, chip{text, class, count(n)})
		}
	}
	if verdicts.Chips == nil {
		verdicts.Empty = "No gate has run yet."
	}
	const none = "No gate has compared two endpoints yet. It does so when one holds the prompt and another one does not."
	return []piece{
		{"verdicts", verdicts},
		{"gap-ms", histogram("Gap in time", "How much longer the best holder of the prompt would take to the first token than the best other endpoint, in ms.", none, "ms", g.ms)},
		{"gap-tokens", histogram("Gap in tokens", "How many more tokens are in flight on the best holder than on the best other endpoint.", none, "tokens", g.tokens)},
		{"break-even", breakEven(endpoints)},
	}
}

// histogram draws gaps, those that were held below those that were let go, with the bound.
func histogram(title, about, empty, unit string, all []sample) plot {
	p := plot{Title: title, About: about}
	if len(all) == 0 {
		p.Empty = empty
		return p
	}
	gaps, bars, released := make([]float64, 0, len(all)), []float64{}, 0
	for _, s := range all {
		gaps = append(gaps, s.gap)
		if !math.IsNaN(s.bar) {
			bars = append(bars, s.bar)
		}
		if s.released {
			released++
		}
	}
	slices.Sort(gaps)
	slices.Sort(bars)
	low, high := gaps[0], gaps[len(gaps)-1]
	p.Summary = fmt.Sprintf("Half are at most %s, nine of ten at most %s %s. %s of %s released.",
		number(at(gaps, 0.5)), number(at(gaps, 0.9)), unit, count(released), count(len(all)))
	if len(bars) > 0 {
		middle := at(bars, 0.5)
		low, high = min(low, middle), max(high, middle)
		p.Summary += fmt.Sprintf(" The bar is %s %s", number(middle), unit)
		if bars[0] != bars[len(bars)-1] {
			p.Summary += fmt.Sprintf(" in the middle, from %s to %s", number(bars[0]), number(bars[len(bars)-1]))
		}
		p.Summary += "."
	} else {
		p.Summary += " There was no bar."
	}
	axis := newAxis(low, high)
	held, gone := make([]int, axis.bins()), make([]int, axis.bins())
	for _, s := range all {
		if i := axis.bin(s.gap); s.released {
			gone[i]++
		} else {
			held[i]++
		}
	}
	p.draw(axis, unit, "decision", held, gone, "held", "released")
	if len(bars) > 0 {
		m := mark{X: axis.place(at(bars, 0.5)), Text: "bar " + number(at(bars, 0.5)) + " " + unit, Anchor: "end"}
		if m.X < plotWidth/2 {
			m.Anchor = "start"
		}
		p.Bar = &m
	}
	p.Chips = []chip{{"held", "held", count(len(all) - released)}, {"released", "released", count(released)}}
	return p
}

// breakEven draws what endpoints have learnt of where a gate breaks even.
func breakEven(endpoints []*schedulerv1.Endpoint) plot {
	p := plot{
		Title: "Break-even",
		About: "How many tokens in flight cost a request as much as one prompt token that has to be computed, by endpoint.",
	}
	var all []float64
	for _, e := range endpoints {
		if r := e.GetRates(); r != nil && r.BreakEven != nil && r.GetBreakEven() > 0 {
			all = append(all, r.GetBreakEven())
		}
	}
	if len(all) == 0 {
		p.Empty = "Break-even: " + unknown + ". Endpoints appear here once their rates have been learnt."
		return p
	}
	slices.Sort(all)
	p.Summary = fmt.Sprintf("Known of %s of %s: from %s to %s, in the middle %s.", count(len(all)), plural(len(endpoints), "endpoint"),
		number(all[0]), number(all[len(all)-1]), number(at(all, 0.5)))
	axis := newAxis(all[0]*fine, all[len(all)-1]*fine)
	axis.fine = true
	n := make([]int, axis.bins())
	for _, v := range all {
		n[axis.bin(v*fine)]++
	}
	p.draw(axis, "tokens in flight for each prompt token", "endpoint", n, make([]int, len(n)), "endpoints", "")
	return p
}

// fine is how many times a value is magnified that may be a part of one.
const fine = 1000

// at is the value below which a share of sorted values lies.
func at(sorted []float64, share float64) float64 {
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// draw draws what of things lies where on an axis: low of them, and high on top of these.
func (p *plot) draw(a axis, unit, things string, low, high []int, lowName, highName string) {
	most := 1
	for i := range low {
		most = max(most, low[i]+high[i])
	}
	p.Top, p.Unit = plural(most, things), unit
	width := (plotWidth - 2*plotLeft) / float64(a.bins())
	scale := (plotBottom - plotTop) / float64(most)
	for i := range low {
		if low[i]+high[i] == 0 {
			continue
		}
		c := column{X: round(plotLeft + float64(i)*width + 0.5), Width: round(width - 1), Low: round(float64(low[i]) * scale), High: round(float64(high[i]) * scale)}
		c.LowY = round(plotBottom - c.Low)
		c.HighY = round(c.LowY - c.High)
		c.Title = a.name(i) + ": " + count(low[i]) + " " + lowName
		if highName != "" {
			c.Title += ", " + count(high[i]) + " " + highName
		}
		p.Bars = append(p.Bars, c)
	}
	p.Labels = a.labels(width)
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

// axis has bins between 1, 2 and 5 times the powers of ten, on both sides of zero.
type axis struct {
	edges []float64 // bin i is above edges[i] and at most edges[i+1]
	fine  bool      // labels are of values that were magnified
}

// furthest is where the outermost bins end.
const furthest = 1e9

// newAxis returns an axis that reaches from low to high.
func newAxis(low, high float64) axis {
	var up []float64
	for power := 1.0; power <= furthest; power *= 10 {
		for _, step := range []float64{1, 2, 5} {
			up = append(up, step*power)
		}
	}
	edges := make([]float64, 0, 2*len(up)+1)
	for _, v := range slices.Backward(up) {
		edges = append(edges, -v)
	}
	edges = append(append(edges, 0), up...)
	first, last := 0, len(edges)-1
	for first+1 < len(edges)-1 && edges[first+1] < low {
		first++
	}
	for last-1 > 0 && edges[last-1] >= high {
		last--
	}
	first, last = max(0, first-1), min(len(edges)-1, last+1)
	return axis{edges: edges[first : last+1]}
}

func (a axis) bins() int { return len(a.edges) - 1 }

func (a axis) bin(v float64) int {
	i, _ := slices.BinarySearch(a.edges, v)
	return min(max(0, i-1), a.bins()-1)
}

// place is where a value stands in the plot.
func (a axis) place(v float64) float64 {
	i := a.bin(v)
	part := (v - a.edges[i]) / (a.edges[i+1] - a.edges[i])
	width := (plotWidth - 2*plotLeft) / float64(a.bins())
	return round(plotLeft + (float64(i)+min(max(part, 0), 1))*width)
}

func (a axis) text(v float64) string {
	if a.fine {
		return number(v / fine)
	}
	switch m := math.Abs(v); {
	case m >= 1e6:
		return strings.ReplaceAll(number(v/1e6), " ", "") + "M"
	case m >= 1e3:
		return number(v/1e3) + "k"
	}
	return number(v)
}

func (a axis) name(i int) string {
	return "above " + a.text(a.edges[i]) + " to " + a.text(a.edges[i+1])
}

// digit is how wide a character of a label is at most, and apart how far labels are from each other at least.
const digit, apart = 7.0, 6.0

// labels are the edges that have room for their names, zero before all others. Where columns are narrow they are the powers of ten.
func (a axis) labels(width float64) []mark {
	const narrow = 30
	zero := max(0, slices.Index(a.edges, 0))
	type label struct {
		mark
		from, to float64
	}
	var all []label
	add := func(i int) {
		v := a.edges[i]
		if v != 0 && width < narrow && math.Abs(v) != math.Pow(10, math.Round(math.Log10(math.Abs(v)))) {
			return
		}
		l := label{mark: mark{X: round(plotLeft + float64(i)*width), Text: a.text(v), Anchor: "middle"}}
		wide := digit * float64(utf8.RuneCountInString(l.Text))
		switch i {
		case 0:
			l.Anchor, l.from = "start", l.X
		case len(a.edges) - 1:
			l.Anchor, l.from = "end", l.X-wide
		default:
			l.from = l.X - wide/2
		}
		l.to = l.from + wide
		taken := func(other label) bool { return l.from < other.to+apart && other.from < l.to+apart }
		if l.from >= 0 && l.to <= plotWidth && !slices.ContainsFunc(all, taken) {
			all = append(all, l)
		}
	}
	for d := range a.edges {
		if zero+d < len(a.edges) {
			add(zero + d)
		}
		if d > 0 && zero-d >= 0 {
			add(zero - d)
		}
	}
	slices.SortFunc(all, func(a, b label) int { return cmp.Compare(a.X, b.X) })
	marks := make([]mark, len(all))
	for i := range all {
		marks[i] = all[i].mark
	}
	return marks
}
