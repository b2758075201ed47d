package approx

import (
	"math"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// prompt is one request's hashes and the look-up's scratch memory. It is made in Produce, goes with the flight from
// Committed on, and returns to the plugin's pool at the first token: by then nobody can be told of another endpoint.
type prompt struct {
	index  *index // for which the hashes were made
	hashes []uint64
	// blockTokens is the size of a block in tokens: exact, or by the learnt ratio.
	blockTokens int
	// capped says that the prompt has more whole blocks than the layout reaches.
	capped bool
	// lookedUp says that the column has what the index knew of the prompt.
	lookedUp bool
	words    []uint64
}

// hash fills the prompt in from a request.
func (p *prompt) hash(x *index, seed blockhash.Seed, r *scheduling.Request, known scheduling.TokenizedPrompt) {
	l := x.layout
	p.index, p.hashes = x, p.hashes[:0]
	if len(known.Tokens) > 0 {
		root := blockhash.NewRoot(seed, blockhash.Tokens, r.Model, r.CacheSalt)
		p.hashes = blockhash.AppendTokens(p.hashes, root, known.Tokens, l)
		p.blockTokens = l.BlockTokens()
		p.capped = l.Full(len(p.hashes)) && len(known.Tokens) >= (l.Blocks(len(p.hashes))+1)*l.BlockTokens()
		return
	}
	root := blockhash.NewRoot(seed, blockhash.KindOf(r.Operation), r.Model, r.CacheSalt)
	p.hashes = blockhash.AppendText(p.hashes, root, r.Body, r.Prompt, l)
	p.blockTokens = textBlockTokens(l.BlockBytes(), known.BytesPerToken)
	p.capped = l.Full(len(p.hashes)) && textLength(r.Prompt) >= (l.Blocks(len(p.hashes))+1)*l.BlockBytes()
}

// textBlockTokens is how many tokens a block of text is worth: its bytes over the bytes per token, rounded, at least 1.
func textBlockTokens(blockBytes int, bytesPerToken float64) int {
	if !(bytesPerToken > 0) { // false for NaN too
		bytesPerToken = blockhash.BytesPerToken
	}
	return max(1, int(math.Round(float64(blockBytes)/bytesPerToken)))
}

func textLength(spans []scheduling.Span) int {
	n := 0
	for _, s := range spans {
		n += s.End - s.Start
	}
	return n
}

// info is what an endpoint that holds the first runs of the prompt is said to hold.
func (p *prompt) info(runs int) scheduling.PrefixCacheMatchInfo {
	l := p.index.layout
	return scheduling.NewPrefixCacheMatchInfo(l.Blocks(runs), l.Blocks(len(p.hashes)), p.blockTokens)
}

// scratch returns two empty bit sets of n words.
func (p *prompt) scratch(n int) (a, b []uint64) {
	if cap(p.words) < 2*n {
		p.words = make([]uint64, 2*n)
	}
	p.words = p.words[:2*n]
	clear(p.words)
	return p.words[:n], p.words[n:]
}
