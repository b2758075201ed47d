package scheduling_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// journaled builds a scheduler with two followers: late depends on early's column, and is declared first.
func journaled(t *testing.T, lines *[]string) *scheduling.Scheduler {
	t.Helper()
	early := journalType("early", lines, makes[alpha]())
	late := journalType("late", lines, needs[alpha](""))
	cfg := schedtest.Config(plugins("late", "early"), "first-picker")
	cfg.MaxPicks = 2
	return mustBuild(t, []scheduling.PluginType{early, late, schedtest.First}, cfg)
}

func takeOff(t *testing.T, s *scheduling.Scheduler, snapshot *scheduling.Snapshot) *scheduling.Flight {
	t.Helper()
	c := s.Begin(snapshot, &scheduling.Request{ID: 3, Model: "m", Operation: scheduling.OperationChat, Stream: true}, time.Second)
	defer s.End(c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func checkLines(t *testing.T, lines *[]string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, *lines); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	*lines = nil
}

func TestFlightCallsInOrder(t *testing.T) {
	var lines []string
	s := journaled(t, &lines)
	f := takeOff(t, s, pool(2).Snapshot())
	if f.ID != 3 || f.Model != "m" || f.Profile != "test" || f.Operation != scheduling.OperationChat || !f.Stream {
		t.Errorf("flight %+v", f)
	}
	checkLines(t, &lines,
		"early charge 10.0.0.1:8000", "late charge 10.0.0.1:8000",
		"early committed 10.0.0.1:8000", "late committed 10.0.0.1:8000")
	if f.SeenFirstToken() {
		t.Error("the first token was seen before it came")
	}
	f.FirstToken(2 * time.Second)
	if !f.SeenFirstToken() {
		t.Error("the first token was not seen")
	}
	f.FirstToken(3 * time.Second) // every chunk of an answer may call it
	checkLines(t, &lines, "early first token 10.0.0.1:8000 at 2s", "late first token 10.0.0.1:8000 at 2s")
	f.Done(scheduling.Outcome{Reason: scheduling.EndComplete, Status: 200}, 4*time.Second)
	checkLines(t, &lines, "early done 10.0.0.1:8000 at 4s: complete 200", "late done 10.0.0.1:8000 at 4s: complete 200")
}

// TestNothingFollowsDone: every way a stream can end calls Done, some call it twice, and the rest may still come.
func TestNothingFollowsDone(t *testing.T) {
	var lines []string
	s := journaled(t, &lines)
	snapshot := pool(2).Snapshot()
	f := takeOff(t, s, snapshot)
	lines = nil
	f.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, time.Second)
	checkLines(t, &lines, "early done 10.0.0.1:8000 at 1s: disconnect 0", "late done 10.0.0.1:8000 at 1s: disconnect 0")
	f.Done(scheduling.Outcome{Reason: scheduling.EndComplete, Status: 200}, 2*time.Second)
	f.FirstToken(2 * time.Second)
	f.Served(snapshot.Endpoints[1], f.PickedAt)
	checkLines(t, &lines)
}

// TestC44_ServedElsewhere: the charge moves to the endpoint that the proxy reports, once.
func TestC44_ServedElsewhere(t *testing.T) {
	var lines []string
	s := journaled(t, &lines)
	p := pool(2)
	f := takeOff(t, s, p.Snapshot())
	lines = nil
	f.Served(p.Snapshot().Endpoints[0], f.PickedAt) // the one already charged
	f.Served(nil, f.PickedAt)                       // an address that nobody knows
	checkLines(t, &lines)
	second := p.Snapshot().Endpoints[1]
	f.Served(second, f.PickedAt)
	f.Served(second, f.PickedAt)
	checkLines(t, &lines, "early moved 10.0.0.1:8000 to 10.0.0.2:8000", "late moved 10.0.0.1:8000 to 10.0.0.2:8000")
	f.FirstToken(2 * time.Second)
	f.Done(scheduling.Outcome{Status: 200}, 3*time.Second)
	checkLines(t, &lines,
		"early first token 10.0.0.2:8000 at 2s", "late first token 10.0.0.2:8000 at 2s",
		"early done 10.0.0.2:8000 at 3s: complete 200", "late done 10.0.0.2:8000 at 3s: complete 200")
}

// TestC05_AnotherLifeOfTheAddress: an endpoint that came back under the same address is another instance, so a report of
// it does move the charge; a changed label is the same instance and does not.
func TestC05_AnotherLifeOfTheAddress(t *testing.T) {
	var lines []string
	s := journaled(t, &lines)
	p := scheduling.NewPool()
	p.Update([]scheduling.EndpointSpec{{UID: "a", Address: "10.0.0.1:8000"}})
	f := takeOff(t, s, p.Snapshot())
	lines = nil
	relabelled := p.Update([]scheduling.EndpointSpec{{UID: "a", Address: "10.0.0.1:8000", Labels: map[string]string{"x": "y"}}})
	f.Served(relabelled.Endpoints[0], f.PickedAt)
	checkLines(t, &lines)
	reborn := p.Update([]scheduling.EndpointSpec{{UID: "b", Address: "10.0.0.1:8000"}})
	f.Served(reborn.ByAddress("10.0.0.1:8000"), f.PickedAt)
	checkLines(t, &lines, "early moved 10.0.0.1:8000 to 10.0.0.1:8000", "late moved 10.0.0.1:8000 to 10.0.0.1:8000")
	f.Done(scheduling.Outcome{}, 0)
}

// TestFlightStateStartsAtZero: flights are pooled, their state is not. The counter panics where it is.
func TestFlightStateStartsAtZero(t *testing.T) {
	types := []scheduling.PluginType{counterType, schedtest.First}
	s := mustBuild(t, types, schedtest.Config(plugins("counter"), "first-picker"))
	ledger, _ := s.Plugin("counter").(*counter)
	p := pool(3)
	for range 5 {
		f := takeOff(t, s, p.Snapshot())
		f.Served(p.Snapshot().Endpoints[2], f.PickedAt)
		if ledger.inFlight() != 1 {
			t.Fatalf("%d in flight, want 1", ledger.inFlight())
		}
		f.Done(scheduling.Outcome{}, 0)
		if ledger.inFlight() != 0 {
			t.Fatalf("%d in flight, want 0", ledger.inFlight())
		}
	}
}

func TestPicksOfAFlight(t *testing.T) {
	s := profileOf(t, 2, scores(0.1, 0.9, 0.5))
	c := s.Begin(pool(3).Snapshot(), &scheduling.Request{}, 0)
	defer s.End(c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Done(scheduling.Outcome{}, 0)
	var got []string
	for _, e := range f.Picks {
		got = append(got, e.Address)
	}
	if diff := cmp.Diff([]string{"10.0.0.2:8000", "10.0.0.3:8000"}, got); diff != "" {
		t.Errorf("picks (-want +got):\n%s", diff)
	}
	if f.Endpoint != f.Picks[0] {
		t.Errorf("charged %s, want the first pick", f.Endpoint.Address)
	}
	if f.Outcome.Usage != scheduling.UnknownUsage {
		t.Errorf("usage %+v before the end", f.Outcome.Usage)
	}
}

func TestWatchersAreTold(t *testing.T) {
	var lines []string
	s := journaled(t, &lines)
	p := pool(1)
	stop := p.Watch(s.SnapshotChanged)
	p.Update(nil)
	stop()
	p.Update([]scheduling.EndpointSpec{{Address: "10.9.9.9:1"}})
	checkLines(t, &lines, "early snapshot 1", "late snapshot 1", "early snapshot 2", "late snapshot 2")
}
