package replay

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// What the configurations of these tests rest on is all there is: both indices, loads, engines' metrics, gates that explore,
// pickers that draw, fallbacks.
const (
	preciseConfig = `server: {maxEndpointsInPick: 3}
plugins:
  - {type: precise-prefix-cache-producer}
  - {type: prefix-cache-affinity-filter, parameters: {explorationProbability: 0.2, penaltyMode: matchedTokens}}
schedulingProfiles:
  - plugins:
      - {pluginRef: prefix-cache-affinity-filter}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: token-load-scorer}
      - {pluginRef: max-score-picker}
`
	drawingConfig = `plugins: [{type: approx-prefix-cache-producer}, {type: inflight-load-producer}]
schedulingProfiles:
  - plugins:
      - {pluginRef: prefix-cache-scorer, weight: 0.3}
      - {pluginRef: active-request-scorer}
      - {pluginRef: weighted-random-picker}
`
	randomConfig = `plugins: [{type: approx-prefix-cache-producer}, {type: inflight-load-producer}]
schedulingProfiles:
  - plugins: [{pluginRef: random-picker}]
`
	manyEjections = `plugins:
  - {type: outlier-detection-filter, parameters: {consecutiveFailures: 2, baseEjectionTime: 2s}}
schedulingProfiles:
  - plugins:
      - {pluginRef: outlier-detection-filter}
      - {pluginRef: prefix-cache-affinity-filter}
      - {pluginRef: prefill-cost-scorer}
      - {pluginRef: max-score-picker}
`
)

// TestRecordedConfigurationIsTheSame: every decision of real traffic comes out the same to the byte under the configuration
// that made it, from the files alone.
func TestRecordedConfigurationIsTheSame(t *testing.T) {
	for name, tc := range map[string]struct {
		text   string
		format decisionlog.Format
		n      int
		change func(*logging)
	}{
		"built in":    {"", decisionlog.JSONLines, 120, func(*logging) {}},
		"in Parquet":  {"", decisionlog.Parquet, 120, func(l *logging) { l.narrow = true }},
		"precise":     {preciseConfig, decisionlog.JSONLines, 120, func(l *logging) { l.narrow = true }},
		"drawing":     {drawingConfig, decisionlog.Parquet, 120, func(l *logging) { l.narrow = true }},
		"random":      {randomConfig, decisionlog.JSONLines, 120, func(*logging) {}},
		"with faults": {manyEjections, decisionlog.JSONLines, 240, func(l *logging) { l.failing = true }},
	} {
		t.Run(name, func(t *testing.T) {
			folder, n := t.TempDir(), tc.n
			if os.Getenv("SLUICE_LONG") != "" {
				n = 400
			}
			traffic(t, written(t, tc.text), folder, tc.format, n, tc.change)
			seen := map[string]int{}
			p := planOf(t, nil, folder)
			p.Decisions = watched(p.Decisions, seen)
			r := replayed(t, p)
			if r.First != nil {
				t.Fatalf("%d of %d differ; the first: %+v", r.Different, r.Verified, *r.First)
			}
			if r.Verified != int64(n) || r.Identical != int64(n) || r.Rows != int64(n) || len(r.LeftOut)+len(r.Unread) > 0 || r.All.Flips > 0 {
				t.Errorf("%+v", r)
			}
			want := map[string][]string{
				"built in": {"gate"}, "in Parquet": {"gate", "fault", "subset"}, "precise": {"gate", "fault", "subset", "fallback", "explored"},
				"drawing": {"fault", "subset", "not the highest"}, "with faults": {"ejected"},
			}[name]
			for _, w := range want {
				if seen[w] == 0 {
					t.Errorf("the traffic has no %q: %v", w, seen)
				}
			}
		})
	}
}

