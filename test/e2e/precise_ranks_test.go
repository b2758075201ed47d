package e2e

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// ranksOf starts n data-parallel ranks of one engine on one address: each has an API port and publishes, both on ports
// that follow one another.
func ranksOf(t *testing.T, n int) (all []*engine.Server, api, publisher, replay int) {
	t.Helper()
	ip := envoytest.PodIPs(t, 1)[0]
	at := func(port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
	first := envoytest.FreePort(t, ip)
	if first > 65000 {
		first -= 1000
	}
	api, publisher, replay = first, first+n, first+2*n
	for rank := range n {
		c := events(sim.Params{}, engine.KVEvents{Rank: rank, Listen: at(publisher + rank), Replay: at(replay + rank)})
		c.Listen, c.Name = at(api+rank), fmt.Sprintf("engine-%d", rank)
		all = append(all, lab.StartEngine(t, c))
	}
	return all, api, publisher, replay
}

// C23: ranks that have an API port each are endpoints of their own, whose events are found by the engine's word or by
// counting ports.
func TestC23_RanksWithPorts(t *testing.T) {
	t.Parallel()
	for _, discover := range []bool{true, false} {
		t.Run(fmt.Sprint("discover: ", discover), func(t *testing.T) {
			engines, api, publisher, replay := ranksOf(t, 2)
			entry := fmt.Sprintf("%s-%d", engines[0].Addr(), api+1)
			if !discover {
				entry += fmt.Sprintf(",kvEvents.discover=false,kvEvents.port=%d,kvEvents.replayPort=%d", publisher, replay)
			}
			p := newPrecise(t, lab.Plan{Engines: -1, Endpoints: []string{entry}})
			p.Engines = engines
			for i := range 8 {
				name := fmt.Sprint("text ", i/4)
				p.exactly(t, fmt.Sprintf("%s to rank %d", name, i%2), continueIDs(ids(name, 200+10*i), 20), engines[i%2])
			}
			p.reset(t, engines[0])
			p.ask(t, continueIDs(ids("text 0", 300), 20), engines[0])
			for i := range 4 {
				got := p.exactly(t, fmt.Sprint("after rank 0's reset, rank ", i%2), continueIDs(ids("text 1", 300), 20), engines[i%2])
				if kept := i%2 == 1 || i == 2; (got.cached > 0) != kept {
					t.Errorf("after rank 0's reset, rank %d: %d tokens cached", i%2, got.cached)
				}
			}
			p.state(t, "live", 2)
			if n := p.Sluice.Total(t, "sluice_kv_forgets_total"); n != 0 {
				t.Errorf("%v restarts were seen, there was none", n)
			}
		})
	}
}

// C23: ranks behind one API port are one endpoint with several sources, none of which another one's events touch.
func TestC23_RanksBehindOnePort(t *testing.T) {
	engines, _, publisher, replay := ranksOf(t, 2)
	p := newPrecise(t, lab.Plan{Engines: -1, Endpoints: []string{fmt.Sprintf(
		"%s,kvEvents.discover=false,kvEvents.ranks=2,kvEvents.port=%d,kvEvents.replayPort=%d", engines[0].Addr(), publisher, replay)}})
	p.Engines = engines
	first, second := continueIDs(ids("on rank 0", 200), 20), continueIDs(ids("on rank 1", 200), 20)
	p.exactly(t, "rank 0's", first, nil)
	lab.Post(t, p.Client, engines[1].URL()+"/v1/completions", lab.JSON(t, second)) // as the engine would hand it on
	p.quiet(t)
	p.state(t, "live", 2)
	p.reset(t, engines[0])
	p.ask(t, continueIDs(ids("elsewhere", 100), 20), nil) // tells of the reset
	p.quiet(t)
	if got := p.ask(t, second, nil); got.predicted != 192 {
		t.Errorf("%d tokens of what rank 1 holds are predicted after rank 0's reset", got.predicted)
	}
	if got := p.exactly(t, "rank 0's, after its reset", first, nil); got.cached != 0 {
		t.Errorf("%d tokens cached", got.cached)
	}
}

// Engines that connect to Sluice by themselves, from one address all of them, are told apart by the topic.
func TestPreciseBound(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t))
	engines := lab.StartEngines(t, 3, events(sim.Params{}, engine.KVEvents{Connect: address, NoReplay: true}))
	plan := lab.Plan{Engines: -1, Config: byEvents(fmt.Sprintf("kvEvents: {bind: %q}", address))}
	for _, e := range engines {
		plan.Endpoints = append(plan.Endpoints, e.Addr().String()+",kvEvents.bind=true")
	}
	p := newPrecise(t, plan)
	p.Engines = engines
	p.lossy = true
	for _, e := range engines {
		p.unveil(t, e)
	}
	for i := range 12 {
		name := fmt.Sprint("text ", i%2)
		p.exactly(t, fmt.Sprintf("%s to engine %d", name, i%3), continueIDs(ids(name, 200+10*i), 20), engines[i%3])
	}
	c := newTalk("bound", 300)
	for range 3 {
		p.next(t, c)
	}
	for name, count := range map[string]int{"live": 3, "degraded": 0, "silent": 0} {
		p.state(t, name, count)
	}
}
