//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const smallGrid = `
scenarios: [{name: b2b, b2b: {requests: 60, customers: 3}, rate: [4, 8], endpoints: [2]}]
candidates: [{name: as it is}, {name: gate of 5 s, set: {prefix-cache-affinity-filter.penaltyMode: static, prefix-cache-affinity-filter.maxTTFTPenaltyMs: 5000}}]
`

func gridFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "grid.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSimulate(t *testing.T) {
	code, stdout, stderr := captured(t, strings.Fields("simulate --trace b2b --b2b-requests 60 --endpoints 2 --seeds 2 --policy random --engine 1:slower=2 --shift burst:at=0.5")...)
	if code != 0 || !strings.Contains(stdout, "b2b\ncandidate") || !strings.Contains(stdout, "built-in") || !strings.Contains(stdout, "±") {
		t.Errorf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = captured(t, strings.Fields("simulate --trace b2b --b2b-requests 100 --endpoints 2 --policy random --find-capacity")...)
	if code != 0 || !strings.Contains(stdout, "capacity") || strings.Count(stdout, "/s") != 2 {
		t.Errorf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	results := filepath.Join(t.TempDir(), "results.jsonl")
	args := []string{"simulate", "--grid", gridFile(t, smallGrid), "--results", results}
	code, stdout, stderr = captured(t, args...)
	if code != 0 || !strings.Contains(stdout, "b2b 4/s\ncandidate") || !strings.Contains(stdout, "b2b 8/s\ncandidate") || !strings.Contains(stdout, "gate of 5 s") {
		t.Errorf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	before, err := os.ReadFile(results)
	if err != nil || strings.Count(string(before), "\n") != 4 {
		t.Fatalf("%v: %s", err, before)
	}
	code, again, _ := captured(t, append(args, "--limit", "1")...) // nothing is missing, so the limit is not in the way
	if after, err := os.ReadFile(results); err != nil || code != 0 || again != stdout || string(after) != string(before) {
		t.Errorf("exit %d, printed\n%s\n%v", code, again, err)
	}
	html := filepath.Join(t.TempDir(), "report.html")
	code, _, stderr = captured(t, append(args, "--html", html)...)
	if page, err := os.ReadFile(html); err != nil || code != 0 || !strings.Contains(string(page), "<h2>b2b, by load</h2>") || !strings.Contains(string(page), "<svg") {
		t.Errorf("%v: exit %d, said %q", err, code, stderr)
	}
	code, stdout, _ = captured(t, append(args, "--json", "-")...)
	if code != 0 || !strings.HasPrefix(stdout, "[") || !strings.Contains(stdout, `"ttft_mean_s"`) {
		t.Errorf("exit %d, printed %s", code, stdout)
	}
}

// default is the built-in configuration, beside files as alone.
func TestSimulateConfigDefault(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.yaml")
	const text = "plugins: [{type: random-picker}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]\n"
	if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := captured(t, "simulate", "--trace", "b2b", "--b2b-requests", "60", "--endpoints", "2", "--config", other, "--config", "default")
	if code != 0 || !strings.Contains(stdout, "\nother.yaml") || !strings.Contains(stdout, "\nbuilt-in") || !strings.Contains(stdout, "one seed: no intervals") {
		t.Errorf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
}

func TestSimulateFaults(t *testing.T) {
	grid := gridFile(t, smallGrid)
	for args, want := range map[string]string{
		"--trace /nowhere/trace.jsonl":                                                    "--trace: open /nowhere/trace.jsonl: no such file",
		"--trace b2b --config /nowhere/config.yaml":                                       "--config: open /nowhere/config.yaml: no such file",
		"--trace b2b --b2b-requests 0":                                                    "b2b: cannot be made of",
		"--trace b2b --seeds 0":                                                           "seeds: must be from 1 to 1000, got 0",
		"--trace b2b --kv-tokens 0":                                                       "scenario b2b: endpoint 0: KV tokens: must be > 0, got 0",
		"--trace b2b --results /nowhere/x/r.jsonl":                                        "--results: open /nowhere/x/r.jsonl",
		"--trace b2b --engine 8:slower=2":                                                 "--engine: 8:slower=2: must begin with an endpoint, or a first and a last one, from 0 to 7",
		"--trace b2b --shift slowr":                                                       `--shift: slowr: must be one of slower, prompts, burst, got "slowr" (did you mean "slower"?)`,
		"--trace b2b --shift slower:endpoint=8":                                           "scenario b2b: shift 1: slower: endpoint: must be from 0 to 7, got 8",
		"--trace b2b --policy rnadom":                                                     `--policy: unknown policy "rnadom" (did you mean "random"?)`,
		"--trace b2b --b2b-requests 60 --endpoints 2 --html /nowhere/x.html":              "--html: open /nowhere/x.html",
		"--trace b2b --b2b-requests 60 --endpoints 2 --json /nowhere/x.json":              "--json: open /nowhere/x.json",
		"--grid /nowhere/grid.yaml":                                                       "--grid: open /nowhere/grid.yaml",
		"--grid " + grid + " --speed 2":                                                   "--speed: must be absent with --grid",
		"--grid " + gridFile(t, "scenarioz: []"):                                          `:1:1: scenarioz: unknown key (did you mean "scenarios"?)`,
		"--grid " + grid + " --results " + filepath.Join(t.TempDir(), "r") + " --limit 3": "4 runs are missing and 0 are done, together 4: more than the limit of 3",
	} {
		if code, stdout, stderr := captured(t, append([]string{"simulate"}, strings.Fields(args)...)...); code != exitFailure || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%s: exit %d, printed %q, said %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

// A grid that is interrupted, and then killed, keeps what is done each time, and the same command does the rest.
func TestSimulateGoesOn(t *testing.T) {
	const runs = 24
	rates := make([]string, runs)
	for i := range rates {
		rates[i] = strconv.Itoa(i + 1)
	}
	grid := gridFile(t, `
