package main

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/bench/latency/sample"
)

// rows are samples whose times to the first token are 100, 200, … ms, a second apart, each predicted 10 % too high.
func rows(n int) []sample.Row {
	all := make([]sample.Row, n)
	for i := range all {
		pick, ttft := float64(i)*1000, float64(100*(i+1))
		all[i] = sample.Row{
			PickMs: pick, FirstMs: pick + ttft, EndMs: pick + ttft + 90, Endpoint: i % 4, PrefillTokensInFlight: 1000, UncachedTokens: 592.8,
			InputTokenLength: 1000, ActualTTFTMs: ttft, ActualTPOTMs: 10, PredictedTTFTMs: 1.1 * ttft, PredictedTTFTP90Ms: 2 * ttft, PredictedTPOTMs: 8,
		}
	}
	return all
}

// column is the same value n times.
func column(n int, value func(i int) float64) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = value(i)
	}
	return all
}

// The figures are computed by hand. Of ten samples the last seven count: 400, 500, … 1000 ms.
func TestResultOfASet(t *testing.T) {
	samples := rows(10)
	s := predictions(samples)
	s["ttft_mean"] = column(10, func(i int) float64 { return 1.5 * samples[i].ActualTTFTMs })
	s["ttft_log"] = column(10, func(i int) float64 { return 0.8 * samples[i].ActualTTFTMs })
	s["ttft_log_more"] = column(10, func(i int) float64 { return samples[i].ActualTTFTMs }) // no model of llm-d's
	s[boostedP90] = column(10, func(i int) float64 { return samples[i].ActualTTFTMs + float64(50-100*(i%2)) })
	got, err := judged("set", samples, s, -1, 0)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	r := got[0]
	r.PredictNanos = 12345.6
	if want := "latency set=set mape=10.00 mape_xgboost=20.00 mape_ratio=0.500 predict_ns_512=12346"; r.line() != want {
		t.Errorf("%s, want %s", r.line(), want)
	}
	if r.Samples != 7 || r.Absent != 0 || r.Objective != "ttft_log" {
		t.Errorf("%d samples, %d absent, objective %s", r.Samples, r.Absent, r.Objective)
	}
	// Twice as long as it took costs a tenth of it: 70 ms on average. Three times 50 ms too long cost 5 ms, four times too short 45.
	for name, want := range map[string][2]float64{embedded: {70, 100}, "ttft_log": {(3*5 + 4*45) / 7.0, 300 / 7.0}} {
		f := r.TTFT[name]
		if p := f.Pinball90; p == nil || math.Abs(*p-want[0]) > 1e-9 || math.Abs(f.Covers90-want[1]) > 1e-9 {
			t.Errorf("%s: pinball loss %v, covers %v %%, want %v", name, p, f.Covers90, want)
		}
	}
	// 1592.8 tokens take 100 ms at 15,928 tokens per second: off by 300 to 900 of 400 to 1000 ms.
	if mae := r.TTFT[byTokens].MAE; math.Abs(mae-600) > 1e-9 {
		t.Errorf("tokens in flight are off by %v ms, want 600", mae)
	}
	// Before the fourth sample the three before it are known: 200 ms. Before the last 100 to 900: 500.
	if mae := r.TTFT[byMean].MAE; math.Abs(mae-350) > 1e-9 {
		t.Errorf("the mean is off by %v ms, want 350", mae)
	}
	if got := r.TPOT[embeddedTPOT].MAPE; math.Abs(got-20) > 1e-9 {
		t.Errorf("time per token is off by %v %%, want 20", got)
	}
}

