package simulate

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// Estimate is a mean over seeds and half of its interval, in which the true mean is with a confidence of 95 % (Student's t); 0
// with one seed.
type Estimate struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half"`
}

// estimate is the mean of a figure of a row's runs.
func (r *Row) estimate(of func(fleet.Summary) float64) Estimate {
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

// figure is one that is shown.
type figure struct {
	head, key string
	scale     float64
	decimals  int
	of        func(fleet.Summary) float64
}

var figures = []figure{
	{"TTFT s", "ttft_mean_s", 1, 3, func(s fleet.Summary) float64 { return s.TTFTMean }},
	{"p50", "ttft_p50_s", 1, 3, func(s fleet.Summary) float64 { return s.TTFTP50 }},
	{"p90", "ttft_p90_s", 1, 2, func(s fleet.Summary) float64 { return s.TTFTP90 }},
	{"p99", "ttft_p99_s", 1, 2, func(s fleet.Summary) float64 { return s.TTFTP99 }},
	{"TPOT ms", "tpot_mean_ms", 1000, 1, func(s fleet.Summary) float64 { return s.TPOTMean }},
	{"goodput %", "goodput", 100, 1, func(s fleet.Summary) float64 { return s.Goodput }},
	{"hit %", "hit_rate", 100, 1, func(s fleet.Summary) float64 { return s.HitRate }},
	{"max/mean", "imbalance", 1, 2, func(s fleet.Summary) float64 { return s.Imbalance }},
	{"released %", "released", 100, 1, func(s fleet.Summary) float64 { return float64(s.Released) / max(1, float64(s.Gated)) }},
}

// WriteTable writes the rows for people.
func WriteTable(w io.Writer, rows []Row, cells int) error {
	columns := []display.Column{{Head: "trace", Max: 24}, {Head: "configuration", Flexible: true}}
	for _, f := range figures {
		columns = append(columns, display.Column{Head: f.head, Right: true})
	}
	var lines []display.Row
	for i := range rows {
		r := &rows[i]
		line := []string{r.Trace, r.Config}
		for _, f := range figures {
			e := r.estimate(f.of)
			text := fmt.Sprintf("%.*f", f.decimals, e.Mean*f.scale)
			if len(r.Runs) > 1 {
				text += fmt.Sprintf(" ±%.*f", f.decimals, e.Half*f.scale)
			}
			line = append(line, text)
		}
		lines = append(lines, display.Row{Cells: line})
	}
	for _, line := range display.Table(columns, lines, cells, false) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes the rows for programs.
func WriteJSON(w io.Writer, rows []Row) error {
	type out struct {
		Trace   string              `json:"trace"`
		Config  string              `json:"config"`
		Seeds   int                 `json:"seeds"`
		Took    float64             `json:"took_s"`
		Figures map[string]Estimate `json:"figures"`
		Runs    []fleet.Summary     `json:"runs"`
	}
	all := make([]out, len(rows))
	for i := range rows {
		r := &rows[i]
		all[i] = out{r.Trace, r.Config, len(r.Runs), r.Took.Round(time.Millisecond).Seconds(), map[string]Estimate{}, r.Runs}
		for _, f := range figures {
			all[i].Figures[f.key] = r.estimate(f.of)
		}
	}
	return json.MarshalWrite(w, all, json.Deterministic(true), jsontext.WithIndent("  "))
}
