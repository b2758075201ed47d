package policies

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// preble is E2, the global scheduler of Preble.
func preble() []Policy {
	parameters := []Parameter{
		{Name: "load", Default: "window", Help: "what an endpoint's load is: window (of the last minutes, as there) or inflight (uncached tokens not computed yet)"},
		{Name: "window", Default: "3m", Help: "how long an endpoint's load remembers its requests"},
		{Name: "balance", Default: "1.5", Help: "factor between the loads of the busiest and the idlest endpoint from which the busiest's requests go to the idlest"},
		{Name: "prefill", Default: "15928", Help: "prompt tokens that an engine computes in a second"},
		indexBy(precise), tunedCapacity(),
	}
	return []Policy{{
		Name: "preble", Summary: "the best match where that is most of the prompt, else least load, eviction and prefill together",
		Source:     "Preble, ICLR 2025, arXiv 2407.00023; WukLab/preble GlobalSchedulerWithTime",
		config:     "preble.yaml",
		Parameters: parameters,
		Tuned:      grid(parameters, over("load", "window inflight"), over("window", "10s 3m"), over("balance", "1.2 1.5 3")),
	}}
}

// prebleParameters are the parameters of sim-preble-picker.
type prebleParameters struct {
	// Load is what an endpoint's load is: window or inflight.
	Load string `yaml:"load"`
	// Window is how long requests count after they were picked.
	Window time.Duration `yaml:"window"`
	// Balance is the factor between two loads that are too far apart.
	Balance float64 `yaml:"balance"`
	// PrefillThroughput is how many prompt tokens an engine computes in a second.
	PrefillThroughput float64 `yaml:"prefillThroughput"`
	// PrefixMatchInfoProducerName and InFlightLoadProducerName name the producers; empty means the only ones.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	InFlightLoadProducerName    string `yaml:"inFlightLoadProducerName"`
}

// The loads that sim-preble-picker knows.
const loadWindow, loadInFlight = "window", "inflight"

// Preble exploits where the longest match is more than half of the prompt: of the endpoints that have it the one with the
// least load is picked, or the idlest of all where that one is the busiest and its load more than a factor above. Else it
// explores: the endpoint with the least L + M + P is picked.
//
// L is the load: the time that it took to prefill what was not cached of the requests of the last minutes, and the time that
// the answers of those in flight take, each as long as those that have ended took on average; or only the time to prefill what is in flight. P is the time to prefill what the endpoint has not
// of this prompt. M is the price of what would have to go for it, with caches taken to be full: the same time, by the share
// of its tokens that the endpoint found cached lately. It is a scheduling.Picker, Charger and Follower.
type Preble struct {
	parameters prebleParameters
	stream     uint64
	match      scheduling.Key[scheduling.PrefixCacheMatchInfo]
	uncached   scheduling.Key[scheduling.UncachedRequestTokens]
	inFlight   scheduling.Key[scheduling.InFlightLoad]
	first      scheduling.StateKey[time.Duration] // when the first token came
	recent     map[uint64]*prebleWindow           // by the endpoint's generation
	answering  time.Duration                      // how long the answers took of all that have ended
	ended      int
}

// prebleWindow are an endpoint's requests of the last minutes, oldest first.
type prebleWindow struct {
	picks              []preblePick
	uncached, prompted float64 // tokens of all
}

type preblePick struct {
	at                 time.Duration
	uncached, prompted float64
}

func prebleType() scheduling.PluginType {
	defaults := prebleParameters{Load: loadWindow, Window: 3 * time.Minute, Balance: 1.5, PrefillThroughput: 15928}
	return scheduling.PluginType{
		Type: "sim-preble-picker", Summary: "Picks as Preble's global scheduler.", Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := defaults
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			var errs []error
			if p.Load != loadWindow && p.Load != loadInFlight {
				errs = append(errs, fmt.Errorf("parameters.load: must be %s or %s, got %q%s",
					loadWindow, loadInFlight, p.Load, scheduling.Hint(p.Load, []string{loadWindow, loadInFlight})))
			}
			if p.Window <= 0 {
				errs = append(errs, fmt.Errorf("parameters.window: must be > 0, got %v", p.Window))
			}
			return &Preble{
				parameters: p, stream: b.Stream(), recent: map[uint64]*prebleWindow{},
				match:    scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName),
				inFlight: scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
				first:    scheduling.KeepState[time.Duration](b),
				uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", p.InFlightLoadProducerName),
			}, errors.Join(append(errs, atLeast("balance", p.Balance, 1), atLeast("prefillThroughput", p.PrefillThroughput, 1))...)
		},
	}
}

