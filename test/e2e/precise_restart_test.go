package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// C03: an engine is killed under load and starts again on its address, cold. Once Sluice has noticed, it never again
// believes what the engine held before, with a replay socket and without.
func TestC03_EngineRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events engine.KVEvents
		down   int // ms
	}{
		"at once, with replay":       {engine.KVEvents{}, 0},
		"at once, without replay":    {engine.KVEvents{NoReplay: true}, 0},
		"after a while, with replay": {engine.KVEvents{}, 300},
	} {
		t.Run(name, func(t *testing.T) { restartUnderLoad(t, tt.events, tt.down) })
	}
}

func restartUnderLoad(t *testing.T, k engine.KVEvents, down int) {
	p := newPrecise(t, lab.Plan{Engines: 2, Engine: events(sim.Params{}, k)})
	victim := p.Engine(t, "engine-0")
	p.Fault(t, engine.Faults{MetricsHTML: true}) // the events are all that tells
	load := p.startLoad(t, "load", 4)
	load.wait("engine-0", 30)
	p.state(t, "live", 2)
	p.lossy = true
	forgets := p.Sluice.Total(t, "sluice_kv_forgets_total")
	if err := victim.SetFaults(engine.Faults{MetricsHTML: true, Restart: true, RefuseMs: down}); err != nil {
		t.Fatal(err)
	}
	lab.Wait(t, "the restart to be noticed", func() bool { return p.Sluice.Total(t, "sluice_kv_forgets_total") > forgets })
	noticed := time.Now()
	load.wait("engine-0", 30)
	failures := len(load.failures())
	load.wait("engine-0", 30)
	load.wait("engine-1", 30)
	if all := load.failures(); len(all) > failures {
		t.Errorf("requests failed long after the restart: %q", all[failures:])
	}
	hits, before := 0, 0
	for _, o := range load.stop() {
		if o.sent.Before(noticed) {
			before++
			continue
		}
		if o.predicted > o.cached {
			t.Errorf("%s: of %d tokens %s has %d cached, Sluice predicted %d", o.name, o.prompt, o.engine, o.cached, o.predicted)
		}
		if o.engine == "engine-0" && o.predicted > 0 {
			hits++
		}
	}
	if hits == 0 || before == 0 {
		t.Errorf("%d answers before, %d hits predicted on the new engine: want some of each", before, hits)
	}
	p.Sluice.Settle(t)
	if k.NoReplay {
		p.unveil(t, victim)
	}
	for i := range 4 {
		p.exactly(t, fmt.Sprint("afterwards ", i), continueIDs(ids(fmt.Sprint("afterwards ", i%2), 100), 10), victim)
	}
}

// Sluice is killed and started again in front of engines that hold much and take a while to tell: once it is ready it
// knows all of it.
func TestPreciseSluiceRestarts(t *testing.T) {
	engines := lab.StartEngines(t, 3, events(sim.Params{}, engine.KVEvents{}))
	var entries []string
	for _, e := range engines {
		host, _, err := net.SplitHostPort(e.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		replay := portOf(t, lab.Relay(t, net.JoinHostPort(host, "0"), e.KVEvents().Replay, 300*time.Millisecond))
		entries = append(entries, fmt.Sprintf("%s,kvEvents.discover=false,kvEvents.port=%s,kvEvents.replayPort=%s",
			e.Addr(), portOf(t, e.KVEvents().Listen), replay))
	}
	p := newPrecise(t, lab.Plan{Engines: -1, Endpoints: entries})
	p.Engines = engines
	var all []*talk
	for i := range 6 {
		all = append(all, newTalk(fmt.Sprint("before the night ", i), 300))
		all[i].home = p.next(t, all[i]).engine
	}
	for round := range 2 {
		p.quiet(t)
		p.restart(t, entries)
		if held := p.CachedBlocks(); p.knownAtFirst != held || held < 6*18 {
			t.Errorf("when Sluice was ready it knew of %d blocks, the engines hold %d", p.knownAtFirst, held)
		}
		for i, c := range all {
			got := p.next(t, c)
			if got.engine != c.home || got.cached < 300/blockSize*blockSize {
				t.Errorf("round %d: conversation %d: %d tokens cached on %s, it was on %s", round, i, got.cached, got.engine, c.home)
			}
		}
	}
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// C13: what engines no longer replay is not known, and nothing is made up.
func TestC13_SluiceIsYounger(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engine: events(sim.Params{}, engine.KVEvents{BufferSteps: 2})})
	for i := range 6 {
		p.exactly(t, fmt.Sprint("early ", i), continueIDs(ids(fmt.Sprint("early ", i), 300), 20), p.Engines[i%3])
	}
	p.restart(t, p.Addresses())
	p.state(t, "degraded", 3)
	for round := range 2 {
		for i := range 6 {
			got := p.ask(t, continueIDs(ids(fmt.Sprint("early ", i), 300), 20), p.Engines[i%3])
			if got.predicted > got.cached || got.cached != 288 || round > 0 && got.predicted != got.cached {
				t.Errorf("round %d: %d tokens predicted, %d cached", round, got.predicted, got.cached)
			}
		}
	}
}

