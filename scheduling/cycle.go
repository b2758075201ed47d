package scheduling

import "time"

// Phase is a part of a request's way through scheduling.
type Phase uint8

// The phases, in order. PhaseWait is the wait for the critical section, inside of which PhaseFill to PhasePick run.
const (
	PhaseProduce Phase = iota
	PhaseWait
	PhaseFill
	PhaseFilter
	PhaseScore
	PhasePick
	PhaseCommitted
)

var phaseNames = [...]string{"produce", "wait", "fill", "filter", "score", "pick", "committed"}

// String is the phase's name as traces show it.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "unknown"
}

// PhaseObserver is told when a cycle enters a phase, and within PhaseProduce when it comes to a producer; a tracer is one.
// It must not block, and in the phases of the critical section it keeps other picks waiting.
type PhaseObserver interface {
	EnterPhase(p Phase)
	EnterProducer(name string)
}

// Cycle is the memory of one decision: its inputs, the columns and what every step did. Cycles are pooled; a plugin
// keeps nothing of one after its call returns.
type Cycle struct {
	// Snapshot is the set of endpoints that the decision is about.
	Snapshot *Snapshot
	// Request is the request to place.
	Request *Request
	// Now is the time of the request since the process started, on a monotonic clock.
	Now time.Duration
	// Seed is the source of every random number in the decision.
	Seed uint64
	// MaxPicks is how many endpoints to pick at most; at least 1.
	MaxPicks int
	// Considered are the endpoints that the decision began with: what Candidates held before the first filter.
	Considered Set
	// Candidates are the endpoints that may be picked: at first the ready ones that the proxy's subset allows, after
	// Decide those that the filters left.
	Candidates Set
	// Picks are the picked ordinals, best first; empty where no candidate was left.
	Picks []int
	// Steps say what each filter left.
	Steps []FilterStep
	// Scores are the scores that each scorer gave; their order is the profile's.
	Scores []ScorerScores
	// Totals are the weighted sums of the scores, indexed by ordinal.
	Totals []float64
	// Gates are the verdicts of the load gates.
	Gates []GateReport
	// Faults are the producers that failed; the decision went on without what they would have known.
	Faults []Fault
	// Observer, where not nil, is told of the phases.
	Observer PhaseObserver

	scheduler *Scheduler
	storage   []storage
	fallback  Set // candidates that only a preference left out
	scratch   Set
	kept      Request // that of a copy, to which Request points
}

// FilterStep is what one filter left.
type FilterStep struct {
	// Filter is the plugin's name.
	Filter string
	// Left are the candidates after it.
	Left Set
}

// ScorerScores is what one scorer said.
type ScorerScores struct {
	// Scorer is the plugin's name.
	Scorer string
	// Weight is its weight in the profile.
	Weight float64
	// Raw are its scores in [0, 1], indexed by ordinal; meaningful for candidates only.
	Raw []float64
}

// Fault is a producer that failed for this request.
type Fault struct {
	// Producer is the plugin's name.
	Producer string
	// Err is what it said.
	Err error
}

// Scheduler is the one whose decision it is.
func (c *Cycle) Scheduler() *Scheduler { return c.scheduler }

// Rand returns the cycle's random numbers for a stream (see StreamOf).
func (c *Cycle) Rand(stream uint64) Rand { return NewRand(c.Seed, stream) }

// Scratch is an empty set with room for the snapshot's endpoints, for a plugin's own use until its call returns.
func (c *Cycle) Scratch() Set {
	c.scratch.Clear()
	return c.scratch
}

// Restrict leaves only the candidates that allowed holds.
func (c *Cycle) Restrict(allowed Set) { c.Candidates.IntersectWith(allowed) }

// ReportGate records a load gate's verdict.
func (c *Cycle) ReportGate(r GateReport) { c.Gates = append(c.Gates, r) }