// watched counts what decisions there are, so that a test over them is one.
func watched(all iter.Seq2[*decisionv1.Decision, error], seen map[string]int) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		for d, err := range all {
			if len(d.GetPicks()) > 1 {
				seen["fallback"]++
			}
			if len(d.GetFaults()) > 0 {
				seen["fault"]++
			}
			if d.GetRunnerUpMargin() < 0 {
				seen["not the highest"]++
			}
			for _, g := range d.GetGates() {
				seen["gate"]++
				if g.GetVerdict() == decisionv1.GateVerdict_GATE_VERDICT_EXPLORED {
					seen["explored"]++
				}
			}
			for _, e := range d.GetCandidates() {
				if e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_SUBSET {
					seen["subset"]++
				}
				if e.GetFilteredBy() == "outlier-detection-filter" {
					seen["ejected"]++
				}
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

// TestATamperedLogIsNotTheSame: the check can fail, and says where.
func TestATamperedLogIsNotTheSame(t *testing.T) {
	folder := t.TempDir()
	traffic(t, "", folder, decisionlog.JSONLines, 60, func(*logging) {})
	p := planOf(t, nil, folder)
	all := p.Decisions
	n := 0
	p.Decisions = func(yield func(*decisionv1.Decision, error) bool) {
		for d, err := range all {
			if n++; n == 30 {
				d.Candidates[d.GetPicks()[0]].Total += 1e-12
			}
			if !yield(d, err) {
				return
			}
		}
	}
	r := replayed(t, p)
	if r.Different != 1 || r.First == nil || r.Identical != 59 {
		t.Fatalf("%d differ: %+v", r.Different, r.First)
	}
	if !strings.HasPrefix(r.First.Field, "candidates[") || !strings.HasSuffix(r.First.Field, "].total") || r.First.Recorded == r.First.Again || r.First.ID == 0 {
		t.Errorf("%+v", r.First)
	}
}

// TestAnotherConfigurationFlips: a changed weight flips some, and they say why.
func TestAnotherConfigurationFlips(t *testing.T) {
	folder := t.TempDir()
	was := strings.NewReplacer("weighted-random-picker", "max-score-picker", "weight: 0.3", "weight: 0.01").Replace(drawingConfig)
	n := int64(400)
	traffic(t, written(t, was), folder, decisionlog.JSONLines, int(n), func(*logging) {})

	same := replayed(t, planOf(t, configured(t, was), folder))
	if same.All.Flips != 0 || same.Identical != n || same.Verified != n {
		t.Errorf("the same: %d flips, %d identical, %d verified", same.All.Flips, same.Identical, same.Verified)
	}
	unlike := replayed(t, planOf(t, configured(t, "server: {drainDelay: 7s}\n"+was), folder))
	if unlike.All.Flips != 0 || unlike.Identical != n || unlike.Verified != 0 {
		t.Errorf("another file that decides the same: %d flips, %d identical, %d verified", unlike.All.Flips, unlike.Identical, unlike.Verified)
	}

	r := replayed(t, planOf(t, configured(t, strings.Replace(was, "weight: 0.01", "weight: 30", 1)), folder))
	a := &r.All
	if a.Flips < 10 || a.Flips > n-10 || a.Decisions != n || r.Identical+a.Flips > n {
		t.Fatalf("%d of %d flip", a.Flips, a.Decisions)
	}
	if r.Causes[0].Name != "scorer prefix-cache-scorer" {
		t.Errorf("causes %v", r.Causes)
	}
	causes := int64(0)
	for _, c := range r.Causes {
		causes += c.Count
	}
	if causes != a.Flips || a.MoreCached+a.LessCached+a.SameCached != a.Flips || a.MoreLoaded+a.LessLoaded+a.SameLoaded != a.Flips || a.MoreCached < a.LessCached {
		t.Errorf("%d causes, %+v", causes, a)
	}
	if !(a.HitNow() > a.HitBefore()) || a.KnownHits != n || a.HitNow() > 1 {
		t.Errorf("hits %v, now %v", a.HitBefore(), a.HitNow())
	}
	if len(r.Models) != 2 || r.Models[0].Flips+r.Models[1].Flips != a.Flips || len(r.Endpoints) != 4 || a.Now.Decisions < a.Before.Decisions {
		t.Errorf("%d models, %d endpoints, imbalance %v, now %v", len(r.Models), len(r.Endpoints), a.Before.Decisions, a.Now.Decisions)
	}
	picks := int64(0)
	for _, e := range r.Endpoints {
		picks += e.DecisionsNow
	}
	if moved := sum(r.Moved[:]); picks != n || moved != a.Flips || sum(r.Times.Flips) != a.Flips || sum(r.Times.Decisions) != n {
		t.Errorf("%d picks, %d moved, times %+v", picks, moved, r.Times)
	}
	reports(t, r)
}

func sum(all []int64) (s int64) {
	for _, n := range all {
		s += n
	}
	return s
}

// reports checks that all three forms have what the result has.
func reports(t *testing.T, r *Result) {
	t.Helper()
	var text, page, out bytes.Buffer
	if err := errors.Join(r.WriteText(&text, 120, false), r.WriteHTML(&page), r.WriteJSON(&out)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"scorer prefix-cache-scorer", "open-loop", "llama", "engine-3", "flip 3: decision", "why: prefix-cache-scorer speaks more for it"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	for _, want := range []string{"<svg", "prefers-color-scheme: dark", "engine-3", "open-loop", "speaks more for it"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if strings.Contains(page.String(), "http://") || strings.Contains(page.String(), "https://") {
		t.Error("the page needs something from elsewhere")
	}
	var read report
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || read.All.Flips != r.All.Flips || len(read.Examples) != 3 || read.Causes[0] != r.Causes[0] || !read.OpenLoop {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestWhatCannotBeReplayed is counted and named.
func TestWhatCannotBeReplayed(t *testing.T) {
	folder := t.TempDir()
	traffic(t, written(t, randomConfig), folder, decisionlog.JSONLines, 50, func(*logging) {})
	r := replayed(t, planOf(t, configured(t, preciseConfig), folder))
	if r.Replayed != 0 || r.LeftOut.Total() != 50 {
		t.Fatalf("%+v", r)
	}
	for why := range r.LeftOut {
		if !strings.Contains(why, `no EngineMetrics of "`) {
			t.Errorf("%q", why)
		}
	}
	leavesOut := `plugins: [{type: outlier-detection-filter}]
schedulingProfiles: [{plugins: [{pluginRef: outlier-detection-filter}, {pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]}]
`
	r = replayed(t, planOf(t, configured(t, leavesOut), folder))
	if r.Replayed != 50 || r.Substituted["Ejected of outlier-detection-filter is not recorded: nobody is taken to have any"] != 50 {
		t.Errorf("%d, %v, %v", r.Replayed, r.LeftOut, r.Substituted)
	}
	if text := (&bytes.Buffer{}); r.WriteText(text, 100, false) != nil || !strings.Contains(text.String(), "Ejected of outlier-detection-filter") {
		t.Errorf("%s", text)
	}

	// Without what is beside the log, nobody knows the configuration; what is no decision is counted too.
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.WriteFile(alone, append(content, "{\"id\": \"x\"}\nnothing\n{\"id\": 1"...), 0o600); err != nil {
		t.Fatal(err)
	}
	r = replayed(t, planOf(t, nil, alone))
	if r.Replayed != 0 || r.LeftOut.Total() != 50 || r.Unread[decisionlog.SkippedRow] != 2 || r.Unread[decisionlog.SkippedTail] != 1 {
		t.Errorf("left out %v, unread %v", r.LeftOut, r.Unread)
	}
	for why := range r.LeftOut {
		if !strings.Contains(why, "is not known") {
			t.Errorf("%q", why)
		}
	}
}

// TestRecordsThatCannotBe are left out, and so are those of another version.
func TestRecordsThatCannotBe(t *testing.T) {
	folder := t.TempDir()
	traffic(t, "", folder, decisionlog.JSONLines, 20, func(*logging) {})
	p := planOf(t, nil, folder)
	all, n := p.Decisions, 0
	p.Decisions = func(yield func(*decisionv1.Decision, error) bool) {
		for d, err := range all {
			switch n++; n {
			case 3:
				d.Candidates[1].Ordinal = 0
			case 5:
				d.Candidates = nil
			case 7:
				d.Columns = d.Columns[:1]
			case 9:
				d.ConfigHash = ""
			}
			if !yield(d, err) {
				return
			}
		}
	}
	r := replayed(t, p)
	if r.Replayed != 17 || r.LeftOut.Total() != 3 || r.Different != 1 {
		t.Errorf("%d replayed, left out %v, first %+v", r.Replayed, r.LeftOut, r.First)
	}
	for _, want := range []string{"the record cannot be: ", "the configuration of rows that name none is not known", "the record is of another version of the same configuration"} {
		found := false
		for why := range r.LeftOut {
			found = found || strings.HasPrefix(why, want)
		}
		if !found {
			t.Errorf("nothing says %q: %v", want, r.LeftOut)
		}
	}
}

// TestInterruptedReplay: what was done until then is there.
func TestInterruptedReplay(t *testing.T) {
	folder := t.TempDir()
	traffic(t, "", folder, decisionlog.JSONLines, 50, func(*logging) {})
	ctx, cancel := context.WithCancel(t.Context())
	p := planOf(t, nil, folder)
	p.Each = func(rows int64) {
		if rows == 10 {
			cancel()
		}
	}
	r, err := p.Run(ctx)
	if !errors.Is(err, context.Canceled) || r.Replayed != 10 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestMemoryHasABound: names from a log do not add up without end.
func TestMemoryHasABound(t *testing.T) {
	c := Counts{}
	for i := range 10_000 {
		c.add(strings.Repeat("x", i%5000), 1)
	}
	if len(c) != maxNames+1 || c.Total() != 10_000 {
		t.Errorf("%d names, %d", len(c), c.Total())
	}
	folder := t.TempDir()
	traffic(t, "", folder, decisionlog.JSONLines, 2, func(*logging) {})
	p := planOf(t, nil, folder)
	var one *decisionv1.Decision
	for d, err := range p.Decisions {
		if err != nil {
			t.Fatal(err)
		}
		one = d
	}
	p.Decisions = func(yield func(*decisionv1.Decision, error) bool) {
		for i := range 5200 {
			d := proto.CloneOf(one)
			d.Request.Model = strings.Repeat("m", i%600)
			d.Candidates[0].Name = strings.Repeat("n", i%5000)
			d.TimeUnixNano = int64(i-2600) << 50
			if !yield(d, nil) {
				return
			}
		}
	}
	r := replayed(t, p)
	if len(r.Models) != maxNames+1 || len(r.Endpoints) != maxEndpoints+1 || len(r.Times.Decisions) > maxSteps || r.Replayed != 5200 {
		t.Errorf("%d models, %d endpoints, %d steps, %d replayed", len(r.Models), len(r.Endpoints), len(r.Times.Decisions), r.Replayed)
	}
}
