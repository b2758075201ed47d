package simulation

import (
	"math"
	"path/filepath"
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
