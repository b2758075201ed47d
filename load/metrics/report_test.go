package metrics

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestReportsOncePerChange counts the lines about endpoints that fail for long, and about their recovery.
func TestReportsOncePerChange(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		var log bytes.Buffer
		w.store.logger = slog.New(slog.NewTextHandler(&log, nil))
		w.configure(config("", false))
		w.pool.Update([]scheduling.EndpointSpec{
			{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000", State: scheduling.EndpointNotReady},
			{Address: "10.0.0.3:8000", MetricsURL: "gopher://10.0.0.3/"},
		})
		time.Sleep(time.Minute)
		w.set("10.0.0.1:8000", text(load(0, 0, 0)))
		time.Sleep(time.Minute)
		synctest.Wait()
		for part, want := range map[string]int{
			`level=WARN msg="engine metrics cannot be read" endpoint=10.0.0.1:8000`:     1,
			`level=INFO msg="engine metrics are read again" endpoint=10.0.0.1:8000`:     1,
			`level=WARN msg="engine metrics cannot be read" endpoint=10.0.0.3:8000`:     1,
			`metrics URL \"gopher://10.0.0.3/\": must be http://HOST… or https://HOST…`: 1,
			"10.0.0.2": 0,
			"\n":       3,
		} {
			if got := strings.Count(log.String(), part); got != want {
				t.Errorf("%q stands %d times, want %d, in\n%s", part, got, want, &log)
			}
		}
	})
}