// An endpoint that accepts connections and never answers does not keep Sluice from being ready for long.
func TestPreciseDeadEndpoint(t *testing.T) {
	dead := lab.Accept(t, envoytest.PodIPs(t, 1)[0]+":0")
	p := newPrecise(t, lab.Plan{Engines: 2, Engine: events(sim.Params{}, engine.KVEvents{}),
		Config: byEvents(fmt.Sprintf("kvEvents: {port: %s}", portOf(t, dead)))})
	prompts := []object{continueIDs(ids("one", 200), 10), continueIDs(ids("two", 200), 10)}
	for i, prompt := range prompts {
		p.exactly(t, "before", prompt, p.Engines[i])
	}
	p.quiet(t)
	took := p.restart(t, append(p.Addresses(), dead))
	if took > 12*time.Second {
		t.Errorf("ready after %v", took)
	}
	for i, prompt := range prompts {
		got := p.ask(t, prompt, p.Engines[i])
		if got.predicted != 192 || got.cached != 192 {
			t.Errorf("on %s %d tokens were predicted, %d cached", got.engine, got.predicted, got.cached)
		}
	}
}

// C03, C34: an engine that is idle publishes nothing of a restart, nor does one that sleeps. Its metrics tell.
func TestC34_SleepAndRestartWhileIdle(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]engine.KVEvents{"replay": {}, "no replay": {NoReplay: true}} {
		t.Run(name, func(t *testing.T) {
			p := newPrecise(t, lab.Plan{Engines: 2, Engine: events(sim.Params{}, k),
				Config: byEvents("") + "  - type: engine-metrics-producer\n"}) // reads them often
			one := p.Engines[0]
			prompts := []object{continueIDs(ids("zero", 200), 10), continueIDs(ids("one", 200), 10)}
			lab.Wait(t, "metrics", func() bool { return p.Sluice.Total(t, "sluice_engine_metrics_endpoints", `state="fresh"`) >= 2 })
			lost := func(cause string, lose func()) {
				t.Helper()
				for i, prompt := range prompts {
					p.exactly(t, "before a "+cause, prompt, p.Engines[i])
				}
				p.quiet(t)
				p.lossy = true
				lose()
				lab.Wait(t, "a "+cause+" to be noticed", func() bool {
					return p.Sluice.Total(t, "sluice_engine_cache_losses_total", fmt.Sprintf("cause=%q", cause)) > 0
				})
				for i, want := range []int{0, 192} {
					if got := p.ask(t, prompts[i], p.Engines[i]); got.cached != want || got.predicted != want {
						t.Errorf("engine-%d: %d tokens cached after a %s, %d predicted, want %d", i, got.cached, cause, got.predicted, want)
					}
				}
				if k.NoReplay {
					p.unveil(t, one)
				}
			}
			lost("restart", func() {
				if err := one.SetFaults(engine.Faults{Restart: true}); err != nil {
					t.Fatal(err)
				}
			})
			lost("sleep", func() {
				lab.Post(t, p.Client, one.URL()+"/sleep", "")
				lab.Wait(t, "the sleep to be seen", func() bool { return p.Sluice.Total(t, "sluice_engine_sleeping_endpoints") == 1 })
				lab.Post(t, p.Client, one.URL()+"/wake_up", "")
			})
			p.exactly(t, "in the end", prompts[0], one)
		})
	}
}
