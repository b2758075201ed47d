package decisionlog

import (
	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// sessionHeader names the session that a request belongs to, where the client says it.
const sessionHeader = "x-session-id"

// Hashing says which hashes of prompts rows hold.
type Hashing struct {
	// Most is how many block hashes a row holds at most; 0 means none, and no session.
	Most int
	// BlockTokens is the size of a block in tokens, or in four times as many bytes of text.
	BlockTokens int
	// Seed is the secret under which they are made.
	Seed blockhash.Seed
}

// prompt is what a row holds of a prompt: hashes that tell what begins alike, and nothing of what it says.
type prompt struct {
	hashes    []uint64
	text, cut bool
	session   uint64
}

// hash reads a request's prompt, which is there at the pick only. It allocates only where p has had no such prompt yet.
func (h *Hashing) hash(p *prompt, c *scheduling.Cycle) {
	p.hashes, p.text, p.cut, p.session = p.hashes[:0], false, false, 0
	if h.Most == 0 {
		return
	}
	r := c.Request
	layout := blockhash.NewLayout(h.BlockTokens, h.Most, h.Most*h.BlockTokens)
	if tokens, all := tokensOf(c); len(tokens) > 0 {
		p.hashes = blockhash.AppendTokens(p.hashes, blockhash.NewRoot(h.Seed, blockhash.Tokens, r.Model, r.CacheSalt), tokens, layout)
		p.cut = !all || len(tokens)/h.BlockTokens > h.Most
	} else if len(r.Prompt) > 0 {
		p.text = true
		p.hashes = blockhash.AppendText(p.hashes, blockhash.NewRoot(h.Seed, blockhash.KindOf(r.Operation), r.Model, r.CacheSalt), r.Body, r.Prompt, layout)
		length := 0
		for _, s := range r.Prompt {
			length += max(0, s.End-s.Start)
		}
		p.cut = length/layout.BlockBytes() > h.Most
	}
	if id, ok := r.Header(sessionHeader); ok && len(id) > 0 {
		p.session = blockhash.KeyOf(h.Seed, 's', id)
	}
}

// tokensOf is the first prompt as token ids, as far as they are known exactly and tell what it is: up to the first image, which
// placeholders stand for.
func tokensOf(c *scheduling.Cycle) (tokens []uint32, all bool) {
	if len(c.Request.Tokens) > 0 {
		return c.Request.Tokens, true
	}
	prompt, ok := scheduling.ValueOf[scheduling.TokenizedPrompt](c).Get()
	if !ok || !prompt.Exact {
		return nil, false
	}
	if len(prompt.Features) > 0 {
		return prompt.Tokens[:min(max(0, prompt.Features[0].Offset), len(prompt.Tokens))], false
	}
	return prompt.Tokens, true
}

// add adds to a record what a row holds of the prompt.
func (h *Hashing) add(p *prompt, r *decisionv1.Request) {
	if h.Most == 0 || r == nil {
		return
	}
	r.BlockHashes = append(r.BlockHashes, p.hashes...)
	r.HashBlockTokens, r.HashSeed = uint32(h.BlockTokens), h.Seed.ID()
	r.HashesText, r.HashesCut, r.Session = p.text, p.cut, p.session
}
