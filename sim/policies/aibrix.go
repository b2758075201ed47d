package policies

import (
	"errors"
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// aibrix is the prefix-cache policy of AIBrix.
func aibrix() []Policy {
	parameters := []Parameter{
		{Name: "gap", Default: "8", Help: "requests in flight from which on the busiest is too far above the idlest endpoint"},
		{Name: "factor", Default: "2", Help: "and the busiest above this many times the mean and one"},
		{Name: "deviations", Default: "1", Help: "standard deviations above the mean of requests in flight up to which a match is followed"},
		capacityOf("6400000", " (there: 200,000 blocks of 128 characters)"),
	}
	return []Policy{{
		Name: "aibrix", Summary: "best match by its own record that is not busier than the mean and a standard deviation, else fewest requests",
		Source:     "AIBrix prefix_cache.go at 01de8a514",
		config:     "aibrix.yaml",
		Parameters: parameters,
		Tuned: append(grid(parameters, over("gap", "4 8 16"), over("deviations", "0.5 1 2")),
			Params{"factor": "0"}, Params{"capacity": "2097152"}, Params{"capacity": "262144"}),
	}}
}

// aibrixParameters are the parameters of sim-aibrix-picker.
type aibrixParameters struct {
	// Gap and Factor say when loads are far apart: most − least >= Gap and most > Factor · (mean + 1).
	Gap    float64 `yaml:"gap"`
	Factor float64 `yaml:"factor"`
	// Deviations is by how many standard deviations an endpoint with a match may be busier than the mean.
	Deviations float64 `yaml:"deviations"`
	// PrefixMatchInfoProducerName and InFlightLoadProducerName name the producers; empty means the only ones.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	InFlightLoadProducerName    string `yaml:"inFlightLoadProducerName"`
}

// AIBrix picks, of the endpoints that match anything, in whole percents, the best match that has at most mean + d · σ requests
// in flight, of equal matches the one with fewer; where there is none, the endpoint with the fewest requests. While loads are
// far apart only the idlest endpoints' matches count. It is a scheduling.Picker.
type AIBrix struct {
	parameters aibrixParameters
	stream     uint64
	match      scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load       scheduling.Key[scheduling.InFlightLoad]
}

func aibrixType() scheduling.PluginType {
	defaults := aibrixParameters{Gap: 8, Factor: 2, Deviations: 1}
	return scheduling.PluginType{
		Type: "sim-aibrix-picker", Summary: "Picks the best match of those that are not too busy.", Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := defaults
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			return &AIBrix{
				parameters: p, stream: b.Stream(),
				match: scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName),
				load:  scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, errors.Join(atLeast("gap", p.Gap, 0), atLeast("factor", p.Factor, 0), atLeast("deviations", p.Deviations, 0))
		},
	}
}

// Pick implements scheduling.Picker.
func (p *AIBrix) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	idlest := least{random: c.Rand(p.stream)}
	most, sum, squares := 0.0, 0.0, 0.0
	for e := range candidates.All() {
		n := p.requests(c, e)
		idlest.offer(e, n)
		most, sum, squares = max(most, n), sum+n, squares+n*n
	}
	count := float64(candidates.Len())
	mean := sum / count
	bar := mean + p.parameters.Deviations*math.Sqrt(max(0, squares/count-mean*mean))
	apart := most > p.parameters.Factor*(mean+1) && most-idlest.value >= p.parameters.Gap
	best := least{random: c.Rand(p.stream + 1)}
	for e := range candidates.All() {
		n, percent := p.requests(c, e), 0.0
		if info := p.match.In(c).At(e); info != nil {
			percent = math.Floor(100 * info.Score())
		}
		if percent > 0 && n <= bar && (!apart || n == idlest.value) {
			best.offer(e, n-percent*1e9) // by the match, then by the requests
		}
	}
	if best.equals > 0 {
		return best.appendTo(picks)
	}
	return idlest.appendTo(picks)
}

func (p *AIBrix) requests(c *scheduling.Cycle, e int) float64 {
	load, _ := p.load.In(c).Get(e)
	return float64(load.Requests)
}
