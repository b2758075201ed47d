package metrics

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
)

const (
	allLoad  = scheduling.MetricsWaiting | scheduling.MetricsRunning | scheduling.MetricsKVUsage
	withLoRA = allLoad | scheduling.MetricsAdapters
)

func page(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// scanned reads a page whole, as an engine of the named kind.
func scanned(t testing.TB, engine string, page []byte) (*Reading, *scanner) {
	t.Helper()
	w := new(workspace)
	w.scanner.reset(dialectNamed(engine, nil))
	if _, err := w.scan(bytes.NewReader(page), math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	return w.scanner.reading(0, nil), &w.scanner
}

var ignoreRaw = cmpopts.IgnoreUnexported(Adapters{}, Reading{})

func TestRealPages(t *testing.T) {
	t.Parallel()
	unused := Adapters{Known: true, Max: 2}
	for _, tc := range []struct {
		page string
		want Reading
	}{
		{"vllm_idle.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad},
			BlockSizeTokens: 32, NumBlocks: 2048, StartTime: 1.79599743356e+09, Sleep: Awake,
			PrefixQueries: 10055, PrefixHits: 2944,
		}},
		{"vllm_under_load.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad, Running: 21, KVUsage: 0.5451880801172447},
			BlockSizeTokens: 32, NumBlocks: 2048, StartTime: 1.79599743356e+09, Sleep: Awake,
			PrefixQueries: 46635, PrefixHits: 2944,
		}},
		{"vllm_overload.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: withLoRA, Waiting: 11, Running: 1, KVUsage: 0.5384615384615384, MaxAdapters: 2},
			BlockSizeTokens: 32, NumBlocks: 40, StartTime: 1.79599775406e+09, Sleep: Awake,
			PrefixQueries: 4300, PrefixHits: 416, Adapters: unused,
		}},
		// Two older samples name adapters; the newest says that none is in use.
		{"vllm_lora.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: withLoRA, MaxAdapters: 2},
			BlockSizeTokens: 32, NumBlocks: 40, StartTime: 1.79599775406e+09, Sleep: Awake,
			PrefixQueries: 9700, PrefixHits: 416, Adapters: unused,
		}},
		// num_gpu_blocks is what both engines have together, and stands with each of them.
		{"vllm_dp2.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad},
			BlockSizeTokens: 32, NumBlocks: 1024, StartTime: 1.79599854104e+09, Sleep: Awake,
			PrefixQueries: 560, PrefixHits: 128,
		}},
		// The sample with a priority is part of the one without.
		{"sglang.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad, Waiting: 5, Running: 7, KVUsage: 0.375},
			BlockSizeTokens: 64, NumBlocks: 2000, PrefixQueries: 8.128902e+06, PrefixHits: -1,
		}},
		{"trtllm.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad, Waiting: 2, Running: 7, KVUsage: 0.62},
			BlockSizeTokens: 32, NumBlocks: 6239, PrefixQueries: -1, PrefixHits: -1,
		}},
		{"triton.txt", Reading{
			Load:            scheduling.EngineMetrics{Known: allLoad, Waiting: 6, Running: 9, KVUsage: 0.25},
			BlockSizeTokens: 64, NumBlocks: 6000, PrefixQueries: -1, PrefixHits: -1,
		}},
	} {
		t.Run(tc.page, func(t *testing.T) {
			t.Parallel()
			engine, _, _ := strings.Cut(strings.TrimSuffix(tc.page, ".txt"), "_")
			got, s := scanned(t, engine, page(t, tc.page))
			if diff := cmp.Diff(tc.want, *got, ignoreRaw); diff != "" {
				t.Errorf("reading (-want +got):\n%s", diff)
			}
			if s.malformed != 0 || !s.found {
				t.Errorf("malformed %d, found %v", s.malformed, s.found)
			}
		})
	}
}

// line is a page of one waiting sample, whose text follows the name.
func line(text string) string { return "vllm:num_requests_waiting" + text + "\n" }

