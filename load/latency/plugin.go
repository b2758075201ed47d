package latency

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/load/steps"
	"github.com/sluice-epp/sluice/scheduling"
)

// Plugin predicts and learns. It implements the scheduler's Producer, Filler, Charger, Follower, ChunkFollower, Mover, Watcher and
// Closer.
type Plugin struct {
	params      Parameters
	match       scheduling.Key[scheduling.PrefixCacheMatchInfo]
	load        scheduling.Key[scheduling.InFlightLoad]
	uncached    scheduling.Key[scheduling.UncachedRequestTokens]
	metrics     scheduling.Key[scheduling.EngineMetrics]
	prompt      scheduling.ValueKey[scheduling.TokenizedPrompt]
	predictions scheduling.Key[scheduling.LatencyPrediction]
	objective   scheduling.ValueKey[scheduling.LatencyObjective]
	flights     scheduling.StateKey[flight]
	known       *knowledge
	anew        bool // what was learnt before says nothing under these parameters
	begin       sync.Once
}

// flight is what is kept of a request: what was known at its pick, which is what its times teach about.
type flight struct {
	on       *endpoint // nil: it has ended
	class    *class
	x, y     terms // of its TTFT and TPOT
	z        sight
	slow     float64 // the endpoint's slowness
	linearMs float64 // the TTFT without the residual
	ttftMs   float64 // with it
	tpotMs   float64
	residual float64 // logarithm of what the newest forest would say
	judged   bool    // there was one
	wait     float64 // part of the TTFT that is the endpoint's
	input    float64 // tokens of its prompt
	limit    float64 // what each of its answers may have at most, in tokens; 0: any number
	choices  float64 // answers that it asked for
	started  bool    // its first token has come
	moved    bool    // to another endpoint than the one that was picked
	firstAt  time.Duration
	pieces   steps.Pieces // after it
}

// The reasons why nothing is learnt from a request.
const (
	skipFailed      = iota // it did not end well
	skipMoved              // another endpoint served it than was picked
	skipUngenerated        // see generated
	skipUnstream           // its first token was not seen
	skipFresh              // its engine had just been started
	skipGone               // its endpoint is no longer one of the pool
	skips
)

var skipNames = [skips]string{"failed", "moved", "not_generated", "not_streamed", "just_started", "endpoint_gone"}

var (
	_ scheduling.Producer      = (*Plugin)(nil)
	_ scheduling.Filler        = (*Plugin)(nil)
	_ scheduling.Charger       = (*Plugin)(nil)
	_ scheduling.Follower      = (*Plugin)(nil)
	_ scheduling.ChunkFollower = (*Plugin)(nil)
	_ scheduling.Mover         = (*Plugin)(nil)
	_ scheduling.Watcher       = (*Plugin)(nil)
	_ scheduling.Closer        = (*Plugin)(nil)
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
		params:      params,
		match:       scheduling.ConsumeColumn[scheduling.PrefixCacheMatchInfo](b, "prefixMatchInfoProducerName", params.PrefixMatchInfoProducerName),
		load:        scheduling.ConsumeColumn[scheduling.InFlightLoad](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
		uncached:    scheduling.ConsumeColumn[scheduling.UncachedRequestTokens](b, "inFlightLoadProducerName", params.InFlightLoadProducerName),
		metrics:     scheduling.ConsumeColumn[scheduling.EngineMetrics](b, "engineMetricsProducerName", params.EngineMetricsProducerName),
		prompt:      scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "", ""),
		predictions: scheduling.ProduceColumn[scheduling.LatencyPrediction](b),
		objective:   scheduling.ProduceValue[scheduling.LatencyObjective](b),
		flights:     scheduling.KeepState[flight](b),
	}
	if previous, ok := b.Previous.(*Plugin); ok {
		p.known = previous.known
		p.anew = !params.learnsAs(previous.params)
	} else {
		p.known = &knowledge{classes: params.classes()}
	}
	return p, nil
}

// WholeResponses reports whether what is predicted is the time to the end of a response, and not to its first token.
func (p *Plugin) WholeResponses() bool { return !p.params.StreamingMode }

