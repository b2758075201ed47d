package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
)

// These tests use the plugin types that the server has.

func realTypes() []scheduling.PluginType {
	return server.Catalogue()
}

func environment(name string) (string, bool) {
	value, ok := map[string]string{"MODEL_NAME": "meta-llama/Llama-3.1-8B", "FALSE": "false"}[name]
	return value, ok
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// faults are those of a text, one a line, without the folder.
func faults(t *testing.T, text string) string {
	t.Helper()
	path := file(t, text)
	_, err := config.Check(path, environment, realTypes())
	if err == nil {
		t.Fatalf("accepted:\n%s", text)
	}
	return strings.ReplaceAll(err.Error(), path, "f.yaml")
}

func check(t *testing.T, text string) string {
	t.Helper()
	report, err := config.Check(file(t, text), environment, realTypes())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

const exampleList = `apiVersion: sluice/v1alpha1        # llm-d.ai/v1alpha1 is accepted too
kind: EndpointPickerConfig
plugins:
  - type: token-producer
    parameters: {modelName: ${MODEL_NAME}, vllm: {url: http://localhost:8000}}
  - name: precise-prefix
    type: precise-prefix-cache-producer
  - name: precise-inflight
    type: inflight-load-producer
    parameters: {prefixMatchInfoProducerName: precise-prefix}
  - name: predicted-latency
    type: predicted-latency-producer
    parameters: {prefixMatchInfoProducerName: precise-prefix, inFlightLoadProducerName: precise-inflight}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: prefix-cache-affinity-filter}
      - {pluginRef: latency-scorer, weight: 1}
      - {pluginRef: max-score-picker}
`

func TestPluginListsOfTheDesignWithRealPlugins(t *testing.T) {
	for _, want := range []string{"type: predicted-latency-producer", "inFlightLoadProducerName: precise-inflight", "pluginRef: latency-scorer"} {
		if report := check(t, exampleList); !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	report := check(t, "plugins:\n- type: token-producer\n- type: inflight-load-producer\n- type: predicted-latency-producer\n")
	for _, want := range []string{"type: approx-prefix-cache-producer", "ttftSource: latencyPredictor", "pluginRef: latency-scorer"} {
		if !strings.Contains(report, want) {
			t.Errorf("%q is not supplied:\n%s", want, report)
		}
	}
	const costs = "pluginRef: prefill-cost-scorer"
	for name, text := range map[string]string{
		"nobody's first token is predicted": "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: false}}\n",
		"as the environment has it":         "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: \"${FALSE}\"}}\n",
		"as the default of a variable":      "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: \"${SM:-false}\"}}\n",
		"as another place has it":           "plugins:\n- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: &no false}}\n- {type: predicted-latency-producer, parameters: {streamingMode: *no}}\n",
		"the scorer is another one":         "plugins:\n- type: predicted-latency-producer\n- {type: prefill-cost-scorer, parameters: {alpha: 2}}\n",
	} {
		if report := check(t, text); !strings.Contains(report, costs) || strings.Contains(report, "latency-scorer") {
			t.Errorf("%s, and requests do not go by cost:\n%s", name, report)
		}
	}
	for _, value := range []string{"true", `"${SM:-true}"`, "null"} {
		text := "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: " + value + "}}\n"
		if report := check(t, text); strings.Contains(report, costs) || !strings.Contains(report, "pluginRef: latency-scorer") {
			t.Errorf("streamingMode: %s, and requests do not go by predicted latency:\n%s", value, report)
		}
	}
	if got := faults(t, "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: perhaps}}\n"); strings.Count(got, "\n") > 0 || !strings.Contains(got, "streamingMode: must be true or false") {
		t.Errorf("got %s", got)
	}
}

// Of the example all that is there runs: without the predictor, the ledger charges by the precise match.
func TestPreciseExampleRuns(t *testing.T) {
	text, _, _ := strings.Cut(exampleList, "  - name: predicted-latency\n")
	report := check(t, text)
	for _, want := range []string{
		"type: precise-prefix-cache-producer", "prefixMatchInfoProducerName: precise-prefix", "url: http://localhost:8000",
		"pluginRef: prefill-cost-scorer",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	if strings.Contains(report, "type: approx-prefix-cache-producer") {
		t.Errorf("the approximate producer runs beside the precise one:\n%s", report)
	}
}

func TestBuiltInConfigurationRuns(t *testing.T) {
	report, err := config.Check("", environment, realTypes())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- pluginRef: prefix-cache-affinity-filter", "- pluginRef: prefill-cost-scorer", "- pluginRef: max-score-picker",
		"explorationProbability: 0\n", "name: approx-prefix-cache-producer", "name: inflight-load-producer", "name: token-producer",
		"# hashSeed: (not set)",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if strings.Contains(report, "Warnings") || strings.Contains(report, "llm-d") {
		t.Errorf("the built-in configuration warns or differs:\n%s", report)
	}
}

// required are parameters without which a type is refused, in a file with all types.
func required(kind string) string {
	switch kind {
	case "label-selector-filter":
		return "  parameters: {matchLabels: {zone: a, \"true\": \"1\"}}\n"
	case "inflight-load-producer", "prefix-cache-affinity-filter", "prefix-cache-scorer", "no-hit-lru-scorer", "predicted-latency-producer":
		return "  parameters: {prefixMatchInfoProducerName: approx-prefix-cache-producer}\n"
	}
	return ""
}

// A report is a file that means the same, with every plugin that can be used in it.
func TestReportOfEveryPluginCanBeRead(t *testing.T) {
	var plugins, profile strings.Builder
	for _, typ := range realTypes() {
		if typ.Unavailable != "" || strings.HasSuffix(typ.Type, "-picker") {
			continue
		}
		plugins.WriteString("- type: " + typ.Type + "\n" + required(typ.Type))
		if !strings.HasSuffix(typ.Type, "-producer") {
			profile.WriteString("  - pluginRef: " + typ.Type + "\n")
		}
	}
	report := check(t, "plugins:\n"+plugins.String()+"schedulingProfiles:\n- plugins:\n"+profile.String()+"  - pluginRef: weighted-random-picker\n")
	_, first, _ := strings.Cut(report, "\n\n")
	_, second, _ := strings.Cut(check(t, report), "\n\n")
	if first != second {
		t.Errorf("read again it means\n%s\nwant\n%s", second, first)
	}
}

// The defaults of the reference and of the effective configuration are those that a plugin without parameters has.
func TestDeclaredDefaultsAreTheReal(t *testing.T) {
	for _, typ := range realTypes() {
		if typ.Unavailable != "" || typ.Parameters == nil {
			continue
		}
		profile := "- plugins: [{pluginRef: max-score-picker}]\n"
		switch {
		case strings.HasSuffix(typ.Type, "-picker"):
			profile = "- plugins: [{pluginRef: " + typ.Type + "}]\n"
		case !strings.HasSuffix(typ.Type, "-producer"):
			profile = "- plugins: [{pluginRef: " + typ.Type + "}, {pluginRef: max-score-picker}]\n"
		}
		text := "plugins:\n- type: " + typ.Type + "\n" + required(typ.Type) + "schedulingProfiles:\n" + profile
		f, err := config.Load(file(t, text), environment)
		if err != nil {
			t.Fatal(err)
		}
		before := f.Effective(realTypes())
		s, err := f.Build(realTypes(), nil)
		if err != nil {
			t.Fatal(err)
		}
		after := f.Effective(realTypes())
		// What the build adds comes after; the plugin's own part must not change.
		own := regexp.MustCompile(`(?s)  - name: ` + typ.Type + `\n(.*?)\n(  - name|schedulingProfiles)`)
		if b, a := own.FindStringSubmatch(before)[1], own.FindStringSubmatch(after)[1]; b != a {
			t.Errorf("declared defaults\n%s\nbut it runs with\n%s", b, a)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestC10_StalenessBelowScrapeInterval(t *testing.T) {
	got := faults(t, "plugins:\n- type: engine-metrics-producer\n  parameters: {scrapeInterval: 1s, stalenessThreshold: 200ms}\n")
	if !strings.HasPrefix(got, "f.yaml:3:56: plugins[0].parameters.stalenessThreshold: must be at least two scrape intervals") {
		t.Errorf("got %s", got)
	}
}

func TestC36_ThroughputMustBePositive(t *testing.T) {
	for _, value := range []string{"0", "-1"} {
		got := faults(t, "plugins:\n- type: prefix-cache-affinity-filter\n  parameters: {peakPrefillThroughput: "+value+"}\n")
		if !strings.HasPrefix(got, "f.yaml:3:39: plugins[0].parameters.peakPrefillThroughput: must be > 0") {
			t.Errorf("%s: got %s", value, got)
		}
	}
	got := faults(t, "plugins:\n- type: prefix-cache-affinity-filter\n  parameters: {penaltyMode: matchedTokens, ttftSource: latencyPredictor}\n")
	if !strings.Contains(got, "milliseconds and tokens do not compare") {
		t.Errorf("got %s", got)
	}
	report := check(t, `schedulingProfiles:
- plugins:
  - pluginRef: prefix-cache-affinity-filter
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: token-load-scorer, weight: 1}
  - pluginRef: max-score-picker
`)
	if !strings.Contains(report, "the prefix score sends it back") {
		t.Errorf("no warning that the prefix weight undoes the gate:\n%s", report)
	}
	// Two filters in a row are a use of their own.
	check(t, `plugins:
- {name: strict, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.99}}
- {name: loose, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.8}}
schedulingProfiles:
- plugins: [{pluginRef: strict}, {pluginRef: loose}, {pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]
`)
}

func TestC22_LedgerOverAProducerThatIsOff(t *testing.T) {
	got := faults(t, "plugins:\n- type: inflight-load-producer\n  parameters: {prefixMatchInfoProducerName: precise-prefix}\n")
	if !strings.Contains(got, `plugins[0].parameters.prefixMatchInfoProducerName: unknown producer "precise-prefix"`) {
		t.Errorf("got %s", got)
	}
	report := check(t, "plugins:\n- {name: mine, type: approx-prefix-cache-producer}\n")
	if !strings.Contains(report, "PrefixCacheMatchInfo ← mine") {
		t.Errorf("the ledger is not wired to the producer that runs:\n%s", report)
	}
}

// TestC22_LearntRatesOverAProducerThatIsOff: what prices work is wired to the ledger and to what learns that run, or refused by name.
func TestC22_LearntRatesOverAProducerThatIsOff(t *testing.T) {
	for text, want := range map[string]string{
		"plugins:\n- {type: learnt-rates-producer, parameters: {inFlightLoadProducerName: nobody}}\n":                                               `plugins[0].parameters.inFlightLoadProducerName: unknown producer "nobody"`,
		"plugins:\n- {type: prefill-cost-scorer, parameters: {learntRatesProducerName: nobody}}\n":                                                  `plugins[0].parameters.learntRatesProducerName: unknown producer "nobody"`,
		"plugins:\n- {type: prefix-cache-affinity-filter, parameters: {penaltyMode: breakEven, learntRatesProducerName: nobody}}\n":                 `plugins[0].parameters.learntRatesProducerName: unknown producer "nobody"`,
		"plugins:\n- type: learnt-rates-producer\n- {name: other, type: learnt-rates-producer}\n- type: prefill-cost-scorer\n":                      "learntRatesProducerName",
		"plugins:\n- {type: prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor, latencyPredictionInfoProducerName: nobody}}\n": `plugins[0].parameters.latencyPredictionInfoProducerName: unknown producer "nobody"`,
		"plugins:\n- {type: learnt-rates-producer, parameters: {peakPrefillThroughput: 0}}\n":                                                       "plugins[0].parameters.peakPrefillThroughput: must be > 0",
		"plugins:\n- {type: prefill-cost-scorer, parameters: {peakPrefillThroughput: 0}}\n":                                                         "plugins[0].parameters.peakPrefillThroughput: must be",
		"plugins:\n- {type: prefix-cache-affinity-filter, parameters: {penaltyMode: breakeven}}\n":                                                  `did you mean "breakEven"?`,
	} {
		if got := faults(t, text); !strings.Contains(got, want) {
			t.Errorf("%s\ngot %s\nwant %s", text, got, want)
		}
	}
	report := check(t, "plugins:\n- {name: mine, type: learnt-rates-producer}\n")
	if got := strings.Count(report, "LearntRates ← mine"); got != 2 {
		t.Errorf("%d of the gate and the scorer are wired to what learns:\n%s", got, report)
	}
}

// With the real plugins every input of the report is refused too, with the file's name before the error.
func TestC43_WithRealPlugins(t *testing.T) {
	paths, err := filepath.Glob("testdata/bad_c43_*.yaml")
	if err != nil || len(paths) != 17 {
		t.Fatalf("%d files (%v), want 17", len(paths), err)
	}
	for _, path := range paths {
		_, err := config.Check(path, environment, realTypes())
		var all config.Faults
		if !errors.As(err, &all) {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, f := range all {
			if f.File != path || f.Line == 0 {
				t.Errorf("%s: no place in %v", path, f)
			}
		}
	}
	got := faults(t, "plugins:\n- type: prefix-cache-affinity-filter\n  parameters:\n    affinityThreshold: 1e9\n    maxTTFTPenaltyMs: -1\n    epsilonExploreSticky: 2\n    affinityTreshold: 0.5\n")
	for _, want := range []string{
		"f.yaml:4:24: plugins[0].parameters.affinityThreshold: must be at most 1",
		"f.yaml:5:23: plugins[0].parameters.maxTTFTPenaltyMs: must be from 0",
		"explorationProbability: must be from 0 to 1, got 2",
		`f.yaml:7:5: plugins[0].parameters.affinityTreshold: unknown key (did you mean "affinityThreshold"?)`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}

// Differences from llm-d are told for what a file leaves open, under whichever spelling.
func TestDifferencesFromLLMD(t *testing.T) {
	const open = "prefix-cache-affinity-filter.explorationProbability is 0.01; llm-d's is 0"
	for parameters, want := range map[string]bool{
		"{}": true, "{affinityThreshold: 0.8}": true, "{explorationProbability: 0.01}": false, "{epsilonExploreSticky: 0.02}": false,
	} {
		report := check(t, "apiVersion: llm-d.ai/v1alpha1\nplugins: [{type: prefix-cache-affinity-filter, parameters: "+parameters+"}]\n")
		if got := strings.Contains(report, open); got != want {
			t.Errorf("%s: told %v, want %v", parameters, got, want)
		}
	}
}

func TestRealTypesAreNotForeign(t *testing.T) {
	seen := map[string]bool{}
	for _, typ := range realTypes() {
		if slices.Contains(config.IgnoredTypes(), typ.Type) || slices.Contains(config.RefusedTypes(), typ.Type) {
			t.Errorf("%s is in a table of foreign types", typ.Type)
		}
		if seen[typ.Type] {
			t.Errorf("%s is listed twice", typ.Type)
		}
		seen[typ.Type] = true
	}
}

// What the documentation shows can be run.
func TestDocumentation(t *testing.T) {
	for name, least := range map[string]int{"configuration.md": 2, "endpoints.md": 1, "latency.md": 1} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
		if len(blocks) < least {
			t.Errorf("%s: %d blocks of YAML, want at least %d", name, len(blocks), least)
		}
		for _, block := range blocks {
			if name != "endpoints.md" || strings.HasPrefix(string(block[1]), "endpoints:\n") && !strings.Contains(string(block[1]), "address:") {
				check(t, string(block[1]))
			}
		}
	}
}

// Sizes of plugins are written as the server's own are, and a key in the wrong section is told which one has it.
func TestSizesOfPlugins(t *testing.T) {
	report := check(t, `
plugins:
  - type: precise-prefix-cache-producer
    parameters: {kvEvents: {maxMessageBytes: 1MiB}}
  - type: token-producer
    parameters: {vllm: {memoBytes: 67108864}}
`)
	for _, want := range []string{`maxMessageBytes: "1MiB"`, `memoBytes: "64MiB"`} {
		if !strings.Contains(report, want) {
			t.Errorf("no %s in\n%s", want, report)
		}
	}
	got := faults(t, `
plugins:
  - type: precise-prefix-cache-producer
    parameters: {kvEvents: {maxMessageBytes: 2GiB}}
  - type: engine-metrics-producer
    parameters: {maxPageBytes: 1e6}
  - {name: other, type: precise-prefix-cache-producer, parameters: {maxMessageBytes: 1MiB}}
`)
	for _, want := range []string{
		"f.yaml:4:46: plugins[0].parameters.kvEvents.maxMessageBytes: must be 64KiB to 1GiB, or 0 for the default, got 2GiB",
		"f.yaml:6:32: plugins[1].parameters.maxPageBytes: must be a number of bytes such as 67108864 or 64MiB, got \"1e6\"",
		"plugins[2].parameters.maxMessageBytes: unknown key; it belongs in plugins[2].parameters.kvEvents",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
