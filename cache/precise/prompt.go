package precise

import (
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/scheduling"
)

// maxSizes is the number of block sizes that a prompt is looked up in: a pool has one, two with an offload tier of larger
// blocks, and for a while more when its engines change.
const maxSizes = 8

// prompt is one request's hashes and what was found for them. It is made in Produce, goes with the flight, and returns to
// the producer's pool at the flight's end.
type prompt struct {
	tokens int
	seen   int // tokens that were looked up
	cuts   []cut
	reuses uint64 // the hub's when it was looked up

	// What the flight needs of the pick.
	endpoint  *scheduling.Endpoint
	on        *source
	cut       int    // in cuts: the one that counts for on
	cached    int    // blocks that on was believed to have
	predicted int    // tokens that the engine should report as cached; -1 where it was not said
	block     int    // tokens of the blocks that predicted counts
	several   bool   // prompts, or completions
	moved     bool   // another endpoint serves than was picked
	tick      uint32 // of on
	full      bool   // the engine announces again what it reuses
	reported  int    // blocks noted in on.reports
	routed    share  // what counts for on because of the pick
}

// cut is a prompt in blocks of one size.
type cut struct {
	size   int
	hashes []uint64
	lookup chain.Lookup
}

// hash cuts a prompt at each of some sizes, those that are 0 left out.
func (p *prompt) hash(k *keys, sizes []int, adapter uint64, salt string, known scheduling.TokenizedPrompt, maxTokens int) {
	tokens := known.Tokens[:min(len(known.Tokens), maxTokens)]
	p.tokens, p.seen = len(known.Tokens), len(tokens)
	sizes = sizes[:min(len(sizes), maxSizes)]
	for len(p.cuts) < len(sizes) {
		p.cuts = append(p.cuts, cut{})
	}
	for i := range p.cuts {
		c := &p.cuts[i]
		c.size, c.hashes = 0, c.hashes[:0]
		if i >= len(sizes) || sizes[i] <= 0 {
			continue
		}
		c.size = sizes[i]
		c.hashes = k.appendPrompt(c.hashes, c.size, adapter, salt, tokens, known.Features)
	}
}

// cutOf is the index of a size in cuts, -1 where the prompt was not cut so.
func (p *prompt) cutOf(size int) int {
	for i := range p.cuts {
		if p.cuts[i].size == size && size > 0 {
			return i
		}
	}
	return -1
}

// found is what one source was found to hold.
type found struct {
	info   scheduling.PrefixCacheMatchInfo
	weight int // thousandths of blocks
	cut    int
}

// of is what a source holds, in blocks of its own size, fallback where that is not known. Where it has a tier whose
// blocks have another size, that one counts as far as it reaches beyond.
func (p *prompt) of(s *source, fallback int) (f found, ok bool) {
	if s.leaving.Load() { // its index may be another's already
		return found{}, false
	}
	size := int(s.primary.Load())
	if size == 0 {
		size = fallback
	}
	f.cut = p.cutOf(size)
	if f.cut < 0 {
		return found{}, false
	}
	m, total := p.match(f.cut, s), len(p.cuts[f.cut].hashes)
	blocks, weight := int(m.Blocks), int(m.Weight)
	if i := p.cutOf(int(s.other.Load())); i >= 0 && i != f.cut {
		o := p.match(i, s)
		if more := (int(o.Blocks)*p.cuts[i].size - blocks*size) / size; more > 0 {
			blocks += more
			weight += more * int(o.Weight) / int(o.Blocks)
		}
	}
	blocks = min(blocks, total)
	f.weight = weight
	f.info = scheduling.PrefixCacheMatchInfo{
		MatchBlocks: weight / 1000, CachedBlockCount: blocks, TotalBlocks: total, BlockSizeTokens: size,
	}
	return f, true
}

func (p *prompt) match(cut int, s *source) chain.Match {
	if matches := p.cuts[cut].lookup.Matches; int(s.index) < len(matches) {
		return matches[s.index]
	}
	return chain.Match{}
}

// findNothing takes back what was found.
func (p *prompt) findNothing() {
	for i := range p.cuts {
		clear(p.cuts[i].lookup.Matches)
	}
}

// reset makes the prompt ready for the pool.
func (p *prompt) reset() {
	*p = prompt{cuts: p.cuts}
}
