package simulate

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim/fleet"
)

func row(scenario, candidate string, ttft ...float64) Row {
	r := Row{Scenario: scenario, Candidate: candidate}
	for i, v := range ttft {
		r.Runs = append(r.Runs, &Line{Seed: i + 1, Summary: fleet.Summary{TTFTMean: v, Goodput: 0.875, Gated: 4, Released: 1}})
	}
	return r
}

// Student's t for 4 degrees of freedom at 97.5 % is 2.776.
func TestIntervals(t *testing.T) {
	r := row("s", "c", 1, 2, 3, 4, 5)
	if e := r.estimate(figures[0].of); e.Mean != 3 || math.Abs(e.Half-2.776*math.Sqrt(2.5/5)) > 1e-3 {
		t.Errorf("%+v", e)
	}
	r.Runs = r.Runs[:1]
	if e := r.estimate(figures[0].of); e != (Estimate{Mean: 1}) {
		t.Errorf("%+v", e)
	}
}

func TestMarks(t *testing.T) {
	rows := []Row{row("s", "best", 1, 1.1, 0.9), row("s", "near", 1.1, 1.3, 0.9), row("s", "far", 5, 5.1, 4.9), row("s", "none"), row("s", "same", 0.9, 1.1, 1)}
	if diff := cmp.Diff([]string{"*", "=", "", "", "*"}, marks(rows, &figures[0])); diff != "" {
		t.Error(diff)
	}
	upside := figures[0]
	upside.better = higher
	if diff := cmp.Diff([]string{"", "", "*", "", ""}, marks(rows, &upside)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{""}, marks(rows[:1], &figures[0])); diff != "" {
		t.Errorf("one row: %s", diff)
	}
	upside.better = neither
	if diff := cmp.Diff([]string{"", "", "", "", ""}, marks(rows, &upside)); diff != "" {
		t.Error(diff)
	}
}

func TestReports(t *testing.T) {
	rows := []Row{row("a trace", "a.yaml", 1.5), row("a trace", "b\x1b.yaml", 1, 2), row("another", "a.yaml")}
	var table, out bytes.Buffer
	if err := WriteTable(&table, rows, 200); err != nil {
		t.Fatal(err)
	}
	text := table.String()
	for _, want := range []string{"a trace\ncandidate", "\n\nanother\n", " 1.500* ", " 1.500 ±6.353* ", " 87.5 ", " 25.0 ", "* best in its column", "b?.yaml", " - "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var read []struct {
		Scenario, Candidate string
		Seeds               int
		Figures             map[string]Estimate
		Marks               map[string]string
	}
	if err := json.Unmarshal(out.Bytes(), &read, json.MatchCaseInsensitiveNames(true)); err != nil || len(read) != 3 || read[0].Candidate != "a.yaml" ||
		read[0].Figures["ttft_mean_s"].Mean != 1.5 || len(read[0].Figures) != len(figures) || read[1].Seeds != 2 || read[0].Marks["ttft_mean_s"] != "best" ||
		len(read[2].Figures) != 0 {
		t.Errorf("%v: %s", err, out.Bytes())
	}
}
