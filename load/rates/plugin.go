package rates

import (
	"time"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/load/steps"
	"github.com/sluice-epp/sluice/scheduling"
)

// Plugin learns. It implements the scheduler's Filler, Charger, Follower, ChunkFollower, Mover and Watcher.
type Plugin struct {
	params   Parameters
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	rates    scheduling.Key[scheduling.LearntRates]
	pressure scheduling.ValueKey[scheduling.PoolPressure]
	flights  scheduling.StateKey[flight]
	known    *knowledge
}

// flight is what is kept of a request.
type flight struct {
	on      *endpoint // nil: it has ended
	ahead   float64   // tokens in flight on the endpoint when it was picked
	own     float64   // its own uncached tokens, as expected
	choices float64   // answers that it asked for
	first   bool      // its first token has come, or would not be seen
	unseen  bool      // it does not seem to be streamed: its first token has not been seen, and counts as come
	moved   bool      // to another endpoint than the one that was picked
	firstAt time.Duration
	pieces  steps.Pieces // of the answer
	at      reading      // of the endpoint's meter at the first token
}

// The reasons why nothing is learnt from a request.
const (
	skipFailed   = iota // it did not end well
	skipMoved           // another endpoint served it than was picked
	skipUnstream        // its first token was not seen
	skips
)

var skipNames = [skips]string{"failed", "moved", "not_streamed"}

var (
	_ scheduling.Filler   = (*Plugin)(nil)
	_ scheduling.Charger  = (*Plugin)(nil)
	_ scheduling.Follower = (*Plugin)(nil)
	_ scheduling.Mover    = (*Plugin)(nil)
	_ scheduling.Watcher  = (*Plugin)(nil)

	_ scheduling.ChunkFollower = (*Plugin)(nil)
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
		load:     scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
		uncached: scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
		rates:    scheduling.ProduceColumn[scheduling.LearntRates](b),
		pressure: scheduling.ProduceValue[scheduling.PoolPressure](b),
		flights:  scheduling.KeepState[flight](b),
	}
	if previous, ok := b.Previous.(*Plugin); ok && previous.params == params {
		p.known = previous.known
		return p, nil
	}
	prior := 1000 / params.PeakPrefillThroughput // ms per token
	p.known = &knowledge{classes: classes.New(params.ClassLabel, func() *class { return newClass(prior) })}
	p.known.decode.begin()
	return p, nil
}

// Fill publishes what is known: of every candidate, and of the pool.
func (p *Plugin) Fill(c *scheduling.Cycle) {
	pressure := *p.known.decode.known.Load()
	pressure.Utilisation = p.known.busy.move(c.Now, 0)
	p.pressure.In(c).Set(pressure)
	rates, all := p.rates.In(c), p.known.endpoints.All()
	for i := range c.Candidates.All() {
		if in := scheduling.FindInstance(all, i, c.Snapshot.Endpoints[i].Generation); in != nil && in.Value.class.Load() != nil {
			rates.Set(i, in.Value.rates(c.Now))
			continue
		}
		rates.Set(i, p.known.of(c.Snapshot.Endpoints[i]).rates(c.Now)) // one that no snapshot has told of yet
	}
}

// Charge notes what the request finds.
func (p *Plugin) Charge(c *scheduling.Cycle, f *scheduling.Flight) {
	s := p.flights.Of(f)
	*s = flight{on: p.known.of(f.Endpoint)}
	if load := p.load.In(c).At(f.Endpoint.Ordinal); load != nil {
		s.ahead = float64(max(0, load.Tokens))
	}
	if own, ok := p.uncached.In(c).Get(f.Endpoint.Ordinal); ok {
		s.own = float64(max(0, own))
	}
	s.choices = float64(max(1, c.Request.Choices))
	// Where the first token will not be seen the request counts as decoding from the start: that is most of its time.
	s.unseen, s.first = !f.Stream, !f.Stream
	pending, decoding := s.counts()
	_, busier := s.on.meter.move(c.Now, pending, decoding)
	p.known.busy.move(c.Now, busier)
}

