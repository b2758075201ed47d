//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// prefillLog writes a log of streamed requests to an engine that prefills 2,000 tokens a second, 4,000 of whose tokens another
// would have to compute again.
func prefillLog(t *testing.T, path string) {
	t.Helper()
	var lines strings.Builder
	for i := range 400 {
		uncached, ahead := int64(100+i*37%3000), int64(i*53%5000)
		candidate := func(ordinal uint32, match int64) *decisionv1.Candidate {
			return &decisionv1.Candidate{
				Ordinal: ordinal, Address: fmt.Sprintf("10.0.0.%d:8000", ordinal), State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				PrefixCacheMatches:    []*decisionv1.PrefixCacheMatch{{MatchBlocks: match, CachedBlockCount: match, TotalBlocks: 250, BlockSizeTokens: 16}},
				InFlightLoads:         []*decisionv1.InFlightLoad{{Tokens: ahead}},
				UncachedRequestTokens: []*decisionv1.UncachedRequestTokens{{Tokens: uncached}},
			}
		}
		d := &decisionv1.Decision{
			Id: uint64(i + 1), TimeUnixNano: int64(i), Request: &decisionv1.Request{Model: "m", Stream: true}, Picks: []uint32{0},
			Columns:    []*decisionv1.Column{{DataType: "PrefixCacheMatchInfo"}, {DataType: "InFlightLoad"}, {DataType: "UncachedRequestTokens"}},
			Candidates: []*decisionv1.Candidate{candidate(0, 250), candidate(1, 0)},
			Outcome:    &decisionv1.Outcome{Reason: "complete", Status: 200, TtftMs: proto.Float64(20 + float64(uncached+ahead)/2)},
		}
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(b)
		lines.WriteByte('\n')
	}
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCalibrateFromALog(t *testing.T) {
	folder := t.TempDir()
	log, figures, page := filepath.Join(folder, "a.jsonl"), filepath.Join(folder, "f.json"), filepath.Join(folder, "p.html")
	prefillLog(t, log)
	code, stdout, stderr := asProcess(t, "calibrate", log, "--json", figures, "--html", page)
	for _, want := range []string{"2,000 tokens per second", "break-even             2,000 ms", "the built-in configuration",
		"prefix-cache-affinity-filter: nothing need be set: the gate measures it", "peakPrefillThroughput: 2000 # is 15928"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, said %q, no %q in\n%s", code, stderr, want, stdout)
		}
	}
	var report struct {
		Deployments []struct {
			Peak struct{ Value float64 } `json:"peak_prefill_throughput"`
		} `json:"deployments"`
	}
	if b, err := os.ReadFile(figures); err != nil || json.Unmarshal(b, &report) != nil || int(report.Deployments[0].Peak.Value+0.5) != 2000 {
		t.Errorf("the figures: %v, %+v", err, report)
	}
	if b, err := os.ReadFile(page); err != nil || !strings.Contains(string(b), "peakPrefillThroughput: 2000") {
		t.Errorf("the page: %v", err)
	}
}

