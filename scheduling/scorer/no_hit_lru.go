package scorer

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// noHitLRUParameters are the parameters of no-hit-lru-scorer.
type noHitLRUParameters struct {
	// PrefixMatchInfoProducerName names the producer of the match info; empty means the only one.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// LRUSize is how many endpoints are remembered, those that got the latest requests, 1 to 65536; the others count as
	// never used.
	LRUSize int `yaml:"lruSize"`
}

func noHitLRUDefaults() noHitLRUParameters { return noHitLRUParameters{LRUSize: 1024} }

func noHitLRUType() scheduling.PluginType {
	defaults := noHitLRUDefaults()
	return scheduling.PluginType{
		Type:       "no-hit-lru-scorer",
		Summary:    "Spreads requests without a cached prefix over the endpoints used least recently.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := noHitLRUDefaults()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if err := within("lruSize", float64(p.LRUSize), 1, 65536); err != nil {
				return nil, err
			}
			s := &NoHitLRU{
				match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](
					b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName),
				rank:  scheduling.ProduceColumn[scheduling.ColdRank](b),
				cold:  scheduling.KeepState[bool](b),
				size:  p.LRUSize,
				order: &coldOrder{},
			}
			if previous, ok := b.Previous.(*NoHitLRU); ok {
				s.order = previous.order
			}
			return s, nil
		},
	}
}

// NoHitLRU spreads cold requests, of whose prompt no candidate holds anything: each endpoint scores 1 − rank / (n − 1), with
// its ColdRank among the n endpoints that the request may go to. Who never got a cold request scores 1, who got the last one
// 0. To all other requests it is neutral: everybody scores 0.5.
//
// What it remembers outlives a reload; it fills the column in the critical section, so that simultaneous picks see one
// another, and scores from the column alone.
type NoHitLRU struct {
	match scheduling.Key[scheduling.PrefixCacheMatchInfo]
	rank  scheduling.Key[scheduling.ColdRank]
	cold  scheduling.StateKey[bool]
	size  int
	order *coldOrder
}

var (
	_ scheduling.Scorer  = (*NoHitLRU)(nil)
	_ scheduling.Filler  = (*NoHitLRU)(nil)
	_ scheduling.Charger = (*NoHitLRU)(nil)
	_ scheduling.Mover   = (*NoHitLRU)(nil)
	_ scheduling.Watcher = (*NoHitLRU)(nil)
)

// Fill ranks the candidates where the request is cold.
func (s *NoHitLRU) Fill(c *scheduling.Cycle) {
	match := s.match.In(c)
	for e := range c.Candidates.All() {
		if info := match.At(e); info != nil && info.Valid() && info.MatchBlocks > 0 {
			return
		}
	}
	s.order.rank(c, s.rank.In(c))
}

// Score implements scheduling.Scorer.
func (s *NoHitLRU) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	ranks := s.rank.In(c)
	ranked := ranks.Present().Len()
	if ranked == 0 {
		for e := range candidates.All() {
			scores[e] = 0.5
		}
		return
	}
	unknown := false
	for e := range candidates.All() {
		if rank, ok := ranks.Get(e); ok {
			scores[e] = 1 - float64(rank)/float64(max(1, ranked-1))
		} else { // of a decision that is made again with another set of endpoints
			scores[e], unknown = math.NaN(), true
		}
	}
	if unknown {
		scheduling.NeutralScore(candidates, scores)
	}
}

// Charge remembers who got a cold request.
func (s *NoHitLRU) Charge(c *scheduling.Cycle, f *scheduling.Flight) {
	if _, cold := s.rank.In(c).Get(f.Endpoint.Ordinal); cold {
		*s.cold.Of(f) = true
		s.order.follow(c.Snapshot)
		s.order.touch(f.Endpoint, s.size)
	}
}

// Moved remembers who got it in the end.
func (s *NoHitLRU) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	if *s.cold.Of(f) {
		s.order.touch(f.Endpoint, s.size)
	}
}

// SnapshotChanged forgets the endpoints that went.
func (s *NoHitLRU) SnapshotChanged(snapshot *scheduling.Snapshot) { s.order.follow(snapshot) }

// Remembered is how many endpoints are.
func (s *NoHitLRU) Remembered() int {
	s.order.mu.Lock()
	defer s.order.mu.Unlock()
	return len(s.order.used)
}
