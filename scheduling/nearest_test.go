package scheduling_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestNearest(t *testing.T) {
	types := []string{
		"queue-scorer", "token-load-scorer", "max-score-picker", "random-picker", "token-producer", "predicted-latency-producer", "latency-scorer",
	}
	for name, want := range map[string]string{
		"queue-scorer":      "queue-scorer",
		"queue-scorrer":     "queue-scorer",
		"que-scorer":        "queue-scorer",
		"Queue-Scorer":      "queue-scorer",
		"maxscorepicker":    "max-score-picker",
		"latency-predictor": "",

		"latency-producer":          "predicted-latency-producer", // and not token-producer, five letters off
		"predicted-latency-scorer":  "latency-scorer",
		"predicted-latency-producr": "predicted-latency-producer",
		"load-scorer":               "token-load-scorer",
		"scorer":                    "",
		"max--score-picker":         "max-score-picker",
		"x":                         "",
		"":                          "",
	} {
		if got := scheduling.Nearest(name, types); got != want {
			t.Errorf("Nearest(%q) is %q, want %q", name, got, want)
		}
	}
	if got := scheduling.Hint("queu-scorer", types); got != ` (did you mean "queue-scorer"?)` {
		t.Errorf("hint %q", got)
	}
	if got := scheduling.Hint("nothing like it", types); got != "" {
		t.Errorf("hint %q", got)
	}
	if got := scheduling.Nearest("a", nil); got != "" {
		t.Errorf("nearest of nothing is %q", got)
	}
}

// TestNearestFindsOneTypo: any name of some length with one letter changed, dropped or added is found again.
func TestNearestFindsOneTypo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringMatching(`[a-z-]{3,20}`).Draw(rt, "name")
		at := rapid.IntRange(0, len(name)-1).Draw(rt, "at")
		typo := rapid.SampledFrom([]string{
			name[:at] + name[at+1:], name[:at] + "Z" + name[at+1:], name[:at] + "Z" + name[at:],
		}).Draw(rt, "typo")
		if got := scheduling.Nearest(typo, []string{"0000000000000000000000000000000", name}); got != name {
			rt.Fatalf("Nearest(%q) is %q, want %q", typo, got, name)
		}
	})
}
