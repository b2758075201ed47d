package policies_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opener builds schedulers out of the plugins that serve, with a fleet for engines.
func opener(v *fleet.View) policies.Open {
	return func(name string, text []byte, lookup func(string) (string, bool), more []scheduling.PluginType) (*scheduling.Scheduler, error) {
		f, err := config.Parse(name, text, lookup)
		if err != nil {
			return nil, err
		}
		types := server.Plugins(server.Environment{
			Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("test"), Transport: v,
			Follow: v.Follow,
		})
		return f.Build(append(types, more...), nil)
	}
}

// run is a policy on a short b2b trace of some requests, with four engines that cannot hold all prefixes each.
func run(t *testing.T, p policies.Policy, requests int) fleet.Summary {
	t.Helper()
	w := trace.DefaultB2B()
	w.Requests, w.Customers, w.PerSecond, w.AnswerTokens = requests, 60, 14, 50
	b2b, err := w.Trace(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	params := sim.DefaultParams()
	params.BlockSize, params.NumBlocks, params.MaxModelLen, params.MaxWaiting = b2b.BlockTokens, 300_000/b2b.BlockTokens, 10_000, 1<<20
	r, err := fleet.Run(fleet.Config{
		Trace: b2b, Engines: []sim.Params{params, params, params, params}, Seed: 1, Pooled: p.Pooled,
		Sight:     fleet.Sight{EventDelay: 20 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond},
		NewPicker: func(v *fleet.View) (fleet.Picker, error) { return p.NewPicker(v, opener(v)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Refused != 0 || r.NoPick != 0 || len(r.Samples) != requests {
		t.Fatalf("%d served, %d refused, %d without a pick", len(r.Samples), r.Refused, r.NoPick)
	}
	return r.Summarise(0.25, fleet.DefaultObjective)
}

// Every policy runs, with its defaults and with every setting that tuning would try. What is known of them holds in a short run:
// those that know caches hit them and are faster by far than those that do not, and none is much faster than the reference.
func TestEveryPolicyRuns(t *testing.T) {
	blind := map[string]bool{"round-robin": true, "random": true, "least-requests": true, "two-choices": true, "least-tokens": true}
	hashed := map[string]bool{"session-hash": true, "bounded-hash": true}
	runs := map[string]fleet.Summary{}
	for _, p := range policies.All() {
		t.Run(p.Name, func(t *testing.T) {
			runs[p.Name] = run(t, p, 600)
			for _, set := range p.Tuned {
				q, err := p.With(set)
				if err != nil {
					t.Fatal(err)
				}
				again, err := policies.Parse(q.Label())
				if err != nil || again.Label() != q.Label() || q.Label() == p.Label() {
					t.Errorf("%s: %v, %s", q.Label(), err, again.Label())
				}
				run(t, q, 3)
			}
		})
	}
	for name, r := range runs {
		t.Logf("%s: %.3f s, hit rate %.2f", name, r.TTFTMean, r.HitRate)
		if blind[name] || hashed[name] || name == "pooled" {
			continue
		}
		for other := range runs {
			if blind[other] && (r.TTFTMean > runs[other].TTFTMean/3 || r.HitRate < runs[other].HitRate+0.1) {
				t.Errorf("%s is not far better than %s", name, other)
			}
			if hashed[other] && r.TTFTMean > runs[other].TTFTMean {
				t.Errorf("%s is not faster than %s", name, other)
			}
		}
		if r.TTFTMean < 0.95*runs["pooled"].TTFTMean {
			t.Errorf("%s is better than the reference", name)
		}
	}
}

func TestPoliciesDescribeThemselves(t *testing.T) {
	var list bytes.Buffer
	if err := policies.Write(&list); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range policies.All() {
		if p.Name == "" || p.Summary == "" || p.Source == "" || seen[p.Name] || strings.ContainsAny(p.Name, ":,= ") {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
		if !strings.Contains(list.String(), p.Name) || !strings.Contains(list.String(), p.Summary) || !strings.Contains(list.String(), p.Source) {
			t.Errorf("%s is not in the list", p.Name)
		}
		for _, q := range p.Parameters {
			if q.Default == "" || q.Help == "" || !strings.Contains(list.String(), q.Name+"="+q.Default) {
				t.Errorf("%s: %+v", p.Name, q)
			}
		}
	}
}

func TestSpecifications(t *testing.T) {
	for spec, want := range map[string]string{
		"round-robin":                           "round-robin",
		"llm-d-gate:penalty=5000":               "llm-d-gate:penalty=5000",
		"llm-d-gate:penalty=18000":              "llm-d-gate", // the default
		"llm-d-gate:index=approx,threshold=0.5": "llm-d-gate:threshold=0.5,index=approx",
	} {
		if p, err := policies.Parse(spec); err != nil || p.Label() != want {
			t.Errorf("%s: %v, %s", spec, err, p.Label())
		}
	}
	for spec, want := range map[string]string{
		"rond-robin":                     `unknown policy "rond-robin" (did you mean "round-robin"?)`,
		"llm-d-gate:penalti=1":           `policy llm-d-gate has no parameter "penalti" (did you mean "penalty"?)`,
		"llm-d-gate:penalty":             "want PARAMETER=VALUE",
		"llm-d-gate:penalty=":            "want PARAMETER=VALUE",
		"llm-d-gate:":                    "want PARAMETER=VALUE",
		"llm-d-gate:penalty=1,penalty=2": "once each",
		"random:x=1":                     `policy random has no parameter "x"`,
	} {
		if _, err := policies.Parse(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	p, err := policies.Parse("llm-d-gate:penalty=5000")
	if err != nil {
		t.Fatal(err)
	}
	if q, err := p.With(policies.Params{"epsilon": "0.01"}); err != nil || q.Label() != "llm-d-gate:epsilon=0.01,penalty=5000" || p.Label() != "llm-d-gate:penalty=5000" {
		t.Errorf("%v: %s out of %s", err, q.Label(), p.Label())
	}
}

// A value that its plugin refuses is an error that says which policy.
func TestValuesAreChecked(t *testing.T) {
	for spec, want := range map[string]string{
		"two-choices:choices=0":   "choices: must be >= 1",
		"two-choices:choices=two": "choices",
		"llm-d-gate:threshold=2":  "affinityThreshold",
		"preble:window=NaN":       `parameters.window: must be a duration with a unit such as "500ms" or "30s", got "NaN"`,
		"dynamo:temperature=x":    `parameters.temperature: must be a number, got "x"`,
		"llm-d:index=exact":       `index: must be approx or precise, got "exact"`,
	} {
		p, err := policies.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		one := &trace.Trace{Name: "one", BlockTokens: 16, Requests: []trace.Request{{Blocks: []uint64{1}, PromptTokens: 16, OutputTokens: 1}}}
		_, err = fleet.Run(fleet.Config{
			Trace: one, Engines: []sim.Params{sim.DefaultParams()},
			NewPicker: func(v *fleet.View) (fleet.Picker, error) { return p.NewPicker(v, opener(v)) },
		})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), spec) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// Whatever is written, a specification that is taken is what its label says.
func FuzzParse(f *testing.F) {
	for _, p := range policies.All() {
		f.Add(p.Label())
		for _, set := range p.Tuned {
			q, err := p.With(set)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(q.Label())
		}
	}
	for _, spec := range []string{"", ":", "llm-d:", "llm-d:prefix", "llm-d:prefix=", "llm-d:=1", "llm-d:prefix=1,prefix=1", "llm-d:prefix=a=b", "llm-d:prefix=1,", "x:y=z"} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := policies.Parse(spec)
		if err != nil {
			return
		}
		again, err := policies.Parse(p.Label())
		if err != nil || again.Label() != p.Label() {
			t.Errorf("%q is %q, which is %q: %v", spec, p.Label(), again.Label(), err)
		}
	})
}
