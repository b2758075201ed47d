package metrics

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-epp/sluice/scheduling"
)

// oracle reads a page with the Prometheus parser; ok is false where that refuses it, or where it takes lines for
// something that the scanner, which looks at no types, cannot know: parts of a histogram or summary.
func oracle(d *dialect, page []byte) (r *Reading, ok bool) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, false
	}
	samples := map[string][]*dto.Metric{}
	for _, rule := range append(d.rules[:len(d.rules):len(d.rules)], startRule) {
		f := families[rule.name]
		if f == nil {
			continue
		}
		switch f.GetType() {
		case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM, dto.MetricType_SUMMARY:
			return nil, false
		}
		samples[rule.name] = f.GetMetric()
	}
	o := oracleOf{d, samples}
	return o.reading(), true
}

type oracleOf struct {
	d       *dialect
	samples map[string][]*dto.Metric
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	}
	return m.GetUntyped().GetValue()
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// of are the usable samples of a field; whole says that there are some and none is unusable, present that there is any.
func (o oracleOf) of(f field) (values []float64, whole, present bool) {
	whole = true
	for _, r := range append(o.d.rules[:len(o.d.rules):len(o.d.rules)], startRule) {
		if r.to != f {
			continue
		}
		for _, m := range o.samples[r.name] {
			if r.label != "" && label(m, r.label) != r.value || o.d.onlyEmpty != "" && label(m, o.d.onlyEmpty) != "" {
				continue
			}
			present = true
			if v := valueOf(m); v >= 0 && !math.IsInf(v, 1) {
				values = append(values, v)
			} else {
				whole = false
			}
		}
	}
	return values, whole && len(values) > 0, present
}

func (o oracleOf) sum(fields ...field) (total float64, n int, ok bool) {
	for _, f := range fields {
		values, whole, present := o.of(f)
		if !present {
			continue
		}
		for _, v := range values {
			total += v
		}
		return total, len(values), whole && !math.IsInf(total, 1)
	}
	return 0, 0, false
}

func (o oracleOf) reading() *Reading {
	r := &Reading{PrefixQueries: -1, PrefixHits: -1}
	if v, _, ok := o.sum(waiting); ok {
		r.Load.Waiting, r.Load.Known = v, r.Load.Known|scheduling.MetricsWaiting
	}
	if v, _, ok := o.sum(running); ok {
		r.Load.Running, r.Load.Known = v, r.Load.Known|scheduling.MetricsRunning
	}
	v, n, ok := o.sum(kvUsage, kvUsageOld)
	v /= float64(max(n, 1))
	_, _, given := o.of(kvUsage)
	_, _, older := o.of(kvUsageOld)
	if used, _, usedOK := o.sum(kvUsed); !given && !older && usedOK {
		if all, _, allOK := o.sum(numBlocks); allOK && all > 0 {
			v, ok = used/all, true
		}
	}
	if ok && v <= maxShare {
		r.Load.KVUsage, r.Load.Known = min(v, 1), r.Load.Known|scheduling.MetricsKVUsage
	}
	if v, _, ok := o.sum(prefixQueries, prefixQueriesOld); ok {
		r.PrefixQueries = v
	}
	if v, _, ok := o.sum(prefixHits, prefixHitsOld); ok {
		r.PrefixHits = v
	}
	if values, whole, _ := o.of(startTime); whole {
		for _, v := range values {
			r.StartTime = max(r.StartTime, v)
		}
	}
	o.cache(r)
	o.sleep(r)
	o.lora(r)
	return r
}

// cache reads the shape of the cache from labels or from gauges.
func (o oracleOf) cache(r *Reading) {
	var sizes, counts []float64
	countsWhole := true
	for _, rule := range o.d.rules {
		if rule.to != cacheInfo {
			continue
		}
		for _, m := range o.samples[rule.name] {
			if o.d.onlyEmpty != "" && label(m, o.d.onlyEmpty) != "" {
				continue
			}
			size, _ := strconv.Atoi(label(m, rule.sizeLabel))
			count, _ := strconv.Atoi(label(m, rule.countLabel))
			if size == math.MaxInt || size < 0 { // out of range
				size = 0
			}
			if count == math.MaxInt || count < 0 {
				count = 0
			}
			sizes, counts = append(sizes, float64(size)), append(counts, float64(count))
		}
	}
	if len(sizes) == 0 {
		var whole bool
		if sizes, whole, _ = o.of(blockSize); !whole {
			return
		}
		counts, countsWhole, _ = o.of(numBlocks)
	}
	for _, s := range sizes {
		if s < 1 || s > maxCount || s != sizes[0] {
			return
		}
	}
	r.BlockSizeTokens = int(sizes[0])
	var sum, largest float64
	for _, c := range counts {
		sum += c
		largest = max(largest, c)
	}
	if !o.d.sumBlocks {
		sum = largest
	}
	if countsWhole && sum >= 1 && sum <= maxCount {
		r.NumBlocks = int(sum)
	}
}

func (o oracleOf) sleep(r *Reading) {
	awake, asleep, unusable := false, false, false
	for _, m := range o.samples["vllm:engine_sleep_state"] {
		v, state := valueOf(m), label(m, "sleep_state")
		switch {
		case !(v >= 0) || math.IsInf(v, 1):
			unusable = true
		case state == "awake" && v != 0:
			awake = true
		case state == "awake", v != 0:
			asleep = true
		}
	}
	switch {
	case asleep:
		r.Sleep = Asleep
	case awake && !unusable:
		r.Sleep = Awake
	}
}

