package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-epp/sluice/bench/latency/judge"
	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/scheduling"
)

// The names of those who predict; those of XGBoost's models are boosting.py's.
const (
	embedded     = "embedded"         // the embedded model's median
	embeddedP90  = "embedded_p90"     // its 90th percentile
	embeddedTPOT = "tpot_embedded"    // its median time per token
	byTokens     = "tokens_in_flight" // tokens ahead and the request's own over a constant throughput
	byMean       = "mean"             // the mean of all that was seen before
	byMeanTPOT   = "tpot_mean_so_far"
	boostedP90   = "ttft_p90"
)

// said are predictions in ms by the name of who made them, one for each row; NaN where there was none.
type said map[string][]float64

// predictions are those of everybody who needs no training.
func predictions(rows []sample.Row) said {
	n := len(rows)
	s := said{}
	for _, name := range []string{embedded, embeddedP90, embeddedTPOT, byTokens} {
		s[name] = make([]float64, n)
	}
	for i := range rows {
		r := &rows[i]
		s[embedded][i], s[embeddedP90][i], s[embeddedTPOT][i] = orNaN(r.PredictedTTFTMs), orNaN(r.PredictedTTFTP90Ms), orNaN(r.PredictedTPOTMs)
		s[byTokens][i] = (r.PrefillTokensInFlight + r.UncachedTokens) / scheduling.DefaultPrefillThroughput * 1000
	}
	s[byMean] = soFar(rows, func(r *sample.Row) (at, value float64) { return r.FirstMs, r.ActualTTFTMs })
	s[byMeanTPOT] = soFar(rows, func(r *sample.Row) (at, value float64) { return r.EndMs, r.ActualTPOTMs })
	return s
}

func orNaN(ms float64) float64 {
	if ms <= 0 {
		return math.NaN()
	}
	return ms
}

// soFar is for each row the mean of the values that were known by its pick; a value of 0 is none.
func soFar(rows []sample.Row, of func(*sample.Row) (at, value float64)) []float64 {
	type seen struct{ at, value float64 }
	var all []seen
	for i := range rows {
		if at, value := of(&rows[i]); value > 0 {
			all = append(all, seen{at, value})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].at < all[j].at })
	means := make([]float64, len(rows))
	sum, n := 0.0, 0
	for i := range rows {
		for n < len(all) && all[n].at <= rows[i].PickMs {
			sum += all[n].value
			n++
		}
		means[i] = sum / float64(n) // 0/0 is NaN: nothing is known
	}
	return means
}

// script is the program that trains XGBoost, from the root of the repository.
const script = "bench/latency/boosting.py"

// boosted adds XGBoost's predictions of the rows in a file.
func boosted(ctx context.Context, python, rows string, every, n int, s said, stderr io.Writer) error {
	out := strings.TrimSuffix(rows, filepath.Ext(rows)) + ".xgboost.ndjson"
	cmd := exec.CommandContext(ctx, python, script, rows, out, "--every", fmt.Sprint(every))
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", python, script, err)
	}
	f, err := os.Open(out)
	if err != nil {
		return err
	}
	lines, err := readPredictions(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	if len(lines) != n {
		return fmt.Errorf("%s: has predictions of %d rows, want %d", out, len(lines), n)
	}
	for name := range lines[0] {
		column := make([]float64, n)
		for i, line := range lines {
			column[i] = math.NaN()
			if v := line[name]; v != nil {
				column[i] = *v
			}
		}
		s[name] = column
	}
	return nil
}

func readPredictions(r io.Reader) (lines []map[string]*float64, err error) {
	decoder := json.NewDecoder(bufio.NewReader(r))
	for {
		var line map[string]*float64
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return nil, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		lines = append(lines, line)
	}
}

// figures are how good one was.
type figures struct {
	judge.Errors
	// Pinball90 is the pinball loss of its predictions of the 90th percentile, in ms; absent where it makes none.
	Pinball90 *float64 `json:"pinball90_ms,omitempty"`
	// Covers90 is the share of the samples that stayed below them, in percent: 90 is right.
	Covers90 float64 `json:"covers90,omitempty"`
}

// compare holds those who predict the same thing against what came, over the rows of which all of them said something. absent is
// how many of the rows somebody said nothing of.
func compare(actual []float64, s said, names []string, rows []int) (all map[string]figures, absent int, err error) {
	keep := slices.DeleteFunc(slices.Clone(rows), func(i int) bool {
		return !(actual[i] > 0) || slices.ContainsFunc(names, func(name string) bool { return math.IsNaN(s[name][i]) })
	})
	picked := func(of []float64) []float64 {
		some := make([]float64, len(keep))
		for i, at := range keep {
			some[i] = of[at]
		}
		return some
	}
	if len(keep) == 0 {
		return nil, len(rows), nil
	}
	all = map[string]figures{}
	truth := picked(actual)
	for _, name := range names {
		e, err := judge.Of(truth, picked(s[name]))
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		f := figures{Errors: e}
		if p90 := map[string]string{embedded: embeddedP90, "ttft_log": boostedP90, "ttft_mean": boostedP90}[name]; len(s[p90]) > 0 {
			said := picked(s[p90])
			if loss, err := judge.Pinball(truth, said, 0.9); err == nil { // without: it says none of some row
				f.Pinball90, f.Covers90 = &loss, covered(truth, said)
			}
		}
		all[name] = f
	}
	return all, len(rows) - len(keep), nil
}

// covered is the share of values that predictions are not below, in percent.
func covered(actual, predicted []float64) float64 {
	n := 0
	for i, a := range actual {
		if a <= predicted[i] {
			n++
		}
	}
	return 100 * float64(n) / float64(len(actual))
}
