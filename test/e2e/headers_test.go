package e2e

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// C30: headers pass as they are, whatever bytes they hold and however often they come, and the pick arrives once and
// filled in.
func TestC30_HeadersPassAsTheyAre(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/metrics" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		got = r.Header.Clone()
		w.Header()["x-odd-answer"] = []string{"caf\xe9 \xff", "again"}
	}))
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	for _, mode := range readingModes {
		e := l.Envoy(t, envoy.Params{RequestBody: mode})
		r := lab.Request(t, http.MethodPost, e.URL("/v1/completions"), strings.NewReader(`{"prompt":"x"}`),
			envoy.DestinationKey, "192.0.2.1:80", "X-Odd", "caf\xe9 \xff", "X-Request-Id", "Mine-1", "X-Gateway-Inference-Objective", "chat")
		r.Header["X-Twice"] = []string{"a", "b"}
		a := lab.Do(t, l.Client, r)
		if a.Status != http.StatusOK || !slices.Equal(a.Header.Values("x-odd-answer"), []string{"caf\xe9 \xff", "again"}) {
			t.Errorf("%s: status %d, answer headers %q: %s", mode, a.Status, a.Header, a.Body)
		}
		mu.Lock()
		for name, want := range map[string][]string{
			"X-Odd": {"caf\xe9 \xff"}, "X-Twice": {"a", "b"}, "X-Request-Id": {"Mine-1"}, "X-Gateway-Inference-Objective": {"chat"},
			http.CanonicalHeaderKey(envoy.DestinationKey): {address},
		} {
			if !slices.Equal(got[name], want) {
				t.Errorf("%s: header %s arrived as %q, want %q", mode, name, got[name], want)
			}
		}
		mu.Unlock()
	}
	l.Sluice.Settle(t)
}
