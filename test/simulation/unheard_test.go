package simulation

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// An engine says nothing until it has computed something, and by then other requests wait for it: where they went has to
// count as it does for an engine that was heard before.
func TestFirstEventsCostNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	lab.WriteFile(t, path, policy)
	for _, s := range shapes(t) {
		t.Run(s.name, func(t *testing.T) {
			heard, _ := virtual(t, s, path, 10, false)
			unheard, _ := virtual(t, s, path, 10, true)
			t.Logf("TTFT mean %.3f s and hit rate %.1f %%; from engines that were not heard yet %.3f s and %.1f %%",
				heard.mean, 100*heard.hit, unheard.mean, 100*unheard.hit)
			if math.Abs(unheard.mean/heard.mean-1) > 0.02 || math.Abs(unheard.hit-heard.hit) > 0.005 {
				t.Error("requests before the engines' first events cost more")
			}
		})
	}
}

// Where prompts wait for long before they are computed, speculation that lasts as long finds their prefixes.
func TestSpeculationWhileRequestsWait(t *testing.T) {
	longer := strings.Replace(policy, "precise-prefix-cache-producer}\n", "precise-prefix-cache-producer, parameters: {speculativeTTL: 30s}}\n", 1)
	if longer == policy {
		t.Fatal("the policy is as it was")
	}
	s := conversations()
	usual, long := simulated(t, s, policy, 10), simulated(t, s, longer, 10)
	t.Logf("TTFT mean %.3f s and hit rate %.1f %%; with 30 s of speculation %.3f s and %.1f %%", usual.mean, 100*usual.hit, long.mean, 100*long.hit)
	if usual.mean < 4 {
		t.Errorf("requests wait for %.1f s only", usual.mean)
	}
	if long.mean > 0.85*usual.mean || long.hit < usual.hit+0.04 {
		t.Error("longer speculation brings nothing")
	}
}
