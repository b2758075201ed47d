package precise

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "precise-prefix-cache-producer"

// Producer is the plugin.
type Producer struct {
	name     string
	params   Parameters
	hub      *hub
	fallback *approx.Producer
	config   CacheConfig
	now      func() time.Duration
	logger   *slog.Logger
	types    *collector
	audit    *audit.Table
	withdraw func() // takes the audit out of the metrics
	noTokens atomic.Int64
	capped   atomic.Int64

	prompts sync.Pool

	tokens scheduling.ValueKey[scheduling.TokenizedPrompt]
	blocks scheduling.ValueKey[promptValue]
	info   scheduling.Key[scheduling.PrefixCacheMatchInfo]
	state  scheduling.StateKey[flightState]
}

// promptValue carries a request's prompt from Produce to Committed.
type promptValue struct{ *prompt }

// flightState is a flight's prompt; nil where its tokens are not known.
type flightState struct{ *prompt }

// Produce looks the prompt up and publishes match info for every candidate. A prompt whose tokens are not known exactly
// is left to the approximate index, since the engine's events are of no use for it; that index is told of every prompt,
// so that it knows the conversations when the tokens fail.
func (p *Producer) Produce(ctx context.Context, c *scheduling.Cycle) error {
	h := p.hub
	h.adopt(c.Snapshot)
	known, _ := p.tokens.In(c).Get()
	if !known.Exact || len(known.Tokens) == 0 {
		if !c.Request.Trial {
			p.noTokens.Add(1)
		}
		return p.fallback.Produce(ctx, c)
	}
	if !c.Request.Trial {
		p.count(c.Request, len(known.Tokens))
		p.fallback.Prepare(c)
	}
	pr := p.take()
	fallback := p.defaultSize(c)
	sizes := p.sizes(fallback)
	adapter := h.keys.adapter([]byte(c.Request.Model))
	if !h.adapters.isAdapter(c.Request.Model, adapter) {
		adapter = 0
	}
	pr.hash(&h.keys, sizes[:], adapter, c.Request.CacheSalt, known, p.params.MaxPrefixTokens)
	due := max(expiredAtOnce, 2*pr.seen/fallback)
	if h.virtual {
		due = math.MaxInt
	}
	h.queue.expire(c.Now, due)
	p.lookUp(c, pr, fallback)
	p.blocks.In(c).Set(promptValue{pr})
	return nil
}

// count takes in what a request tells beside its prompt.
func (p *Producer) count(r *scheduling.Request, tokens int) {
	if h := p.hub; r.CacheSalt != "" && !h.salts.Load() {
		h.salts.Store(true)
	}
	if tokens > p.params.MaxPrefixTokens {
		p.capped.Add(1)
	}
}

// expiredAtOnce is how many blocks of speculation a request ends at least, where their time has come. It ends more than it
// adds itself; what is left after a pause is the watch's, so that the first request does not pay for those before it.
const expiredAtOnce = 4096

// sizes are the block sizes to cut a prompt at: those in use, and one for endpoints that have not told theirs.
func (p *Producer) sizes(fallback int) (sizes [maxSizes]int) {
	n := 0
	for _, size := range *p.hub.sizes.Load() {
		if n < maxSizes-1 || size == fallback {
			sizes[min(n, maxSizes-1)] = size
			n++
		}
		if size == fallback {
			fallback = 0
		}
	}
	if fallback != 0 {
		sizes[min(n, maxSizes-1)] = fallback
	}
	return sizes
}

// defaultSize is the block size of endpoints whose events have not told it: what the first one says in its metrics, or
// else the configured one.
func (p *Producer) defaultSize(c *scheduling.Cycle) int {
	if p.config != nil {
		if i := c.Candidates.Next(0); i >= 0 {
			if size, _, ok := p.config.CacheConfig(i, c.Snapshot.Endpoints[i].Generation); ok {
				return size
			}
		}
	}
	return p.params.BlockSizeTokens
}

func (p *Producer) take() *prompt {
	if pr, ok := p.prompts.Get().(*prompt); ok {
		return pr
	}
	return &prompt{}
}

func (p *Producer) giveBack(pr *prompt) {
	pr.reset()
	p.prompts.Put(pr)
}

// Committed notes what the picked endpoint will hold soon.
func (p *Producer) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	p.fallback.Committed(c, f)
	value := p.blocks.In(c)
	pr, ok := value.Get()
	if !ok || pr.prompt == nil {
		return
	}
	value.Set(promptValue{}) // the flight has it now
	p.state.Of(f).prompt = pr.prompt
	pr.full = c.Request.KVReportFull
	p.settleOn(pr.prompt, f.Endpoint, p.defaultSize(c), c.Now)
	if known, _ := p.tokens.In(c).Get(); known.Count != len(known.Tokens) || c.Request.Choices > 1 {
		pr.several, pr.predicted = true, -1 // the engine counts them together, and one finds what another has computed
	}
}

// settleOn makes a flight's prompt one that an endpoint serves.
func (p *Producer) settleOn(pr *prompt, e *scheduling.Endpoint, fallback int, now time.Duration) {
	pr.endpoint, pr.on, pr.predicted = e, nil, -1
	m := p.hub.member(e.Ordinal, e.Generation)
	if m == nil {
		return
	}
	known := p.hub.reuses.Load() == pr.reuses
	if !known {
		pr.findNothing()
	}
	on, best, ok := pr.bestOf(m, fallback)
	if !ok {
		return
	}
	pr.on, pr.cut, pr.cached = on, best.cut, best.info.CachedBlockCount
	size := best.info.BlockSizeTokens
	if pr.block = size; known && !pr.several {
		pr.predicted = min(pr.cached, (pr.tokens-1)/size) * size
	}
	pr.tick = on.now()
	hashes := pr.cuts[pr.cut].hashes
	if pr.full {
		pr.reported = on.report(hashes)
	}
	until := time.Duration(0)
	if p.params.SpeculativeIndexing {
		until = now + p.params.SpeculativeTTL
	}
	pr.routed = on.routed.add(hashes, min(pr.cached, len(hashes)), size, until)
	if rec := pr.routed.record; rec != nil && until > 0 {
		p.hub.queue.push(rec)
	}
}

