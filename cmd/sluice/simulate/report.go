package simulate

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// Row is a candidate in a scenario.
type Row struct {
	// Scenario and Candidate name them.
	Scenario, Candidate string
	// In is the scenario.
	In *Scenario
	// Runs are those of the seeds that are done, in their order.
	Runs []*Line
	// Missing is how many are not done.
	Missing int
}

// Rows are a plan's, as far as the results have them, in the order of scenarios and candidates.
func (p *Plan) Rows(results *Results) []Row {
	var rows []Row
	for _, r := range p.Runs() {
		if r.Seed == 1 {
			rows = append(rows, Row{Scenario: r.Scenario.Name, Candidate: r.Candidate.Name, In: r.Scenario})
		}
		row := &rows[len(rows)-1]
		if line := results.Get(r.Key); line != nil {
			row.Runs = append(row.Runs, line)
		} else {
			row.Missing++
		}
	}
	return rows
}

// Estimate is a mean over seeds and half of its interval, in which the true mean is with a confidence of 95 % (Student's t).
type Estimate struct {
	Mean float64
	// Half is 0 where Seeds is below 2: there is no interval then.
	Half float64
	// Seeds are how many runs have the figure; without any the mean means nothing.
	Seeds int
}

// estimate is the mean of a figure of a row's runs. Runs that do not have the figure, whose value is not a number, do not count.
func (r *Row) estimate(of func(*Line) float64) Estimate {
	var values []float64
	for _, l := range r.Runs {
		if v := of(l); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	e := Estimate{Seeds: len(values)}
	if e.Seeds == 0 {
		return e
	}
	n, sum, squares := float64(e.Seeds), 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	e.Mean = sum / n
	for _, v := range values {
		squares += (v - e.Mean) * (v - e.Mean)
	}
	if e.Seeds > 1 {
		t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
		e.Half = t * math.Sqrt(squares/(n-1)/n)
	}
	return e
}

// Which values of a figure are better.
const (
	neither = 0
	lower   = -1
	higher  = 1
)

// figure is one that is reported.
type figure struct {
	head, key string
	scale     float64
	decimals  int
	better    int
	of        func(*Line) float64
	shown     bool // in tables
}

func of(summary func(*fleet.Summary) float64) func(*Line) float64 {
	return func(l *Line) float64 { return summary(&l.Summary) }
}

var figures = []figure{
	{"TTFT s", "ttft_mean_s", 1, 3, lower, of(func(s *fleet.Summary) float64 { return s.TTFTMean }), true},
	{"p50", "ttft_p50_s", 1, 3, lower, of(func(s *fleet.Summary) float64 { return s.TTFTP50 }), true},
	{"p90", "ttft_p90_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.TTFTP90 }), true},
	{"p99", "ttft_p99_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.TTFTP99 }), true},
	{"TPOT ms", "tpot_mean_ms", 1000, 1, lower, of(func(s *fleet.Summary) float64 { return s.TPOTMean }), true},
	{"p50", "tpot_p50_ms", 1000, 1, lower, of(func(s *fleet.Summary) float64 { return s.TPOTP50 }), false},
	{"p90", "tpot_p90_ms", 1000, 1, lower, of(func(s *fleet.Summary) float64 { return s.TPOTP90 }), false},
	{"p99", "tpot_p99_ms", 1000, 1, lower, of(func(s *fleet.Summary) float64 { return s.TPOTP99 }), false},
	{"E2E s", "e2e_mean_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.E2EMean }), false},
	{"p50", "e2e_p50_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.E2EP50 }), false},
	{"p90", "e2e_p90_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.E2EP90 }), false},
	{"p99", "e2e_p99_s", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.E2EP99 }), false},
	{"goodput %", "goodput", 100, 1, higher, of(func(s *fleet.Summary) float64 { return s.Goodput }), true},
	{"hit %", "hit_rate", 100, 1, higher, of(func(s *fleet.Summary) float64 { return s.HitRate }), true},
	{"max/mean", "imbalance", 1, 2, lower, of(func(s *fleet.Summary) float64 { return s.Imbalance }), true},
	{"released %", "released", 100, 1, neither, of(released), true},
	{"decision µs", "decision_us", 1e6, 1, neither, func(l *Line) float64 { return l.Decision }, false},
	{"requests", "requests", 1, 0, neither, of(func(s *fleet.Summary) float64 { return float64(s.Requests) }), false},
}

// released is the share of the gate's decisions that released; not a number where there is no gate, or nothing was sticky.
func released(s *fleet.Summary) float64 {
	if s.Gated == 0 {
		return math.NaN()
	}
	return float64(s.Released) / float64(s.Gated)
}

// unit is a value in the unit of the figure's key: what is a share there is shown in percent.
func (f *figure) unit(v float64) float64 {
	if f.scale == 100 {
		return v
	}
	return v * f.scale
}

// shows is a value as it is written.
func (f *figure) shows(v float64) string { return fmt.Sprintf("%.*f", f.decimals, v*f.scale) }

// The marks of a figure among those of a scenario.
const (
	markNone  = ""
	markBest  = "*" // the best
	markEqual = "=" // its interval and that of the best overlap
)

// marks compares a figure of a scenario's rows. Rows of fewer than two runs have none: their differences may be chance. One row
// alone is not compared. What is written as the best is the best too.
func marks(rows []Row, f *figure) []string {
	all := make([]string, len(rows))
	best, n := -1, 0
	estimates := make([]Estimate, len(rows))
	for i := range rows {
		if estimates[i] = rows[i].estimate(f.of); estimates[i].Seeds < 2 {
			continue
		}
		n++
		if best < 0 || float64(f.better)*(estimates[i].Mean-estimates[best].Mean) > 0 {
			best = i
		}
	}
	if n < 2 || f.better == neither {
		return all
	}
	for i, e := range estimates {
		switch b := estimates[best]; {
		case e.Seeds < 2:
		case f.shows(e.Mean) == f.shows(b.Mean):
			all[i] = markBest
		case math.Abs(e.Mean-b.Mean) <= e.Half+b.Half:
			all[i] = markEqual
		}
	}
	return all
}

// oneSeed is said where there are no intervals.
const oneSeed = "one seed: no intervals; differences may be chance"

// single reports whether rows are compared, and any has one run only.
func single(group []Row) bool {
	return len(group) > 1 && slices.ContainsFunc(group, func(r Row) bool { return len(r.Runs) == 1 })
}

// compared reports whether two rows have intervals, so that marks are set.
func compared(group []Row) bool {
	n := 0
	for i := range group {
		if len(group[i].Runs) > 1 {
			n++
		}
	}
	return n > 1
}

// counted says how many requests of a run count.
func counted(group []Row) string {
	least, most := math.MaxInt, 0
	for i := range group {
		for _, l := range group[i].Runs {
			least, most = min(least, l.Summary.Requests), max(most, l.Summary.Requests)
		}
	}
	switch {
	case least > most:
		return ""
	case least == most:
		return fmt.Sprintf("%d requests of each run count", most)
	default:
		return fmt.Sprintf("%d to %d requests of each run count", least, most)
	}
}

// byScenario splits rows where another scenario begins.
func byScenario(rows []Row) [][]Row {
	var all [][]Row
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(r Row) bool { return r.Scenario != rows[0].Scenario })
		if n < 0 {
			n = len(rows)
		}
		all, rows = append(all, rows[:n]), rows[n:]
	}
	return all
}

// WriteTable writes the rows for people, a table for each scenario.
func WriteTable(w io.Writer, rows []Row, cells int) error {
	legend := false
	for i, group := range byScenario(rows) {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w, display.Plain(group[0].Scenario)); err != nil {
			return err
		}
		for _, line := range table(group, cells) {
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
		legend = legend || compared(group)
		foot := counted(group)
		if single(group) {
			foot += "; " + oneSeed
		}
		if foot == "" {
			continue
		}
		if _, err := fmt.Fprintln(w, foot); err != nil {
			return err
		}
	}
	if !legend {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s best in its column; %s its interval and the best one's overlap (95 %%, Student's t)\n", markBest, markEqual)
	return err
}

func table(group []Row, cells int) []string {
	columns := []display.Column{{Head: "candidate", Flexible: true}, {Head: "runs", Right: true}}
	var shown []*figure
	var marked [][]string
	for i := range figures {
		if f := &figures[i]; f.shown {
			shown, marked = append(shown, f), append(marked, marks(group, f))
			columns = append(columns, display.Column{Head: f.head + " ", Right: true})
		}
	}
	lines := make([]display.Row, len(group))
	for i := range group {
		r := &group[i]
		line := []string{display.Plain(r.Candidate), fmt.Sprint(len(r.Runs))}
		for j, f := range shown {
			line = append(line, r.cell(f, marked[j][i]))
		}
		lines[i] = display.Row{Cells: line}
	}
	return display.Table(columns, lines, cells, false)
}

// load is what share of the fleet's capacity the scenario asks for; 0 where that is not known.
func (r *Row) load() float64 {
	if r.In == nil {
		return 0
	}
	return r.In.Load
}

// cell is a figure in a table, as "1.234 ±0.010*". The mark has a place of its own, so that digits stand below each other.
func (r *Row) cell(f *figure, mark string) string {
	e := r.estimate(f.of)
	if e.Seeds == 0 {
		return display.Unknown + " "
	}
	text := f.shows(e.Mean)
	if e.Seeds > 1 {
		text += " ±" + f.shows(e.Half)
	}
	if mark == markNone {
		mark = " "
	}
	return text + mark
}

// WriteJSON writes the rows for programs.
func WriteJSON(w io.Writer, rows []Row) error {
	type estimate struct {
		Mean float64  `json:"mean"`
		Half *float64 `json:"half"` // null: there is one seed
	}
	type out struct {
		Scenario  string               `json:"scenario"`
		Candidate string               `json:"candidate"`
		Load      float64              `json:"load,omitzero"`
		Seeds     int                  `json:"seeds"`
		Missing   int                  `json:"missing,omitzero"`
		Took      float64              `json:"took_s"`
		Figures   map[string]*estimate `json:"figures"` // null: no run has it
		Marks     map[string]string    `json:"marks,omitzero"`
		Runs      []*Line              `json:"runs"`
	}
	all := []out{}
	for _, group := range byScenario(rows) {
		from := len(all)
		for i := range group {
			r := &group[i]
			o := out{r.Scenario, r.Candidate, r.load(), len(r.Runs), r.Missing, 0, map[string]*estimate{}, nil, r.Runs}
			if compared(group) && len(r.Runs) > 1 {
				o.Marks = map[string]string{}
			}
			for _, l := range r.Runs {
				o.Took += l.Took
			}
			for j := range figures {
				f := &figures[j]
				switch e := r.estimate(f.of); {
				case len(r.Runs) == 0:
				case e.Seeds == 0:
					o.Figures[f.key] = nil
				default:
					o.Figures[f.key] = &estimate{Mean: f.unit(e.Mean)}
					if e.Seeds > 1 {
						half := f.unit(e.Half)
						o.Figures[f.key].Half = &half
					}
				}
			}
			all = append(all, o)
		}
		for j := range figures {
			for i, mark := range marks(group, &figures[j]) {
				switch mark {
				case markBest:
					all[from+i].Marks[figures[j].key] = "best"
				case markEqual:
					all[from+i].Marks[figures[j].key] = "overlaps"
				}
			}
		}
	}
	return json.MarshalWrite(w, all, json.Deterministic(true), jsontext.WithIndent("  "))
}
