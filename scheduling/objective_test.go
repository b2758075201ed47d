package scheduling_test

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// asking is a request with headers, each "name: value".
func asking(headers ...string) *scheduling.Request {
	r := &scheduling.Request{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Headers = append(r.Headers, scheduling.Header{Name: name, Value: []byte(value)})
	}
	return r
}

func TestObjectiveOf(t *testing.T) {
	for _, tc := range []struct {
		name    string
		headers []string
		want    scheduling.LatencyObjective
	}{
		{"nothing", nil, scheduling.LatencyObjective{}},
		{"other headers", []string{"x-session: 250", "slo-ttft-ms: 250", "x-sluice-slo-ttft: 250"}, scheduling.LatencyObjective{}},
		{"both", []string{"x-sluice-slo-ttft-ms: 250", "content-type: 7", "x-sluice-slo-tpot-ms: 12.5"},
			scheduling.LatencyObjective{TTFTMs: 250, TPOTMs: 12.5}},
		{"the first token only", []string{"x-sluice-slo-ttft-ms: 250"}, scheduling.LatencyObjective{TTFTMs: 250}},
		{"the tokens after it only", []string{"x-sluice-slo-tpot-ms: 40"}, scheduling.LatencyObjective{TPOTMs: 40}},
		{"llm-d", []string{"x-llm-d-slo-ttft-ms: 300", "x-llm-d-slo-tpot-ms: 30"}, scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 30}},
		{"the older spelling", []string{"x-slo-ttft-ms: 400", "x-slo-tpot-ms: 35"}, scheduling.LatencyObjective{TTFTMs: 400, TPOTMs: 35}},
		{"ours wins, first", []string{"x-sluice-slo-ttft-ms: 1", "x-llm-d-slo-ttft-ms: 2", "x-slo-ttft-ms: 3"}, scheduling.LatencyObjective{TTFTMs: 1}},
		{"ours wins, last", []string{"x-slo-ttft-ms: 3", "x-llm-d-slo-ttft-ms: 2", "x-sluice-slo-ttft-ms: 1"}, scheduling.LatencyObjective{TTFTMs: 1}},
		{"llm-d's wins over the older one", []string{"x-llm-d-slo-tpot-ms: 2", "x-slo-tpot-ms: 3"}, scheduling.LatencyObjective{TPOTMs: 2}},
		{"a bad value is as none", []string{"x-sluice-slo-ttft-ms: soon", "x-llm-d-slo-ttft-ms: 2"}, scheduling.LatencyObjective{TTFTMs: 2}},
		{"each for itself", []string{"x-sluice-slo-ttft-ms: 9", "x-slo-tpot-ms: 3"}, scheduling.LatencyObjective{TTFTMs: 9, TPOTMs: 3}},
		{"twice", []string{"x-slo-ttft-ms: 3", "x-slo-ttft-ms: 4", "x-slo-ttft-ms: no"}, scheduling.LatencyObjective{TTFTMs: 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := scheduling.ObjectiveOf(asking(tc.headers...))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("objective (-want +got):\n%s", diff)
			}
			if want := tc.want != (scheduling.LatencyObjective{}); ok != want {
				t.Errorf("ok = %t, want %t", ok, want)
			}
			if got, want := scheduling.UnreadObjective(asking(tc.headers...)), tc.name == "a bad value is as none" || tc.name == "twice"; got != want {
				t.Errorf("unread: %t, want %t", got, want)
			}
		})
	}
}

func TestObjectiveValues(t *testing.T) {
	for text, want := range map[string]float64{
		"250": 250, "0250": 250, "00000000000000000000.25": .25, "12.5": 12.5, ".5": .5, "5.": 5, "0.1": .1, "86400000": 86400000, "33.333333333333333333333": 33.3333333333333,
		"": 0, ".": 0, "0": 0, "0.0": 0, "-250": 0, "+250": 0, "NaN": 0, "nan": 0, "Inf": 0, "+Inf": 0, "1e3": 0, "0x10": 0,
		"86400000.1": 0, "86400001": 0, "1000000000000": 0, "99999999999999999999999": 0, "1.2.3": 0, "250 ms": 0, "250ms": 0, " 250": 0,
		"1_000": 0, "1,000": 0, "٢٥٠": 0, "\x00": 0,
	} {
		got, ok := scheduling.ObjectiveOf(asking("x-sluice-slo-ttft-ms: " + text))
		if math.Abs(got.TTFTMs-want) > 1e-12*want || ok != (want > 0) {
			t.Errorf("%q: %v, %t; want %v", text, got.TTFTMs, ok, want)
		}
		if unread := scheduling.UnreadObjective(asking("x-sluice-slo-ttft-ms: " + text)); unread == ok {
			t.Errorf("%q: unread %t, read %t", text, unread, ok)
		}
	}
}

func TestObjectiveAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := asking("x-sluice-slo-ttft-ms: 250", "x-llm-d-slo-tpot-ms: no number at all", "x-slo-tpot-ms: 12.5")
	if n := testing.AllocsPerRun(100, func() { scheduling.ObjectiveOf(r); scheduling.UnreadObjective(r) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzObjective: whatever is read is in range and what the standard library reads, and a number that it reads in range, written
// with digits and a point alone, is never lost.
func FuzzObjective(f *testing.F) {
	seeds, err := filepath.Glob("testdata/objective/*")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no corpus", err)
	}
	for _, name := range seeds {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &scheduling.Request{Headers: []scheduling.Header{{Name: "x-sluice-slo-tpot-ms", Value: text}}}
		got, ok := scheduling.ObjectiveOf(r)
		want, err := strconv.ParseFloat(string(text), 64)
		plain := len(text) <= 15 && strings.Trim(string(text), "0123456789.") == ""
		switch {
		case !ok && got != (scheduling.LatencyObjective{}):
			t.Errorf("%q: refused and yet %v", text, got)
		case !ok && plain && err == nil && want > 0 && want <= 86400000:
			t.Errorf("%q: refused", text)
		case !ok:
		case got.TTFTMs != 0 || !(got.TPOTMs > 0 && got.TPOTMs <= 86400000):
			t.Errorf("%q: %v is out of range", text, got)
		case err != nil:
			t.Errorf("%q: read as %v, which is no number: %v", text, got, err)
		case plain && got.TPOTMs != want, math.Abs(got.TPOTMs-want) > max(1e-14*want, 2e-15):
			t.Errorf("%q: %v, want %v", text, got.TPOTMs, want)
		}
	})
}
