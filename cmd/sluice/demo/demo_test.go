package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/test/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// binary builds sluice as its users do.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/sluice-epp/sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// output collects what the demo prints, while it prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write collects b.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

var lastLine = regexp.MustCompile(`^demo: requests=(\d+) hit_rate=(0\.\d\d) hit_rate_round_robin=(0\.\d\d) ttft_ms=(\d+) ttft_ms_round_robin=(\d+) predicted_exactly=([01]\.\d\d)$`)

// TestDemo plays the demo once, as `make demo KEEP=1` does: what it prints, how long it takes, that the printed lines
// work, and that everything ends with it.
func TestDemo(t *testing.T) {
	sluice, envoy := binary(t), envoytest.Binary(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out output
	done := make(chan error, 1)
	begun := time.Now()
	go func() {
		done <- Run(ctx, Options{Sluice: sluice, Envoy: envoy, Engines: 3, Speed: 1, Keep: true, Out: &out})
	}()
	for !strings.Contains(out.String(), "demo: requests=") {
		select {
		case err := <-done:
			t.Fatalf("ended early: %v\n%s", err, &out)
		case <-time.After(50 * time.Millisecond):
		}
	}
	if took := time.Since(begun); took > 40*time.Second {
		t.Errorf("took %v, more than the 40 s that the README promises", took)
	}
	checkLastLine(t, out.String())
	runLines(t, out.String())
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	noChildren(t, sluice)
}

func TestNearby(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	for path, want := range map[string]string{
		filepath.Join(here, "bin", "sluice"): filepath.Join("bin", "sluice"), filepath.Join(here, "sluice"): filepath.Join(here, "sluice"),
		"/usr/local/bin/sluice": "/usr/local/bin/sluice",
	} {
		if got := nearby(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func checkLastLine(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	m := lastLine.FindStringSubmatch(lines[len(lines)-1])
	if m == nil {
		t.Fatalf("last line %q", lines[len(lines)-1])
	}
	number := func(i int) float64 {
		v, err := strconv.ParseFloat(m[i], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if number(1) != conversations*turns {
		t.Errorf("%v requests, want %d", number(1), conversations*turns)
	}
	if number(2) < number(3)+0.05 {
		t.Errorf("hit rate %v is not clearly above round robin's %v", number(2), number(3))
	}
	if number(4) >= number(5) {
		t.Errorf("mean TTFT %v ms is not below round robin's %v ms", number(4), number(5))
	}
	if number(6) < 0.8 { // on an idle machine it is 1.00: what misses are tokens that come too late
		t.Errorf("of %v requests the cached tokens were predicted, want nearly all", number(6))
	}
}

// runLines runs the lines that the demo prints, but those of grpcurl, as a person would paste them.
func runLines(t *testing.T, out string) {
	t.Helper()
	n, asked := 0, ""
	for line := range strings.Lines(out) {
		if explains := regexp.MustCompile(`^(\S+) (explain|top) --admin \S+$`).FindStringSubmatch(strings.TrimSpace(line)); explains != nil {
			more := map[string]string{"explain": "", "top": " --once"}[explains[2]]
			text, err := exec.CommandContext(t.Context(), "sh", "-c", strings.TrimSpace(line)+more).CombinedOutput()
			if err != nil || !strings.Contains(string(text), "engine-") {
				t.Errorf("%s: %v\n%s", line, err, text)
			}
			asked += explains[2] + " "
		}
		if page, ok := strings.CutSuffix(strings.TrimSpace(line), " in a browser"); ok {
			line = "curl -L -H 'accept: text/html' " + page
			asked += "page "
		}
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		n++
		if text, err := exec.CommandContext(t.Context(), "sh", "-c", strings.TrimSpace(line)+" -sS --fail --max-time 10").CombinedOutput(); err != nil {
			if strings.Contains(line, "|") { // a pipe takes no more flags
				text, err = exec.CommandContext(t.Context(), "sh", "-c", strings.TrimSpace(line)).CombinedOutput()
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", line, err, text)
			}
		}
	}
	if asked != "explain top page " {
		t.Errorf("what says why is printed as %q, want explain, top and the page", asked)
	}
	if n < 3 {
		t.Errorf("%d curl lines printed, want several", n)
	}
}

func TestInterruptedAmid(t *testing.T) {
	sluice, envoy := binary(t), envoytest.Binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var out output
	err := Run(ctx, Options{Sluice: sluice, Envoy: envoy, Engines: 2, Speed: 1, Out: &out})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
	noChildren(t, sluice)
}

func TestChildThatFailsSaysWhy(t *testing.T) {
	sluice := binary(t)
	err := Run(t.Context(), Options{Sluice: sluice, Envoy: "/nowhere/envoy", Engines: 1, Speed: 1, Out: &output{}})
	if err == nil || !strings.Contains(err.Error(), "starting envoy") {
		t.Errorf("got %v", err)
	}
	noChildren(t, sluice)
}

// noChildren checks that no process of the binary is left.
func noChildren(t *testing.T, binary string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == binary {
			t.Errorf("%s still runs %s", filepath.Dir(link), binary)
		}
	}
}

func TestSummary(t *testing.T) {
	s := summarise([]result{
		{endpoint: "a", prompt: 100, cached: 0, ttft: 30 * time.Millisecond, decision: "10.0.0.1:8000 cached=0/96 candidates=3"},
		{endpoint: "b", prompt: 100, cached: 90, ttft: 10 * time.Millisecond, decision: "10.0.0.2:8000 cached=96/96 candidates=3"},
		{endpoint: "a", prompt: 200, cached: 110, ttft: 20 * time.Millisecond},
	})
	if s.requests != 3 || s.exact != 1 || s.exactly() != 1.0/3 || s.hitRate != 0.5 || s.mean != 20*time.Millisecond || s.p50 != 20*time.Millisecond || s.byEndpoint["a"] != 2 {
		t.Errorf("%+v", s)
	}
	if none := summarise(nil); none.requests != 0 || none.exactly() != 0 {
		t.Error("no results are no requests")
	}
}

func TestWorkloadIsTheSameEveryTime(t *testing.T) {
	if opening(0)[0].Content != opening(tenants)[0].Content || opening(0)[0].Content == opening(1)[0].Content {
		t.Error("conversations of a tenant share their system prompt, those of two tenants do not")
	}
	if question(3, 1) != question(3, 1) || question(3, 1) == question(3, 2) || question(3, 1) == question(4, 1) {
		t.Error("questions depend on conversation and turn alone")
	}
	seen := map[int]bool{}
	for c := range conversations {
		n := answerTokens(c, 0)
		seen[n] = true
		if n < minAnswer || n > maxAnswer {
			t.Errorf("answer of %d tokens", n)
		}
		if p := pause(c, 0); p < 0 || p >= maxPause {
			t.Errorf("pause of %v", p)
		}
	}
	if len(seen) < 8 {
		t.Errorf("answers have only %d lengths", len(seen))
	}
}

func TestGateOf(t *testing.T) {
	for decision, want := range map[string]string{
		"10.0.0.1:8000 gate=held cached=1/2 candidates=3": "held",
		"10.0.0.1:8000 cached=1/2":                        "-",
		"":                                                "-",
	} {
		if got := gateOf(decision); got != want {
			t.Errorf("%q: got %q, want %q", decision, got, want)
		}
	}
}

func TestPredicted(t *testing.T) {
	for _, tt := range []struct {
		decision     string
		prompt, want int
	}{
		{"10.0.0.1:8000 gate=held cached=64/96 candidates=3", 100, 64},
		{"10.0.0.1:8000 cached=96/96 candidates=3", 96, 80}, // the last token is computed, with its block
		{"10.0.0.1:8000 cached=96/96 candidates=3", 97, 96},
		{"10.0.0.1:8000 cached=0/0 candidates=3", 5, 0},
		{"10.0.0.1:8000 candidates=3", 100, -1},
		{"10.0.0.1:8000 cached=many candidates=3", 100, -1},
		{"", 100, -1},
	} {
		r := result{decision: tt.decision, prompt: tt.prompt}
		if got := r.predicted(); got != tt.want {
			t.Errorf("%q with a prompt of %d tokens: predicted %d, want %d", tt.decision, tt.prompt, got, tt.want)
		}
	}
	if r := (result{}); r.predictedCell() != "-" {
		t.Errorf("nothing is shown as %q", r.predictedCell())
	}
}