// unsettle takes back what settleOn did.
func (p *Producer) unsettle(pr *prompt) {
	if pr.on == nil {
		return
	}
	hashes := pr.cuts[pr.cut].hashes
	pr.on.routed.undo(pr.routed)
	if pr.reported > 0 {
		pr.on.endReport(hashes[:pr.reported])
	}
	pr.on, pr.routed, pr.reported = nil, share{}, 0
}

// Moved makes the endpoint that served the one that will hold the prompt.
func (p *Producer) Moved(f *scheduling.Flight, from *scheduling.Endpoint, now time.Duration) {
	p.fallback.Moved(f, from, now)
	pr := p.state.Of(f).prompt
	if pr == nil {
		return
	}
	p.unsettle(pr)
	p.settleOn(pr, f.Endpoint, p.params.BlockSizeTokens, p.now())
	pr.moved = true
}

// FirstToken tells nothing that the engine's events do not, but to the approximate index.
func (p *Producer) FirstToken(f *scheduling.Flight, now time.Duration) { p.fallback.FirstToken(f, now) }

// Done compares what was believed with what the engine reports, and lets the prompt go.
func (p *Producer) Done(f *scheduling.Flight, now time.Duration) {
	p.fallback.Done(f, now)
	state := p.state.Of(f)
	pr := state.prompt
	if pr == nil {
		return
	}
	if pr.on != nil && f.Outcome.Reason == scheduling.EndComplete && !failed(f.Outcome) && len(pr.cuts[pr.cut].hashes) > 0 {
		if m := p.hub.member(f.Endpoint.Ordinal, f.Endpoint.Generation); m != nil {
			m.answered.Add(1)
		}
	}
	switch {
	case failed(f.Outcome):
		p.unsettle(pr)
	case f.Outcome.Reason == scheduling.EndComplete && f.Outcome.Usage.CachedTokens >= 0 && pr.on != nil && pr.predicted >= 0:
		p.compare(pr, f.Endpoint, f.Outcome.Usage.CachedTokens)
	}
	if pr.on != nil && pr.reported > 0 {
		pr.on.endReport(pr.cuts[pr.cut].hashes[:pr.reported])
	}
	*state = flightState{}
	p.giveBack(pr)
}

// compare is the audit of one request. The match is from the pick: of an endpoint that a retry went to, it is not known
// since when that is not so any more, and nothing is taken away.
func (p *Producer) compare(pr *prompt, e *scheduling.Endpoint, reported int) {
	if pr.seen < pr.tokens { // what lies beyond was not looked up
		reported = min(reported, pr.seen)
	}
	p.audit.Note(e, audit.Answer{Predicted: pr.predicted, Reported: reported, Block: pr.block})
	pr.on.predicted(pr.predicted, reported)
	if pr.moved || reported >= pr.predicted {
		return
	}
	c := &pr.cuts[pr.cut]
	first := reported / c.size
	pr.on.contradict(c.hashes, c.size, first, pr.tick)
	pr.on.routed.drop(c.hashes[min(first, len(c.hashes)):])
}

func failed(o scheduling.Outcome) bool {
	return o.Status >= 400 || (o.Reason == scheduling.EndError && o.Status == 0)
}

// CacheLost forgets what an endpoint instance held: its engine was restarted in place, or put to sleep.
func (p *Producer) CacheLost(ordinal int, generation uint64, restarted bool) {
	p.hub.cacheLost(ordinal, generation, restarted)
	p.fallback.CacheLost(ordinal, generation, restarted)
}

// SnapshotChanged makes the hub follow the endpoints, and frees what those that went held.
func (p *Producer) SnapshotChanged(s *scheduling.Snapshot) {
	p.hub.adopt(s)
	p.audit.SnapshotChanged(s)
	p.fallback.SnapshotChanged(s)
}

// Audit is what engines reported against what the precise index predicted, for prompts whose tokens were known exactly and
// of which one completion was asked for. The table outlives reloads.
func (p *Producer) Audit() *audit.Table { return p.audit }

// ApproximateAudit is the same for the prompts that were looked up in the approximate index instead.
func (p *Producer) ApproximateAudit() *audit.Table { return p.fallback.Audit() }

// NeedsTokens says that the plugin's knowledge is of use for prompts only whose tokens are known exactly.
func (p *Producer) NeedsTokens() {}

// TierWeights are the weights of the tiers by name; configured reports whether any is not the default.
func (p *Producer) TierWeights() (weights map[string]float64, configured bool) {
	return p.params.Tiers, !maps.Equal(p.params.Tiers, defaultTiers) || p.params.OtherTier != defaultOtherTier
}

// Warm waits until the engines' caches are known from what they have published, or it is clear that some will not tell;
// at most until ctx is over. It returns the number of endpoints that are not known.
func (p *Producer) Warm(ctx context.Context) (late int) { return p.hub.readyIn(ctx) }

// Close ends the plugin's share in the index.
func (p *Producer) Close() error {
	p.types.producers.Remove(p)
	p.withdraw()
	err := p.fallback.Close()
	if e := p.hub.leave(); e != nil {
		return e
	}
	return err
}
