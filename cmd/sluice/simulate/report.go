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

// Estimate is a mean over seeds and half of its interval, in which the true mean is with a confidence of 95 % (Student's t); 0
// with one seed.
type Estimate struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half"`
}

// estimate is the mean of a figure of a row's runs, of which there is one at least.
func (r *Row) estimate(of func(*Line) float64) Estimate {
	n := float64(len(r.Runs))
	sum, squares := 0.0, 0.0
	for _, s := range r.Runs {
		sum += of(s)
	}
	mean := sum / n
	for _, s := range r.Runs {
		squares += (of(s) - mean) * (of(s) - mean)
	}
	if n < 2 {
		return Estimate{Mean: mean}
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return Estimate{Mean: mean, Half: t * math.Sqrt(squares/(n-1)/n)}
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
	{"released %", "released", 100, 1, neither, of(func(s *fleet.Summary) float64 { return float64(s.Released) / max(1, float64(s.Gated)) }), true},
	{"decision µs", "decision_us", 1e6, 1, neither, func(l *Line) float64 { return l.Decision }, true},
}

// The marks of a figure among those of a scenario.
const (
	markNone  = ""
	markBest  = "*" // the best
	markEqual = "=" // its interval and that of the best overlap
)

// marks compares a figure of a scenario's rows. Rows without runs have none. One row alone is not compared.
func marks(rows []Row, f *figure) []string {
	all := make([]string, len(rows))
	best, n := -1, 0
	estimates := make([]Estimate, len(rows))
	for i := range rows {
		if len(rows[i].Runs) == 0 {
			continue
		}
		n++
		estimates[i] = rows[i].estimate(f.of)
		if best < 0 || float64(f.better)*(estimates[i].Mean-estimates[best].Mean) > 0 {
			best = i
		}
	}
	if n < 2 || f.better == neither {
		return all
	}
	for i, e := range estimates {
		switch b := estimates[best]; {
		case len(rows[i].Runs) == 0:
		case e.Mean == b.Mean:
			all[i] = markBest
		case math.Abs(e.Mean-b.Mean) <= e.Half+b.Half:
			all[i] = markEqual
		}
	}
	return all
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
		legend = legend || len(group) > 1
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
	if len(r.Runs) == 0 {
		return display.Unknown + " "
	}
	e := r.estimate(f.of)
	text := fmt.Sprintf("%.*f", f.decimals, e.Mean*f.scale)
	if len(r.Runs) > 1 {
		text += fmt.Sprintf(" ±%.*f", f.decimals, e.Half*f.scale)
	}
	if mark == markNone {
		mark = " "
	}
	return text + mark
}

// WriteJSON writes the rows for programs.
func WriteJSON(w io.Writer, rows []Row) error {
	type out struct {
		Scenario  string              `json:"scenario"`
		Candidate string              `json:"candidate"`
		Load      float64             `json:"load,omitzero"`
		Seeds     int                 `json:"seeds"`
		Missing   int                 `json:"missing,omitzero"`
		Took      float64             `json:"took_s"`
		Figures   map[string]Estimate `json:"figures"`
		Marks     map[string]string   `json:"marks"`
		Runs      []*Line             `json:"runs"`
	}
	all := []out{}
	for _, group := range byScenario(rows) {
		from := len(all)
		for i := range group {
			r := &group[i]
			o := out{r.Scenario, r.Candidate, r.load(), len(r.Runs), r.Missing, 0, map[string]Estimate{}, map[string]string{}, r.Runs}
			for _, l := range r.Runs {
				o.Took += l.Took
			}
			for j := range figures {
				if f := &figures[j]; len(r.Runs) > 0 {
					o.Figures[f.key] = r.estimate(f.of)
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
