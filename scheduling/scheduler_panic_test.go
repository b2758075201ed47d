package scheduling_test

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// counting charges one per flight, and releases it.
type counting struct{ inFlight int }

func (c *counting) Charge(*scheduling.Cycle, *scheduling.Flight)    { c.inFlight++ }
func (c *counting) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (c *counting) FirstToken(*scheduling.Flight, time.Duration)    {}
func (c *counting) Done(*scheduling.Flight, time.Duration)          { c.inFlight-- }

// faulty panics where it is told to.
type faulty struct{ charge, committed bool }

func (f *faulty) Charge(*scheduling.Cycle, *scheduling.Flight) {
	if f.charge {
		panic("charge")
	}
}

func (f *faulty) Committed(*scheduling.Cycle, *scheduling.Flight) {
	if f.committed {
		panic("committed")
	}
}

func (f *faulty) FirstToken(*scheduling.Flight, time.Duration) {}
func (f *faulty) Done(*scheduling.Flight, time.Duration)       {}

// A plugin that fails after another has charged the pick leaves no charge behind, and no lock.
func TestFaultAfterTheChargeReleasesIt(t *testing.T) {
	for name, f := range map[string]*faulty{"in Charge": {charge: true}, "in Committed": {committed: true}} {
		t.Run(name, func(t *testing.T) {
			ledger := &counting{}
			typeOf := func(name string, plugin any) scheduling.PluginType {
				return scheduling.PluginType{Type: name, New: func(*scheduling.Builder) (any, error) { return plugin, nil }}
			}
			cfg := schedtest.Config([]scheduling.Spec{{Name: "ledger", Type: "ledger"}, {Name: "faulty", Type: "faulty"}}, schedtest.First.Type)
			s, err := scheduling.Build([]scheduling.PluginType{typeOf("ledger", ledger), typeOf("faulty", f), schedtest.First}, cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			pool := scheduling.NewPool()
			pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}})
			commit := func(id uint64) (flight *scheduling.Flight, panicked any) {
				c := s.Begin(pool.Snapshot(), &scheduling.Request{ID: id, Choices: 1}, 0)
				defer s.End(c)
				defer func() { panicked = recover() }()
				flight, err = s.Commit(c)
				return flight, nil
			}
			if _, panicked := commit(1); panicked == nil {
				t.Fatal("the fault was swallowed")
			}
			if ledger.inFlight != 0 {
				t.Errorf("%d in flight after the fault", ledger.inFlight)
			}
			*f = faulty{}
			flight, panicked := commit(2)
			if panicked != nil || err != nil || ledger.inFlight != 1 {
				t.Fatalf("afterwards: %v, %v, %d in flight", panicked, err, ledger.inFlight)
			}
			flight.Done(scheduling.Outcome{}, 0)
			if ledger.inFlight != 0 {
				t.Errorf("%d in flight at the end", ledger.inFlight)
			}
		})
	}
}
