package metrics

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestCollector(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", true))
		hosts := w.endpoints(4)
		w.set(hosts[0], text(load(1, 2, 0.5)+"vllm:num_requests_waiting x\n"+"vllm:engine_sleep_state{sleep_state=\"awake\"} 0\n"))
		w.set(hosts[1], text(load(1, 2, 0.5)))
		w.set(hosts[2], hang)
		time.Sleep(time.Second)
		w.set(hosts[1], hang)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		const want = `
# HELP sluice_engine_cache_losses_total Engines seen to have lost their KV cache, by cause.
# TYPE sluice_engine_cache_losses_total counter
sluice_engine_cache_losses_total{cause="restart"} 0
sluice_engine_cache_losses_total{cause="sleep"} 1
# HELP sluice_engine_metrics_endpoints Endpoints by the state of what is known of their engine: fresh, stale (too old to be used) or unknown (never read).
# TYPE sluice_engine_metrics_endpoints gauge
sluice_engine_metrics_endpoints{state="fresh"} 1
sluice_engine_metrics_endpoints{state="stale"} 1
sluice_engine_metrics_endpoints{state="unknown"} 2
# HELP sluice_engine_sleeping_endpoints Endpoints whose engine said last that it sleeps.
# TYPE sluice_engine_sleeping_endpoints gauge
sluice_engine_sleeping_endpoints 1
`
		if err := testutil.GatherAndCompare(w.registry, strings.NewReader(want), "sluice_engine_cache_losses_total",
			"sluice_engine_metrics_endpoints", "sluice_engine_sleeping_endpoints"); err != nil {
			t.Error(err)
		}
		ok := w.store.Scrapes(ResultOK)
		if got := w.store.stats.malformed.Load(); got != int64(len(w.asked(hosts[0]))) {
			t.Errorf("%d malformed samples on %d pages with one each", got, len(w.asked(hosts[0])))
		}
		if got := w.store.stats.bytes.Load(); ok == 0 || got < ok*int64(len(load(1, 2, 0.5))) {
			t.Errorf("%d bytes of %d pages", got, ok)
		}
		problems, err := testutil.GatherAndLint(w.registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}