// Committed does nothing: Charge noted the pick.
func (p *Plugin) Committed(*scheduling.Cycle, *scheduling.Flight) {}

// FirstToken notes the time. It may come of a request that did not seem to be streamed, as where its body is not seen.
func (p *Plugin) FirstToken(f *scheduling.Flight, now time.Duration) {
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	pending, decoding := -1, 1
	if s.unseen { // counted as decoding all along
		pending, decoding = 0, 0
	}
	s.first, s.unseen, s.firstAt, s.pieces.Last = true, false, now, now
	var busier int
	s.at, busier = s.on.meter.move(now, pending, decoding)
	p.known.busy.move(now, busier)
}

// Chunk counts the pieces of an answer, which are its tokens where nobody counts those.
func (p *Plugin) Chunk(f *scheduling.Flight, now time.Duration) {
	if s := p.flights.Of(f); s.on != nil {
		s.pieces.Add(now)
	}
}

// Done learns from the request, if it ended well.
func (p *Plugin) Done(f *scheduling.Flight, now time.Duration) {
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	pending, decoding := s.counts()
	end, busier := s.on.meter.move(now, -pending, -decoding)
	p.known.busy.move(now, busier)
	switch o := &f.Outcome; {
	case o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299:
		p.known.skipped[skipFailed].Add(1)
	case s.moved:
		p.known.skipped[skipMoved].Add(1)
	case !s.first || s.unseen:
		p.known.skipped[skipUnstream].Add(1)
	default:
		p.known.learn(s, s.firstAt-f.PickedAt, now, end, &o.Usage)
	}
	*s = flight{}
}

// counts is what the request is for its endpoint's meter.
func (s *flight) counts() (pending, decoding int) {
	if s.first {
		return 0, 1
	}
	return 1, 0
}

// learn learns from a request that ended well: what was cached is known by now.
func (k *knowledge) learn(s *flight, ttft, now time.Duration, end reading, u *scheduling.Usage) {
	own := s.own
	if u.PromptTokens > 0 && u.CachedTokens >= 0 {
		own = float64(max(0, u.PromptTokens-u.CachedTokens))
	}
	k.samples.Add(1)
	if expected := s.on.class.Load().learn(vector{1, s.ahead, own}, ms(ttft)); expected > 0 && ttft > 0 {
		s.on.speed.add(now, ms(ttft)/expected)
	}
	tokens := float64(u.CompletionTokens) / s.choices // which are generated side by side
	if u.CompletionTokens < 0 && s.pieces.Known() {
		tokens = float64(1 + s.pieces.Count)
	}
	if took := ms(now - s.firstAt); tokens > 1 && took > 0 {
		k.decodeSamples.Add(1)
		k.decode.learn(tokens, took, ms(end.busy-s.at.busy), ms(end.company-s.at.company))
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Moved carries the request to the endpoint that serves it. Its times are then of two endpoints, and teach nothing.
func (p *Plugin) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, _ time.Duration) {
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	s.moved = true
	pending, decoding := s.counts()
	_, less := s.on.meter.move(0, -pending, -decoding)
	s.on = p.known.of(f.Endpoint)
	_, more := s.on.meter.move(0, pending, decoding)
	p.known.busy.move(0, less+more)
}

// SnapshotChanged follows the endpoints: those that went no longer count as busy, and those whose label has changed are of another
// class.
func (p *Plugin) SnapshotChanged(s *scheduling.Snapshot) {
	k := p.known
	before := k.endpoints.All()
	k.endpoints.Follow(s)
	now := k.endpoints.All()
	for i, in := range before {
		if in != nil && scheduling.FindInstance(now, i, in.Endpoint.Generation) == nil {
			k.busy.move(0, in.Value.meter.leave())
		}
	}
	k.classes.Follow(s)
	for i, in := range now {
		if in != nil && i < len(s.Endpoints) && s.Endpoints[i] != nil {
			in.Value.class.Store(k.classes.Of(s.Endpoints[i]))
		}
	}
	k.busy.resize(s.Len())
}
