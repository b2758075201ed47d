package outlier_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/load/outlier"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// rig is a scheduler with the filter and a picker that takes the first candidate.
type rig struct {
	t         testing.TB
	scheduler *scheduling.Scheduler
	registry  *prometheus.Registry
	pool      *scheduling.Pool
	now       time.Duration
	id        uint64
}

func newRig(t testing.TB, parameters string, addresses ...string) *rig {
	t.Helper()
	r := &rig{t: t, registry: prometheus.NewPedanticRegistry(), pool: scheduling.NewPool()}
	spec := scheduling.Spec{Name: outlier.TypeName, Type: outlier.TypeName, Decode: schedtest.YAML(parameters)}
	var err error
	r.scheduler, err = scheduling.Build(
		[]scheduling.PluginType{outlier.Type(outlier.Options{Registerer: r.registry}), schedtest.First},
		schedtest.Config([]scheduling.Spec{spec}, outlier.TypeName, schedtest.First.Type), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.pool.Watch(r.scheduler.SnapshotChanged)
	r.set(addresses...)
	return r
}

func (r *rig) set(addresses ...string) {
	specs := make([]scheduling.EndpointSpec, len(addresses))
	for i, a := range addresses {
		specs[i] = scheduling.EndpointSpec{Address: a}
	}
	r.pool.Update(specs)
}

func (r *rig) pick() *scheduling.Flight {
	r.t.Helper()
	r.id++
	c := r.scheduler.Begin(r.pool.Snapshot(), &scheduling.Request{ID: r.id, Choices: 1}, r.now)
	defer r.scheduler.End(c)
	f, err := r.scheduler.Commit(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// answer picks, ends the request with a status and returns where it went.
func (r *rig) answer(status int) string {
	r.t.Helper()
	f := r.pick()
	address := f.Endpoint.Address
	f.Done(scheduling.Outcome{Status: status}, r.now)
	return address
}

func (r *rig) goes(want string) {
	r.t.Helper()
	if got := r.answer(200); got != want {
		r.t.Errorf("at %v a request went to %s, want %s", r.now, got, want)
	}
}

func TestEjectsAfterFailuresInARow(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for _, status := range []int{503, 502, 200, 503, 503} { // never three in a row
		if got := r.answer(status); got != "a:1" {
			t.Fatalf("went to %s", got)
		}
	}
	if got := r.answer(500); got != "a:1" {
		t.Fatalf("went to %s", got)
	}
	r.goes("b:1")
	r.now += 999 * time.Millisecond
	r.goes("b:1")
}

func TestTrialThenBackOrLonger(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for range 3 {
		r.answer(503)
	}
	for _, ejection := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		r.now += ejection*time.Second - 1
		r.goes("b:1")
		r.now++
		trial := r.pick()
		if trial.Endpoint.Address != "a:1" {
			t.Fatalf("after %d s no trial", ejection)
		}
		r.goes("b:1") // while the trial runs the rest stays away
		trial.Done(scheduling.Outcome{Status: 503}, r.now)
		r.goes("b:1")
	}
	r.now += 30 * time.Second
	r.goes("a:1") // the trial succeeds
	r.goes("a:1")
	r.answer(503)
	r.goes("a:1") // and the count begins anew
}

// A decision that is only looked at goes where the trial would go, and leaves the trial to a request.
func TestPreviewTakesNoTrial(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for range 3 {
		r.answer(503)
	}
	r.now += time.Second
	for range 2 {
		c := r.scheduler.Begin(r.pool.Snapshot(), &scheduling.Request{ID: 1, Choices: 1, Trial: true}, r.now)
		r.scheduler.Preview(c)
		if a := c.Snapshot.Endpoints[c.Picks[0]].Address; a != "a:1" {
			t.Errorf("%s would be picked", a)
		}
		r.scheduler.End(c)
	}
	r.goes("a:1")
}

func TestTrialWithoutAnOutcomeIsRepeated(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for range 3 {
		r.answer(503)
	}
	r.now += time.Second
	hanging := r.pick()
	r.goes("b:1")
	r.now += time.Second
	r.goes("a:1")
	hanging.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, r.now)
}

func TestWhatBeganBeforeSaysNothingNew(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	var open []*scheduling.Flight
	for range 50 {
		open = append(open, r.pick())
	}
	for _, f := range open {
		f.Done(scheduling.Outcome{Status: 503}, r.now)
	}
	r.now += time.Second
	r.goes("a:1") // one ejection of one second, not fifty doublings
}

func TestWhatCounts(t *testing.T) {
	for name, test := range map[string]struct {
		end     func(*scheduling.Flight)
		ejected bool
	}{
		"5xx":                   {func(f *scheduling.Flight) { f.Done(scheduling.Outcome{Status: 500}, 0) }, true},
		"4xx":                   {func(f *scheduling.Flight) { f.Done(scheduling.Outcome{Status: 404}, 0) }, false},
		"429":                   {func(f *scheduling.Flight) { f.Done(scheduling.Outcome{Status: 429}, 0) }, false},
		"a client that left":    {func(f *scheduling.Flight) { f.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, 0) }, false},
		"an end that is unseen": {func(f *scheduling.Flight) { f.Done(scheduling.Outcome{Reason: scheduling.EndUnseen}, 0) }, false},
		"5xx after a token": {func(f *scheduling.Flight) {
			f.FirstToken(0)
			f.Done(scheduling.Outcome{Status: 500, Reason: scheduling.EndError}, 0)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "consecutiveFailures: 2", "a:1", "b:1")
			for range 2 {
				test.end(r.pick())
			}
			if got := r.answer(200) == "b:1"; got != test.ejected {
				t.Errorf("ejected = %v, want %v", got, test.ejected)
			}
		})
	}
}

