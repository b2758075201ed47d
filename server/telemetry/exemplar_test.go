package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-epp/sluice/scheduling"
)

// scrape reads a metrics page in the OpenMetrics format, as the admin port serves it.
func scrape(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
	page, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(page), "\n")
}

// exemplars are the lines of a histogram that carry one.
func exemplars(lines []string, histogram string) (found []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, histogram+"_bucket{") && strings.Contains(line, " # {") {
			found = append(found, line)
		}
	}
	return found
}

// The latencies of a request that a trace records name the trace; those of others name none.
func TestLatenciesNameTheirTraces(t *testing.T) {
	histograms := []string{"sluice_decision_seconds", "sluice_first_token_seconds", "sluice_request_seconds"}
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg, 0, "m")
	serve := func(traceID string) {
		c, f := decided(t, 100, "explorationProbability: 0")
		c.Request.TraceID, f.TraceID = traceID, traceID
		m.Picked(c, f, 20*time.Microsecond)
		m.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 30*time.Millisecond, 90*time.Millisecond)
	}
	serve("")
	for _, h := range histograms {
		if found := exemplars(scrape(t, reg), h); found != nil {
			t.Errorf("without a trace %s has the exemplars %q", h, found)
		}
	}
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	serve(traceID)
	for _, h := range histograms {
		found := exemplars(scrape(t, reg), h)
		if len(found) != 1 || !strings.Contains(found[0], `# {trace_id="`+traceID+`"} `) {
			t.Errorf("%s has the exemplars %q, want one of the trace", h, found)
		}
	}
}
