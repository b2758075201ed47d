package operator

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/extproc"
)

// After each filter those are left that it and the ones before let pass; who was not considered is never among them.
func TestLeftAfterEachFilter(t *testing.T) {
	d := &decisionv1.Decision{
		Candidates: []*decisionv1.Candidate{
			{Ordinal: 0, Exclusion: decisionv1.Exclusion_EXCLUSION_STATE},
			{Ordinal: 1, Exclusion: decisionv1.Exclusion_EXCLUSION_SUBSET},
			{Ordinal: 2, Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "second"},
			{Ordinal: 3},
			{Ordinal: 4, Exclusion: decisionv1.Exclusion_EXCLUSION_FILTER, FilteredBy: "first"},
		},
		FilterSteps: []*decisionv1.FilterStep{{Filter: "first"}, {Filter: "second"}},
	}
	got := map[string][]uint32{}
	for _, l := range left(d) {
		got[l.GetFilter()] = l.GetOrdinals()
	}
	if diff := cmp.Diff(map[string][]uint32{"first": {2, 3}, "second": {3}}, got); diff != "" {
		t.Error(diff)
	}
}

// What says most stays: the picks in their order, then what a gate compared, then the highest totals.
func TestShortenKeepsWhatSaysMost(t *testing.T) {
	sticky, other := uint32(5), uint32(1)
	for limit, want := range map[int][]uint32{0: {0, 1, 2, 3, 4, 5}, 1: {4}, 2: {2, 4}, 4: {1, 2, 4, 5}, 5: {1, 2, 3, 4, 5}, 6: {0, 1, 2, 3, 4, 5}} {
		x := &schedulerv1.Explanation{Decision: &decisionv1.Decision{
			Picks: []uint32{4, 2}, Gates: []*decisionv1.GateReport{{Sticky: &sticky, Other: &other}},
		}}
		for i, total := range []float64{0.8, 0.1, 0.3, 0.9, 0.2, 0} {
			x.Decision.Candidates = append(x.Decision.Candidates, &decisionv1.Candidate{Ordinal: uint32(i), Total: total})
		}
		shorten(x, limit)
		var got []uint32
		for _, c := range x.GetDecision().GetCandidates() {
			got = append(got, c.GetOrdinal())
		}
		if diff := cmp.Diff(want, got); diff != "" || int(x.GetCandidatesLeftOut()) != 6-len(want) {
			t.Errorf("%d: %d left out, %s", limit, x.GetCandidatesLeftOut(), diff)
		}
	}
}

// However many streams are asked for, an answer has a bounded number.
func TestListStreamsIsBounded(t *testing.T) {
	var asked int
	s := New(Config{Streams: func(limit int) ([]extproc.OpenStream, int) {
		asked = limit
		return []extproc.OpenStream{{ID: 7, Phase: extproc.PhaseEnd, Age: time.Second, HeldBytes: 3}}, 9
	}})
	defer s.Close()
	for limit, want := range map[uint32]int{0: usualStreams, 3: 3, 1 << 31: maxStreams} {
		a, err := s.ListStreams(t.Context(), &schedulerv1.ListStreamsRequest{Limit: limit})
		if err != nil || asked != want || a.GetLeftOut() != 9 || a.GetStreams()[0].GetPhase() != "end" || a.GetStreams()[0].GetHeldBytes() != 3 {
			t.Errorf("%d: asked for %d, want %d: %v %v", limit, asked, want, a, err)
		}
	}
}

// The log says that its level was changed, and how, whichever of the two levels lets that through.
func TestLogLevelChangesAreLogged(t *testing.T) {
	var text bytes.Buffer
	level := &slog.LevelVar{}
	s := New(Config{Level: level, Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level}))})
	defer s.Close()
	for _, tc := range []struct{ level, want string }{
		{"warn", "before=info now=warn"}, {"error", "before=warn now=error"}, {"debug", "before=error now=debug"},
	} {
		text.Reset()
		if _, err := s.SetLogLevel(t.Context(), &schedulerv1.SetLogLevelRequest{Level: tc.level}); err != nil {
			t.Fatal(err)
		}
		if strings.Count(text.String(), tc.want) != 1 {
			t.Errorf("the log lacks %q: %s", tc.want, text.String())
		}
	}
}
