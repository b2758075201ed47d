package gatereport

import (
	"slices"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Why a decision is not looked at.
const (
	// NoPick is a decision that nothing could serve.
	NoPick = "no endpoint was picked"
	// NoMatch and NoLoad are decisions without what a gate rests on.
	NoMatch = "no prefix match is recorded"
	NoLoad  = "no in-flight load is recorded"
	// ManyMatches and ManyLoads are those with more than one of them, where none was chosen.
	ManyMatches = "several prefix matches are recorded: choose one with --match-producer"
	ManyLoads   = "several in-flight loads are recorded: choose one with --load-producer"
	// ManyPredictions is a decision with several predictions, of which the gate does not say which it took.
	ManyPredictions = "several latency predictions are recorded, and not which of them the gate took"
	// Inconsistent is a record that cannot be.
	Inconsistent = "the record is inconsistent"
)

// maxOrdinal bounds the memory that a record can ask for.
const maxOrdinal = 1 << 16

// view is what a record holds of a decision for its gates: values by the endpoints' ordinals.
type view struct {
	decision *decisionv1.Decision
	snapshot *scheduling.Snapshot
	request  scheduling.Request
	match    map[int]scheduling.PrefixCacheMatchInfo
	load     map[int]scheduling.InFlightLoad
	uncached map[int]scheduling.UncachedRequestTokens
	rates    map[int]scheduling.LearntRates
	measured map[int]bool                                    // whether the rates are more than the constants
	latency  map[string]map[int]scheduling.LatencyPrediction // by their producer
	pressure *scheduling.PoolPressure
}

// prompt is how many tokens of the prompt were looked up on an endpoint.
func (v *view) prompt(ordinal int) float64 {
	m := v.match[ordinal]
	if !m.Valid() {
		return 0
	}
	return float64(max(0, m.TotalBlocks)) * float64(m.BlockSizeTokens)
}

// addPrices reads what was known of an endpoint's costs and times. loads is the chosen producer of uncached tokens.
func (v *view) addPrices(ordinal int, c *decisionv1.Candidate, loads string) {
	for _, m := range c.GetUncachedRequestTokens() {
		if m.GetProducer() == loads {
			v.uncached[ordinal] = scheduling.UncachedRequestTokens(m.GetTokens())
		}
	}
	for _, m := range c.GetLatencyPredictions() {
		all := v.latency[m.GetProducer()]
		if all == nil {
			all = map[int]scheduling.LatencyPrediction{}
			v.latency[m.GetProducer()] = all
		}
		all[ordinal] = record.PredictionFrom(m)
	}
	for _, m := range c.GetLearntRates() {
		if r := (scheduling.LearntRates{PrefillMsPerToken: m.GetPrefillMsPerToken(), WaitMsPerToken: m.GetWaitMsPerToken()}); r.PrefillMsPerToken > 0 {
			v.rates[ordinal], v.measured[ordinal] = r, m.GetConfidence() > 0
		}
	}
}

// predictions are those of the producer with a name. A record does not repeat the name of the only one.
func (v *view) predictions(of string) map[int]scheduling.LatencyPrediction {
	if only, ok := v.latency[""]; ok {
		return only
	}
	return v.latency[of]
}

// unsure reports whether there are predictions of several producers, and a gate that takes some does not say whose.
func (v *view) unsure(g *decisionv1.GateReport) bool {
	return g.GetPredicted() && g.GetPredictedBy() == "" && len(v.latency) > 0 && v.latency[""] == nil
}

func pressureOf(d *decisionv1.Decision) *scheduling.PoolPressure {
	for _, m := range d.GetPoolPressures() {
		return &scheduling.PoolPressure{Utilisation: m.GetUtilisation(), DecodeStall: m.GetDecodeStall(), CompanyMs: m.GetCompanyMs()}
	}
	return nil
}

// picked is the first pick's ordinal.
func (v *view) picked() int { return int(v.decision.GetPicks()[0]) }

// cached is how many tokens of the prompt an endpoint has, whatever the tier.
func (v *view) cached(ordinal int) float64 {
	m := v.match[ordinal]
	if !m.Valid() {
		return 0
	}
	return float64(max(0, min(m.CachedBlockCount, m.TotalBlocks))) * float64(m.BlockSizeTokens)
}

// viewOf reads a record. skip says why there is nothing to look at.
func viewOf(d *decisionv1.Decision, o *Options) (v *view, skip string) {
	if len(d.GetPicks()) == 0 {
		return nil, NoPick
	}
	matches, skip := producer(d, scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo](), o.MatchProducer, NoMatch, ManyMatches)
	if skip != "" {
		return nil, skip
	}
	loads, skip := producer(d, scheduling.DataTypeOf[scheduling.InFlightLoad](), o.LoadProducer, NoLoad, ManyLoads)
	if skip != "" {
		return nil, skip
	}
	v = &view{
		decision: d, match: map[int]scheduling.PrefixCacheMatchInfo{}, load: map[int]scheduling.InFlightLoad{}, pressure: pressureOf(d),
		uncached: map[int]scheduling.UncachedRequestTokens{}, rates: map[int]scheduling.LearntRates{}, measured: map[int]bool{},
		latency: map[string]map[int]scheduling.LatencyPrediction{},
	}
	v.request.ID, v.request.Model = d.GetId(), d.GetRequest().GetModel()
	var endpoints []*scheduling.Endpoint
	seen := make(map[int]bool, len(d.GetCandidates()))
	for _, c := range d.GetCandidates() {
		ordinal := int(c.GetOrdinal())
		if ordinal >= maxOrdinal || seen[ordinal] {
			return nil, Inconsistent
		}
		seen[ordinal] = true
		e := &scheduling.Endpoint{Ordinal: ordinal, Generation: c.GetGeneration()}
		e.Address, e.State = c.GetAddress(), scheduling.EndpointReady
		endpoints = append(endpoints, e)
		v.addPrices(ordinal, c, loads)
		for _, m := range c.GetPrefixCacheMatches() {
			if m.GetProducer() == matches {
				v.match[ordinal] = scheduling.PrefixCacheMatchInfo{
					MatchBlocks: int(m.GetMatchBlocks()), CachedBlockCount: int(m.GetCachedBlockCount()),
					TotalBlocks: int(m.GetTotalBlocks()), BlockSizeTokens: int(m.GetBlockSizeTokens()),
				}
			}
		}
		for _, m := range c.GetInFlightLoads() {
			if m.GetProducer() == loads {
				v.load[ordinal] = scheduling.InFlightLoad{Requests: m.GetRequests(), Tokens: m.GetTokens(), Decoding: m.GetDecoding()}
			}
		}
	}
	if !seen[v.picked()] {
		return nil, Inconsistent
	}
	v.snapshot = scheduling.RestoreSnapshot(d.GetSnapshotVersion(), endpoints)
	return v, ""
}