func TestRetryElsewhereIsAFailure(t *testing.T) {
	r := newRig(t, "consecutiveFailures: 1", "a:1", "b:1")
	f := r.pick()
	f.Served(r.pool.Snapshot().ByAddress("b:1"), f.PickedAt)
	f.Done(scheduling.Outcome{Status: 200}, 0)
	r.goes("b:1")
}

func TestNeverEjectsTheLast(t *testing.T) {
	r := newRig(t, "consecutiveFailures: 1", "a:1", "b:1")
	r.answer(503)
	r.answer(503)
	r.goes("a:1") // both are ejected: all candidates stay
}

func TestEndpointsThatLeaveTakeTheirPastAlong(t *testing.T) {
	r := newRig(t, "consecutiveFailures: 1", "a:1", "b:1")
	late := r.pick()
	r.answer(503)
	r.goes("b:1")
	r.set("b:1")
	r.set("a:1", "b:1")
	r.goes("a:1") // another instance
	late.Done(scheduling.Outcome{Status: 503}, 0)
	r.goes("a:1") // the old one's failure is not the new one's
	if got := testutil.ToFloat64(gauge{r.registry}); got != 0 {
		t.Errorf("%v endpoints count as ejected", got)
	}
}

// gauge collects sluice_outlier_ejected_endpoints alone.
type gauge struct{ reg *prometheus.Registry }

func (g gauge) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

func (g gauge) Collect(ch chan<- prometheus.Metric) {
	families, err := g.reg.Gather()
	if err != nil {
		return
	}
	for _, f := range families {
		if f.GetName() == "sluice_outlier_ejected_endpoints" {
			desc := prometheus.NewDesc(f.GetName(), f.GetHelp(), nil, nil)
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, f.GetMetric()[0].GetGauge().GetValue())
		}
	}
}

