package scorer_test

import (
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// BenchmarkScore is one pass of each scorer over 512 endpoints of which one in seven is unknown.
func BenchmarkScore(b *testing.B) {
	for _, typ := range scorer.Types() {
		b.Run(typ.Type, func(b *testing.B) {
			table := manyEndpoints(512)
			s := table.Build(b, append(scorer.Types(), schedtest.First), nil, typ.Type, schedtest.First.Type)
			c := table.Decide(b, s, &scheduling.Request{ID: 1})
			p, ok := s.Plugin(typ.Type).(scheduling.Scorer)
			if !ok {
				b.Fatalf("%s is no scorer", typ.Type)
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Score(c, c.Candidates, c.Scores[0].Raw)
			}
		})
	}
}
