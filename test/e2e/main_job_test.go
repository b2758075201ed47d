package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

// The main job: a conversation's next request goes to the engine that holds its prefix.
func TestPrefixStaysWithItsEngine(t *testing.T) {
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered, envoy.BufferedPartial} {
		for _, pool := range []envoy.PoolType{envoy.OriginalDst, envoy.OverrideHost} {
			t.Run(fmt.Sprintf("%s/%s", mode, pool), func(t *testing.T) {
				l := newLab(t, plan{})
				l.startEnvoy(envoy.Params{PoolType: pool, RequestBody: mode, BufferLimitBytes: 16 << 20})
				homes := map[string]string{}
				for round := range 4 {
					for tenant := range 6 {
						name := fmt.Sprintf("tenant %d", tenant)
						status, page, h := post(t, l.client, l.envoy.URL("/v1/chat/completions"), chat(name, 900, 4, round%2 == 1))
						if status != http.StatusOK {
							t.Fatalf("status %d: %s", status, page)
						}
						home := h.Get("x-sim-endpoint")
						if round == 0 {
							homes[name] = home
						} else if homes[name] != home {
							t.Errorf("round %d: %s went to %s, its prefix is on %s", round, name, home, homes[name])
						}
					}
				}
				used := map[string]int{}
				for _, home := range homes {
					used[home]++
				}
				if len(used) != 3 {
					t.Errorf("six prompts went to %v: want all three engines used", used)
				}
				l.sluice.settles(t)
			})
		}
	}
}
