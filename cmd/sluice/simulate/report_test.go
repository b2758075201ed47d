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
	if e := r.estimate(figures[0].of); e != (Estimate{Mean: 1, Seeds: 1}) {
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
	rows := []Row{row("a trace", "a.yaml", 1.5, 1.5), row("a trace", "b\x1b.yaml", 1, 2), row("another", "a.yaml")}
	var table, out bytes.Buffer
	if err := WriteTable(&table, rows, 200); err != nil {
		t.Fatal(err)
	}
	text := table.String()
	for _, want := range []string{"a trace\ncandidate", "\n\nanother\n", " 1.500 ±0.000* ", " 1.500 ±6.353* ", " 87.5 ", " 25.0 ", "\n0 requests of each run count\n", "* best in its column", "b?.yaml", " - "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "one seed") || strings.Contains(text, "decision") {
		t.Errorf("more than is to be said:\n%s", text)
	}
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var read []struct {
		Scenario, Candidate string
		Seeds               int
		Figures             map[string]struct{ Mean float64 }
		Marks               map[string]string
	}
	if err := json.Unmarshal(out.Bytes(), &read, json.MatchCaseInsensitiveNames(true)); err != nil || len(read) != 3 || read[0].Candidate != "a.yaml" ||
		read[0].Figures["ttft_mean_s"].Mean != 1.5 || len(read[0].Figures) != len(figures) || read[1].Seeds != 2 || read[0].Marks["ttft_mean_s"] != "best" ||
		len(read[2].Figures) != 0 {
		t.Errorf("%v: %s", err, out.Bytes())
	}
}

// With one seed nothing is marked, and it is said why.
func TestOneSeed(t *testing.T) {
	rows := []Row{row("s", "a", 1), row("s", "b", 2)}
	for i := range rows {
		rows[i].Runs[0].Summary.Requests = 90 + i
	}
	rows[1].Runs[0].Summary.Gated = 0
	var table, out bytes.Buffer
	if err := WriteTable(&table, rows, 200); err != nil {
		t.Fatal(err)
	}
	text := table.String()
	if strings.ContainsAny(text, "*=") || !strings.Contains(text, "90 to 91 requests of each run count; one seed: no intervals; differences may be chance\n") {
		t.Error(text)
	}
	if lines := strings.Split(text, "\n"); !strings.HasSuffix(strings.TrimSpace(lines[2]), "25.0") || !strings.HasSuffix(strings.TrimSpace(lines[3]), "-") {
		t.Errorf("what was released of nothing is not -:\n%s", text)
	}
	if page := page(t, rows); strings.Contains(page, `class="best"`) || !strings.Contains(page, "one seed: no intervals") || strings.Contains(page, "is bold") {
		t.Error("the page marks a best, or does not say why not")
	}
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var read []map[string]any
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	figures := read[1]["figures"].(map[string]any)
	if mean := figures["ttft_mean_s"].(map[string]any); mean["half"] != nil || mean["mean"] != 2.0 || figures["released"] != nil || read[1]["marks"] != nil {
		t.Errorf("%s", out.Bytes())
	}
}

// Figures are in the unit that their key names; shares are shares.
func TestUnitsOfJSON(t *testing.T) {
	rows := []Row{row("s", "a", 1, 3)}
	for i, l := range rows[0].Runs {
		l.Summary.TPOTMean, l.Summary.TPOTP99, l.Summary.E2EP90, l.Summary.Requests, l.Decision = 0.025, 0.05*float64(i), 7, 90, 12e-6
	}
	var out bytes.Buffer
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var read []struct {
		Figures map[string]struct{ Mean, Half float64 }
	}
	if err := json.Unmarshal(out.Bytes(), &read, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	got := read[0].Figures
	for key, want := range map[string]float64{
		"ttft_mean_s": 2, "tpot_mean_ms": 25, "tpot_p99_ms": 25, "e2e_p90_s": 7, "goodput": 0.875, "released": 0.25, "decision_us": 12, "requests": 90,
	} {
		if math.Abs(got[key].Mean-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", key, got[key].Mean, want)
		}
	}
	if half := got["tpot_p99_ms"].Half; math.Abs(half-12.706*25) > 0.1 { // Student's t for 1 degree of freedom
		t.Errorf("half of the interval: %v ms", half)
	}
}
