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
		Setup: "sluice-approx", Via: report.ViaStream, BodyBytes: 16 << 10, Endpoints: 64, Chunks: 200, Concurrency: 16, PeakRSS: 90 << 20,
		Null: []report.Round{
			{CPUMicros: 100, P50Micros: 10, P99Micros: 400, Allocations: 50, AllocatedBytes: 1024, PerSecond: 9000, ChunkMicros: 10},
			{CPUMicros: 50, P50Micros: 10, P99Micros: 300, Allocations: 50, AllocatedBytes: 1024, PerSecond: 8000, ChunkMicros: 10},
			{CPUMicros: 60, P50Micros: 20, P99Micros: 200, Allocations: 51, AllocatedBytes: 1024, PerSecond: 7000, ChunkMicros: 20},
		},
		Rounds: []report.Round{
			{CPUMicros: 130, P50Micros: 20, P99Micros: 800, Allocations: 71.26, AllocatedBytes: 2048, PerSecond: 6000, ChunkMicros: 11},
			{CPUMicros: 70, P50Micros: 20, P99Micros: 450, Allocations: 70, AllocatedBytes: 2048, PerSecond: 5000, ChunkMicros: 12},
			{CPUMicros: 72, P50Micros: 20, P99Micros: 500, Allocations: 75, AllocatedBytes: 2048, PerSecond: 4000, ChunkMicros: 26},
		},
	}
}

// nullRow is the null server that row is compared with.
func nullRow() report.Row {
	r := row()
	r.Setup, r.Rounds, r.Null, r.PeakRSS = "null", r.Null, nil, 30<<20
	return r
}

// http are the rows of one load over HTTP: nothing, the null server and a picker behind an Envoy, nothing and a router.
func http() []report.Row {
	none := []report.Round{{EnvoyMicros: 40, P50Micros: 100, P99Micros: 300, PerSecond: 9}}
	null := []report.Round{{CPUMicros: 60, EnvoyMicros: 140, P50Micros: 400, P99Micros: 900, Allocations: 5, AllocatedBytes: 50, PerSecond: 8}}
	own := []report.Round{{CPUMicros: 90, EnvoyMicros: 150, P50Micros: 500, P99Micros: 1300, Allocations: 6, AllocatedBytes: 60, PerSecond: 7}}
	direct := []report.Round{{P50Micros: 50, P99Micros: 90, PerSecond: 20}}
	router := []report.Round{{CPUMicros: 100, P50Micros: 80, P99Micros: 250, PerSecond: 10}}
	of := func(setup, via string, rounds, beside, null, nullNone []report.Round) report.Row {
		return report.Row{Setup: setup, Via: via, BodyBytes: 1 << 10, Endpoints: 8, Chunks: 3, Concurrency: 16, Rounds: rounds, None: beside, Null: null, NullNone: nullNone}
	}
	return []report.Row{
		of("none", report.ViaEnvoy, none, none, nil, nil),
		of("null", report.ViaEnvoy, null, none, nil, nil),
		of("sluice-approx", report.ViaEnvoy, own, none, null, none),
		of("none", report.ViaRouter, direct, direct, nil, nil),
		of("sglang-router", report.ViaRouter, router, direct, null, none),
	}
}

func TestLine(t *testing.T) {
	const load = "via=stream body=16KiB endpoints=64 chunks=200 concurrency=16 "
	// A ratio is the middle one of those of rounds that were measured side by side: of 1.3, 1.4 and 1.2 that of CPU time.
	for want, r := range map[string]report.Row{
		"bench setup=sluice-approx " + load + "cpu_us=72.0 cpu_ratio=1.30 p50_us=20 p50_ratio=2.00 p99_us=500 p99_ratio=2.00 " +
			"allocs=71.3 bytes=2048 rss_mib=90 chunk_cpu_us=12.00 chunk_cpu_ratio=1.20 per_s=5000": row(),
		"bench setup=null " + load + "cpu_us=60.0 p50_us=10 p99_us=300 allocs=50.0 bytes=1024 rss_mib=30 chunk_cpu_us=10.00 per_s=8000": nullRow(),
		"bench setup=x via=stream body=220KB endpoints=8 chunks=3 concurrency=150": {
			Setup: "x", Via: report.ViaStream, BodyBytes: 220_000, Endpoints: 8, Chunks: 3, Concurrency: 150,
		},
	} {
		if diff := cmp.Diff(want, r.Line()); diff != "" {
			t.Error(diff)
		}
	}
}

