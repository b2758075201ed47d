package ledger

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

// instance names one endpoint instance in the model, as the pool does.
type instance struct {
	ordinal    int
	generation uint64
}

// modelFlight is what the model knows of a flight: where its charge is and how much it is.
type modelFlight struct {
	flight   *scheduling.Flight
	at       instance
	prompt   int64
	output   int64
	decoding bool
	counter  *counter // for looking at, in the ledger
}

// ledgerModel is the ledger written as naively as can be: the load of an instance is the sum over the flights that are
// charged to it.
type ledgerModel struct {
	*bench
	rt       *rapid.T
	flights  []*modelFlight
	waiting  []*scheduling.Cycle // requests between their columns and their pick, on whatever snapshot they began with
	uids     [4]int
	present  [4]bool
	notReady [4]bool
	counters map[*counter]string // every counter that was ever charged
}

func (m *ledgerModel) specs() []scheduling.EndpointSpec {
	var specs []scheduling.EndpointSpec
	for i, there := range m.present {
		if !there {
			continue
		}
		s := spec('a'+byte(i), fmt.Sprint("u", m.uids[i]))
		if m.notReady[i] {
			s.State = scheduling.EndpointNotReady
		}
		specs = append(specs, s)
	}
	return specs
}

// arrive fills a request's columns; its pick comes later.
func (m *ledgerModel) arrive(*rapid.T) {
	snapshot := m.pool.Snapshot()
	ready := -1
	for i := range snapshot.Ready.All() {
		if ready < 0 || rapid.Bool().Draw(m.rt, "next") {
			ready = i
		}
	}
	if ready < 0 {
		m.rt.Skip("nobody is ready")
	}
	m.input(rapid.IntRange(0, 300).Draw(m.rt, "input"))
	for i := range m.table.Endpoints {
		total := rapid.IntRange(0, 20).Draw(m.rt, "total")
		m.matched(i, rapid.IntRange(0, 20).Draw(m.rt, "cached"), total)
		if rapid.IntRange(0, 5).Draw(m.rt, "known") == 0 {
			m.table.Endpoints[i].Match = nil
		}
	}
	c := m.begin('a'+byte(ready), scheduling.Request{MaxOutputTokens: rapid.IntRange(0, 50).Draw(m.rt, "limit")})
	m.waiting = append(m.waiting, c)
}

// pick commits a waiting request. What it is charged is worked out from the cycle's own match info.
func (m *ledgerModel) pick(*rapid.T) {
	i := m.draw("waiting", len(m.waiting))
	c := m.waiting[i]
	m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
	ordinal := int(c.Request.Model[0] - 'a')
	e := c.Snapshot.Endpoints[ordinal]
	prompt, _ := scheduling.ValueOf[scheduling.TokenizedPrompt](c).Get()
	info, known := scheduling.ColumnOf[scheduling.PrefixCacheMatchInfo](c).Get(ordinal)
	uncached := int64(prompt.Count)
	if known {
		uncached = int64(max(0, info.TotalBlocks-info.CachedBlockCount)*16 + max(0, prompt.Count-info.TotalBlocks*16))
	}
	output := int64((prompt.Count*3 + 1) / 2) // ratio 1.5, rounded
	if limit := c.Request.MaxOutputTokens; limit > 0 {
		output = min(output, int64(limit))
	}
	f, err := m.scheduler.Commit(c)
	if err != nil {
		m.rt.Fatal(err)
	}
	m.scheduler.End(c)
	held := m.ledger.charges.Of(f).counter
	m.counters[held] = e.Address
	m.flights = append(m.flights, &modelFlight{
		flight: f, at: instance{e.Ordinal, e.Generation}, prompt: uncached, output: output, counter: held,
	})
}

func (m *ledgerModel) draw(label string, n int) int {
	if n == 0 {
		m.rt.Skip("none ", label)
	}
	return rapid.IntRange(0, n-1).Draw(m.rt, label)
}

func (m *ledgerModel) firstToken(*rapid.T) {
	f := m.flights[m.draw("flight", len(m.flights))]
	f.flight.FirstToken(time.Second)
	f.prompt, f.decoding = 0, true
}

