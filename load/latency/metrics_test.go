package latency

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestCollector(t *testing.T) {
	w := newWorld(t, "", 2)
	w.serve(0, 20, 400*time.Millisecond, good(1000, 0, 100))
	w.request.Headers = []scheduling.Header{{Name: "x-slo-ttft-ms", Value: []byte("500ms")}, {Name: "x-slo-tpot-ms", Value: []byte("soon")}}
	w.predict(0)
	w.pick(0)
	c := NewCollector(func(yield func(string, *Plugin) bool) { yield("seer", w.plugin) })
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	want := `
# HELP sluice_latency_objectives_unread_total Requests with a header that asks for a latency and whose value is not a number of ms above 0, at most a day: that header counts for nothing.
# TYPE sluice_latency_objectives_unread_total counter
sluice_latency_objectives_unread_total{producer="seer"} 1
# HELP sluice_latency_samples_total Requests whose time to the first token taught something.
# TYPE sluice_latency_samples_total counter
sluice_latency_samples_total{producer="seer"} 17
# HELP sluice_latency_skipped_total Requests that taught nothing, by reason: failed, moved (served by another endpoint than was picked), not_generated (a list of models, an embedding), not_streamed, just_started (of the first of a new process), endpoint_gone.
# TYPE sluice_latency_skipped_total counter
sluice_latency_skipped_total{producer="seer",reason="endpoint_gone"} 0
sluice_latency_skipped_total{producer="seer",reason="failed"} 0
sluice_latency_skipped_total{producer="seer",reason="just_started"} 3
sluice_latency_skipped_total{producer="seer",reason="moved"} 0
sluice_latency_skipped_total{producer="seer",reason="not_generated"} 0
sluice_latency_skipped_total{producer="seer",reason="not_streamed"} 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "sluice_latency_samples_total", "sluice_latency_skipped_total", "sluice_latency_objectives_unread_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(c, "sluice_latency_prediction_error_ratio"); n != 2 {
		t.Errorf("%d endpoints, want 2", n)
	}
}
