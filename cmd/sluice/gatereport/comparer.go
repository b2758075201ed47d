package gatereport

import decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"

// Comparer finds what an affinity gate compares in a recorded decision, by the gate's own code.
type Comparer struct {
	options Options
	trial   *trial
}

// Comparison is the best sticky endpoint and the best other one.
type Comparison struct {
	// Sticky and Other are their ordinals.
	Sticky, Other int
	// GapTokens is by how many tokens in flight the sticky one exceeds the other.
	GapTokens float64
	// SavedTokens is how many more tokens of the prompt the sticky one has in its cache.
	SavedTokens float64
	// OtherDecoding is how many requests decode on the other one.
	OtherDecoding int64
}

// NewComparer makes one for an affinityThreshold, and for producers, which need names only where there are several.
func NewComparer(threshold float64, matchProducer, loadProducer string) (*Comparer, error) {
	o := Options{Threshold: threshold, Behind: 1, MatchProducer: matchProducer, LoadProducer: loadProducer}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	t, err := newTrial(StaticRule(0), plain(threshold, 1))
	return &Comparer{options: o, trial: t}, err
}

// Compare compares. ok is false where there are not both; skip says why a record cannot be looked at, and is empty where
// it was.
func (c *Comparer) Compare(d *decisionv1.Decision) (found Comparison, ok bool, skip string) {
	v, skip := viewOf(d, &c.options)
	if skip != "" {
		return found, false, skip
	}
	name := NoGate
	if gates := d.GetGates(); len(gates) > 0 {
		name = gates[0].GetFilter()
	}
	report, _ := c.trial.judge(v, v.before(name))
	if j := (judged{reference: report}); !j.compared() {
		return found, false, ""
	}
	return Comparison{
		Sticky: report.Sticky, Other: report.Other, GapTokens: report.GapTokens,
		SavedTokens:   max(0, v.cached(report.Sticky)-v.cached(report.Other)),
		OtherDecoding: max(0, v.load[report.Other].Decoding),
	}, true, ""
}
