package openai

import "math"

// promptIDs collects the token ids of an answer's first prompt, as vLLM gives them where return_token_ids asked for
// them: prompt_token_ids of the answer or of a stream's first event in chat, and of each prompt's choice in completions.
// The first list that belongs to the first prompt is taken, whole or not at all.
type promptIDs struct {
	tokens []uint32
	phase  idsPhase
	bad    bool // the list has too many ids, or something else than ids

	id     uint64 // the one being read
	digits int    // of id
	ended  bool   // white space came behind id
	comma  bool   // the list goes on: it may not end here
}

type idsPhase uint8

const (
	idsUnasked idsPhase = iota
	idsWanted           // none were given yet
	idsReading          // in a list
	idsHeld             // a choice's list was read, and whether the choice is the first prompt's is not known
	idsGiven            // tokens are the prompt
	idsDropped          // the prompt was given, and can't be told
)

// ask makes ready for ids, which are kept in the memory of into as long as that suffices.
func (p *promptIDs) ask(into []uint32) { *p = promptIDs{tokens: into[:0], phase: idsWanted} }

// forget gives up a list that is not the first prompt's, or whose event broke off.
func (p *promptIDs) forget() {
	if p.phase == idsReading || p.phase == idsHeld {
		p.phase, p.bad, p.tokens = idsWanted, false, p.tokens[:0]
	}
}

// settle takes the list that was read as the first prompt's.
func (p *promptIDs) settle() {
	p.phase = idsGiven
	if p.bad {
		p.phase, p.tokens = idsDropped, p.tokens[:0]
	}
}

// openIDs begins a list of ids, unless it is of no interest.
func (d *document) openIDs() bool {
	if d.ids.phase != idsWanted || d.facts.counts.get(countIndex) > 0 {
		return false
	}
	p := &d.ids
	p.phase, p.id, p.digits, p.ended, p.comma = idsReading, 0, 0, false, false
	d.state = docIDs
	return true
}

// closeIDs acts on a list's end, or on what makes it bad. The answer has one prompt; a choice may say only behind its
// ids which it belongs to.
func (d *document) closeIDs() {
	d.ids.phase = idsHeld
	if d.levels[d.depth-1].node != nodeAskedChoice {
		d.settleIDs()
	}
}

func (d *document) settleIDs() {
	d.ids.settle()
	d.root = nodeRoot
}

// closeChoice acts on the end of a choice. The first prompt's is number 0, or has no number and comes first.
func (d *document) closeChoice() {
	if d.ids.phase == idsHeld {
		if d.facts.counts.get(countIndex) > 0 {
			d.ids.forget()
		} else {
			d.settleIDs()
		}
	}
	d.facts.counts[countIndex] = 0
}

// readIDs reads a list of ids. What no such list has makes it bad, and the rest of it is skipped.
func (d *document) readIDs(in []byte) []byte {
	p := &d.ids
	id, digits := p.id, p.digits
	for i, b := range in {
		switch {
		case b-'0' <= 9 && digits < maxIDDigits && !p.ended && (id > 0 || digits == 0):
			id = id*10 + uint64(b-'0')
			digits++
		case b == ',' && digits > 0 && p.add(id):
			id, digits, p.ended, p.comma = 0, 0, false, true
		case b == ']' && (digits == 0 && !p.comma || digits > 0 && p.add(id)):
			d.closeIDs()
			d.closed()
			return in[i+1:]
		case b == ' ' || b == '\n' || b == '\t' || b == '\r':
			p.ended = digits > 0
		default:
			p.bad = true
			d.closeIDs()
			d.state, d.skipped = docSkip, 1
			return in[i:]
		}
	}
	p.id, p.digits = id, digits
	return nil
}

// add takes an id, where it is one and there is room. A list that is too long gives its memory up at once.
func (p *promptIDs) add(id uint64) bool {
	if len(p.tokens) >= MaxTokens {
		p.tokens = nil
		return false
	}
	if id > math.MaxUint32 {
		return false
	}
	p.tokens = append(p.tokens, uint32(id))
	return true
}
