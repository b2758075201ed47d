package explanation_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/cmd/sluice/explanation"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

var update = flag.Bool("update", false, "write testdata anew")

// now is five seconds after the decisions.
var now = time.Date(2026, 5, 4, 13, 14, 15, 0, time.UTC)

// endpoint has so many tokens in flight and blocks of a prompt of 100.
func endpoint(tokens int64, cached int) schedtest.Endpoint {
	return schedtest.Endpoint{
		Load:     &scheduling.InFlightLoad{Requests: tokens / 100, Tokens: tokens},
		Match:    schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, 100, 16)),
		Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - cached))),
	}
}

func named(name string, e schedtest.Endpoint) schedtest.Endpoint { e.Name = name; return e }

func in(state scheduling.EndpointState, e schedtest.Endpoint) schedtest.Endpoint {
	e.State = state
	return e
}

func measured(waiting, running, kv float64, e schedtest.Endpoint) schedtest.Endpoint {
	e.Metrics = &scheduling.EngineMetrics{
		Known: scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage, Waiting: waiting, Running: running, KVUsage: kv, AgeMs: 120,
	}
	return e
}

// foreseen has a prediction of so many ms, made of a wait and a prefill.
func foreseen(ttft, wait, prefill float64, e schedtest.Endpoint) schedtest.Endpoint {
	e.Latency = &scheduling.LatencyPrediction{
		TTFTMs: ttft * 1.1, WaitMs: wait, PrefillMs: prefill, Residual: 1.1, TTFTP90Ms: ttft * 1.5, TPOTMs: 20, TPOTP90Ms: 30, Confidence: 0.95,
		TTFTHeadroomMs: 300 - ttft*1.5, TPOTHeadroomMs: 10,
	}
	return e
}

