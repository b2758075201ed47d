package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/bench/report"
)

func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   report.Spread
	}{
		{nil, report.Spread{}},
		{[]float64{7}, report.Spread{Min: 7, Median: 7, Max: 7}},
		{[]float64{3, 1}, report.Spread{Min: 1, Median: 2, Max: 3}},
		{[]float64{9, 1, 5}, report.Spread{Min: 1, Median: 5, Max: 9}},
		{[]float64{4, 100, 2, 3}, report.Spread{Min: 2, Median: 3.5, Max: 100}},
	} {
		before := append([]float64(nil), tt.values...)
		if diff := cmp.Diff(tt.want, report.Summarize(tt.values)); diff != "" {
			t.Errorf("%v: %s", tt.values, diff)
		}
		if diff := cmp.Diff(before, tt.values); diff != "" {
			t.Errorf("the values were changed: %s", diff)
		}
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, tt := range []struct {
		values []int
		q      float64
		want   int
	}{
		{nil, 0.5, 0}, {[]int{8}, 0.99, 8}, {[]int{8}, 0, 8},
		{hundred, 0, 1}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 0.991, 100}, {hundred, 1, 100},
		{[]int{3, 1, 2}, 0.5, 2}, {[]int{4, 3, 1, 2}, 0.5, 2},
	} {
		if got := report.Quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile %g of %d values: %d, want %d", tt.q, len(tt.values), got, tt.want)
		}
	}
}

func TestMicros(t *testing.T) {
	if got := report.Micros(1500 * time.Nanosecond); got != 1.5 {
		t.Errorf("1,500 ns are %g µs", got)
	}
}

func row() report.Row {
	return report.Row{
		BodyBytes: 16 << 10, Endpoints: 64, PeakRSS: 90 << 20, PeakRSSNull: 30 << 20,
		Null: []report.Round{
			{CPUMicros: 100, P50Micros: 10, P99Micros: 400, Allocations: 50, AllocatedBytes: 1024, PerSecond: 9000},
			{CPUMicros: 50, P50Micros: 10, P99Micros: 300, Allocations: 50, AllocatedBytes: 1024, PerSecond: 8000},
			{CPUMicros: 60, P50Micros: 20, P99Micros: 200, Allocations: 51, AllocatedBytes: 1024, PerSecond: 7000},
		},
		Rounds: []report.Round{
			{CPUMicros: 130, P50Micros: 20, P99Micros: 800, Allocations: 71.26, AllocatedBytes: 2048, PerSecond: 6000},
			{CPUMicros: 70, P50Micros: 20, P99Micros: 450, Allocations: 70, AllocatedBytes: 2048, PerSecond: 5000},
			{CPUMicros: 72, P50Micros: 20, P99Micros: 500, Allocations: 75, AllocatedBytes: 2048, PerSecond: 4000},
		},
	}
}

func TestLine(t *testing.T) {
	// The ratio is the middle one of 1.3, 1.4 and 1.2: of rounds that were measured side by side.
	const want = "stream body=16KiB endpoints=64 cpu_us=72.0 cpu_us_null=60.0 cpu_ratio=1.30 p99_us=500 p99_us_null=300 allocs=71.3"
	if diff := cmp.Diff(want, row().Line()); diff != "" {
		t.Error(diff)
	}
}

func TestLineWithoutRounds(t *testing.T) {
	const want = "stream body=1MiB endpoints=8 cpu_us=0.0 cpu_us_null=0.0 cpu_ratio=0.00 p99_us=0 p99_us_null=0 allocs=0.0"
	if diff := cmp.Diff(want, (report.Row{BodyBytes: 1 << 20, Endpoints: 8}).Line()); diff != "" {
		t.Error(diff)
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	if err := report.Table(&out, []report.Row{row()}); err != nil {
		t.Fatal(err)
	}
	const want = `
   body  endpoints  server     CPU µs/request             ratio  wait p50 µs  ratio    wait p99 µs  ratio  allocs  KiB allocated  requests/s  peak MiB
  16KiB         64    null  60.0 [50.0–100.0]                             10         300 [200–400]           50.0            1.0        8000        30
  16KiB         64  sluice  72.0 [70.0–130.0]  1.30 [1.20–1.40]           20   2.00  500 [450–800]   2.00    71.3            2.0        5000        90
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSizes(t *testing.T) {
	for bytes, text := range map[int]string{1: "1B", 700: "700B", 1024: "1KiB", 1536: "1536B", 16 << 10: "16KiB", 1 << 20: "1MiB", 1536 << 10: "1536KiB"} {
		if got := report.Size(bytes); got != text {
			t.Errorf("Size(%d) is %s, want %s", bytes, got, text)
		}
		if got, err := report.ParseSize(text); err != nil || got != bytes {
			t.Errorf("ParseSize(%s) is %d, %v, want %d", text, got, err, bytes)
		}
	}
	for _, text := range []string{"", "16", "KiB", "0KiB", "-1KiB", "1.5MiB", "1GiB", "16 KiB", "9999999MiB"} {
		if n, err := report.ParseSize(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("ParseSize(%q) is %d, %v", text, n, err)
		}
	}
}
