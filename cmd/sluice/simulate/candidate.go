package simulate

import (
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Candidate is one of those that are compared: a configuration, or another project's policy.
type Candidate struct {
	// Name is unique in a plan.
	Name string
	// Policy is the policy; nil: the configuration is Text.
	Policy *policies.Policy
	// At is what errors call the text.
	At string
	// Text is the configuration.
	Text []byte
	// Scenarios are patterns (see path.Match) of the names of the scenarios that it runs in; none means all.
	Scenarios []string

	hash      string            // of what it says
	behaviour string            // of what it does
	probed    string            // the hash of which behaviour is
	opened    func(hash string) // is told of the configuration that a policy runs; nil: nobody is
}

// BuiltIn is the built-in configuration.
func BuiltIn() Candidate {
	return Candidate{Name: "built-in", At: "built-in configuration", Text: []byte(config.DefaultText)}
}

// FromFile is a configuration file.
func FromFile(name, file string) (Candidate, error) {
	text, err := os.ReadFile(file)
	return Candidate{Name: name, At: file, Text: text}, err
}

// FromPolicy is another project's policy, named as policies.Parse reads it.
func FromPolicy(p *policies.Policy) Candidate { return Candidate{Name: p.Label(), Policy: p} }

// offline knows the environment. Secrets that are not here are not needed here.
var offline = config.Offline(os.LookupEnv, func(name string) {
	fmt.Fprintf(os.Stderr, "sluice: environment variable %s is not set: a placeholder stands for the secret, which is not needed here\n", name)
})

// Check builds the candidate once, so that what is wrong with it comes out before anything runs.
func (c *Candidate) Check() error {
	if c.Policy != nil {
		return c.checkPolicy()
	}
	types := append(server.Catalogue(), policies.Types()...)
	f, s, err := config.OpenText(c.At, c.Text, offline, types)
	if err != nil {
		return err
	}
	c.hash = f.Hash(types)
	return s.Close()
}

// checkPolicy lets the policy pick once.
func (c *Candidate) checkPolicy() error {
	probe := *c
	c.hash = "policy " + c.Policy.Label()
	probe.opened = func(hash string) { c.hash = hash }
	once := Scenario{Engines: []Engine{{KVTokens: 512, Slower: 1}}}
	t := &trace.Trace{BlockTokens: 16, Requests: []trace.Request{{At: time.Millisecond, Blocks: []uint64{1}, PromptTokens: 1, OutputTokens: 1}}}
	_, err := fleet.Run(fleet.Config{Trace: t, Engines: once.params(t), NewPicker: probe.picker, Pooled: c.pooled()})
	return err
}

// pooled says whether the engines are to share one cache: it is a reference.
func (c *Candidate) pooled() bool { return c.Policy != nil && c.Policy.Pooled }

// runsIn says whether it is to run in a scenario.
func (c *Candidate) runsIn(scenario string) bool {
	flat := strings.NewReplacer("/", "_") // a * is to match "12/s" too
	for _, pattern := range c.Scenarios {
		if ok, err := path.Match(flat.Replace(pattern), flat.Replace(scenario)); err == nil && ok {
			return true
		}
	}
	return len(c.Scenarios) == 0
}

// picker is a picker as the candidate describes it, which sees a fleet.
func (c *Candidate) picker(v *fleet.View) (fleet.Picker, error) {
	if c.Policy == nil {
		_, s, err := config.OpenText(c.At, c.Text, offline, append(plugins(v), policies.Types()...))
		if err != nil {
			return nil, err
		}
		return fleet.NewScheduled(v, s), nil
	}
	open := func(name string, text []byte, lookup func(string) (string, bool), more []scheduling.PluginType) (*scheduling.Scheduler, error) {
		types := append(plugins(v), more...)
		f, s, err := config.OpenText(name, text, lookup, types)
		if err == nil && c.opened != nil {
			c.opened(f.Hash(types))
		}
		return s, err
	}
	return c.Policy.NewPicker(v, open)
}

// plugins are those that serve, with the fleet for engines.
func plugins(v *fleet.View) []scheduling.PluginType {
	return server.Plugins(server.Environment{
		Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("simulate"), Transport: v,
		Follow: v.Follow, Offline: true,
	})
}
