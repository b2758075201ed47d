package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/sluice-epp/sluice/bench/latency/sample"
)

const (
	// warmUp is the share of a set's samples, the first, that does not count: nobody knows anything at first.
	warmUp = 0.3
	// afterShift is how many samples count after one endpoint has become slow.
	afterShift = 500
)

// result is what came out for a data set, or for a part of one.
type result struct {
	Set     string `json:"set"`
	Samples int    `json:"samples"`
	// Absent are those of them that somebody had no prediction of; they count for nobody.
	Absent int `json:"absent"`
	// TTFT and TPOT are the figures of all who predict them.
	TTFT map[string]figures `json:"ttft"`
	TPOT map[string]figures `json:"tpot,omitempty"`
	// MAPE is the embedded model's, in percent. MAPEXGBoost is the least of those of XGBoost with llm-d's features, Objective the name of
	// that model, and Ratio the first over the second. 0 is absent.
	MAPE        float64 `json:"mape"`
	MAPEXGBoost float64 `json:"mape_xgboost"`
	Objective   string  `json:"objective,omitempty"`
	Ratio       float64 `json:"mape_ratio"`
	// PredictNanos is the time of a prediction for 512 endpoints, in ns; 0: not measured.
	PredictNanos float64 `json:"predict_ns_512"`
}

// judged are the results of a set: of its last rows, and where something shifts of those after it, all and the slow endpoint's.
func judged(name string, rows []sample.Row, s said, shiftMs float64, slow int) ([]result, error) {
	var last, after, slowed []int
	for i := range rows {
		if i >= int(warmUp*float64(len(rows))) {
			last = append(last, i)
		}
		if shiftMs < 0 || rows[i].PickMs < shiftMs {
			continue
		}
		if len(after) < afterShift {
			after = append(after, i)
			if rows[i].Endpoint == slow {
				slowed = append(slowed, i)
			}
		}
	}
	var results []result
	for _, part := range []struct {
		name string
		rows []int
	}{{name, last}, {name + "-shift", after}, {name + "-shift-slow", slowed}} {
		if len(part.rows) == 0 {
			continue
		}
		r, err := resultOf(part.name, rows, s, part.rows)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

func resultOf(name string, rows []sample.Row, s said, part []int) (result, error) {
	ttft, tpot := make([]float64, len(rows)), make([]float64, len(rows))
	for i := range rows {
		ttft[i], tpot[i] = rows[i].ActualTTFTMs, rows[i].ActualTPOTMs
	}
	r := result{Set: name, Samples: len(part)}
	var err error
	if r.TTFT, r.Absent, err = compare(ttft, s, s.names("ttft_", embedded, byTokens, byMean), part); err != nil {
		return r, err
	}
	if r.TPOT, _, err = compare(tpot, s, s.names("tpot_", embeddedTPOT, byMeanTPOT), part); err != nil {
		return r, err
	}
	r.MAPE = r.TTFT[embedded].MAPE
	for _, model := range []string{"ttft_mean", "ttft_log"} {
		if f, ok := r.TTFT[model]; ok && (r.Objective == "" || f.MAPE < r.MAPEXGBoost) {
			r.Objective, r.MAPEXGBoost = model, f.MAPE
		}
	}
	if r.MAPEXGBoost > 0 {
		r.Ratio = r.MAPE / r.MAPEXGBoost
	}
	return r, nil
}

// names are those who said anything at all, of the ones given and those whose names begin so. Percentiles are no guesses.
func (s said) names(prefix string, given ...string) []string {
	for name := range s {
		if strings.HasPrefix(name, prefix) && name != boostedP90 && !slices.Contains(given, name) {
			given = append(given, name)
		}
	}
	given = slices.DeleteFunc(given, func(name string) bool {
		return !slices.ContainsFunc(s[name], func(v float64) bool { return !math.IsNaN(v) })
	})
	slices.Sort(given)
	return given
}

// line is the result for scripts; what is absent is "-".
func (r *result) line() string {
	figure := func(v float64, digits int) string {
		if v == 0 {
			return "-"
		}
		return strconv.FormatFloat(v, 'f', digits, 64)
	}
	return fmt.Sprintf("latency set=%s mape=%s mape_xgboost=%s mape_ratio=%s predict_ns_512=%s",
		r.Set, figure(r.MAPE, 2), figure(r.MAPEXGBoost, 2), figure(r.Ratio, 3), figure(r.PredictNanos, 0))
}

// table prints the results for people.
func table(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "set\tpredictor\tsamples\tMAPE %\tmedian APE %\tMAE ms\tpinball 0.5 ms\tpinball 0.9 ms\tp90 covers %\t")
	for i := range results {
		for _, of := range []map[string]figures{results[i].TTFT, results[i].TPOT} {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				f := of[name]
				p90, covers := "-", "-"
				if f.Pinball90 != nil {
					p90, covers = strconv.FormatFloat(*f.Pinball90, 'f', 2, 64), strconv.FormatFloat(f.Covers90, 'f', 1, 64)
				}
				fmt.Fprintf(t, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t\n", results[i].Set, name, f.Samples, f.MAPE, f.MedianAPE, f.MAE, f.Pinball50, p90, covers)
			}
		}
	}
	return t.Flush()
}