// TestSameRowsForAll: a sample of which one says nothing counts for nobody.
func TestSameRowsForAll(t *testing.T) {
	samples := rows(10)
	samples[5].PredictedTTFTMs = 0
	s := predictions(samples)
	s["ttft_log"] = column(10, func(i int) float64 { return samples[i].ActualTTFTMs })
	s["ttft_log"][9] = math.NaN()
	got, err := judged("set", samples, s, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r := got[0]; r.Samples != 7 || r.Absent != 2 || r.TTFT[embedded].Samples != 5 || r.TTFT["ttft_log"].Samples != 5 || r.TTFT[byMean].Samples != 5 {
		t.Errorf("%+v", r)
	}
}

func TestWithoutPredictions(t *testing.T) {
	samples := rows(10)
	for i := range samples {
		samples[i].PredictedTTFTMs, samples[i].PredictedTPOTMs = 0, 0
	}
	got, err := judged("set", samples, predictions(samples), -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := "latency set=set mape=- mape_xgboost=- mape_ratio=- predict_ns_512=-"; got[0].line() != want {
		t.Errorf("%s, want %s", got[0].line(), want)
	}
	if got[0].TTFT[byMean].Samples != 7 {
		t.Errorf("%+v", got[0].TTFT)
	}
}

// TestAfterAShift: the first samples after it count once more, and those of the slow endpoint.
func TestAfterAShift(t *testing.T) {
	samples := rows(1000)
	got, err := judged("set", samples, predictions(samples), 400_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	var counts []int
	var names []string
	for _, r := range got {
		names, counts = append(names, r.Set), append(counts, r.Samples)
	}
	if diff := cmp.Diff([]string{"set", "set-shift", "set-shift-slow"}, names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{700, afterShift, afterShift / 4}, counts); diff != "" {
		t.Error(diff)
	}
}

func TestMeanSoFar(t *testing.T) {
	samples := []sample.Row{
		{PickMs: 0, FirstMs: 30, ActualTTFTMs: 30}, {PickMs: 10, FirstMs: 20, ActualTTFTMs: 10}, {PickMs: 25, FirstMs: 90, ActualTTFTMs: 65}, {PickMs: 30},
	}
	got := soFar(samples, func(r *sample.Row) (at, value float64) { return r.FirstMs, r.ActualTTFTMs })
	if diff := cmp.Diff([]float64{math.NaN(), math.NaN(), 10, 20}, got, cmpopts.EquateNaNs()); diff != "" {
		t.Error(diff)
	}
}

func TestNanos(t *testing.T) {
	out := "goos: linux\nBenchmarkPredict512-2   \t   51234\t     23456 ns/op\t       0 B/op\nBenchmarkPredict512 \t 1\t 23400.5 ns/op\nBenchmarkPredict512Cold-2 \t 1\t 9 ns/op\nPASS\n"
	if got, err := readNanos(out, 2); err != nil || math.Abs(got-23428.25) > 1e-9 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readNanos("PASS\n", 1); err == nil || !strings.Contains(err.Error(), "want 1 rounds") {
		t.Errorf("a benchmark that is not there: %v", err)
	}
}

// What cannot be is said before anything runs.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, azureCode), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args string
		want string
	}{
		"an empty trace":   {"-rounds 0 -traces " + folder + " -sets azure-code", "azure-code: " + azureCode + ": is empty"},
		"no such folder":   {"-traces " + filepath.Join(folder, "none"), "-traces: stat "},
		"a file":           {"-traces " + file, "is no folder"},
		"no such trace":    {"-traces " + folder + " -sets synthetic", "has none of the traces"},
		"no such set":      {"-sets b2c", `-sets: there is no "b2c" (did you mean "b2b"?)`},
		"an argument":      {"b2b", `unexpected argument "b2b"`},
		"trainings":        {"-every -1", "-every and -rounds: must be >= 0"},
		"no samples":       {"-rounds 0 -sets sockets -sockets " + file, "sockets: " + file + ": has no rows"},
		"another flag":     {"-set b2b", "flag provided but not defined"},
		"no samples there": {"-rounds 0 -sets sockets -sockets " + filepath.Join(folder, "none"), "no such file"},
	} {
		err := run(t.Context(), append(strings.Fields(c.args), "-out", filepath.Join(folder, "out")), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestPlans: with the folder's files all sets are done, and without a folder those that are made.
func TestPlans(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{conversation, synthetic, azureConv, azureCode} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	with, err := plansOf(options{traces: folder}, &said)
	if err != nil || len(with) != len(all())-1 || !strings.HasSuffix(said.String(), "not there: toolagent\n") {
		t.Errorf("%d plans, %v, %q", len(with), err, said.String())
	}
	without, err := plansOf(options{}, io.Discard)
	if err != nil || len(without) != 3 {
		t.Errorf("%d plans, %v", len(without), err)
	}
}

// TestRun does a set of samples from a file, and writes what came out.
func TestRun(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "rows")
	if err := sample.Write(file, rows(100)); err != nil {
		t.Fatal(err)
	}
	var out, table strings.Builder
	if err := run(t.Context(), []string{"-rounds", "0", "-sets", "sockets", "-sockets", file, "-out", folder}, &out, &table); err != nil {
		t.Fatal(err)
	}
	if want := "latency set=sockets mape=10.00 mape_xgboost=- mape_ratio=- predict_ns_512=-\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	text, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil || !strings.Contains(string(text), `"set": "sockets"`) || !strings.Contains(table.String(), "median APE") {
		t.Errorf("%s, %v, %s", text, err, table.String())
	}
	mute := rows(100)
	for i := range mute {
		mute[i].PredictedTTFTMs = 0
	}
	if err := sample.Write(file+"-mute", mute); err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), []string{"-rounds", "0", "-sets", "sockets", "-sockets", file + "-mute", "-out", folder}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "100 samples, and no prediction of any") {
		t.Errorf("without a prediction: %v", err)
	}
	err = run(t.Context(), []string{"-rounds", "0", "-sets", "sockets", "-sockets", file, "-out", folder, "-python", filepath.Join(folder, "none")}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "boosting.py") {
		t.Errorf("without a Python: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := boosted(ctx, "true", file, 1, 1, said{}, io.Discard); err == nil {
		t.Error("it went on after it was stopped")
	}
}
