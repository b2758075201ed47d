package record_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// What no-hit-lru-scorer remembers is in the record: a scheduler that remembers nothing decides the same, to the byte, and a
// trial finds what would have been picked had the ranks been others.
func TestColdRanksAreRecorded(t *testing.T) {
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 4)}
	pool := table.Pool()
	build := func() *scheduling.Scheduler {
		return buildSpecs(t, table, []scheduling.Spec{{Name: "no-hit-lru-scorer", Type: "no-hit-lru-scorer"}}, "no-hit-lru-scorer", "max-score-picker")
	}
	s := build()
	for id := range uint64(12) {
		if id == 7 { // a warm one in between has no ranks
			table.Endpoints[3].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(1, 10, 16))
		}
		request := &scheduling.Request{ID: id}
		c := s.Begin(pool.Snapshot(), request, 0)
		s.Produce(t.Context(), c)
		f, err := s.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		d := record.Of(s, c, record.Meta{ConfigHash: "abc"})
		s.End(c)
		f.Done(scheduling.Outcome{}, 0)
		table.Endpoints[3].Match = nil

		if ranked := len(d.GetCandidates()[0].GetColdRanks()); (ranked == 1) != (id != 7) {
			t.Errorf("decision %d has %d ranks", id, ranked)
		}
		first := marshal(t, d)
		var read decisionv1.Decision
		if err := proto.Unmarshal(first, &read); err != nil {
			t.Fatal(err)
		}
		again, err := record.Replay(build(), &read, "abc")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, marshal(t, again)) {
			t.Errorf("decision %d again is %v, was %v", id, again, d)
		}
		trial, err := record.NewTrial(build(), &read)
		if err != nil {
			t.Fatal(err)
		}
		columns := trial.Columns("ColdRank")
		if len(columns) != 1 {
			t.Fatalf("columns %v", columns)
		}
		got, err := trial.Pick(func(c *scheduling.Cycle) {
			for e := range 4 {
				scheduling.ColumnAt[scheduling.ColdRank](c, columns[0]).Set(e, scheduling.ColdRank((e+2)%4))
			}
		})
		if err != nil || got != 2 {
			t.Errorf("decision %d with other ranks: %d, %v", id, got, err)
		}
	}
}