// prepare makes the cycle fit a snapshot and forgets the request before.
func (c *Cycle) prepare(s *Snapshot, r *Request, now time.Duration) {
	n := len(s.Endpoints)
	c.Snapshot, c.Request, c.Now, c.Seed, c.Observer = s, r, now, SeedOf(r.ID), nil
	c.Candidates = c.Candidates.resized(n)
	c.Candidates.CopyFrom(s.Ready)
	c.Considered = c.Considered.resized(n)
	c.fallback, c.scratch = c.fallback.resized(n), c.scratch.resized(n)
	c.Picks, c.Gates, c.Faults = c.Picks[:0], c.Gates[:0], c.Faults[:0]
	c.Totals = resizedFloats(c.Totals, n)
	for i := range c.Steps {
		c.Steps[i].Left = c.Steps[i].Left.resized(n)
	}
	for i := range c.Scores {
		c.Scores[i].Raw = resizedFloats(c.Scores[i].Raw, n)
	}
	for _, st := range c.storage {
		st.resize(n)
	}
}

func resizedFloats(f []float64, n int) []float64 {
	if cap(f) < n {
		return make([]float64, n)
	}
	f = f[:n]
	clear(f)
	return f
}

func (c *Cycle) enter(p Phase) {
	if c.Observer != nil {
		c.Observer.EnterPhase(p)
	}
}

// SeedOf derives a request's seed from its internal id and nothing else.
func SeedOf(id uint64) uint64 { return Mix64(id) }

// GateVerdict is what a load gate decided.
type GateVerdict uint8

// The verdicts of a load gate.
const (
	GateNone              GateVerdict = iota // the gate did not run
	GateExplored                             // all candidates pass, to seed caches elsewhere
	GateNoSticky                             // no candidate is sticky: all pass
	GateHeld                                 // only the sticky candidates pass
	GateReleasedStatic                       // the TTFT penalty is above its bound
	GateReleasedMatched                      // the gap in tokens is larger than the match saves
	GateReleasedCeiling                      // matchedTokens held, its static ceiling did not
	GateReleasedBreakEven                    // the gap in time is larger than the match saves
	GateMissingSignal                        // one side has no known load: held
)

var gateVerdictNames = [...]string{
	"none", "explored", "no_sticky", "held", "released_static", "released_matched", "released_ceiling",
	"released_break_even", "missing_signal",
}

// String is the verdict's name as metrics and records show it.
func (v GateVerdict) String() string {
	if int(v) < len(gateVerdictNames) {
		return gateVerdictNames[v]
	}
	return "unknown"
}

// GateReport is a load gate's verdict and the input it had. Numbers that the gate did not have are NaN.
type GateReport struct {
	// Filter is the gate's plugin name.
	Filter string
	// Verdict is what it decided.
	Verdict GateVerdict
	// GapMs is by how much the best sticky endpoint's TTFT exceeds the best other one's, in ms.
	GapMs float64
	// GapTokens is the same difference in tokens in flight.
	GapTokens float64
	// BarMs is the bound that GapMs was held against, in ms; 0 where none applies.
	BarMs float64
	// BarTokens is the bound that GapTokens was held against, in tokens; NaN where none applies.
	BarTokens float64
	// Sticky and Other are the ordinals of the best endpoint of each side; -1 where there is none.
	Sticky, Other int
	// Settings are the gate's parameters that its comparison rests on; nil where it does not say. They never change.
	Settings *GateSettings
}

// GateSettings are the parameters of a load gate that its comparison cannot be made again without.
type GateSettings struct {
	// AffinityThreshold is the share of the prompt from which on an endpoint is sticky.
	AffinityThreshold float64
	// Prices are those of a gate that breaks even; nil for every other one.
	Prices *PriceKnobs
	// Predicted says that the times compared are predicted ones: the LatencyPrediction of each endpoint.
	Predicted bool
	// PredictedBy is the producer of these as the gate's parameters name it; empty means the only one.
	PredictedBy string
}
