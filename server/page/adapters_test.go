package page

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// What an engine does with the request's adapter stands among what it said of itself, where it named its adapters.
func TestEngineWordsOfAdapters(t *testing.T) {
	waiting := decisionv1.AdapterUse_ADAPTER_USE_WAITING
	for want, m := range map[string]*decisionv1.EngineMetrics{
		"2 waiting, 5 ms old": {Waiting: ref(2.0), AgeMs: 5},
		"5 ms old":            {HasAdapters: true, Adapters: 1, MaxAdapters: 2, AgeMs: 5},
		"2 waiting, its adapter waits (3 of 2 in use), 5 ms old": {
			Waiting: ref(2.0), HasAdapters: true, Adapter: waiting, Adapters: 3, MaxAdapters: 2, AgeMs: 5,
		},
		"its adapter waits (1 in use), 5 ms old": {HasAdapters: true, Adapter: waiting, Adapters: 1, AgeMs: 5},
	} {
		if got := engineWords(m); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
