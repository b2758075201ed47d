package approx

import (
	"math"
	"slices"

	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/scheduling"
)

// maxPromised is how many of a request's ordered picks a prediction is kept for.
const maxPromised = 4

// promise is what the index predicted of a request at its pick. It holds no memory.
type promise struct {
	made bool
	// exact says that the prompt was looked up by its tokens, not by its text.
	exact bool
	// blocks are the cached blocks predicted for each of the first picks, wide those of the run behind them.
	blocks, wide [maxPromised]int32
	// block is the size of a block in tokens: exact, or by the learnt ratio. seen are the blocks that were looked at where
	// the prompt has more, else 0. tokens are those of the prompt as it was known then.
	block, seen, tokens int32
}

// promise keeps what the index says of the picks. A request for several prompts or completions is left out: an engine
// counts them together, and one finds in the cache what another has computed.
func (p *Producer) promise(c *scheduling.Cycle, f *scheduling.Flight, state *learnt) {
	state.promise = promise{}
	pr := state.prompt
	known, _ := p.tokens.In(c).Get()
	exact := len(known.Tokens) > 0
	if !pr.lookedUp || c.Request.Choices > 1 || known.Count <= 0 || (exact && known.Count != len(known.Tokens)) {
		return
	}
	m := &state.promise
	m.made, m.exact, m.block, m.tokens = true, exact, int32(pr.blockTokens), int32(min(known.Count, math.MaxInt32))
	l := pr.index.layout
	if pr.capped {
		m.seen = int32(l.Blocks(len(pr.hashes)))
	}
	for i, e := range f.Picks[:min(len(f.Picks), maxPromised)] {
		info, _ := p.info.In(c).Get(e.Ordinal)
		m.blocks[i] = int32(info.CachedBlockCount)
		m.wide[i] = int32(l.WidthAfter(info.CachedBlockCount))
	}
}

// compare audits an answer against what was predicted for the endpoint that gave it. One that was not among the picks is
// left out: what the index knew of it then is not known any more.
func (p *Producer) compare(f *scheduling.Flight, m *promise) {
	o := &f.Outcome
	if !m.made || o.Reason != scheduling.EndComplete || failed(*o) || o.Usage.CachedTokens < 0 {
		return
	}
	pick := slices.IndexFunc(f.Picks[:min(len(f.Picks), maxPromised)], func(e *scheduling.Endpoint) bool {
		return e.Ordinal == f.Endpoint.Ordinal && e.Generation == f.Endpoint.Generation
	})
	if pick < 0 {
		return
	}
	engine := 0
	if p.config != nil {
		engine, _, _ = p.config.CacheConfig(f.Endpoint.Ordinal, f.Endpoint.Generation)
	}
	p.audit.Note(f.Endpoint, m.answer(pick, o.Usage, engine))
}

// answer is what is to be audited of an answer. engine is the engine's block size in tokens, 0 where it is not known.
//
// Of a prompt that was looked up by its text, what the index knows is a share of the text; the answer tells of how many
// tokens. They are not spread evenly over it, so a prediction is taken to be good to an eighth.
func (m *promise) answer(pick int, usage scheduling.Usage, engine int) audit.Answer {
	block, tokens, scale := float64(m.block), int(m.tokens), 1.0
	if !m.exact && usage.PromptTokens > 0 {
		scale = float64(usage.PromptTokens) / float64(m.tokens)
		tokens = usage.PromptTokens
	}
	block *= scale
	a := audit.Answer{
		Predicted: int(float64(m.blocks[pick]) * block), Reported: usage.CachedTokens,
		Block: max(engine, int(math.Ceil(block*float64(m.wide[pick])))),
	}
	if !m.exact {
		a.Block = max(a.Block, a.Predicted/8)
	}
	if fits := max(engine, int(m.block)); a.Predicted >= tokens { // the last token is computed whatever is cached
		a.Predicted = max(0, tokens-1) / fits * fits
	}
	if m.seen > 0 { // what lies beyond was not looked up
		a.Reported = min(a.Reported, int(float64(m.seen)*block))
	}
	return a
}

// Audit is what engines reported against what the index predicted, for requests of one prompt and one completion. The table
// outlives reloads.
func (p *Producer) Audit() *audit.Table { return p.audit }
