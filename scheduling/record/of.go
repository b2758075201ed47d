package record

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// Meta is what a record holds that scheduling itself does not know.
type Meta struct {
	// ClientRequestID is the x-request-id of the client or the proxy.
	ClientRequestID string
	// UnixNano is the wall-clock time of the decision in nanoseconds since the Unix epoch.
	UnixNano int64
	// ConfigHash names the configuration that s was built from.
	ConfigHash string
}

// The lengths, in bytes, to which strings from outside are shortened.
const (
	maxName  = 256
	maxError = 512
)

// Of is the record of the decision that s made in c. It is built between Commit or Preview and End, and shares no
// memory with the cycle.
func Of(s *scheduling.Scheduler, c *scheduling.Cycle, m Meta) *decisionv1.Decision {
	d := &decisionv1.Decision{
		Id:              c.Request.ID,
		ClientRequestId: clean(m.ClientRequestID, maxName),
		TimeUnixNano:    m.UnixNano,
		Seed:            c.Seed,
		Profile:         s.ProfileName(),
		ConfigHash:      m.ConfigHash,
		SnapshotVersion: c.Snapshot.Version,
		MaxPicks:        uint32(c.MaxPicks),
		Request:         requestOf(c.Request),
	}
	for _, f := range c.Faults {
		d.Faults = append(d.Faults, &decisionv1.Fault{Producer: f.Producer, Error: clean(f.Err.Error(), maxError)})
	}
	labels := s.LabelKeys()
	for _, key := range labels {
		d.LabelKeys = append(d.LabelKeys, clean(key, maxName))
	}
	addCandidates(d, c, labels)
	addColumns(d, c, s.Columns())
	addOutcome(d, c)
	return d
}

// State is an endpoint's state as records have it.
func State(s scheduling.EndpointState) decisionv1.EndpointState {
	return decisionv1.EndpointState(s) + decisionv1.EndpointState_ENDPOINT_STATE_READY
}

// Marshal writes a record so that equal records are equal bytes.
func Marshal(d *decisionv1.Decision) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("decision %d: %w", d.GetId(), err)
	}
	return b, nil
}

func requestOf(r *scheduling.Request) *decisionv1.Request {
	return &decisionv1.Request{
		Operation:       decisionv1.Operation(r.Operation) + decisionv1.Operation_OPERATION_OTHER,
		Model:           clean(r.Model, maxName),
		PromptBytes:     uint64(max(0, r.PromptBytes)),
		TokenCount:      uint64(max(0, r.TokenCount)),
		MaxOutputTokens: uint64(max(0, r.MaxOutputTokens)),
		Choices:         uint32(max(0, r.Choices)),
		Stream:          r.Stream,
	}
}

// addCandidates lists the snapshot's endpoints and says what became of each.
func addCandidates(d *decisionv1.Decision, c *scheduling.Cycle, labels []string) {
	for _, e := range c.Snapshot.Endpoints {
		if e == nil {
			continue
		}
		to := &decisionv1.Candidate{
			Ordinal:    uint32(e.Ordinal),
			Generation: e.Generation,
			Address:    clean(e.Address, maxName),
			State:      State(e.State),
		}
		if e.Name != e.Address {
			to.Name = clean(e.Name, maxName)
		}
		for _, key := range labels {
			if value, ok := e.Labels[key]; ok {
				if to.Labels == nil {
					to.Labels = make(map[string]string, len(labels))
				}
				to.Labels[clean(key, maxName)] = clean(value, maxName)
			}
		}
		to.Exclusion, to.FilteredBy = exclusion(c, e)
		if c.Candidates.Has(e.Ordinal) || slices.Contains(c.Picks, e.Ordinal) {
			for i := range c.Scores {
				to.Scores = append(to.Scores, c.Scores[i].Raw[e.Ordinal])
			}
			to.Total = c.Totals[e.Ordinal]
		}
		d.Candidates = append(d.Candidates, to)
	}
}

// exclusion says why an endpoint did not reach the scorers, and which filter was to blame.
func exclusion(c *scheduling.Cycle, e *scheduling.Endpoint) (why decisionv1.Exclusion, filter string) {
	if !c.Considered.Has(e.Ordinal) {
		if e.State != scheduling.EndpointReady {
			return decisionv1.Exclusion_EXCLUSION_STATE, ""
		}
		return decisionv1.Exclusion_EXCLUSION_SUBSET, ""
	}
	for _, step := range c.Steps {
		if !step.Left.Has(e.Ordinal) {
			return decisionv1.Exclusion_EXCLUSION_FILTER, step.Filter
		}
	}
	return decisionv1.Exclusion_EXCLUSION_UNSPECIFIED, ""
}

// addOutcome records what the profile's steps made of the candidates.
func addOutcome(d *decisionv1.Decision, c *scheduling.Cycle) {
	for _, step := range c.Steps {
		d.FilterSteps = append(d.FilterSteps, &decisionv1.FilterStep{Filter: step.Filter, Left: uint32(step.Left.Len())})
	}
	for i := range c.Gates {
		d.Gates = append(d.Gates, gateOf(&c.Gates[i]))
	}
	for _, sc := range c.Scores {
		d.Scorers = append(d.Scorers, &decisionv1.Scorer{Name: sc.Scorer, Weight: sc.Weight})
	}
	for _, p := range c.Picks {
		d.Picks = append(d.Picks, uint32(p))
	}
	if margin, ok := RunnerUpMargin(c); ok {
		d.RunnerUpMargin = &margin
	}
}

func gateOf(g *scheduling.GateReport) *decisionv1.GateReport {
	to := &decisionv1.GateReport{
		Filter:    g.Filter,
		Verdict:   decisionv1.GateVerdict(g.Verdict) + decisionv1.GateVerdict_GATE_VERDICT_NONE,
		GapMs:     number(g.GapMs),
		GapTokens: number(g.GapTokens),
		BarMs:     number(g.BarMs),
		BarTokens: number(g.BarTokens),
		Sticky:    ordinal(g.Sticky),
		Other:     ordinal(g.Other),
	}
	if s := g.Settings; s != nil {
		to.AffinityThreshold, to.Predicted, to.PredictedBy = copied(&s.AffinityThreshold), s.Predicted, s.PredictedBy
		if p := s.Prices; p != nil {
			to.Alpha, to.Kappa, to.DecodePrice = copied(p.Alpha), copied(p.Kappa), copied(&p.DecodePrice)
		}
	}
	return to
}

// copied is a number that a record may keep.
func copied(v *float64) *float64 {
	if v == nil {
		return nil
	}
	own := *v
	return &own
}

func number(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

func ordinal(i int) *uint32 {
	if i < 0 {
		return nil
	}
	o := uint32(i)
	return &o
}

// RunnerUpMargin is by how much the first pick's total exceeds the highest of the other candidates that passed the filters;
// ok is false where there is no pick or no other.
func RunnerUpMargin(c *scheduling.Cycle) (margin float64, ok bool) {
	if len(c.Picks) == 0 {
		return 0, false
	}
	best := math.Inf(-1)
	for e := range c.Candidates.All() {
		if e != c.Picks[0] {
			best, ok = max(best, c.Totals[e]), true
		}
	}
	if !ok {
		return 0, false
	}
	return c.Totals[c.Picks[0]] - best, true
}

// clean makes a string from outside fit a record: valid UTF-8, as protobuf demands, and of bounded length.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}