// Produce reads what the request asks of its latency.
func (p *Plugin) Produce(_ context.Context, c *scheduling.Cycle) error {
	if objective, ok := scheduling.ObjectiveOf(c.Request); ok {
		p.objective.In(c).Set(objective)
	}
	return nil
}

// Committed counts what was asked in vain. Charge noted the pick.
func (p *Plugin) Committed(c *scheduling.Cycle, _ *scheduling.Flight) {
	if scheduling.UnreadObjective(c.Request) {
		p.known.unread.Add(1)
	}
}

// Charge notes what the request finds, and adds it to the endpoint's work.
func (p *Plugin) Charge(c *scheduling.Cycle, f *scheduling.Flight) {
	k := p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	s := p.flights.Of(f)
	*s = flight{on: k.of(f.Endpoint), choices: float64(max(1, c.Request.Choices))}
	all := p.inputs(c)
	in := all.of(f.Endpoint.Ordinal)
	s.on.note(s, c.Now, in, p.predictions.In(c).At(f.Endpoint.Ordinal))
	s.on.work.begin(c.Now, prompt{
		id: f.ID, input: in.tokens, tokens: in.uncached, pairs: pairsOf(in.tokens, in.uncached), unseen: !f.Stream,
	})
}

// FirstToken notes the time: the endpoint goes on to the next prompt.
func (p *Plugin) FirstToken(f *scheduling.Flight, now time.Duration) {
	k := p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	s.started, s.firstAt, s.pieces.Last = true, now, now
	s.on.work.first(now, f.ID)
	s.on.work.steps.tick(now)
}

// Chunk takes a piece of an answer for the end of a step.
func (p *Plugin) Chunk(f *scheduling.Flight, now time.Duration) {
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	s.pieces.Add(now)
	s.on.work.steps.tick(now)
}

// Done takes the request out of its endpoint's work, and learns from it if it ended well.
func (p *Plugin) Done(f *scheduling.Flight, now time.Duration) {
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	took, seen := s.firstAt-f.PickedAt, s.started
	if !p.params.StreamingMode {
		took, seen = now-f.PickedAt, true
	}
	if p.known.end(s, f, now, took, seen) {
		s.class.learnTTFT(s, now, ms(took), p.known.spawn)
		if tpot := s.tpot(f.Outcome.Usage, now); tpot > 0 && p.params.StreamingMode {
			p.known.tpotSamples.Add(1)
			s.class.learnTPOT(s, tpot)
		}
	}
	*s = flight{}
}

// tpot is the time per output token, in ms: by the engine's count or, where it gave none, by the pieces in which the answer came, of
// which there is one a step. 0 where neither says.
func (s *flight) tpot(u scheduling.Usage, now time.Duration) float64 {
	switch tokens := float64(u.CompletionTokens) / s.choices; {
	case u.CompletionTokens >= 0 && tokens > 1:
		return ms(now-s.firstAt) / (tokens - 1)
	case u.CompletionTokens < 0 && s.pieces.Known():
		return ms(s.pieces.Last-s.firstAt) / float64(s.pieces.Count)
	}
	return 0
}

// Moved carries the request to the endpoint that serves it. Its times are then of two endpoints, and teach nothing.
func (p *Plugin) Moved(f *scheduling.Flight, _ *scheduling.Endpoint, now time.Duration) {
	k := p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	s := p.flights.Of(f)
	if s.on == nil {
		return
	}
	to := k.of(f.Endpoint)
	s.on.work.move(&to.work, now, f.ID, s.input)
	s.moved, s.on = true, to
}

// SnapshotChanged follows the endpoints. The first call puts the plugin in force.
func (p *Plugin) SnapshotChanged(s *scheduling.Snapshot) {
	p.begin.Do(func() {
		if p.anew {
			p.known.forget(p.params.classes())
		}
	})
	p.known.follow(s)
}

// CacheLost is told that an instance lost its cache; restarted says that its process is another one.
func (p *Plugin) CacheLost(ordinal int, generation uint64, restarted bool) {
	if restarted {
		p.known.restarted(ordinal, generation)
	}
}

// Close waits until no forest is growing.
func (p *Plugin) Close() error {
	p.known.growing.wait()
	return nil
}
