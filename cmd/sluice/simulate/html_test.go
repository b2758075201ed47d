package simulate

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/profile"
)

// drawnRow is a row with curves.
func drawnRow(in *Scenario, candidate string, ttft ...float64) Row {
	r := row(in.Name, candidate, ttft...)
	r.In = in
	for _, l := range r.Runs {
		l.Build, l.Curves = "v1", fleet.Curves{
			Over: []float64{l.Summary.TTFTMean, -1, 3 * l.Summary.TTFTMean}, Hits: []float64{0, -1, 0.5}, Span: 300,
			Prefill: []float64{0.25, 0.75}, Verdicts: map[string]int{"held": 3, "no_sticky": 1},
		}
		for range fleet.QuantileShares {
			l.Curves.TTFT = append(l.Curves.TTFT, l.Summary.TTFTMean)
		}
	}
	return r
}

func page(t *testing.T, rows []Row) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteHTML(&b, rows); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, never := range []string{"NaN", "Inf", "http", "<script"} {
		if strings.Contains(text, never) {
			t.Errorf("%s in the page", never)
		}
	}
	return text
}

func TestHTML(t *testing.T) {
	p := plan()
	slow, quick := p.Scenarios[0], p.Scenarios[0]
	slow.Name, slow.Family, slow.Axis, slow.Value, slow.Load = "b2b 4/s", "b2b", "requests per second", 4, 0.5
	quick.Name, quick.Family, quick.Axis, quick.Value = "b2b 8/s", "b2b", "requests per second", 8
	quick.Shifts = []Shift{{At: 0.5, Slower: Slower{3, 3}}, {At: 0.5, Prompts: Prompts{78_000, 99_000, 0.5}}, {At: 0.5, Burst: Burst{0.1, 0.5, 2000}}}
	quick.Engines = []Engine{{1000, 1}, {1000, 1}, {2000, 3}, {1000, 1}}
	quick.Profile, quick.ProfileName = &profile.Profile{}, "engine.yaml"
	slow.Sight.EventLoss = 0.25
	text := page(t, []Row{
		drawnRow(&slow, "<a>", 0.1, 0.2), drawnRow(&slow, "b", 0.5, 0.6), drawnRow(&slow, "none"),
		drawnRow(&quick, "<a>", 0.3, 9), drawnRow(&quick, "b", 2, 2.5),
	})
	for _, want := range []string{
		"<h2>b2b, by load</h2>", "requests per second</text>", "<h2>b2b 4/s</h2>", "&lt;a&gt;", "Mean TTFT over time", "Hit rate over time", "TTFT by quantile",
		`<td class="best">0.150 ±`, "8 runs: candidates 3, scenarios 2. Simulated by sluice v1.", "(50 % of the capacity)", "max/mean", "What the figures mean",
		"endpoint 3 is 3 times slower", "prompts have 78k tokens on average and come 0.5 times as often", "50 % of the requests begin with the same 2k tokens, for 10 % of the span",
		"4 endpoints with a KV cache of 300k tokens", "4 endpoints that are not alike: 0–1, 3 with a KV cache of 1k tokens; 2 with a KV cache of 2k tokens, 3 times slower; costs of the profile engine.yaml",
		"KV events 20ms late, 25 % of them lost, metrics read every 50ms", "the first 25 % of the requests do not count", "0 requests of each run count. Seeds 1 to 2.", "<th>TPOT p90</th>", "<th>gate: no sticky %</th>", "<td>25.0</td>", ">0.00</text>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in the page", want)
		}
	}
	if strings.Contains(text, "<a>") {
		t.Error("a name was not escaped")
	}
}

// With many candidates the plots show the quickest.
func TestHTMLOfMany(t *testing.T) {
	in := plan().Scenarios[0]
	var rows []Row
	for i := range 20 {
		rows = append(rows, drawnRow(&in, fmt.Sprintf("c%d", i), float64(20-i)))
	}
	rows[3].Missing = 2
	text := page(t, rows)
	if !strings.Contains(text, "The plots show the 8 of 20 candidates with the lowest mean TTFT.") || !strings.Contains(text, "2 runs are missing") {
		t.Error("it is not said what is left out")
	}
	if strings.Contains(text, `"l0">c11<`) || !strings.Contains(text, `"l0">c12<`) || !strings.Contains(text, "<td>c0</td>") {
		t.Error("not the quickest are drawn, or the table lacks others")
	}
}

func TestHTMLOfNothing(t *testing.T) {
	in := plan().Scenarios[0]
	empty := row("b2b", "old", 1) // a line without curves
	for _, rows := range [][]Row{nil, {drawnRow(&in, "none")}, {empty}} {
		page(t, rows)
	}
}