scenarios: [{name: b2b, b2b: {requests: 60, customers: 3, systemTokens: 1600, questionTokens: 160, answerTokens: 50}, rate: [`+strings.Join(rates, ", ")+`], endpoints: [2]}]
candidates: [{policy: random}]
`)
	results := filepath.Join(t.TempDir(), "results.jsonl")
	args := []string{"simulate", "--grid", grid, "--results", results, "--workers", "1"}
	page, figures := filepath.Join(t.TempDir(), "grid.html"), filepath.Join(t.TempDir(), "grid.json")
	args = append(args, "--html", page, "--json", figures)
	lines := func() (whole string, n int) {
		text, _ := os.ReadFile(results) // it may not be there yet
		whole = string(text[:bytes.LastIndexByte(text, '\n')+1])
		return whole, strings.Count(whole, "\n")
	}
	for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
		before, had := lines()
		var said strings.Builder
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = commandEnvironment()
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < had+2; time.Sleep(time.Millisecond) {
			_, n = lines()
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		kept, n := lines()
		if !strings.HasPrefix(kept, before) {
			t.Errorf("%v: of %d lines some were lost", signal, had)
		}
		if n == runs {
			t.Logf("%v: all was done before the signal came", signal)
			break
		}
		if signal != os.Interrupt {
			continue
		}
		html, _ := os.ReadFile(page)
		json, _ := os.ReadFile(figures)
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupt+2 {
			t.Errorf("interrupted: exit %d", code)
		}
		if want := fmt.Sprintf(" of %d runs; the same command goes on", runs); !strings.Contains(said.String(), want) || !strings.Contains(string(html), "runs are missing") ||
			!strings.Contains(string(json), `"missing": 1`) {
			t.Errorf("interrupted: said %q, wrote %d bytes of HTML and %s", said.String(), len(html), json)
		}
	}
	kept, had := lines()
	if code, stdout, stderr := captured(t, args...); code != 0 || !strings.Contains(stdout, fmt.Sprintf("b2b %d/s", runs)) {
		t.Errorf("exit %d, said %q", code, stderr)
	}
	if after, n := lines(); !strings.HasPrefix(after, kept) || n != runs {
		t.Errorf("%d lines, %d before", n, had)
	}
}