func TestMetrics(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for range 3 {
		r.answer(503)
	}
	want := `
# HELP sluice_outlier_ejected_endpoints Endpoints that failed and have not served again since.
# TYPE sluice_outlier_ejected_endpoints gauge
sluice_outlier_ejected_endpoints %d
# HELP sluice_outlier_ejections_total Times that an endpoint was left out for failing.
# TYPE sluice_outlier_ejections_total counter
sluice_outlier_ejections_total 1
# HELP sluice_outlier_failures_total Requests that an endpoint failed: a 5xx, or a retry elsewhere.
# TYPE sluice_outlier_failures_total counter
sluice_outlier_failures_total 3
# HELP sluice_outlier_returns_total Times that an endpoint served again after having been left out.
# TYPE sluice_outlier_returns_total counter
sluice_outlier_returns_total %d
`
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(fmt.Sprintf(want, 1, 0))); err != nil {
		t.Error(err)
	}
	r.now += time.Second
	r.goes("a:1")
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(fmt.Sprintf(want, 0, 1))); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(r.registry); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestReloadKeepsWhatIsKnown(t *testing.T) {
	r := newRig(t, "", "a:1", "b:1")
	for range 3 {
		r.answer(503)
	}
	next, err := scheduling.Build([]scheduling.PluginType{outlier.Type(outlier.Options{}), schedtest.First},
		schedtest.Config(nil, outlier.TypeName, schedtest.First.Type), r.scheduler)
	if err != nil {
		t.Fatal(err)
	}
	r.scheduler = next
	r.goes("b:1")
}

func TestParameters(t *testing.T) {
	for text, want := range map[string]string{
		"consecutiveFailures: 0":                      "parameters.consecutiveFailures: must be from 1 to 1000, got 0",
		"baseEjectionTime: 0s":                        "parameters.baseEjectionTime: must be from 1ms to 1h0m0s, got 0s",
		"{baseEjectionTime: 1m, maxEjectionTime: 1s}": "parameters.maxEjectionTime: must be from baseEjectionTime (1m0s) to 1h0m0s, got 1s",
	} {
		spec := scheduling.Spec{Name: "f", Type: outlier.TypeName, Decode: schedtest.YAML(text)}
		_, err := scheduling.Build([]scheduling.PluginType{outlier.Type(outlier.Options{}), schedtest.First},
			schedtest.Config([]scheduling.Spec{spec}, "f", schedtest.First.Type), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// Whatever happens in whatever order: somebody is picked, an ejected endpoint is not while another is free, and once all
// is well for long enough nobody is left out.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, "consecutiveFailures: 2", "a:1", "b:1", "c:1")
		var open []*scheduling.Flight
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			r.now += time.Duration(rapid.IntRange(0, 2000).Draw(rt, "ms")) * time.Millisecond
			if len(open) > 0 && rapid.Bool().Draw(rt, "end") {
				i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
				open[i].Done(scheduling.Outcome{Status: rapid.SampledFrom([]int{0, 200, 404, 503}).Draw(rt, "status")}, r.now)
				open = append(open[:i], open[i+1:]...)
				continue
			}
			open = append(open, r.pick())
		}
		for _, f := range open {
			f.Done(scheduling.Outcome{Status: 200}, r.now)
		}
		for range 10 {
			r.now += time.Minute
			for range 3 {
				r.answer(200)
			}
		}
		seen := map[string]bool{}
		for _, only := range []string{"a:1", "b:1", "c:1"} {
			e := r.pool.Snapshot().ByAddress(only)
			f, ok := r.scheduler.Plugin(outlier.TypeName).(*outlier.Filter)
			if !ok {
				rt.Fatal("no filter")
			}
			seen[only] = f.Ejected(e.Ordinal, e.Generation, r.now)
		}
		if diff := cmp.Diff(map[string]bool{"a:1": false, "b:1": false, "c:1": false}, seen); diff != "" {
			rt.Errorf("still left out (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkFilter(b *testing.B) {
	for _, troubled := range []bool{false, true} {
		b.Run(fmt.Sprintf("troubled=%v", troubled), func(b *testing.B) {
			addresses := make([]string, 512)
			for i := range addresses {
				addresses[i] = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)
			}
			r := newRig(b, "consecutiveFailures: 1", addresses...)
			if troubled {
				r.answer(503)
			}
			c := r.scheduler.Begin(r.pool.Snapshot(), &scheduling.Request{ID: 1, Choices: 1}, r.now)
			f, ok := r.scheduler.Plugin(outlier.TypeName).(*outlier.Filter)
			if !ok {
				b.Fatal("no filter")
			}
			b.ReportAllocs()
			for b.Loop() {
				f.Filter(c, c.Candidates)
			}
		})
	}
}
