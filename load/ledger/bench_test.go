package ledger

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// filled returns a ledger and a cycle over n endpoints, half of which hold part of the prompt.
func filled(b *testing.B, n int) (*Plugin, *scheduling.Cycle) {
	b.Helper()
	table := &schedtest.Table{Prompt: &scheduling.TokenizedPrompt{Count: 4000}}
	for i := range n {
		e := schedtest.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: fmt.Sprintf("10.1.%d.%d:8000", i/250, i%250)}}
		if i%2 == 0 {
			e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(i%250, 250, 16))
		}
		table.Endpoints = append(table.Endpoints, e)
	}
	types := append(table.Types()[:1:1], Type(), schedtest.First)
	spec := scheduling.Spec{Name: "ledger", Type: TypeName}
	s, err := scheduling.Build(types, schedtest.Config([]scheduling.Spec{spec}, schedtest.First.Type), nil)
	if err != nil {
		b.Fatal(err)
	}
	snapshot := table.Pool().Snapshot()
	s.SnapshotChanged(snapshot)
	c := s.Begin(snapshot, &scheduling.Request{ID: 1}, 0)
	s.Produce(b.Context(), c)
	return s.Plugin("ledger").(*Plugin), c
}

func BenchmarkFill(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint("endpoints=", n), func(b *testing.B) {
			p, c := filled(b, n)
			b.ReportAllocs()
			for b.Loop() {
				p.Fill(c)
			}
		})
	}
}