func (m *ledgerModel) done(*rapid.T) {
	i := m.draw("flight", len(m.flights))
	reason := scheduling.EndReason(rapid.IntRange(0, endReasons-1).Draw(m.rt, "reason"))
	m.flights[i].flight.Done(scheduling.Outcome{Reason: reason}, time.Minute)
	m.flights = append(m.flights[:i], m.flights[i+1:]...)
}

// move has a flight served elsewhere; the endpoint may be one that has gone meanwhile.
func (m *ledgerModel) move(*rapid.T) {
	f := m.flights[m.draw("flight", len(m.flights))]
	var to *scheduling.Endpoint
	if rapid.Bool().Draw(m.rt, "known only to the flight") {
		to = f.flight.Picks[0]
	} else {
		var all []*scheduling.Endpoint
		for _, e := range m.pool.Snapshot().Endpoints {
			if e != nil {
				all = append(all, e)
			}
		}
		to = all[m.draw("endpoint", len(all))]
	}
	f.flight.Served(to, f.flight.PickedAt)
	f.at = instance{to.Ordinal, to.Generation}
	m.counters[m.ledger.charges.Of(f.flight).counter] = f.flight.Endpoint.Address
}

// flap makes an endpoint come, go, change its uid or its readiness.
func (m *ledgerModel) flap(*rapid.T) {
	i := rapid.IntRange(0, len(m.present)-1).Draw(m.rt, "endpoint")
	switch rapid.SampledFrom([]string{"presence", "uid", "readiness", "nothing"}).Draw(m.rt, "change") {
	case "presence":
		m.present[i] = !m.present[i]
	case "uid":
		m.uids[i]++
	case "readiness":
		m.notReady[i] = !m.notReady[i]
	}
	m.update(m.specs()...)
	m.scheduler.SnapshotChanged(m.pool.Snapshot()) // once more: it must not matter
}

// check compares the ledger with the model.
func (m *ledgerModel) check(*rapid.T) {
	want := map[instance]scheduling.InFlightLoad{}
	for _, f := range m.flights {
		w := want[f.at]
		w.Requests++
		w.Tokens += f.prompt + f.output
		if f.decoding {
			w.Decoding++
		}
		want[f.at] = w
	}
	shown := 0
	for _, e := range m.pool.Snapshot().Endpoints {
		if e == nil {
			continue
		}
		shown++
		got, ok := m.ledger.Load(e.Ordinal, e.Generation)
		if w := want[instance{e.Ordinal, e.Generation}]; !ok || got != w {
			m.rt.Fatalf("%s (ordinal %d, generation %d): %+v (known %v), want %+v", e.Address, e.Ordinal, e.Generation, got, ok, w)
		}
	}
	for range m.ledger.Loads() {
		shown--
	}
	if shown != 0 {
		m.rt.Fatalf("the table has %d counters too many", -shown)
	}
	m.neverNegative()
}

func (m *ledgerModel) neverNegative() {
	for k, address := range m.counters {
		if l := k.load(); l.Requests < 0 || l.Tokens < 0 || l.Decoding < 0 || l.Decoding > l.Requests {
			m.rt.Fatalf("counter of %s: %+v", address, l)
		}
	}
}

// TestModel runs random interleavings against the model. However they go, no counter, in the table or not, is ever below
// zero, and all end at exactly zero.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &ledgerModel{
			bench: newBench(t, "default", "addEstimatedOutputTokens: true"), rt: rt, counters: map[*counter]string{},
			present: [4]bool{true, true, true},
		}
		m.update(m.specs()...)
		rt.Repeat(map[string]func(*rapid.T){
			"arrive": m.arrive, "pick": m.pick, "first token": m.firstToken, "done": m.done, "move": m.move,
			"flap": m.flap, "": m.check,
		})
		for len(m.waiting) > 0 {
			m.pick(rt)
		}
		for len(m.flights) > 0 {
			m.done(rt)
		}
		m.check(rt)
		for k, address := range m.counters {
			if l := k.load(); l != (scheduling.InFlightLoad{}) {
				rt.Fatalf("counter of %s ends at %+v", address, l)
			}
		}
	})
}
