package ledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
)

func one(name string, p *Plugin) func(func(string, *Plugin) bool) {
	return func(yield func(string, *Plugin) bool) { yield(name, p) }
}

func TestCollector(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""), spec('b', ""))
	b.input(1000)
	b.matched(0, 31, 62)
	b.send('a').FirstToken(1)
	b.send('a')
	complete(b.send('b'))
	collector := NewCollector(one("inflight-load-producer", b.ledger))
	want := `
# HELP sluice_ledger_charged_without_match_info_total Requests charged in full because no usable prefix match info was there.
# TYPE sluice_ledger_charged_without_match_info_total counter
sluice_ledger_charged_without_match_info_total{producer="inflight-load-producer"} 1
# HELP sluice_ledger_charged_without_tokens_total Requests charged by their bytes because no token count was there.
# TYPE sluice_ledger_charged_without_tokens_total counter
sluice_ledger_charged_without_tokens_total{producer="inflight-load-producer"} 0
# HELP sluice_ledger_decoding_requests Requests in flight on an endpoint that are past their first token.
# TYPE sluice_ledger_decoding_requests gauge
sluice_ledger_decoding_requests{endpoint="10.0.0.1:8000",producer="inflight-load-producer"} 1
sluice_ledger_decoding_requests{endpoint="10.0.0.2:8000",producer="inflight-load-producer"} 0
# HELP sluice_ledger_inflight_requests Requests in flight on an endpoint.
# TYPE sluice_ledger_inflight_requests gauge
sluice_ledger_inflight_requests{endpoint="10.0.0.1:8000",producer="inflight-load-producer"} 2
sluice_ledger_inflight_requests{endpoint="10.0.0.2:8000",producer="inflight-load-producer"} 0
# HELP sluice_ledger_inflight_tokens Uncached prompt tokens not yet prefilled on an endpoint, plus estimated output where configured.
# TYPE sluice_ledger_inflight_tokens gauge
sluice_ledger_inflight_tokens{endpoint="10.0.0.1:8000",producer="inflight-load-producer"} 504
sluice_ledger_inflight_tokens{endpoint="10.0.0.2:8000",producer="inflight-load-producer"} 0
# HELP sluice_ledger_releases_total Charges released, by how the stream ended.
# TYPE sluice_ledger_releases_total counter
sluice_ledger_releases_total{producer="inflight-load-producer",release="complete"} 1
sluice_ledger_releases_total{producer="inflight-load-producer",release="disconnect"} 0
sluice_ledger_releases_total{producer="inflight-load-producer",release="error"} 0
sluice_ledger_releases_total{producer="inflight-load-producer",release="estimated"} 0
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(collector); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}

// TestCollectorBoundsItsLabels: endpoints beyond the bound are one series, and none of their load is lost.
func TestCollectorBoundsItsLabels(t *testing.T) {
	b := newBench(t, "default", "")
	var specs []scheduling.EndpointSpec
	for i := range MaxEndpointLabels + 20 {
		specs = append(specs, scheduling.EndpointSpec{Address: fmt.Sprintf("10.2.%d.%d:8000", i/250, i%250)})
	}
	series := func() (n int, nonzero map[string]float64) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(NewCollector(one("ledger", b.ledger)))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		nonzero = map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if metric.GetGauge() == nil {
					continue
				}
				n++
				if v := metric.GetGauge().GetValue(); v != 0 {
					nonzero[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = v
				}
			}
		}
		return n, nonzero
	}
	b.update(specs[:MaxEndpointLabels]...)
	if n, _ := series(); n != 3*MaxEndpointLabels {
		t.Errorf("%d series for %d endpoints, want 3 each", n, MaxEndpointLabels)
	}
	b.update(specs...)
	for _, i := range []int{1, MaxEndpointLabels, MaxEndpointLabels + 19} {
		k := b.ledger.table.take(b.pool.Snapshot().Endpoints[i])
		k.requests.Add(int64(i))
		k.tokens.Add(int64(2 * i))
		k.decoding.Add(int64(3 * i))
	}
	n, nonzero := series()
	if n != 3*(MaxEndpointLabels+1) {
		t.Errorf("%d series, want %d", n, 3*(MaxEndpointLabels+1))
	}
	const rest = 2*MaxEndpointLabels + 19
	want := map[string]float64{
		"sluice_ledger_inflight_requests 10.2.0.1:8000": 1, "sluice_ledger_inflight_requests " + OtherEndpoints: rest,
		"sluice_ledger_inflight_tokens 10.2.0.1:8000": 2, "sluice_ledger_inflight_tokens " + OtherEndpoints: 2 * rest,
		"sluice_ledger_decoding_requests 10.2.0.1:8000": 3, "sluice_ledger_decoding_requests " + OtherEndpoints: 3 * rest,
	}
	if diff := cmp.Diff(want, nonzero); diff != "" {
		t.Errorf("load by endpoint (-want +got):\n%s", diff)
	}
}

func TestAReasonOutOfRangeIsNone(t *testing.T) {
	b := newBench(t, "default", "")
	if got := b.ledger.Released(scheduling.EndReason(200)); got != 0 {
		t.Errorf("Released(200) = %d", got)
	}
	if _, ok := b.ledger.Load(-1, 1); ok {
		t.Error("there is a load for ordinal -1")
	}
}