// What is added is counted from the median without a picker; a router has the null server behind Envoy to compare with, and
// only in all that the two take.
func TestLinesOverHTTP(t *testing.T) {
	const load = " body=1KiB endpoints=8 chunks=3 concurrency=16 "
	want := []string{
		"bench setup=none via=envoy" + load + "cpu_envoy_us=40.0 total_cpu_us=40.0 headers_p50_us=100 headers_p99_us=300 per_s=9",
		"bench setup=null via=envoy" + load + "cpu_us=60.0 p50_us=300 p99_us=800 allocs=5.0 bytes=50 " +
			"cpu_envoy_us=140.0 total_cpu_us=200.0 headers_p50_us=400 headers_p99_us=900 per_s=8",
		"bench setup=sluice-approx via=envoy" + load + "cpu_us=90.0 cpu_ratio=1.50 p50_us=400 p50_ratio=1.33 p99_us=1200 p99_ratio=1.50 " +
			"allocs=6.0 bytes=60 cpu_envoy_us=150.0 total_cpu_us=240.0 total_cpu_ratio=1.20 headers_p50_us=500 headers_p99_us=1300 per_s=7",
		"bench setup=none via=router" + load + "headers_p50_us=50 headers_p99_us=90 per_s=20",
		"bench setup=sglang-router via=router" + load + "cpu_us=100.0 p50_us=30 p99_us=200 total_cpu_us=100.0 total_cpu_ratio=0.50 " +
			"headers_p50_us=80 headers_p99_us=250 per_s=10",
	}
	var got []string
	for _, r := range http() {
		got = append(got, r.Line())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestIdleLine(t *testing.T) {
	i := report.Idle{Setup: "sluice-approx", Endpoints: 512, PageBytes: 53_903, CPUPercent: 4.567, PagesPerSecond: 50, Seconds: 20.01, PeakRSS: 70 << 20}
	const want = "bench setup=sluice-approx op=idle endpoints=512 page=54KB cpu_percent=4.57 rss_mib=70 pages_per_s=50.0 seconds=20"
	if diff := cmp.Diff(want, i.Line()); diff != "" {
		t.Error(diff)
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	idle := []report.Idle{{Setup: "sluice-approx", Endpoints: 512, PageBytes: 54_000, CPUPercent: 4.5, PagesPerSecond: 50, PeakRSS: 70 << 20}}
	if err := report.Table(&out, append(http()[3:], nullRow(), row()), idle); err != nil {
		t.Fatal(err)
	}
	const want = `
via stream
   body  endpoints  chunks          setup     CPU µs/request             ratio  wait p50 µs    wait p99 µs             ratio  allocs  bytes  peak MiB         CPU µs/chunk             ratio  requests/s
  16KiB         64     200           null  60.0 [50.0–100.0]                             10  300 [200–400]                      50.0   1024        30  10.00 [10.00–20.00]                          8000
  16KiB         64     200  sluice-approx  72.0 [70.0–130.0]  1.30 [1.20–1.40]           20  500 [450–800]  2.00 [1.50–2.50]    71.3   2048        90  12.00 [11.00–26.00]  1.20 [1.10–1.30]        5000

via router
  body  endpoints  chunks          setup       CPU µs/request  wait p50 µs    wait p99 µs       total ratio  headers p50 µs  headers p99 µs  requests/s
  1KiB          8       3           none                                                                                 50              90          20
  1KiB          8       3  sglang-router  100.0 [100.0–100.0]           30  200 [200–200]  0.50 [0.50–0.50]              80             250          10

idle, sluice-approx, 512 endpoints with pages of 54 KB: 4.50 % of one core, 50.0 pages/s, peak 70 MiB
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// Where a row is not of the usual number of requests at once, every row of its table says of how many it is.
func TestTableOfConcurrency(t *testing.T) {
	round := []report.Round{{PerSecond: 9}}
	rows := []report.Row{
		{Setup: "a", Via: report.ViaStream, BodyBytes: 16 << 10, Endpoints: 64, Chunks: 3, Concurrency: 16, Rounds: round},
		{Setup: "a", Via: report.ViaStream, BodyBytes: 220_000, Endpoints: 64, Chunks: 3, Concurrency: 150, Rounds: round},
		{Setup: "a", Via: report.ViaEnvoy, BodyBytes: 16 << 10, Endpoints: 64, Chunks: 3, Concurrency: 16, Rounds: round},
	}
	var out strings.Builder
	if err := report.Table(&out, rows, nil); err != nil {
		t.Fatal(err)
	}
	const want = `
via stream
   body  endpoints  chunks  at once  setup  requests/s
  16KiB         64       3       16      a           9
  220KB         64       3      150      a           9

via envoy
   body  endpoints  chunks  setup  requests/s
  16KiB         64       3      a           9
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSizes(t *testing.T) {
	for bytes, text := range map[int]string{
		1: "1B", 700: "700B", 1024: "1KiB", 1536: "1536B", 16 << 10: "16KiB", 1 << 20: "1MiB", 1536 << 10: "1536KiB",
		1000: "1KB", 220_000: "220KB", 1_500_000: "1500KB", 16_000_000: "16MB", 2_147_483_000: "2147483KB",
	} {
		if got := report.Size(bytes); got != text {
			t.Errorf("Size(%d) is %s, want %s", bytes, got, text)
		}
		if got, err := report.ParseSize(text); err != nil || got != bytes {
			t.Errorf("ParseSize(%s) is %d, %v, want %d", text, got, err, bytes)
		}
	}
	if n, err := report.ParseSize("128KB"); n != 128_000 || err != nil {
		t.Errorf("ParseSize(128KB) is %d, %v", n, err)
	}
	for _, text := range []string{
		"", "16", "KiB", "KB", "0KiB", "0KB", "-1KiB", "1.5MiB", "1GiB", "1GB", "1kB", "16 KiB", "9999999MiB", "2147484KB", "2148MB",
	} {
		if n, err := report.ParseSize(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("ParseSize(%q) is %d, %v", text, n, err)
		}
	}
}