func TestSamples(t *testing.T) {
	t.Parallel()
	unknown := math.NaN()
	for name, tc := range map[string]struct {
		page string
		want float64 // waiting; NaN: unknown
	}{
		"bare":                    {line(" 3"), 3},
		"tab":                     {line("\t3"), 3},
		"labels":                  {line(`{engine="0",model_name="m"} 3.0`), 3},
		"no labels in braces":     {line(`{} 3`), 3},
		"trailing comma":          {line(`{engine="0",} 3`), 3},
		"blanks everywhere":       {" \t" + line(` { engine = "0" , a="" } 3 `), 3},
		"no blank before value":   {line(`{engine="0"}3`), 3},
		"timestamp":               {line(` 3 1796000000000`), 3},
		"timestamp in seconds":    {line(` 3 1796000000.123`), 3},
		"exemplar":                {line(` 3 # {trace_id="a"} 0.5`), 3},
		"timestamp and exemplar":  {line(` 3 17.5 # {trace_id="a"} 0.5`), 3},
		"carriage return":         {"# HELP a b\r\n" + strings.TrimSuffix(line(`{engine="0"} 3`), "\n") + "\r\n", 3},
		"brace in a value":        {line(`{model_name="a}b{c",engine="0"} 3`), 3},
		"escaped quote":           {line(`{model_name="a\"} 9 \"",engine="0"} 3`), 3},
		"escaped backslash":       {line(`{model_name="a\\",engine="0"} 3`), 3},
		"quoted label name":       {line(`{"engine"="0"} 3`), 3},
		"scientific":              {line(" 1.2e+01"), 12},
		"two engines":             {line(`{engine="0"} 2`) + line(`{engine="1"} 3`), 5},
		"engines apart":           {line(`{engine="0"} 2`) + "other 1\n\n# c\n" + line(`{engine="1"} 3`), 5},
		"sum that does not fit":   {line(`{engine="0"} 1e308`) + line(`{engine="1"} 1e308`), unknown},
		"NaN":                     {line(" NaN"), unknown},
		"infinite":                {line(" +Inf"), unknown},
		"negative":                {line(" -1"), unknown},
		"negative zero":           {line(" -0"), 0},
		"one engine NaN":          {line(`{engine="0"} 2`) + line(`{engine="1"} NaN`), unknown},
		"no value":                {line(""), unknown},
		"no value after labels":   {line(`{engine="0"}`), unknown},
		"no number":               {line(" three"), unknown},
		"Go's hexadecimal":        {line(" 0x1p4"), unknown},
		"Go's underscores":        {line(" 1_000"), unknown},
		"something behind":        {line(" 3 4 5"), unknown},
		"no number behind":        {line(" 3 x"), unknown},
		"unclosed labels":         {line(`{engine="0" 3`), unknown},
		"unclosed string":         {line(`{engine="0} 3`), unknown},
		"label without quotes":    {line(`{engine=0} 3`), unknown},
		"label without name":      {line(`{="0"} 3`), unknown},
		"one engine malformed":    {line(`{engine="0"} 2`) + line(`{engine="1"} x`), unknown},
		"no line end":             {strings.TrimSuffix(line(" 3"), "\n"), unknown},
		"cut inside labels":       {line(`{engine="0"} 2`) + `vllm:num_requests_waiting{engi`, unknown},
		"cut in another":          {line(" 3") + "vllm:num_requests_run", 3},
		"longer name":             {line(`_by_reason{reason="capacity"} 7`) + line(" 3"), 3},
		"shorter name":            {"vllm:num_requests_waitin 7\n" + line(" 3"), 3},
		"commented out":           {"# " + line(" 7") + "#" + line(" 7") + line(" 3"), 3},
		"other prefix":            {"x" + line(" 7") + line(" 3"), 3},
		"long line of others":     {"other{a=\"" + strings.Repeat("x", 3*pageBuffer) + "\"} 1\n" + line(" 3"), 3},
		"long comment":            {"# " + strings.Repeat("vllm:num_requests_waiting 1 ", pageBuffer/10) + "\n" + line(" 3"), 3},
		"too long a line of ours": {line(`{engine="` + strings.Repeat("0", 2*pageBuffer) + `"} 3`), unknown},
		"long, then ours":         {line(`{engine="`+strings.Repeat("0", 2*pageBuffer)+`"} 3`) + line(" 3"), unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := scanned(t, "vllm", []byte(tc.page))
			got := unknown
			if r.Load.Has(scheduling.MetricsWaiting) {
				got = r.Load.Waiting
			}
			if got != tc.want && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
				t.Errorf("waiting %v, want %v", got, tc.want)
			}
		})
	}
}