// Pick implements scheduling.Picker.
func (p *Preble) Pick(c *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	idlest := least{random: c.Rand(p.stream)}
	busiest, longest := 0.0, 0
	for e := range candidates.All() {
		load := p.loadOf(c, e)
		idlest.offer(e, load)
		busiest = max(busiest, load)
		longest = max(longest, p.matched(c, e))
	}
	best := least{random: c.Rand(p.stream + 1)}
	if 2*longest > len(c.Request.Tokens) {
		for e := range candidates.All() {
			if p.matched(c, e) == longest {
				best.offer(e, p.loadOf(c, e))
			}
		}
		if best.value == busiest && busiest > p.parameters.Balance*idlest.value {
			return idlest.appendTo(picks)
		}
		return best.appendTo(picks)
	}
	for e := range candidates.All() {
		own, _ := p.uncached.In(c).Get(e)
		prefill := float64(own) / p.parameters.PrefillThroughput
		best.offer(e, p.loadOf(c, e)+(1+p.hits(c, e))*prefill)
	}
	return best.appendTo(picks)
}

func (p *Preble) matched(c *scheduling.Cycle, e int) int {
	if info := p.match.In(c).At(e); info != nil {
		return info.MatchedTokens()
	}
	return 0
}

// window is what an endpoint got lately; not nil.
func (p *Preble) window(c *scheduling.Cycle, e int) *prebleWindow {
	w := p.recent[c.Snapshot.Endpoints[e].Generation]
	if w == nil {
		w = &prebleWindow{}
		p.recent[c.Snapshot.Endpoints[e].Generation] = w
	}
	for len(w.picks) > 0 && w.picks[0].at <= c.Now-p.parameters.Window {
		w.uncached, w.prompted = w.uncached-w.picks[0].uncached, w.prompted-w.picks[0].prompted
		w.picks = w.picks[1:]
	}
	return w
}

// loadOf is L, in seconds.
func (p *Preble) loadOf(c *scheduling.Cycle, e int) float64 {
	load, _ := p.inFlight.In(c).Get(e)
	if p.parameters.Load == loadInFlight {
		return float64(load.Tokens) / p.parameters.PrefillThroughput
	}
	answer := p.answering.Seconds() / float64(max(1, p.ended))
	return p.window(c, e).uncached/p.parameters.PrefillThroughput + float64(load.Requests)*answer
}

// hits is the share of its prompt tokens that an endpoint found cached lately.
func (p *Preble) hits(c *scheduling.Cycle, e int) float64 {
	w := p.window(c, e)
	if w.prompted == 0 {
		return 0
	}
	return 1 - w.uncached/w.prompted
}

// Charge implements scheduling.Charger.
func (p *Preble) Charge(c *scheduling.Cycle, f *scheduling.Flight) {
	own, _ := p.uncached.In(c).Get(f.Endpoint.Ordinal)
	w := p.window(c, f.Endpoint.Ordinal)
	w.picks = append(w.picks, preblePick{c.Now, float64(own), float64(len(c.Request.Tokens))})
	w.uncached, w.prompted = w.uncached+float64(own), w.prompted+float64(len(c.Request.Tokens))
}

// Committed implements scheduling.Follower.
func (p *Preble) Committed(*scheduling.Cycle, *scheduling.Flight) {}

// FirstToken implements scheduling.Follower.
func (p *Preble) FirstToken(f *scheduling.Flight, now time.Duration) { *p.first.Of(f) = now }

// Done implements scheduling.Follower.
func (p *Preble) Done(f *scheduling.Flight, now time.Duration) {
	if f.SeenFirstToken() && *p.first.Of(f) > 0 {
		p.answering, p.ended = p.answering+now-*p.first.Of(f), p.ended+1
	}
}
