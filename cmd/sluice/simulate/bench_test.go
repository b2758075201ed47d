package simulate

import (
	"testing"

	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// A run of 12,000 requests through 8 endpoints, engines included.
func BenchmarkRun(b *testing.B) {
	for _, spec := range []string{"round-robin", "llm-d", "llm-d-gate"} {
		b.Run(spec, func(b *testing.B) {
			policy, err := policies.Parse(spec)
			if err != nil {
				b.Fatal(err)
			}
			p := plan()
			w := trace.DefaultB2B()
			w.Requests, w.PerSecond = 12_000, 7
			s := p.Scenarios[0]
			s.B2B, s.Engines = &w, append(s.Engines, s.Engines...)
			c := FromPolicy(&policy)
			if err := c.Check(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.run(b.Context(), &c, 1, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
