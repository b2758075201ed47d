package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/server/config"
)

// TestC36_GateOfWholeResponses: bounds of times to a first token are not held against times to the end of a response.
func TestC36_GateOfWholeResponses(t *testing.T) {
	const file = `plugins:
- {name: seer, type: predicted-latency-producer, parameters: {streamingMode: %s}}
- {name: gate, type: prefix-cache-affinity-filter, parameters: {ttftSource: %s}}
`
	got := faults(t, fmt.Sprintf(file, "false", "latencyPredictor"))
	if want := "f.yaml:3:3: plugins[1]: gate takes its times from seer, which predicts whole responses (streamingMode: false)"; !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	check(t, fmt.Sprintf(file, "true", "latencyPredictor"))
	check(t, fmt.Sprintf(file, "false", "prefillThroughput"))
}

// TestUnpredictedGate: an affinity filter that is declared beside the producer takes the profile's place with other defaults, which is
// warned of where the file does not say that it is meant.
func TestUnpredictedGate(t *testing.T) {
	const warning = "does not compare predicted times"
	for text, want := range map[string]bool{
		"plugins:\n- type: predicted-latency-producer\n- {type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.9}}\n":        true,
		"plugins:\n- type: predicted-latency-producer\n- {type: prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor}}\n":  false,
		"plugins:\n- type: predicted-latency-producer\n- {type: prefix-cache-affinity-filter, parameters: {ttftSource: prefillThroughput}}\n": false,
		"plugins:\n- type: predicted-latency-producer\n":                                                                    false,
		"plugins:\n- type: prefix-cache-affinity-filter\n":                                                                  false,
		"plugins:\n- type: predicted-latency-producer\n- type: prefill-cost-scorer\n- type: prefix-cache-affinity-filter\n": false,
	} {
		if report := check(t, text); strings.Contains(report, warning) != want {
			t.Errorf("warned: %t, want %t:\n%s", !want, want, report)
		}
	}
}

// TestPredictedLatencyWiring: the way in which llm-d's charts wire its latency predictor runs as it is.
func TestPredictedLatencyWiring(t *testing.T) {
	report := check(t, `apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
  parameters: {predictInProduce: true, contextTTL: 5m}
- {name: strict, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}
- type: slo-headroom-tier-filter
- {name: loose, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.8, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}
- {type: latency-scorer, parameters: {ttftWeight: 0.8, tpotWeight: 0.2, headroomSelectionStrategy: least, compositeKVWeight: 1}}
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: strict
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose
  - {pluginRef: latency-scorer, weight: 1}
  - pluginRef: weighted-random-picker
`)
	for _, want := range []string{"predictInProduce means nothing here", "contextTTL means nothing here", "headroomSelectionStrategy means nothing here",
		"compositeKVWeight means nothing here", "predicted-latency-producer.streamingMode is true; llm-d's is false", "epsilonExploreNeg: 0.01", "LatencyPrediction ← predicted-latency-producer"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	got := faults(t, "plugins:\n- {type: latency-scorer, parameters: {headroomSelectionStrategy: most}}\n"+
		"schedulingProfiles:\n- plugins: [{pluginRef: latency-scorer}, {pluginRef: max-score-picker}]\n")
	if want := "f.yaml:2:39: plugins[0].parameters.headroomSelectionStrategy: only llm-d's least is supported, and need not be set"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestC46_FailingFast: by its times an endpoint that refuses everything at once looks idle, and a profile that does not leave it
// out is warned of.
func TestC46_FailingFast(t *testing.T) {
	const warning = " draws requests to an endpoint that fails fast"
	for text, want := range map[string]string{
		"schedulingProfiles:\n- plugins:\n  - pluginRef: latency-scorer\n  - pluginRef: max-score-picker\n":                                                                          "f.yaml:3:5: schedulingProfiles[0].plugins[0]: latency-scorer" + warning,
		"plugins: [{name: quickest, type: latency-scorer}]\nschedulingProfiles:\n- plugins: [{pluginRef: max-score-picker}, {pluginRef: quickest}]\n":                                "f.yaml:3:44: schedulingProfiles[0].plugins[1]: quickest" + warning,
		"plugins: [{name: sick, type: outlier-detection-filter}]\nschedulingProfiles:\n- plugins: [{pluginRef: sick}, {pluginRef: latency-scorer}, {pluginRef: max-score-picker}]\n": "",
		"schedulingProfiles:\n- plugins: [{pluginRef: prefill-cost-scorer}, {pluginRef: max-score-picker}]\n":                                                                        "f.yaml:2:13: schedulingProfiles[0].plugins[0]: prefill-cost-scorer" + warning,
		"schedulingProfiles:\n- plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]\n":                                                                        "",
		"plugins: [{type: predicted-latency-producer}]\n":                                                                                                                            "",
	} {
		f, s, err := config.OpenText("f.yaml", []byte(text), environment, realTypes())
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, w := range f.Warnings {
			got.WriteString(w.Error() + "\n")
		}
		if want == "" && got.Len() > 0 || !strings.HasPrefix(got.String(), want) {
			t.Errorf("%s\nwarns %s\nwant  %s", text, got.String(), want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