// producer is the name that the values of a data type carry: those of the chosen producer, or of the only one, whose name
// is not repeated.
func producer(d *decisionv1.Decision, dataType, chosen, none, many string) (name, skip string) {
	var all []string
	for _, c := range d.GetColumns() {
		if c.GetDataType() == dataType && !c.GetOpaque() {
			all = append(all, c.GetProducer())
		}
	}
	switch {
	case len(all) == 0, chosen != "" && !slices.Contains(all, chosen):
		return "", none
	case len(all) == 1:
		return "", ""
	case chosen == "":
		return "", many
	}
	return chosen, ""
}

// before lists the ordinals that came to a filter of the profile: what the filters in front of it had left.
func (v *view) before(filter string) []int {
	step := v.step(filter)
	var all []int
	for _, c := range v.decision.GetCandidates() {
		switch c.GetExclusion() {
		case decisionv1.Exclusion_EXCLUSION_STATE, decisionv1.Exclusion_EXCLUSION_SUBSET:
			continue
		case decisionv1.Exclusion_EXCLUSION_FILTER:
			if v.step(c.GetFilteredBy()) < step {
				continue
			}
		}
		all = append(all, int(c.GetOrdinal()))
	}
	return all
}

// step is a filter's place in the profile; without such a filter it is the place behind all.
func (v *view) step(filter string) int {
	for i, s := range v.decision.GetFilterSteps() {
		if s.GetFilter() == filter {
			return i
		}
	}
	return len(v.decision.GetFilterSteps())
}

// verdict is a gate's verdict as documents name it.
func verdict(g *decisionv1.GateReport) string { return record.Verdict(g.GetVerdict()) }