// What is printed can be pasted: the file with it is valid, and calibrating again changes nothing.
func TestCalibrateForAFile(t *testing.T) {
	folder := t.TempDir()
	log, file := filepath.Join(folder, "a.jsonl"), filepath.Join(folder, "sluice.yaml")
	prefillLog(t, log)
	write := func(plugins string) {
		t.Helper()
		text := plugins + "  - type: prefill-cost-scorer\n    name: cost\n  - type: max-score-picker\nschedulingProfiles:\n  - name: default\n    plugins:\n      - pluginRef: prefix-cache-affinity-filter\n" +
			"      - pluginRef: cost\n      - pluginRef: max-score-picker\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("plugins:\n  - type: prefix-cache-affinity-filter\n    parameters: {penaltyMode: static, maxTTFTPenaltyMs: 900}\n  - type: learnt-rates-producer\n    name: rates\n")
	code, stdout, stderr := asProcess(t, "calibrate", log, "--config", file)
	if code != 0 || !strings.Contains(stdout, "maxTTFTPenaltyMs: 4000 # is 900") || !strings.Contains(stdout, `name: "rates"`) || !strings.Contains(stdout, "For "+file) {
		t.Fatalf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	_, pasted, _ := strings.Cut(stdout, "plugins:\n")
	pasted, _, _ = strings.Cut(pasted, "\n\n")
	write("plugins:\n" + pasted + "\n")
	code, stdout, stderr = asProcess(t, "calibrate", log, "--config", file)
	if code != 0 || strings.Contains(stdout, "# is ") || strings.Count(stdout, "# as it is") < 3 {
		t.Errorf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	// A bar that is a ceiling only is left alone.
	write("plugins:\n  - type: prefix-cache-affinity-filter\n    parameters: {penaltyMode: matchedTokens}\n")
	if _, stdout, _ = asProcess(t, "calibrate", log, "--config", file); strings.Contains(stdout, "maxTTFTPenaltyMs: 4000") || !strings.Contains(stdout, "peakPrefillThroughput") {
		t.Errorf("printed\n%s", stdout)
	}
}

// What is printed for a configuration changes it in nothing but what is said to change.
func TestCalibratePasted(t *testing.T) {
	folder := t.TempDir()
	log := filepath.Join(folder, "a.jsonl")
	prefillLog(t, log)
	const profile = "schedulingProfiles: [{plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: max-score-picker}]}]\n"
	for name, tc := range map[string]struct{ before, after, gone string }{
		"the built-in one": {"", "", "prefix-cache-affinity-filter\n"},
		"a gate that breaks even": {
			"plugins: [{type: prefix-cache-affinity-filter, parameters: {penaltyMode: breakEven, alpha: 2}}, {type: learnt-rates-producer, parameters: {classLabel: gpu}}]\n" + profile,
			"  - {type: prefix-cache-affinity-filter, parameters: {penaltyMode: breakEven, alpha: 2}}\n" + profile, "maxTTFTPenaltyMs",
		},
		"a gate with a match": {
			"plugins: [{type: prefix-cache-affinity-filter, parameters: {penaltyMode: matchedTokens, affinityGateTau: 0.7, explorationProbability: 0}}]\n" + profile, profile, "learnt",
		},
		"a gate with a bar": {
			"plugins: [{type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 900, affinityThreshold: 0.6}}]\n" + profile, profile, "learnt",
		},
	} {
		t.Run(name, func(t *testing.T) {
			file, pasted := filepath.Join(folder, "before.yaml"), filepath.Join(folder, "after.yaml")
			args := []string{"calibrate", log}
			if tc.before != "" {
				if err := os.WriteFile(file, []byte(tc.before), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", file)
			} else if err := os.WriteFile(file, []byte("plugins: []\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := asProcess(t, args...)
			_, piece, found := strings.Cut(stdout, "\nplugins:\n")
			piece, _, _ = strings.Cut(piece, "\n\n")
			if code != 0 || !found || strings.Contains(piece+"\n", tc.gone) {
				t.Fatalf("exit %d, said %q, printed\n%s", code, stderr, stdout)
			}
			if err := os.WriteFile(pasted, []byte("plugins:\n"+piece+"\n"+tc.after), 0o600); err != nil {
				t.Fatal(err)
			}
			before, after := parametersOf(t, file), parametersOf(t, pasted)
			for line := range strings.Lines(piece) {
				parameter, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
				to, from, changes := strings.Cut(strings.TrimSpace(rest), " # is ")
				if !changes {
					continue
				}
				changed := 0
				for key, value := range before {
					if strings.HasSuffix(key, "."+parameter) && value == from && after[key] == to {
						after[key] = from
						changed++
					}
				}
				if changed == 0 {
					t.Errorf("%s: not in force", line)
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("beside what is said (-before +after):\n%s\n%s", diff, piece)
			}
		})
	}
}

// parametersOf are the parameters in force of a file's plugins, by plugin and name.
func parametersOf(t *testing.T, file string) map[string]string {
	t.Helper()
	code, stdout, stderr := asProcess(t, "config", "check", file)
	if code != 0 {
		t.Fatal(stderr)
	}
	all, plugin := map[string]string{}, ""
	_, plugins, _ := strings.Cut(stdout, "\nplugins:\n")
	for line := range strings.Lines(plugins) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if key == "- name" {
			plugin = value
		}
		all[strings.TrimSpace(plugin)+"."+key] = strings.TrimSpace(value)
	}
	return all
}

// A live engine is asked nothing but for its models, unless someone agrees.
func TestCalibrateAsksFirst(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
			return
		}
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":%d}}\n\ndata: [DONE]\n\n", strings.Count(string(body), " ")+1)
	}))
	defer s.Close()
	code, stdout, stderr := asProcess(t, "calibrate", "--endpoint", s.URL)
	if code != exitFailure || asked.Load() != 0 || stdout != "" || !strings.Contains(stderr, "nothing was sent") || !strings.Contains(stderr, "for the model m with about") {
		t.Errorf("exit %d after %d requests, printed %q, said %q", code, asked.Load(), stdout, stderr)
	}
	code, stdout, stderr = asProcess(t, "calibrate", "--endpoint", s.URL, "--yes", "--max-tokens", "30000")
	if code != 0 || asked.Load() == 0 || !strings.Contains(stdout, "prefill throughput") || !strings.Contains(stderr, " of ") {
		t.Errorf("exit %d after %d requests, printed %q, said %q", code, asked.Load(), stdout, stderr)
	}
}

func TestCalibrateFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "a.jsonl")
	prefillLog(t, log)
	for args, want := range map[string]string{
		"":                                     "give the files or folders of a decision log, or --endpoint URL",
		log + " --endpoint http://127.0.0.1:1": "--endpoint: give it or a log, not both",
		log + " --header x":                    `--header: must be "name:value"`,
		log + " --by pod":                      `by: must be model, endpoint or label:KEY, got "pod"`,
		log + " --config /nowhere.yaml":        "/nowhere.yaml",
		"/nowhere":                             "/nowhere",
		"--endpoint http://127.0.0.1:1 --yes":  "connection refused",
		"--endpoint http://127.0.0.1:1 --api grpc": "api: must be completions or chat",
		log + " --json /nowhere/a.json":            "--json: ",
	} {
		code, stdout, stderr := asProcess(t, append([]string{"calibrate"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%s: exit %d, printed %q, said %q, want %q", args, code, stdout, stderr, want)
		}
	}
}