func (o oracleOf) lora(r *Reading) {
	var newest *dto.Metric
	for _, m := range o.samples["vllm:lora_requests_info"] {
		v := valueOf(m)
		if !(v >= 0) || math.IsInf(v, 1) {
			return
		}
		if newest == nil || v >= valueOf(newest) {
			newest = m
		}
	}
	if newest == nil {
		return
	}
	r.Load.Known |= scheduling.MetricsAdapters
	r.Adapters.Known = true
	if n, err := strconv.Atoi(label(newest, "max_lora")); err == nil && n > 0 {
		r.Adapters.Max = n
	}
	names := func(list string) (names []string) {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); len(name) > maxAdapterName {
				r.Adapters.Dropped++
			} else if name != "" && !strings.Contains("\x00"+strings.Join(names, "\x00")+"\x00", "\x00"+name+"\x00") {
				names = append(names, name)
			}
		}
		r.Adapters.Dropped += max(0, len(names)-MaxAdapters)
		return names[:min(len(names), MaxAdapters)]
	}
	r.Adapters.Running = names(label(newest, "running_lora_adapters"))
	r.Adapters.Waiting = names(label(newest, "waiting_lora_adapters"))
	different := map[string]bool{}
	for _, name := range append(slices.Clone(r.Adapters.Running), r.Adapters.Waiting...) {
		different[name] = true
	}
	r.Adapters.InUse = len(different)
	r.Load.Adapters, r.Load.MaxAdapters = r.Adapters.InUse, r.Adapters.Max
}

var exactly = cmp.Options{ignoreRaw, cmpopts.EquateEmpty()}

func TestRealPagesAgreeWithOracle(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(pages) < 8 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, path := range pages {
		engine, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".txt"), "_")
		text := page(t, filepath.Base(path))
		want, ok := oracle(dialectNamed(engine, nil), text)
		if !ok {
			t.Errorf("%s: the Prometheus parser refuses it", path)
			continue
		}
		got, _ := scanned(t, engine, text)
		if diff := cmp.Diff(want, got, exactly); diff != "" {
			t.Errorf("%s (-oracle +scanner):\n%s", path, diff)
		}
	}
}

// FuzzPage gives pages to the scanner and to the Prometheus parser. What the parser accepts the scanner must read alike;
// what it refuses must cost no more than the families concerned. However a page is cut into pieces, it says the same.
func FuzzPage(f *testing.F) {
	pages, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(text) < 16<<10 {
			f.Add(text, uint8(0), uint16(7))
		}
	}
	for i, text := range []string{
		line(`{engine="0"} 0`) + line(`{engine="1"} 40`),
		line(`{model_name="a\"b\\",engine="0"} NaN 17`) + "\r\n",
		"process_start_time_seconds 1e9\nvllm:engine_sleep_state{sleep_state=\"awake\"} 0\n",
		"sglang:page_size{priority=\"1\"} 3\nsglang:num_pages 4\n",
		"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 3\n",
		"<html>\n",
		`vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="b, c,` + strings.Repeat("d", maxAdapterName+1) + `"} 17` + "\n",
	} {
		f.Add([]byte(text), uint8(i), uint16(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, engine uint8, cut uint16) {
		if len(text) > 16<<10 {
			return // long lines have their own tests
		}
		d := dialects[int(engine)%len(dialects)]
		got, s := scanned(t, d.name, text)
		checkSane(t, got)
		if !t.Failed() {
			checkPieces(t, d, text, int(cut)%(len(text)+1), got)
		}
		for l := range bytes.Lines(text) {
			if l = bytes.TrimLeft(l, " \t"); len(l) > 0 && l[0] == '{' {
				return // a name inside the braces, which no engine writes
			}
		}
		if want, ok := oracle(d, text); ok {
			if diff := cmp.Diff(want, got, exactly); diff != "" {
				t.Errorf("(-oracle +scanner):\n%s", diff)
			}
			if s.malformed > 0 {
				t.Errorf("%d malformed samples on a good page", s.malformed)
			}
		}
	})
}

func checkSane(t *testing.T, r *Reading) {
	t.Helper()
	m := r.Load
	for _, v := range []float64{m.Waiting, m.Running, m.KVUsage, r.StartTime} {
		if !scheduling.Finite(v) {
			t.Errorf("value %v in %+v", v, r)
		}
	}
	if m.KVUsage > 1 || r.BlockSizeTokens < 0 || r.NumBlocks < 0 || r.NumBlocks > 0 && r.BlockSizeTokens == 0 ||
		len(r.Adapters.Running) > MaxAdapters || len(r.Adapters.Waiting) > MaxAdapters {
		t.Errorf("out of bounds: %+v", r)
	}
}

// checkPieces scans a page in two pieces.
func checkPieces(t *testing.T, d *dialect, text []byte, cut int, want *Reading) {
	t.Helper()
	w := new(workspace)
	w.scanner.reset(d)
	pieces := pieceReader{text[:cut], text[cut:]}
	if _, err := w.scan(&pieces, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, w.scanner.reading(0, nil), exactly); diff != "" {
		t.Errorf("cut at %d (-whole +pieces):\n%s", cut, diff)
	}
}
