package policies

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// hashed are the policies that hash a session, or the beginning of the prompt, onto an endpoint.
func hashed() []Policy {
	prefix := Parameter{Name: "prefix", Default: "1024", Help: "tokens at the head of the prompt that stand for a session where the trace names none"}
	bounded := []Parameter{prefix, {Name: "c", Default: "1.25", Help: "bound on an endpoint's requests in flight, times the mean"}}
	return []Policy{
		{
			Name: "session-hash", Summary: "a session's requests all to one endpoint, by consistent hash",
			Source:     "SMG policies consistent_hashing.rs at 73da68ca9; production-stack session router at a6c01db0",
			config:     "session-hash.yaml",
			Parameters: []Parameter{prefix},
			Tuned:      []Params{{"prefix": "512"}, {"prefix": "2048"}, {"prefix": "4096"}},
		},
		{
			Name: "bounded-hash", Summary: "the same, with no endpoint above 1.25 times the mean of requests in flight",
			Source:     "Mirrokni, Thorup and Zadimoghaddam 2018; SMG policies prefix_hash.rs at 73da68ca9",
			config:     "bounded-hash.yaml",
			Parameters: bounded,
			Tuned:      grid(bounded, over("prefix", "512 1024 2048"), over("c", "1.1 1.25 1.5 2")),
		},
	}
}

// hashParameters are the parameters of sim-hash-picker.
type hashParameters struct {
	// Prefix is how many tokens at the head of the prompt stand for a session where none is named.
	Prefix int `yaml:"prefix"`
	// Bound is by how much an endpoint's requests in flight may exceed the mean: a factor above 1, or 0 for no bound.
	Bound float64 `yaml:"bound"`
	// InFlightLoadProducerName names the producer of the load; empty means the only one.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// Hash puts a request's session, or the beginning of its prompt, onto a ring of the endpoints' names and picks the next
// endpoint on it that has room. With a bound c an endpoint has room as long as it has fewer than ⌈c · (m + 1) / n⌉ requests
// in flight, where m are in flight on all n: consistent hashing with bounded loads. It is a scheduling.Picker.
type Hash struct {
	prefix int
	bound  float64
	load   scheduling.Key[scheduling.InFlightLoad]
	ring   []ringPoint
	seen   uint64 // version of the snapshot that the ring was made of
}

type ringPoint struct {
	hash    uint64
	ordinal int
}

// ringPoints is how many points of the ring each endpoint has.
const ringPoints = 160

func hashType() scheduling.PluginType {
	defaults := hashParameters{Prefix: 1024}
	return scheduling.PluginType{
		Type: "sim-hash-picker", Summary: "Picks the next endpoint on a ring of hashes.", Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := defaults
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			var errs []error
			if p.Prefix < 1 {
				errs = append(errs, fmt.Errorf("parameters.prefix: must be >= 1, got %d", p.Prefix))
			}
			if p.Bound != 0 && !(p.Bound > 1 && p.Bound < 1000) {
				errs = append(errs, fmt.Errorf("parameters.bound: must be > 1, or 0 for no bound, got %v", p.Bound))
			}
			return &Hash{
				prefix: p.Prefix, bound: p.Bound,
				load: scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, errors.Join(errs...)
		},
	}
}

// Pick implements scheduling.Picker.
func (p *Hash) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	if candidates.Empty() {
		return picks
	}
	p.follow(c.Snapshot)
	key := p.key(c.Request)
	from, _ := slices.BinarySearchFunc(p.ring, key, func(a ringPoint, b uint64) int { return cmp.Compare(a.hash, b) })
	room := p.room(c, candidates)
	for i := range p.ring {
		if e := p.ring[(from+i)%len(p.ring)].ordinal; candidates.Has(e) && p.requests(c, e) < room {
			return append(picks, e)
		}
	}
	return picks // unreachable: somebody is below the mean
}

// room is how many requests an endpoint has to have in flight to have no room.
func (p *Hash) room(c *scheduling.Cycle, candidates scheduling.Set) int64 {
	if p.bound == 0 {
		return math.MaxInt64
	}
	all := int64(1)
	for e := range candidates.All() {
		all += p.requests(c, e)
	}
	return int64(math.Ceil(p.bound * float64(all) / float64(candidates.Len())))
}

func (p *Hash) requests(c *scheduling.Cycle, e int) int64 {
	load, _ := p.load.In(c).Get(e)
	return load.Requests
}

func (p *Hash) key(r *scheduling.Request) uint64 {
	if session, ok := r.Header(fleet.SessionHeader); ok {
		return scheduling.Mix64(scheduling.StreamOf(string(session)))
	}
	return hashOf(r.Tokens[:min(p.prefix, len(r.Tokens))])
}

// follow makes the ring that of a snapshot.
func (p *Hash) follow(s *scheduling.Snapshot) {
	if p.ring != nil && p.seen == s.Version {
		return
	}
	p.ring, p.seen = p.ring[:0], s.Version
	for _, e := range s.Endpoints {
		for i := range ringPoints {
			if e != nil {
				p.ring = append(p.ring, ringPoint{scheduling.Mix64(scheduling.StreamOf(e.Address + "#" + strconv.Itoa(i))), e.Ordinal})
			}
		}
	}
	slices.SortFunc(p.ring, func(a, b ringPoint) int { return cmp.Compare(a.hash, b.hash) })
}
