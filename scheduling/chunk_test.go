package scheduling_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// reader follows pieces.
type reader struct{ at []time.Duration }

func (r *reader) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (r *reader) FirstToken(*scheduling.Flight, time.Duration)    {}
func (r *reader) Done(*scheduling.Flight, time.Duration)          {}
func (r *reader) Chunk(_ *scheduling.Flight, now time.Duration)   { r.at = append(r.at, now) }

// TestChunksFollowTheFirstToken: who follows pieces hears of those between the first token and the end; where nobody does,
// nobody has to look at the clock.
func TestChunksFollowTheFirstToken(t *testing.T) {
	follows := &reader{}
	kind := scheduling.PluginType{Type: "reader", New: func(*scheduling.Builder) (any, error) { return follows, nil }}
	s := mustBuild(t, []scheduling.PluginType{kind, schedtest.First}, schedtest.Config(plugins("reader"), "first-picker"))
	f := takeOff(t, s, pool(1).Snapshot())
	if !f.WantsChunks() {
		t.Error("a follower of pieces is not seen")
	}
	f.Chunk(1 * time.Second)
	f.FirstToken(2 * time.Second)
	f.Chunk(3 * time.Second)
	f.Chunk(4 * time.Second)
	f.Done(scheduling.Outcome{Status: 200}, 5*time.Second)
	f.Chunk(6 * time.Second)
	if diff := cmp.Diff([]time.Duration{3 * time.Second, 4 * time.Second}, follows.at); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
	var lines []string
	if f := takeOff(t, journaled(t, &lines), pool(2).Snapshot()); f.WantsChunks() {
		t.Error("pieces are wanted where nobody follows them")
	}
}
