package calibrate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
	"github.com/sluice-epp/sluice/cmd/sluice/quantile"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// Why a decision tells nothing of an engine's speed.
const (
	NoOutcome   = "its end is not recorded"
	Failed      = "it was not answered to its end with status 200"
	NotStreamed = "it was not streamed: its first token came with its last"
	Elsewhere   = "another endpoint than the pick served it"
	NoTTFT      = "no first token was seen"
	NoWork      = "its uncached tokens or the load are not recorded"
)

// Options say how a log is read.
type Options struct {
	// By is what tells deployments apart: model, endpoint, or label:KEY of the endpoint.
	By string
	// Threshold is the gate's affinityThreshold.
	Threshold float64
	// Alpha and Kappa price what recomputing takes from others, in units of its own time: of requests to come, and of each
	// decoding one.
	Alpha, Kappa float64
	// MatchProducer and LoadProducer choose among several; empty means the only one.
	MatchProducer, LoadProducer string
}

// Validate reports what is out of range.
func (o *Options) Validate() error {
	if o.By != "model" && o.By != "endpoint" && (!strings.HasPrefix(o.By, "label:") || o.By == "label:") {
		return fmt.Errorf("by: must be model, endpoint or label:KEY, got %q", o.By)
	}
	for name, v := range map[string]float64{"alpha": o.Alpha, "kappa": o.Kappa} {
		if !(v >= 0 && v <= 1000) {
			return fmt.Errorf("%s: must be from 0 to 1000, got %v", name, v)
		}
	}
	return nil
}

// The bounds of what is kept.
const (
	maxDeployments = 64
	maxSamples     = 20_000
	maxPeriods     = 96
	leastSamples   = 30
)

// reservoir is a sample of bounded size in which everything is with the same probability (Vitter 1985, "Random sampling with
// a reservoir", algorithm R).
type reservoir[T any] struct {
	kept []T
	n    uint64
}

func (r *reservoir[T]) add(v T, rng *rand.Rand) {
	r.n++
	if len(r.kept) < maxSamples {
		r.kept = append(r.kept, v)
	} else if at := rng.Uint64N(r.n); at < maxSamples {
		r.kept[at] = v
	}
}

// saving is what a decision would have computed again.
type saving struct {
	tokens   float64
	decoding float64 // requests that it would have slowed down
}

// deployment is what is kept of one.
type deployment struct {
	samples reservoir[sample]
	savings reservoir[saving]
	hours   *quantile.Periods[quantile.Sketch]
}

// Collector reads decisions one after the other, in bounded memory.
type Collector struct {
	options     Options
	comparer    *gatereport.Comparer
	deployments map[string]*deployment
	skipped     map[string]uint64
	read        uint64
	rng         *rand.Rand
}

// New makes a collector.
func New(o Options) (*Collector, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	comparer, err := gatereport.NewComparer(o.Threshold, o.MatchProducer, o.LoadProducer)
	if err != nil {
		return nil, err
	}
	return &Collector{
		options: o, comparer: comparer, deployments: map[string]*deployment{}, skipped: map[string]uint64{}, rng: rand.New(rand.NewPCG(2, 3)),
	}, nil
}

// Run reads decisions to their end. What cannot be read is counted. It stops with ctx.
func Run(ctx context.Context, decisions iter.Seq2[*decisionv1.Decision, error], o Options) (*Report, error) {
	c, err := New(o)
	if err != nil {
		return nil, err
	}
	for d, err := range decisions {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if skip := new(decisionlog.Skip); errors.As(err, &skip) {
			c.skipped[skip.Reason]++
			continue
		} else if err != nil {
			return nil, err
		}
		c.Add(d)
	}
	return c.Report(), nil
}

// Add reads a decision.
func (c *Collector) Add(d *decisionv1.Decision) {
	c.read++
	picks := d.GetPicks()
	at := -1
	if len(picks) > 0 {
		at = slices.IndexFunc(d.GetCandidates(), func(e *decisionv1.Candidate) bool { return e.GetOrdinal() == picks[0] })
	}
	if at < 0 {
		c.skipped[gatereport.NoPick]++
		return
	}
	pick := d.GetCandidates()[at]
	kept := c.deployment(c.nameOf(d, pick))
	if kept == nil {
		c.skipped[fmt.Sprintf("more than %d deployments", maxDeployments)]++
		return
	}
	if found, ok, _ := c.comparer.Compare(d); ok {
		kept.savings.add(saving{found.SavedTokens, float64(found.OtherDecoding)}, c.rng)
		kept.hours.At(d.GetTimeUnixNano()).Add(found.SavedTokens)
	}
	s, skip := c.sampleOf(d, pick)
	if skip != "" {
		c.skipped[skip]++
		return
	}
	kept.samples.add(s, c.rng)
}

func (c *Collector) nameOf(d *decisionv1.Decision, pick *decisionv1.Candidate) string {
	key, isLabel := strings.CutPrefix(c.options.By, "label:")
	switch {
	case isLabel:
		return pick.GetLabels()[key]
	case c.options.By == "endpoint" && pick.GetName() != "":
		return pick.GetName()
	case c.options.By == "endpoint":
		return pick.GetAddress()
	}
	return d.GetRequest().GetModel()
}

func (c *Collector) deployment(name string) *deployment {
	if c.deployments[name] == nil && len(c.deployments) < maxDeployments {
		c.deployments[name] = &deployment{hours: quantile.NewPeriods(maxPeriods, (*quantile.Sketch).Merge)}
	}
	return c.deployments[name]
}

// sampleOf is what a decision tells of the speed of its pick.
func (c *Collector) sampleOf(d *decisionv1.Decision, pick *decisionv1.Candidate) (s sample, skip string) {
	o := d.GetOutcome()
	switch {
	case o == nil:
		return s, NoOutcome
	case o.GetReason() != "complete" || o.GetStatus() != 200:
		return s, Failed
	case o.GetServedBy() != "":
		return s, Elsewhere
	case !d.GetRequest().GetStream():
		return s, NotStreamed
	case o.TtftMs == nil || !(o.GetTtftMs() > 0 && o.GetTtftMs() < 1e9):
		return s, NoTTFT
	}
	s.at, s.ms, s.uncached, s.ahead = d.GetTimeUnixNano(), o.GetTtftMs(), -1, -1
	for _, u := range pick.GetUncachedRequestTokens() {
		if c.reads(u.GetProducer()) {
			s.uncached = float64(u.GetTokens())
		}
	}
	for _, l := range pick.GetInFlightLoads() {
		if c.reads(l.GetProducer()) {
			s.ahead = float64(l.GetTokens())
		}
	}
	if o.PromptTokens != nil && o.CachedTokens != nil && o.GetPromptTokens() >= o.GetCachedTokens() { // the engine knows better
		s.uncached = float64(o.GetPromptTokens() - o.GetCachedTokens())
	}
	if s.uncached < 0 || s.ahead < 0 {
		return s, NoWork
	}
	return s, ""
}

// reads reports whether a value of a load producer is the one to read: the only one, or the chosen one.
func (c *Collector) reads(producer string) bool {
	return producer == "" || producer == c.options.LoadProducer
}