func TestC23_SumOverEngines(t *testing.T) {
	t.Parallel()
	const zero, forty = `vllm:num_requests_waiting{engine="0"} 0` + "\n", `vllm:num_requests_waiting{engine="1"} 40` + "\n"
	for _, text := range []string{zero + forty, forty + zero} {
		r, _ := scanned(t, "vllm", []byte(text))
		want := scheduling.EngineMetrics{Known: scheduling.MetricsWaiting, Waiting: 40}
		if diff := cmp.Diff(want, r.Load); diff != "" {
			t.Errorf("%s(-want +got):\n%s", text, diff)
		}
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	const start = "process_start_time_seconds 1.5e9\n"
	reading := func(change func(*Reading)) Reading {
		r := Reading{PrefixQueries: -1, PrefixHits: -1}
		change(&r)
		return r
	}
	usage := func(v float64) Reading {
		return reading(func(r *Reading) {
			r.Load = scheduling.EngineMetrics{Known: scheduling.MetricsKVUsage, KVUsage: v}
		})
	}
	none := reading(func(*Reading) {})
	asleep := reading(func(r *Reading) { r.Sleep = Asleep })
	cache := func(size, n int) Reading {
		return reading(func(r *Reading) { r.BlockSizeTokens, r.NumBlocks = size, n })
	}
	adapters := func(a Adapters) Reading {
		return reading(func(r *Reading) {
			r.Adapters = a
			r.Load = scheduling.EngineMetrics{Known: scheduling.MetricsAdapters, Adapters: a.InUse, MaxAdapters: a.Max}
		})
	}
	for name, tc := range map[string]struct {
		engine, page string
		want         Reading
		notFound     bool
	}{
		"usage":                    {"vllm", "vllm:kv_cache_usage_perc 0.5\n", usage(0.5), false},
		"usage, older name":        {"vllm", "vllm:gpu_cache_usage_perc 0.5\n", usage(0.5), false},
		"usage, both names":        {"vllm", "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n", usage(0.5), false},
		"usage, new name unusable": {"vllm", "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc NaN\n", none, false},
		"usage, mean of engines":   {"vllm", "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 1\n", usage(0.75), false},
		"usage, a hair above":      {"vllm", "vllm:kv_cache_usage_perc 1.001\n", usage(1), false},
		"usage, percent":           {"vllm", "vllm:kv_cache_usage_perc 37\n", none, false},
		"usage, from a fraction": {"triton",
			`nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.5` + "\n" +
				`nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 9` + "\n", usage(0.5), false},
		"usage, nothing to divide by": {"triton", `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 9` + "\n", none, false},
		"cache, not yet known":        {"vllm", `vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1` + "\n", cache(16, 0), false},
		"cache, nothing known":        {"vllm", `vllm:cache_config_info{block_size="None",num_gpu_blocks="9"} 1` + "\n", none, false},
		"cache, sizes differ":         {"vllm", `vllm:cache_config_info{block_size="16"} 1` + "\n" + `vllm:cache_config_info{block_size="32"} 1` + "\n", none, false},
		"cache, absurd":               {"vllm", `vllm:cache_config_info{block_size="-16",num_gpu_blocks="99999999999999999999"} 1` + "\n", none, false},
		"cache, gauges": {"sglang", "sglang:page_size{dp_rank=\"0\"} 1\nsglang:num_pages{dp_rank=\"0\"} 7\n" +
			"sglang:page_size{dp_rank=\"1\"} 1\nsglang:num_pages{dp_rank=\"1\"} 8\n", cache(1, 15), false},
		"start time alone is anybody's page": {"vllm", start, reading(func(r *Reading) { r.StartTime = 1.5e9 }), true},
		"counters, older names": {"vllm", "vllm:gpu_prefix_cache_queries_total 8\nvllm:gpu_prefix_cache_hits_total 2\n",
			reading(func(r *Reading) { r.PrefixQueries, r.PrefixHits = 8, 2 }), false},
		"awake": {"vllm", `vllm:engine_sleep_state{sleep_state="awake"} 1` + "\n" + `vllm:engine_sleep_state{sleep_state="discard_all"} 0` + "\n",
			reading(func(r *Reading) { r.Sleep = Awake }), false},
		"asleep":               {"vllm", `vllm:engine_sleep_state{sleep_state="awake"} 0` + "\n", asleep, false},
		"asleep, by its level": {"vllm", `vllm:engine_sleep_state{sleep_state="weights_offloaded"} 1` + "\n", asleep, false},
		"one of two asleep": {"vllm", `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1` + "\n" +
			`vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0` + "\n", asleep, false},
		"sleep unreadable": {"vllm", `vllm:engine_sleep_state{sleep_state="awake"} 1` + "\n" + `vllm:engine_sleep_state{sleep_state="awake"} x` + "\n", none, false},
		"adapters": {"vllm", `vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=" c ,c,,"} 17` + "\n",
			adapters(Adapters{Known: true, Max: 4, Running: []string{"a", "b"}, Waiting: []string{"c"}, InUse: 3}), false},
		"adapters in both lists": {"vllm", `vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="b,c"} 17` + "\n",
			adapters(Adapters{Known: true, Max: 2, Running: []string{"a", "b"}, Waiting: []string{"b", "c"}, InUse: 3}), false},
		"adapters, a name too long": {"vllm", `vllm:lora_requests_info{running_lora_adapters="a,` + strings.Repeat("b", maxAdapterName+1) + `,` + strings.Repeat("c", maxAdapterName) + `"} 17` + "\n",
			adapters(Adapters{Known: true, Running: []string{"a", strings.Repeat("c", maxAdapterName)}, InUse: 2, Dropped: 1}), false},
		"adapters, escapes": {"vllm", `vllm:lora_requests_info{running_lora_adapters="a\"b\\,c\nd"} 17` + "\n",
			adapters(Adapters{Known: true, Running: []string{`a"b\`, "c\nd"}, InUse: 2}), false},
		"adapters, newest first": {"vllm", `vllm:lora_requests_info{running_lora_adapters="new"} 18` + "\n" + `vllm:lora_requests_info{running_lora_adapters="old"} 17` + "\n",
			adapters(Adapters{Known: true, Running: []string{"new"}, InUse: 1}), false},
		"adapters unreadable cost nothing else": {"vllm", "vllm:lora_requests_info{running_lora_adapters=\"a\"} x\nvllm:kv_cache_usage_perc 0.5\n", usage(0.5), false},
		"HTML":                                  {"vllm", "<!DOCTYPE html>\n<html><body>vllm:num_requests_waiting 3</body></html>\n", none, true},
		"another engine":                        {"vllm", "sglang:num_queue_reqs 3\n", none, true},
		"empty":                                 {"vllm", "", none, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, s := scanned(t, tc.engine, []byte(tc.page))
			if diff := cmp.Diff(tc.want, *got, ignoreRaw); diff != "" {
				t.Errorf("reading (-want +got):\n%s", diff)
			}
			if s.found == tc.notFound {
				t.Errorf("found %v", s.found)
			}
		})
	}
}

func TestAdaptersAreBounded(t *testing.T) {
	t.Parallel()
	names := make([]string, MaxAdapters+5)
	for i := range names {
		names[i] = strings.Repeat("a", i%7+1) + string(rune('a'+i%26)) + strings.Repeat("b", i/7)
	}
	text := `vllm:lora_requests_info{running_lora_adapters="` + strings.Join(names, ",") + `"} 1` + "\n"
	r, _ := scanned(t, "vllm", []byte(text))
	if len(r.Adapters.Running) != MaxAdapters || r.Adapters.Dropped != 5 {
		t.Errorf("kept %d, dropped %d; want %d and 5", len(r.Adapters.Running), r.Adapters.Dropped, MaxAdapters)
	}
}

// TestPieces reads real pages in pieces of every size, as connections deliver them.
func TestPieces(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"vllm_lora.txt", "vllm_dp2.txt"} {
		text := page(t, name)
		want, _ := scanned(t, "vllm", text)
		w := new(workspace)
		w.scanner.reset(dialects[0])
		if _, err := w.scan(iotest.OneByteReader(bytes.NewReader(text)), math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, w.scanner.reading(0, nil), ignoreRaw); diff != "" {
			t.Errorf("%s by bytes (-whole +bytes):\n%s", name, diff)
		}
	}
}

func TestUnchangedAdaptersAreShared(t *testing.T) {
	t.Parallel()
	text := []byte(`vllm:lora_requests_info{running_lora_adapters="a,b"} 1` + "\n")
	first, _ := scanned(t, "vllm", text)
	_, s := scanned(t, "vllm", text)
	second := s.reading(0, first)
	if &first.Adapters.Running[0] != &second.Adapters.Running[0] {
		t.Error("the names were made anew")
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, name := range []string{"vllm_dp2.txt", "vllm_lora.txt"} {
		text := page(t, name)
		w := new(workspace)
		reader := bytes.NewReader(text)
		scan := func() {
			reader.Reset(text)
			w.scanner.reset(dialects[0])
			if _, err := w.scan(reader, math.MaxInt64); err != nil {
				t.Fatal(err)
			}
		}
		scan()
		if n := testing.AllocsPerRun(20, scan); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
