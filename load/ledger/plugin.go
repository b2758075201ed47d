package ledger

import (
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// PrefillProfile is the name of a scheduling profile whose picks only compute the prompt. Its flights are charged input
// alone, and everything that they hold goes at the first token, when the answer is somebody else's to generate.
const PrefillProfile = "prefill"

// Plugin is the ledger. It implements the scheduler's Filler, Charger, Follower, Mover and Watcher.
type Plugin struct {
	params   Parameters
	table    *table
	match    scheduling.Key[scheduling.PrefixCacheMatchInfo]
	prompt   scheduling.ValueKey[scheduling.TokenizedPrompt]
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	charges  scheduling.StateKey[charge]
}

// charge is what one flight holds: exactly what is released, from exactly the counter that was charged.
type charge struct {
	counter  *counter // nil: nothing is held
	prompt   int64    // uncached prompt tokens not yet computed
	output   int64    // estimated output tokens, where these are charged
	expected int64    // estimated output tokens, charged or not
	decoding bool
}

var (
	_ scheduling.Filler   = (*Plugin)(nil)
	_ scheduling.Charger  = (*Plugin)(nil)
	_ scheduling.Follower = (*Plugin)(nil)
	_ scheduling.Mover    = (*Plugin)(nil)
	_ scheduling.Watcher  = (*Plugin)(nil)
)

func newPlugin(b *scheduling.Builder) (any, error) {
	params := DefaultParameters()
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	if err := params.Validate(); err != nil {
		return nil, err
	}
	p := &Plugin{
		params:   params,
		match:    scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", params.PrefixMatchInfoProducerName),
		prompt:   scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "tokenProducerName", params.TokenProducerName),
		load:     scheduling.ProduceColumn[scheduling.InFlightLoad](b),
		uncached: scheduling.ProduceColumn[scheduling.UncachedRequestTokens](b),
		charges:  scheduling.KeepState[charge](b),
	}
	if previous, ok := b.Previous.(*Plugin); ok {
		p.table = previous.table
	} else {
		p.table = &table{}
	}
	return p, nil
}

// Fill publishes, for every candidate, what is in flight on it and what this request would add. Candidates without
// match info get a value as well: the whole input.
func (p *Plugin) Fill(c *scheduling.Cycle) {
	match, load, uncached := p.match.In(c), p.load.In(c), p.uncached.In(c)
	input, _ := p.inputTokens(c)
	counters := p.table.counters.All()
	for i := range c.Candidates.All() {
		var inFlight scheduling.InFlightLoad
		if in := scheduling.FindInstance(counters, i, c.Snapshot.Endpoints[i].Generation); in != nil {
			inFlight = in.Value.load()
		}
		load.Set(i, inFlight)
		uncached.Set(i, scheduling.UncachedRequestTokens(Uncached(match.At(i), input)))
	}
}

// Charge commits the pick: one request, its uncached tokens as published, and its expected output where configured.
func (p *Plugin) Charge(c *scheduling.Cycle, f *scheduling.Flight) {
	input, known := p.inputTokens(c)
	if input > 0 && !usable(p.match.In(c).At(f.Endpoint.Ordinal)) {
		p.table.withoutMatch.Add(1)
	}
	if !known {
		p.table.withoutTokens.Add(1)
	}
	uncached, _ := p.uncached.In(c).Get(f.Endpoint.Ordinal)
	held := p.charges.Of(f)
	*held = charge{counter: p.table.take(f.Endpoint), prompt: int64(uncached)}
	if f.Profile != PrefillProfile {
		held.expected = p.params.estimateOutput(c.Request, input)
	}
	if p.params.AddEstimatedOutputTokens {
		held.output = held.expected
	}
	held.add()
}

// add puts what the charge holds onto its counter.
func (h *charge) add() { h.apply(1) }

// remove takes what the charge holds off its counter.
func (h *charge) remove() { h.apply(-1) }

func (h *charge) apply(sign int64) {
	h.counter.requests.Add(sign)
	if tokens := h.prompt + h.output; tokens != 0 {
		h.counter.tokens.Add(sign * tokens)
	}
	if h.decoding {
		h.counter.decoding.Add(sign)
	}
}

// Committed does nothing: the charge was made with the pick.
func (p *Plugin) Committed(*scheduling.Cycle, *scheduling.Flight) {}

// FirstToken releases the prompt's tokens: the engine has computed them. A flight that only prefills is over.
func (p *Plugin) FirstToken(f *scheduling.Flight, _ time.Duration) {
	held := p.charges.Of(f)
	if held.counter == nil {
		return
	}
	if f.Profile == PrefillProfile {
		p.release(held, scheduling.EndComplete)
		return
	}
	if held.prompt != 0 {
		held.counter.tokens.Add(-held.prompt)
		held.prompt = 0
	}
	held.counter.decoding.Add(1)
	held.decoding = true
}

// Done releases whatever the flight still holds.
func (p *Plugin) Done(f *scheduling.Flight, _ time.Duration) {
	if held := p.charges.Of(f); held.counter != nil {
		p.release(held, f.Outcome.Reason)
	}
}

func (p *Plugin) release(held *charge, reason scheduling.EndReason) {
	held.remove()
	*held = charge{}
	if int(reason) < endReasons {
		p.table.releases[reason].Add(1)
	}
}

// Moved carries what the flight still holds from the endpoint that was picked to the one that serves it.
func (p *Plugin) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	held := p.charges.Of(f)
	if held.counter == nil {
		return
	}
	held.remove()
	held.counter = p.table.take(f.Endpoint)
	held.add()
}

// SnapshotChanged drops the counters of instances that went and makes those of instances that came.
func (p *Plugin) SnapshotChanged(s *scheduling.Snapshot) { p.table.counters.Follow(s) }
