//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// spoilt is a log of two decisions and, in row 2, one whose field has a text in the place of its number.
func spoilt(t *testing.T, field, number string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	gateLog(t, path, 100, 200, 300)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(content), "\n")
	d := &decisionv1.Decision{}
	if err := protojson.Unmarshal([]byte(lines[1]), d); err != nil {
		t.Fatal(err)
	}
	d.Outcome = &decisionv1.Outcome{Reason: "complete", Status: 200, TtftMs: proto.Float64(5), TotalMs: 9}
	d.RunnerUpMargin = proto.Float64(1)
	for _, c := range d.GetCandidates() {
		c.Scores, c.LearntRates = []float64{0.5}, []*decisionv1.LearntRates{{PrefillMsPerToken: 1, WaitMsPerToken: 1, Confidence: 1}}
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`"` + field + `": ?(\[?)[0-9.]+`)
	if !at.Match(b) {
		t.Fatalf("no %s in %s", field, b)
	}
	lines[1] = at.ReplaceAllString(string(b), `"`+field+`":${1}`+number) + "\n"
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestImpossibleNumbersOfALog reach no report: each command says where they are, and reads on.
func TestImpossibleNumbersOfALog(t *testing.T) {
	for _, field := range []string{"gap_ms", "gap_tokens", "bar_ms", "ttft_ms", "total_ms", "scores", "prefill_ms_per_token", "runner_up_margin"} {
		for _, number := range []string{`"NaN"`, `"Infinity"`, `"-Infinity"`, "-1e308", "1e308"} {
			if field != "gap_ms" && number != `"NaN"` && number != "-1e308" {
				continue // a process each
			}
			path := spoilt(t, field, number)
			checkSpoilt(t, path, "gate-report", "--html", "-", path)
			if field == "gap_ms" || field == "ttft_ms" {
				checkSpoilt(t, path, "gate-report", "--json", "-", path)
				checkSpoilt(t, path, "calibrate", "--json", "-", path)
				checkSpoilt(t, path, "replay", "--config", "default", "--json", "-", path)
			}
		}
	}
}

func checkSpoilt(t *testing.T, path string, args ...string) {
	t.Helper()
	code, stdout, stderr := asProcess(t, args...)
	if want := path + ": row 2: an impossible number: "; !strings.Contains(stderr, want) || strings.Contains(stderr, "panic") || strings.Contains(stderr, ": row 1") {
		t.Errorf("%q says %q, want %q", args, stderr, want)
	}
	if args[0] != "replay" && (code != 0 || !strings.Contains(stdout, "an impossible number")) { // these decisions have nothing that replays
		t.Errorf("%q: exit %d, %q in\n%s", args, code, stderr, stdout)
	}
	if strings.Contains(stdout, "NaN") || strings.Contains(stdout, "Inf") {
		t.Errorf("%q reports NaN or Inf:\n%s", args, stdout)
	}
	if strings.Contains(strings.Join(args, " "), "--json") && !json.Valid([]byte(stdout)) {
		t.Errorf("%q: no JSON: %s", args, stdout)
	}
}

// TestToldRowsHaveABound: of a log that is no log, the first rows are named.
func TestToldRowsHaveABound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	gateLog(t, path, 100)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte(strings.Repeat("none\n", maxTold+7)), content...), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := asProcess(t, "gate-report", path)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if code != 0 || len(lines) != maxTold+1 || lines[maxTold] != "sluice: 7 more that could not be read" ||
		!strings.HasPrefix(lines[maxTold-1], fmt.Sprintf("sluice: %s: row %d: not a decision: ", path, maxTold)) {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
