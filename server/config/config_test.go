package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// mustOpen opens a text that is right.
func mustOpen(t *testing.T, text string) (*File, *scheduling.Scheduler) {
	t.Helper()
	f, s, err := open("f.yaml", []byte(text), environment, testTypes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, s
}

// faultsOf opens a text that is wrong.
func faultsOf(t *testing.T, text string) string {
	t.Helper()
	_, _, err := open("f.yaml", []byte(text), environment, testTypes())
	if err == nil {
		t.Fatalf("accepted:\n%s", text)
	}
	return err.Error()
}

func TestDefault(t *testing.T) {
	f, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), f.Config); diff != "" {
		t.Errorf("the built-in configuration changes the server's defaults (-want +got)\n%s", diff)
	}
	if len(f.Warnings) > 0 {
		t.Errorf("the built-in configuration warns: %v", f.Warnings)
	}
	s, err := f.Build(testTypes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// A file that says nothing of plugins runs the same ones.
	nothing, s2 := mustOpen(t, "server: {}\n")
	want, got := s.Describe(), s2.Describe()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("without plugins (-built-in +file)\n%s", diff)
	}
	if diff := cmp.Diff(f.refs, nothing.refs, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Path" }, cmp.Ignore())); diff != "" {
		t.Errorf("profile (-built-in +file)\n%s", diff)
	}
	if !strings.Contains(f.Effective(testTypes()), "explorationProbability: 0\n") {
		t.Error("the built-in profile explores")
	}
}

// Every input of the report has a file, and its error names the path and, where there is one, the nearest valid name.
func TestC43_ConfigTypos(t *testing.T) {
	for name, want := range map[string]string{
		"misspelt_key":          `plugins[0].parameters.affinityTreshold: unknown key (did you mean "affinityThreshold"?)`,
		"retired_key":           `plugins[0].parameters.hashBlockSize: is retired: it is called blockSizeTokens`,
		"retired_type":          `its name is label-selector-filter`,
		"unit_in_number":        `plugins[0].parameters.maxTTFTPenaltyMs: must be a number without a unit, got "5s"`,
		"negative":              `plugins[0].parameters.maxTTFTPenaltyMs: must be from 0 to 1e9, got -1`,
		"nan":                   `plugins[0].parameters.maxTTFTPenaltyMs: must be a finite number, got "NaN"`,
		"1e99":                  `plugins[0].parameters.maxTTFTPenaltyMs: is out of range`,
		"duplicate_key":         `server.decisionHeader: duplicate key; it stands at 2:3 already`,
		"duplicate_plugin_name": `plugins[1].name: duplicate plugin name "token-producer"`,
		"unknown_plugin":        `unknown plugin "max-score-piker" (did you mean "max-score-picker"?)`,
		"two_pickers":           `schedulingProfiles[0].plugins[1]: "random-picker" is a second picker`,
		"no_picker":             `schedulingProfiles[0]: the profile has no picker`,
		"empty_file":            `has nothing in it`,
		"tabs":                  `a tab indents this line`,
		"weight_zero":           `schedulingProfiles[0].plugins[0].weight: must be > 0, got 0`,
		"scorer_in_no_profile":  `plugins[0]: is in no scheduling profile and would do nothing`,
		"unknown_api_version":   `apiVersion: unknown version "sluice/v1alpha2" (did you mean "sluice/v1alpha1"?)`,
	} {
		t.Run(name, func(t *testing.T) {
			file := "bad_c43_" + name
			_, _, err := open(file+".yaml", data(t, file), environment, testTypes())
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), file+".yaml:") {
				t.Errorf("got %v\nwant %s", err, want)
			}
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, _, err := open("f.yaml", data(t, "bad_every_fault_at_once"), environment, testTypes())
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 10 {
		t.Errorf("%d faults, want 10 (of the text, of sections, of parameters, of the graph):\n%v", len(faults), err)
	}
	if !slices.IsSortedFunc(faults, func(a, b Fault) int { return a.Line - b.Line }) {
		t.Errorf("not in the order of the lines:\n%v", err)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "unknown%d: 1\n", i)
	}
	_, err := Parse("f", []byte(b.String()), noEnvironment)
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != maxFaults+1 || faults[maxFaults].Message != "200 more faults from here on" {
		t.Errorf("%d faults, the last %+v", len(faults), faults[len(faults)-1])
	}
	if _, err := Parse("f", make([]byte, MaxFileBytes+1), noEnvironment); err == nil || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("a file beyond the bound: %v", err)
	}
}

// Aliases can make a small file stand for a huge one.
func TestAliasesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("plugins:\n- type: label-selector-filter\n  parameters:\n    matchLabels:\n      a: &a0 {x: y}\n")
	for i := range 20 {
		fmt.Fprintf(&b, "      b%d: &a%d {x: *a%d, y: *a%d, z: *a%d}\n", i, i+1, i, i, i)
	}
	if got := faultsOf(t, b.String()); !strings.Contains(got, "must be a single value, got a mapping") {
		t.Errorf("got %s", got)
	}
	types := append(testTypes(), testType("free", freeParams{}, func(*scheduling.Builder, freeParams) (any, error) { return testProducer{}, nil }))
	text := strings.Replace(strings.Replace(b.String(), "label-selector-filter", "free", 1), "matchLabels", "anything", 1)
	if _, _, err := open("f.yaml", []byte(text), noEnvironment, types); err == nil || !strings.Contains(err.Error(), "holds too much") {
		t.Errorf("got %v", err)
	}
}