// decided is what a real scheduler makes of a request to a table's endpoints, and what tipped it.
func decided(t *testing.T, profile []string, gateParameters string, picks int, endpoints ...schedtest.Endpoint) *schedulerv1.Explanation {
	t.Helper()
	table := &schedtest.Table{Endpoints: endpoints, Prompt: &scheduling.TokenizedPrompt{}}
	var specs []scheduling.Spec
	if slices.Contains(profile, "gate") {
		specs = append(specs, scheduling.Spec{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML(gateParameters)})
	}
	cfg := schedtest.Config(specs, profile...)
	cfg.MaxPicks = picks
	s, err := scheduling.Build(slices.Concat(table.Types(), []scheduling.PluginType{gate.Type()}, scorer.Types(), picker.Types()), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := table.Decide(t, s, &scheduling.Request{
		ID: 7, Model: "llama", Choices: 1, Stream: true, MaxOutputTokens: 128, PromptBytes: 6400, Operation: scheduling.OperationChat,
	})
	d := record.Of(s, c, record.Meta{ClientRequestID: "5d0f", UnixNano: now.Add(-5 * time.Second).UnixNano(), ConfigHash: "3fa9c1d2"})
	x := &schedulerv1.Explanation{Decision: d, Reason: explain.Reason(d)}
	flips, err := explain.Flips(s, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flips {
		x.Flips = append(x.Flips, &schedulerv1.Flip{Words: f.Words(d)})
	}
	return x
}

var usual = []string{"gate", "prefill-cost-scorer", "max-score-picker"}

const noChance = "{explorationProbability: 0}"

// pages are decisions of every kind.
func pages(t *testing.T) map[string]string {
	t.Helper()
	written := func(x *schedulerv1.Explanation, change func(*explanation.Options)) string {
		o := explanation.Options{Width: 80, Now: now}
		if change != nil {
			change(&o)
		}
		var b strings.Builder
		if err := explanation.Write(&b, x, o); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	out := map[string]string{}

	x := decided(t, usual, noChance, 2, endpoint(1000, 90), endpoint(0, 0), endpoint(5000, 95), in(scheduling.EndpointDraining, endpoint(0, 99)))
	out["in_flight"] = written(x, nil)
	x.Decision.Outcome = &decisionv1.Outcome{
		Reason: "complete", Status: 200, TtftMs: schedtest.Ref(41.3), TotalMs: 2300, PromptTokens: schedtest.Ref(uint64(1600)),
		CachedTokens: schedtest.Ref(uint64(1408)), CompletionTokens: schedtest.Ref(uint64(57)),
	}
	out["held"] = written(x, nil)
	out["held_120_columns"] = written(x, func(o *explanation.Options) { o.Width = 120 })
	out["held_styled"] = written(x, func(o *explanation.Options) { o.Styles = true })

	out["released"] = written(decided(t, usual, "{explorationProbability: 0, penaltyMode: matchedTokens}", 1,
		named("vllm-0", measured(12, 30, 0.93, endpoint(40_000, 90))), named("vllm-1", measured(0, 2, 0.1, endpoint(0, 0)))),
		func(o *explanation.Options) { o.Tried = true })

	tuned := func(use scheduling.AdapterUse, used, most int) schedtest.Endpoint {
		e := measured(0, 2, 0.1, endpoint(0, 0))
		e.Metrics.Known |= scheduling.MetricsAdapters
		e.Metrics.Adapter, e.Metrics.Adapters, e.Metrics.MaxAdapters = use, used, most
		return e
	}
	out["adapters"] = written(decided(t, []string{"lora-affinity-scorer", "max-score-picker"}, "", 1,
		named("vllm-0", tuned(scheduling.AdapterUnused, 1, 4)), named("vllm-1", tuned(scheduling.AdapterRunning, 4, 4)),
		named("vllm-2", tuned(scheduling.AdapterWaiting, 1, 0)), named("vllm-3", endpoint(0, 0))), nil)

	x = decided(t, []string{"prefix-cache-scorer", "token-load-scorer", "queue-scorer", "kv-cache-utilization-scorer", "max-score-picker"}, "", 1,
		named("vllm-llama3-8b-instruct-6f7d9c5b8-x2x4z", measured(3, 5, 0.5, endpoint(1000, 90))),
		named("vllm-llama3-8b-instruct-6f7d9c5b8-qq7lb", measured(0, 1, 0.2, endpoint(0, 20))))
	x.CandidatesLeftOut = 510
	pick := x.GetDecision().GetCandidates()[x.GetDecision().GetPicks()[0]]
	pick.LatencyPredictions = []*decisionv1.LatencyPrediction{{TtftMs: 240, TpotMs: 11.5, Confidence: 0.8}}
	x.Decision.Faults = []*decisionv1.Fault{{Producer: "tokens", Error: "context deadline exceeded\x1b[2J"}}
	out["several_scorers"] = written(x, func(o *explanation.Options) {
		o.Endpoints = []*schedulerv1.Endpoint{{
			Ordinal: pick.GetOrdinal(), Generation: pick.GetGeneration(),
			Rates: &schedulerv1.LearntRates{
				PrefillTokensPerSecond: schedtest.Ref(12_300.0), WaitMsPerToken: schedtest.Ref(0.08), BreakEven: schedtest.Ref(1.4), Confidence: 0.9,
			},
		}}
	})
	x = decided(t, []string{"latency-scorer", "max-score-picker"}, "", 1, foreseen(240, 200, 40, endpoint(1000, 90)), foreseen(1900, 100, 1800, endpoint(0, 0)))
	x.Decision.Request.LatencyObjectives = []*decisionv1.LatencyObjective{{TtftMs: 300, TpotMs: 40}}
	x.Decision.Outcome = &decisionv1.Outcome{
		Reason: "complete", Status: 200, TtftMs: schedtest.Ref(264.0), TotalMs: 264 + 99*23, CompletionTokens: schedtest.Ref(uint64(100)),
	}
	out["predicted"] = written(x, nil)

	x.Decision.Request.Stream, x.Decision.Outcome.TtftMs = false, nil
	out["predicted_unstreamed"] = written(x, nil)
	x.Decision.Request.Stream, x.Decision.Outcome.TtftMs = true, schedtest.Ref(264.0)

	// The same with a fifth of what is asked in reserve, from a client that left in the middle of the answer.
	for _, e := range x.Decision.Candidates {
		l := e.LatencyPredictions[0]
		l.TtftHeadroomMs, l.TpotHeadroomMs = 0.8*300-l.GetTtftP90Ms(), 0.8*40-l.GetTpotP90Ms()
	}
	x.Decision.Outcome.Reason = "disconnect"
	out["predicted_given_up"] = written(x, nil)

	// Of whole responses no first token is known, neither beforehand nor afterwards.
	for _, e := range x.Decision.Candidates {
		l := e.LatencyPredictions[0]
		l.WholeResponse, l.TpotMs, l.TpotP90Ms, l.TpotHeadroomMs = true, 0, 0, 0
	}
	x.Decision.Outcome = &decisionv1.Outcome{Reason: "complete", Status: 200, TotalMs: 330, CompletionTokens: schedtest.Ref(uint64(100))}
	out["predicted_response"] = written(x, nil)

	out["predicted_gate"] = written(decided(t, []string{"gate", "latency-scorer", "max-score-picker"}, "{explorationProbability: 0, ttftSource: latencyPredictor}", 1,
		foreseen(7400, 7360, 40, endpoint(1000, 90)), foreseen(1900, 100, 1800, endpoint(1200, 0))), nil)

	x = decided(t, usual, noChance, 1, endpoint(100, 90), endpoint(2500, 0))
	out["less_ahead"] = written(x, nil)
	out["nobody"] = written(decided(t, usual, noChance, 1, in(scheduling.EndpointNotReady, endpoint(0, 0))), nil)
	out["nothing_known"] = written(decided(t, usual, noChance, 1, schedtest.Endpoint{}, schedtest.Endpoint{}), nil)
	return out
}

func TestPages(t *testing.T) {
	for name, got := range pages(t) {
		file := "testdata/" + name + ".txt"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("-update writes %s anew (-there +now):\n%s", file, diff)
		}
	}
}

// No line is longer than asked for, and what others named is no command to the terminal.
func TestPagesFit(t *testing.T) {
	for name, page := range pages(t) {
		width := 80
		if name == "held_120_columns" {
			width = 120
		}
		styled := name == "held_styled"
		for line := range strings.Lines(page) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsRune(line, '\x1b') != styled && !styled {
				t.Errorf("%s: a code in %q", name, line)
			}
			if !styled && display.Width(line) > width {
				t.Errorf("%s: %d cells: %q", name, display.Width(line), line)
			}
		}
		if styled && !strings.Contains(page, "\x1b[1m") {
			t.Error("nothing is styled")
		}
	}
}

// An engine computes the last token of a prompt that it holds whole.
func TestPredictedCachedTokens(t *testing.T) {
	x := decided(t, usual, noChance, 1, endpoint(0, 100), endpoint(0, 0))
	for _, tc := range []struct {
		prompt, cached uint64
		want           string
	}{
		{1600, 1584, "1.6k cached; 1.6k had been predicted\n"},
		{1600, 0, "0 cached; 1.6k had been predicted (1.6k fewer)\n"},
		{320, 320, "320 cached; 304 had been predicted (16 more)\n"},
		{0, 0, "0 cached; 0 had been predicted\n"},
	} {
		x.Decision.Outcome = &decisionv1.Outcome{Reason: "complete", PromptTokens: &tc.prompt, CachedTokens: &tc.cached}
		var b strings.Builder
		if err := explanation.Write(&b, x, explanation.Options{Now: now, Width: 200}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), tc.want) {
			t.Errorf("%d of %d: no %q in\n%s", tc.cached, tc.prompt, tc.want, b.String())
		}
	}
	x.Decision.Outcome.ServedBy = "10.0.0.2:8000"
	var b strings.Builder
	if err := explanation.Write(&b, x, explanation.Options{Now: now}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "predicted\n") {
		t.Errorf("a prediction about the pick is compared with what another endpoint had:\n%s", b.String())
	}
}

func TestVerdictsHaveWords(t *testing.T) {
	for number, name := range decisionv1.GateVerdict_name {
		v := decisionv1.GateVerdict(number)
		x := &schedulerv1.Explanation{Decision: &decisionv1.Decision{Gates: []*decisionv1.GateReport{{Filter: "gate", Verdict: v}}}}
		var b strings.Builder
		if err := explanation.Write(&b, x, explanation.Options{Now: now}); err != nil {
			t.Fatal(err)
		}
		word := strings.ToLower(strings.TrimPrefix(name, "GATE_VERDICT_"))
		if want := fmt.Sprintf("%s by gate: ", word); number != 0 && (!strings.Contains(b.String(), want) || strings.Contains(b.String(), want+"\n")) {
			t.Errorf("%s: no words in\n%s", name, b.String())
		}
	}
}
