package extproc

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// asked is a producer that keeps what each request asks of its latency.
type asked struct {
	key scheduling.ValueKey[scheduling.LatencyObjective]
	got chan scheduling.LatencyObjective
}

func (a *asked) Produce(_ context.Context, c *scheduling.Cycle) error {
	o, ok := scheduling.ObjectiveOf(c.Request)
	if ok {
		a.key.In(c).Set(o)
	}
	a.got <- o
	return nil
}

// TestObjectiveHeadersReachScheduling: whatever the body mode, when a request is scheduled, its headers say what it asks.
func TestObjectiveHeadersReachScheduling(t *testing.T) {
	got := make(chan scheduling.LatencyObjective, 16)
	b := newBench(t, options{
		specs: []scheduling.Spec{{Name: "asked", Type: "asked"}},
		types: []scheduling.PluginType{{Type: "asked", New: func(b *scheduling.Builder) (any, error) {
			return &asked{scheduling.ProduceValue[scheduling.LatencyObjective](b), got}, nil
		}}},
	})
	for _, tc := range []struct {
		name    string
		headers []string
		want    scheduling.LatencyObjective
	}{
		{"none", nil, scheduling.LatencyObjective{}},
		{"ours", []string{"X-Sluice-SLO-TTFT-ms", "250", "x-sluice-slo-tpot-ms", "12.5"}, scheduling.LatencyObjective{TTFTMs: 250, TPOTMs: 12.5}},
		{"llm-d's", []string{"x-llm-d-slo-ttft-ms", "300", "x-slo-tpot-ms", "30"}, scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 30}},
		{"bad", []string{"x-sluice-slo-ttft-ms", "-1", "x-sluice-slo-tpot-ms", "NaN"}, scheduling.LatencyObjective{}},
	} {
		for _, mode := range []bodyMode{modeStreamed, modeBuffered, modeFullDuplex} {
			t.Run(tc.name+" "+mode.String(), func(t *testing.T) {
				c := b.call(t, mode, modeNone)
				c.requestHeaders(false, append([]string{":method", "POST", ":path", "/v1/chat/completions"}, tc.headers...)...)
				c.requestBody(chat(100), true)
				select {
				case o := <-got:
					if diff := cmp.Diff(tc.want, o); diff != "" {
						t.Errorf("asked (-want +got):\n%s", diff)
					}
				case <-c.stream.Context().Done():
					t.Fatal("nothing was scheduled")
				}
			})
		}
	}
}
