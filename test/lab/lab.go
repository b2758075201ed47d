package lab

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// Plan says what a lab is made of. The zero value is three engines behind a Sluice with the built-in configuration.
type Plan struct {
	// Engines is the number of simulated engines; 3 unless set. Negative: none.
	Engines int
	// Engine configures them; Listen and Name are set for each. Speed is 50 unless set.
	Engine engine.Config
	// Endpoints are listed to Sluice beside the engines.
	Endpoints []string
	// Config is the text of a configuration file. Empty: no file, the built-in configuration.
	Config string
	// Override changes the server's sections of the configuration after the file was read.
	Override func(*config.Config)
	// Conformance obeys the request headers of the protocol's conformance tests.
	Conformance bool
}

// Lab is a pool of simulated engines and a Sluice that knows them.
type Lab struct {
	Engines []*engine.Server
	Sluice  *Sluice
	Client  *http.Client
}

// New starts the engines and then Sluice. All of it ends with the test.
func New(t testing.TB, p Plan) *Lab {
	t.Helper()
	if p.Engines == 0 {
		p.Engines = 3
	}
	l := &Lab{Client: NewClient(t)}
	l.Engines = StartEngines(t, max(0, p.Engines), p.Engine)
	p.Endpoints = append(l.Addresses(), p.Endpoints...)
	l.Sluice = StartSluice(t, p)
	return l
}

// StartEngines starts n simulated engines, each on an address of its own and named engine-0, engine-1, ….
func StartEngines(t testing.TB, n int, c engine.Config) []*engine.Server {
	t.Helper()
	var all []*engine.Server
	for i, ip := range envoytest.PodIPs(t, n) {
		c.Listen, c.Name = ip+":0", fmt.Sprintf("engine-%d", i)
		all = append(all, StartEngine(t, c))
	}
	return all
}

// StartEngine starts one simulated engine.
func StartEngine(t testing.TB, c engine.Config) *engine.Server {
	t.Helper()
	if c.Speed == 0 {
		c.Speed = 50
	}
	s, err := engine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Addresses are those of the engines, host:port.
func (l *Lab) Addresses() []string {
	var all []string
	for _, e := range l.Engines {
		all = append(all, e.Addr().String())
	}
	return all
}

// Engine finds an engine by its name.
func (l *Lab) Engine(t testing.TB, name string) *engine.Server {
	t.Helper()
	for i, e := range l.Engines {
		if fmt.Sprintf("engine-%d", i) == name {
			return e
		}
	}
	t.Fatalf("no engine is named %q", name)
	return nil
}

// Fault puts a fault in force on every engine; the zero value lifts all.
func (l *Lab) Fault(t testing.TB, f engine.Faults) {
	t.Helper()
	for _, e := range l.Engines {
		if err := e.SetFaults(f); err != nil {
			t.Fatal(err)
		}
	}
}

// Envoy starts an Envoy in front of the lab's Sluice; what p leaves out comes from the lab.
func (l *Lab) Envoy(t testing.TB, p envoy.Params) *envoytest.Instance {
	t.Helper()
	return envoytest.Start(t, l.Params(p))
}

// Params fills in the lab's picker and, where p lists no endpoints, the lab's engines.
func (l *Lab) Params(p envoy.Params) envoy.Params {
	p.Picker.Address = l.Sluice.Addr()
	if p.Endpoints == nil {
		p.Endpoints = l.Addresses()
	}
	return p
}