type freeParams struct {
	Anything any `yaml:"anything"`
}

// The plugin list of the design: of types that a build lacks each use is refused by name, and nothing else is.
func TestPluginListsOfTheDesign(t *testing.T) {
	want := func(text string, lines ...string) {
		t.Helper()
		if diff := cmp.Diff(strings.Join(lines, "\n"), faultsOf(t, text)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	want(exampleList,
		`f.yaml:12:11: plugins[3].type: unknown plugin type "predicted-latency-producer"`,
		`f.yaml:18:9: schedulingProfiles[0].plugins[1]: unknown plugin "latency-scorer"`,
	)
}

const exampleList = `apiVersion: sluice/v1alpha1        # llm-d.ai/v1alpha1 is accepted too
kind: EndpointPickerConfig
plugins:
  - type: token-producer
    parameters: {modelName: ${MODEL_NAME}}
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

// A ledger is wired to the only producer of prefix matches there is, whatever its name; several must be told apart.
func TestC22_LedgerIsWiredToWhatRuns(t *testing.T) {
	_, s := mustOpen(t, "plugins:\n- {name: mine, type: approx-prefix-cache-producer}\n- type: inflight-load-producer\n")
	if got := strings.Join(s.Describe(), "\n"); !strings.Contains(got, "PrefixCacheMatchInfo ← mine") {
		t.Errorf("the ledger reads from another producer:\n%s", got)
	}
	got := faultsOf(t, "plugins:\n- {name: a, type: approx-prefix-cache-producer}\n- {name: b, type: approx-prefix-cache-producer}\n- type: inflight-load-producer\n")
	if !strings.Contains(got, "prefixMatchInfoProducerName: several plugins produce PrefixCacheMatchInfo: name one of a, b") {
		t.Errorf("got %s", got)
	}
}

func TestC36_WarnsOfAPrefixWeightThatUndoesTheGate(t *testing.T) {
	profile := func(weights ...float64) string {
		return fmt.Sprintf(`schedulingProfiles:
- plugins:
  - pluginRef: prefix-cache-affinity-filter
  - {pluginRef: prefix-cache-scorer, weight: %v}
  - {pluginRef: token-load-scorer, weight: %v}
  - {pluginRef: queue-scorer, weight: %v}
  - pluginRef: max-score-picker
`, weights[0], weights[1], weights[2])
	}
	for _, tc := range []struct {
		weights []float64
		warns   bool
	}{{[]float64{3, 1, 1}, true}, {[]float64{2, 1, 1}, true}, {[]float64{1.9, 1, 1}, false}, {[]float64{1, 4, 4}, false}} {
		f, _ := mustOpen(t, profile(tc.weights...))
		if warned := len(f.Warnings) == 1 && strings.Contains(f.Warnings[0].Message, "the prefix score sends it back"); warned != tc.warns {
			t.Errorf("weights %v: warnings %v", tc.weights, f.Warnings)
		}
	}
	// Two prefix scorers undo it together.
	const second = "plugins:\n- {name: second, type: prefix-cache-scorer}\n"
	for weight, warns := range map[float64]bool{1: true, 0.9: false} {
		f, _ := mustOpen(t, second+strings.Replace(profile(1, 1, 1), "  - pluginRef: max-score-picker\n",
			fmt.Sprintf("  - {pluginRef: second, weight: %v}\n  - pluginRef: max-score-picker\n", weight), 1))
		want := fmt.Sprintf("prefix-cache-scorer and second have together weight %v", 1+weight)
		if warned := len(f.Warnings) == 1 && strings.Contains(f.Warnings[0].Message, want); warned != warns {
			t.Errorf("a second prefix scorer of weight %v: warnings %v", weight, f.Warnings)
		}
	}
	f, _ := mustOpen(t, strings.Replace(profile(3, 1, 1), "  - pluginRef: prefix-cache-affinity-filter\n", "", 1))
	if len(f.Warnings) > 0 {
		t.Errorf("without the filter: %v", f.Warnings)
	}
}

// A decision log that is set up without a folder writes nothing, which the file's author does not mean.
func TestDecisionLogWithoutFolder(t *testing.T) {
	for text, warns := range map[string]bool{
		"telemetry: {decisionLog: {format: parquet}}\n":                     true,
		"telemetry: {decisionLog: {format: jsonl, path: \"\"}}\n":           true,
		"telemetry: {decisionLog: {format: parquet, path: /tmp/nowhere}}\n": false,
		"telemetry: {logLevel: info}\n":                                     false,
	} {
		f, _ := mustOpen(t, text)
		if warned := len(f.Warnings) == 1 && strings.Contains(f.Warnings[0].Error(), "telemetry.decisionLog: no decision is written: path is empty"); warned != warns || len(f.Warnings) > 1 {
			t.Errorf("%s: warnings %v", text, f.Warnings)
		}
	}
}

func TestTierWeights(t *testing.T) {
	const file = "plugins:\n- {type: tiered-cache, parameters: {tiers: {%s}}}\n- {type: prefix-cache-affinity-filter, parameters: {%s}}\n"
	for _, tc := range []struct {
		tiers, gate string
		want        int
	}{
		{"gpu: 1", "affinityThreshold: 0.9", 0},
		{"gpu: 0.9", "affinityThreshold: 0.9", 1},           // at the threshold
		{"gpu: 0.7", "", 0},                                 // neither is configured
		{"gpu: 1, cpu: 0.8", "", 1},                         // the weights are, and the default threshold is 0.8
		{"gpu: 0.5, cpu: 0.5", "affinityThreshold: 0.5", 2}, // both tiers
		{"gpu: 1, cpu: 0.81", "affinityThreshold: 0.8", 0},
	} {
		f, _ := mustOpen(t, fmt.Sprintf(file, tc.tiers, tc.gate))
		if len(f.Warnings) != tc.want {
			t.Errorf("tiers %s, %s: warnings %v, want %d", tc.tiers, tc.gate, f.Warnings, tc.want)
		}
	}
}

func TestHash(t *testing.T) {
	hash := func(text string) string {
		f, _ := mustOpen(t, text)
		return f.Hash(testTypes())
	}
	plain := hash("server: {}\n")
	if got := hash("# another text\nserver:\n  maxEndpointsInPick: 1\nplugins: []\n"); got != plain {
		t.Error("the hash depends on how the same configuration is written")
	}
	if got := hash("server: {maxEndpointsInPick: 2}\n"); got == plain {
		t.Error("the hash does not depend on the server's sections")
	}
	if got := hash("plugins: [{type: inflight-load-producer, parameters: {outputRatio: 2}}]\n"); got == plain {
		t.Error("the hash does not depend on parameters")
	}
	seeds := []string{"one", "two"}
	for i := range seeds {
		seeds[i] = hash("plugins: [{type: approx-prefix-cache-producer, parameters: {hashSeed: " + seeds[i] + "}}]\n")
	}
	if seeds[0] != seeds[1] {
		t.Error("the hash tells secrets apart")
	}
}

func TestOpenAndCheck(t *testing.T) {
	report, err := Check("", environment, testTypes())
	if err != nil || !strings.HasPrefix(report, "# built-in configuration is valid") {
		t.Errorf("Check of nothing: %v\n%s", err, report)
	}
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte("server: {maxEndpointsInPick: 3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err = Check(path, environment, testTypes())
	if err != nil || !strings.Contains(report, "\n  maxEndpointsInPick: 3\n") {
		t.Errorf("Check: %v\n%s", err, report)
	}
	f, s, err := Open(path, environment, testTypes())
	if err != nil || f.Config.Server.MaxEndpointsInPick != 3 {
		t.Fatalf("Open = %v, %v", f, err)
	}
	if next, err := f.Build(testTypes(), s); err != nil || next == nil {
		t.Errorf("Build beside a scheduler = %v, %v", next, err)
	}
	if _, err := Check(filepath.Join(t.TempDir(), "none.yaml"), environment, testTypes()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Check of a missing file = %v", err)
	}
}

// The file's length of the ordered list reaches the scheduler.
func TestMaxEndpointsInPickReachesTheScheduler(t *testing.T) {
	_, s := mustOpen(t, "server: {maxEndpointsInPick: 3}\n")
	c := s.Begin(&scheduling.Snapshot{}, &scheduling.Request{}, 0)
	defer s.End(c)
	if c.MaxPicks != 3 {
		t.Errorf("MaxPicks = %d", c.MaxPicks)
	}
}

// What is foreign and what is ours never overlap: a plugin that comes to exist must leave the tables.
func TestForeignTypesAreNotOurs(t *testing.T) {
	for _, ours := range testTypes() {
		if slices.Contains(IgnoredTypes(), ours.Type) || slices.Contains(RefusedTypes(), ours.Type) {
			t.Errorf("%s is in a table of foreign types", ours.Type)
		}
	}
	for _, kind := range IgnoredTypes() {
		if refusal(kind) != "" {
			t.Errorf("%s is both ignored and refused", kind)
		}
	}
	for _, kind := range RefusedTypes() {
		got := faultsOf(t, "plugins: [{type: "+kind+"}]\n")
		if !strings.Contains(got, "plugins[0].type: llm-d's "+kind+" is not supported") {
			t.Errorf("%s: %s", kind, got)
		}
	}
	for _, kind := range IgnoredTypes() {
		f, _ := mustOpen(t, "plugins: [{type: "+kind+"}]\n")
		if len(f.Warnings) != 1 {
			t.Errorf("%s: warnings %v", kind, f.Warnings)
		}
	}
}
