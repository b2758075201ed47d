//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// asProcess runs the command line in a process of its own, as commands need that take signals over.
func asProcess(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = commandEnvironment()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// gateLog writes a log of decisions whose gate had these gaps, in tokens, at 1,000 tokens a second and a bar of 18 s.
func gateLog(t *testing.T, path string, gaps ...int64) {
	t.Helper()
	var lines strings.Builder
	for i, gap := range gaps {
		candidate := func(ordinal uint32, tokens, match int64) *decisionv1.Candidate {
			return &decisionv1.Candidate{
				Ordinal: ordinal, Address: fmt.Sprintf("10.0.0.%d:8000", ordinal), State: decisionv1.EndpointState_ENDPOINT_STATE_READY,
				PrefixCacheMatches: []*decisionv1.PrefixCacheMatch{{MatchBlocks: match, CachedBlockCount: match, TotalBlocks: 100, BlockSizeTokens: 16}},
				InFlightLoads:      []*decisionv1.InFlightLoad{{Tokens: tokens}},
			}
		}
		d := &decisionv1.Decision{
			Id: uint64(i + 1), TimeUnixNano: 1, Request: &decisionv1.Request{Model: "m"}, Picks: []uint32{0},
			Columns:    []*decisionv1.Column{{DataType: "PrefixCacheMatchInfo"}, {DataType: "InFlightLoad"}},
			Candidates: []*decisionv1.Candidate{candidate(0, 100_000+gap, 90), candidate(1, 100_000, 0)},
			Gates: []*decisionv1.GateReport{{
				Filter: "affinity", Verdict: decisionv1.GateVerdict_GATE_VERDICT_HELD, GapMs: proto.Float64(float64(gap)),
				GapTokens: proto.Float64(float64(gap)), BarMs: proto.Float64(18000), Sticky: proto.Uint32(0), Other: proto.Uint32(1),
			}},
			FilterSteps: []*decisionv1.FilterStep{{Filter: "affinity", Left: 1}},
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

func TestGateReport(t *testing.T) {
	folder := t.TempDir()
	gateLog(t, filepath.Join(folder, "a.jsonl"), 100, 200, 6000, 300)
	gateLog(t, filepath.Join(folder, "b.jsonl"), 400, 7000)
	html, figures := filepath.Join(folder, "gate.html"), filepath.Join(folder, "gate.json")
	code, stdout, stderr := asProcess(t, "gate-report", folder, "--bar", "6500ms", "--behind", "5s", "--html", html, "--json", figures)
	for _, want := range []string{"6 decisions", "affinity (bar 18 s, 1000 tok/s)", "p50 300, p90 7,000", "2 of 6, 33.3 %", "static 6.5 s", "matchedTokens ×3", "breakEven"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, said %q, no %q in\n%s", code, stderr, want, stdout)
		}
	}
	page, err := os.ReadFile(html)
	if err != nil || !strings.Contains(string(page), "<svg") {
		t.Errorf("the page: %v", err)
	}
	var report struct {
		Gates []struct{ Pinned, Compared int }
	}
	if b, err := os.ReadFile(figures); err != nil || json.Unmarshal(b, &report) != nil || report.Gates[0].Pinned != 2 {
		t.Errorf("the figures: %v, %+v", err, report)
	}
	code, stdout, _ = asProcess(t, "gate-report", folder, "--json", "-")
	if code != 0 || json.Unmarshal([]byte(stdout), &report) != nil {
		t.Errorf("exit %d, no JSON alone: %s", code, stdout)
	}
}

func TestGateReportFails(t *testing.T) {
	folder := t.TempDir()
	log := filepath.Join(folder, "a.jsonl")
	gateLog(t, log, 1)
	empty := filepath.Join(folder, "empty.jsonl")
	if err := os.WriteFile(empty, []byte("not json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"/nowhere":                             "/nowhere",
		empty:                                  "no decision could be read; 1: not a decision",
		log + " --bar 0s":                      "--bar: must be above 0, got 0s",
		log + " --bar 25h":                     "maxTTFTPenaltyMs: must be from 0",
		log + " --times 0":                     "--times: must be from 1 to 1000, got 0",
		log + " --threshold 2":                 "threshold: must be above 0 and at most 1, got 2",
		log + " --html /nowhere/a.html":        "--html: ",
		log + " --json /tmp/x --html /tmp/x":   "--html, --json: both are /tmp/x",
		log + " --match-producer approximate2": "",
	} {
		code, stdout, stderr := asProcess(t, append([]string{"gate-report"}, strings.Fields(args)...)...)
		if want == "" {
			if code != 0 || !strings.Contains(stdout, "1 left out: no prefix match is recorded") {
				t.Errorf("%s: exit %d, printed %s, said %s", args, code, stdout, stderr)
			}
			continue
		}
		if code != exitFailure || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%s: exit %d, printed %q, said %q, want %q", args, code, stdout, stderr, want)
		}
	}
}

// Without bars and a distance given, those that are looked at are the log's own, from files and from what is read once.
func TestGateReportFollowsTheLog(t *testing.T) {
	for gap, want := range map[int64][]string{20: {"static 10 ms", "static 20 ms", "static 40 ms", "≥ 20 ms"}, 60_000: {"static 30 s", "static 60 s", "static 120 s", "≥ 60 s"}} {
		log := filepath.Join(t.TempDir(), "a.jsonl")
		gateLog(t, log, gap, gap, gap)
		in, err := os.Open(log)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "gate-report", "-")
		cmd.Env, cmd.Stdin = commandEnvironment(), in
		piped, err := cmd.CombinedOutput()
		in.Close()
		code, stdout, stderr := asProcess(t, "gate-report", log)
		if err != nil || code != 0 || string(piped) != stdout {
			t.Fatalf("%v, exit %d, said %q, printed\n%s\nand of a pipe\n%s", err, code, stderr, stdout, piped)
		}
		for _, w := range append(want, "pinned    3 of 3, 100.0 %") {
			if !strings.Contains(stdout, w) {
				t.Errorf("gaps of %d ms: no %q in\n%s", gap, w, stdout)
			}
		}
	}
}
