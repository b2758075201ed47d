package main

import (
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/bench/latency/sample"
)

// What tells the tests of the Python that has XGBoost. scripts/xgboost.sh prints its path.
const (
	envXGBoost  = "SLUICE_XGBOOST"
	envRequired = "SLUICE_XGBOOST_REQUIRED"
)

func xgboost(t *testing.T) string {
	t.Helper()
	python := os.Getenv(envXGBoost)
	if python == "" {
		if os.Getenv(envRequired) != "" {
			t.Fatal(envXGBoost + " names no Python with XGBoost")
		}
		t.Skip("no Python with XGBoost: " + envXGBoost + " names one")
	}
	return python
}

// learnable are samples whose times follow from what is known: 0.1 ms a token, of the tokens ahead and the request's own.
func learnable(n int) []sample.Row {
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]sample.Row, n)
	for i := range all {
		r := &all[i]
		r.PickMs, r.InputTokenLength, r.PrefillTokensInFlight = float64(i)*1000, 1000+float64(random.IntN(4000)), float64(random.IntN(9000))
		r.UncachedTokens = r.InputTokenLength
		r.ActualTTFTMs, r.ActualTPOTMs = 0.1*(r.InputTokenLength+r.PrefillTokensInFlight), 20
		r.FirstMs = r.PickMs + r.ActualTTFTMs
		r.EndMs = r.FirstMs + 2000
	}
	return all
}

// train has the script predict rows.
func train(t *testing.T, python string, rows []sample.Row, every int) said {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.ndjson")
	if err := sample.Write(path, rows); err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	s := said{}
	if err := boosted(t.Context(), python, path, every, len(rows), s, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Chdir("bench/latency")
	return s
}

// TestBoostingPredicts: once it has seen enough it is close, and says what it says from what came before alone.
func TestBoostingPredicts(t *testing.T) {
	python := xgboost(t)
	const n, every = 600, 200
	samples := learnable(n)
	s := train(t, python, samples, every)
	for _, name := range []string{"ttft_mean", "ttft_log", boostedP90, "ttft_mean_more", "ttft_log_more", "tpot_mean", "tpot_log"} {
		if len(s[name]) != n || !math.IsNaN(s[name][every-1]) || math.IsNaN(s[name][every]) {
			t.Fatalf("%s: predictions do not begin with row %d", name, every)
		}
	}
	off, above := 0.0, 0
	for i := 2 * every; i < n; i++ {
		off += math.Abs(s["ttft_log"][i]/samples[i].ActualTTFTMs-1) / (n - 2*every)
		if s[boostedP90][i] >= samples[i].ActualTTFTMs {
			above++
		}
	}
	if off > 0.1 {
		t.Errorf("it is off by %.0f %%", 100*off)
	}
	if share := float64(above) / (n - 2*every); share < 0.7 {
		t.Errorf("%.0f %% stay below what 90 %% should", 100*share)
	}

	// What ends after a training, or is picked after it, changes nothing.
	later := append([]sample.Row(nil), samples...)
	for i := every - 1; i < n; i++ {
		later[i].ActualTTFTMs *= 7
		later[i].FirstMs += 6 * samples[i].ActualTTFTMs
		later[i].EndMs = math.Max(later[i].FirstMs, later[every].PickMs+1)
	}
	again := train(t, python, later, every)
	for _, name := range []string{"ttft_log", boostedP90, "ttft_mean_more"} {
		if diff := cmp.Diff(s[name][:2*every], again[name][:2*every], cmpopts.EquateNaNs()); diff == "" {
			continue
		} else {
			t.Errorf("%s: the future has changed what was said: %s", name, diff)
		}
	}
	if cmp.Equal(s["ttft_log"][2*every:], again["ttft_log"][2*every:]) {
		t.Error("what was seen has changed nothing")
	}
}

// TestBoostingRefuses runs the script on files that are none.
func TestBoostingRefuses(t *testing.T) {
	python := xgboost(t)
	folder := t.TempDir()
	line := `{"pick_ms":1,"first_ms":2,"end_ms":3,"actual_ttft_ms":1}` + "\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":       {"", "has no rows"},
		"no JSON":       {"pick_ms\n", "line 1: "},
		"a missing key": {line, "line 1: KeyError("},
	} {
		path := filepath.Join(folder, "rows")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), python, "boosting.py", path, filepath.Join(folder, "out")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "boosting: "+path+": "+c.want) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	for _, args := range [][]string{{"none", "out"}, {"none", "out", "--every", "0"}, {}} {
		if out, err := exec.CommandContext(t.Context(), python, append([]string{"boosting.py"}, args...)...).CombinedOutput(); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func TestPredictionsRefused(t *testing.T) {
	if _, err := readPredictions(strings.NewReader("{\"a\":1}\n{\"a\":")); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("a torn line: %v", err)
	}
	folder := t.TempDir()
	rows := filepath.Join(folder, "rows.ndjson")
	if err := os.WriteFile(filepath.Join(folder, "rows.xgboost.ndjson"), []byte("{\"a\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boosted(t.Context(), "true", rows, 1, 2, said{}, io.Discard); err == nil || !strings.Contains(err.Error(), "has predictions of 1 rows, want 2") {
		t.Errorf("predictions of other rows: %v", err)
	}
}
