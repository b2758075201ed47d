package simulation

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// policy knows the caches by events and the load by its own ledger.
const policy = `
server: {produceTimeout: 10s, pickTimeout: 20s}
plugins:
  - {type: precise-prefix-cache-producer}
  - {type: inflight-load-producer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
  - {type: token-load-scorer, parameters: {queueThresholdTokens: 32768}}
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: prefix-cache-scorer, weight: 1}
      - {pluginRef: token-load-scorer, weight: 1}
      - {pluginRef: max-score-picker}
`

// withoutLedger is the policy, blind to the load.
var withoutLedger = strings.Replace(policy, "token-load-scorer, weight: 1", "token-load-scorer, weight: 0.0001", 1)

// What two runs of one thing may differ by.
const (
	closeTTFT = 0.10 // of the mean
	closeHit  = 0.015
)

// differs says by what two outcomes are not the same, nothing where they are.
func differs(a, b outcome) string {
	if d := a.mean/b.mean - 1; math.Abs(d) > closeTTFT {
		return fmt.Sprintf("the mean TTFT differs by %+.1f %%", 100*d)
	}
	if d := a.hit - b.hit; math.Abs(d) > closeHit {
		return fmt.Sprintf("the hit rate differs by %+.1f points", 100*d)
	}
	return ""
}

// TestFleetIsAsTheLiveEngines compares the simulation of a trace with what comes of the trace: mean TTFT within 10 %, hit rate
// within 1.5 points. A simulation of something else has to fail the comparison.
func TestFleetIsAsTheLiveEngines(t *testing.T) {
	if os.Getenv("SLUICE_SIM") == "" {
		t.Skip("it takes its time: run `make test-sim`")
	}
	for _, s := range shapes(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			model := simulated(t, s, policy, 10)
			got := live(t, s, policy)
			d := differs(model, got)
			if d != "" {
				t.Logf("%s; once more, in case the machine stood still", d)
				got = live(t, s, policy)
				d = differs(model, got)
			}
			t.Logf("live      TTFT mean %.3f p50 %.3f p90 %.3f s, hit rate %.1f %%", got.mean, got.p50, got.p90, 100*got.hit)
			t.Logf("simulated TTFT mean %.3f p50 %.3f p90 %.3f s, hit rate %.1f %%: mean %+.1f %%, p90 %+.1f %%",
				model.mean, model.p50, model.p90, 100*model.hit, 100*(model.mean/got.mean-1), 100*(model.p90/got.p90-1))
			if d != "" {
				t.Errorf("the simulation is not what happens: %s", d)
			}
			for name, other := range s.others {
				changed := s
				if other.params != nil {
					other.params(&changed.Params)
				}
				o := simulated(t, changed, cmp.Or(other.policy, policy), 3)
				t.Logf("%-23s TTFT mean %+.0f %%, hit rate %.1f %%", name, 100*(o.mean/got.mean-1), 100*o.hit)
				if differs(o, got) == "" {
					t.Errorf("%s makes no difference", name)
				}
			}
		})
	}
}

// simulated is the mean of some seeds.
func simulated(t *testing.T, s shape, text string, seeds int) outcome {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	lab.WriteFile(t, path, text)
	mean, each := virtual(t, s, path, seeds, true)
	for _, o := range each {
		if d := o.mean/mean.mean - 1; math.Abs(d) > closeTTFT {
			t.Logf("a seed's mean TTFT is %+.0f %% of the seeds' mean: the comparison is a coarse one", 100*d)
		}
	}
	return mean
}
