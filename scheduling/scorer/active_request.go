package scorer

import (
	"errors"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// activeRequestParameters are the parameters of active-request-scorer.
type activeRequestParameters struct {
	// InFlightLoadProducerName names the producer of the load; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// IdleThreshold is the number of requests in flight up to which an endpoint counts as idle and scores 1.
	IdleThreshold int64 `yaml:"idleThreshold"`
	// MaxBusyScore is the score, 0 to 1, that busy endpoints approach as they get less busy.
	MaxBusyScore float64 `yaml:"maxBusyScore"`
	// RequestTimeout has no effect; files written for other routers may hold it. The ledger knows when requests end.
	RequestTimeout string `yaml:"requestTimeout"`
}

func activeRequestDefaults() activeRequestParameters {
	return activeRequestParameters{MaxBusyScore: 1}
}

func activeRequestType() scheduling.PluginType {
	defaults := activeRequestDefaults()
	return scheduling.PluginType{
		Type:       "active-request-scorer",
		Summary:    "Prefers endpoints with fewer requests in flight.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := activeRequestDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			err := errors.Join(
				within("idleThreshold", float64(p.IdleThreshold), 0, 1e9),
				within("maxBusyScore", p.MaxBusyScore, 0, 1),
			)
			if err != nil {
				return nil, err
			}
			return &ActiveRequest{
				load: scheduling.ConsumeColumn[scheduling.InFlightLoad](
					b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				idle:    p.IdleThreshold,
				maxBusy: p.MaxBusyScore,
			}, nil
		},
	}
}

// ActiveRequest scores 1 for an idle endpoint (at most idleThreshold requests in flight) and
// maxBusyScore · (most − requests) / most for the others, where most is the largest number among the candidates: the
// busiest scores 0. An endpoint whose load is unknown scores the mean of the others.
type ActiveRequest struct {
	load    scheduling.Key[scheduling.InFlightLoad]
	idle    int64 // requests
	maxBusy float64
}

// Score implements scheduling.Scorer.
func (s *ActiveRequest) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	loads, unknown := s.load.In(c), false
	most := int64(0)
	for e := range candidates.All() {
		if load := loads.At(e); load != nil {
			most = max(most, load.Requests)
		}
	}
	for e := range candidates.All() {
		load := loads.At(e)
		switch {
		case load == nil:
			scores[e], unknown = math.NaN(), true
		case load.Requests <= s.idle:
			scores[e] = 1
		default:
			scores[e] = s.maxBusy * float64(most-load.Requests) / float64(most)
		}
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}
