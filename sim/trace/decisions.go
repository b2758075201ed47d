package trace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Decision is what a decision log tells of a request.
type Decision struct {
	// UnixNano is when an endpoint was picked, in nanoseconds since the Unix epoch.
	UnixNano int64
	// PromptTokens and OutputTokens are the lengths of the prompt and the answer, in tokens; 0 where they are not known.
	PromptTokens, OutputTokens int
	// PromptBytes is the length of the prompt's text; 0 where it came as token ids.
	PromptBytes int
	// Session names the session; 0 where there is none.
	Session uint64
	// Hashes are those of the prompt's leading whole blocks, each of its block and all before it, of BlockTokens tokens or, where
	// Text says so, of four times as many bytes. Seed says what they were made under: those of two seeds do not compare.
	Hashes      []uint64
	BlockTokens int
	Text        bool
	Seed        string
	// Cut says that the prompt has more whole blocks than hashes.
	Cut bool
}

// bytesPerToken is how many bytes of text make a block of one token.
const bytesPerToken = 4

// Decisions makes a trace of the decisions of a log. The log has them in the order in which their requests ended.
type Decisions struct {
	name string
	all  []Decision
	// NoPrompt counts decisions without a known length of the prompt, which the trace leaves out; NoOutput those without a known
	// length of the answer, which the trace takes to be as long as the mean of the others.
	NoPrompt, NoOutput int
	// NoHashes counts requests of which the log does not tell what their prompts begin with, Cut those of which it tells a part.
	NoHashes, Cut int
	// Seeds counts the requests by the seeds of their hashes.
	Seeds map[string]int

	blocks map[int]int // requests by the size of their blocks
}

// NewDecisions returns an empty one. name is what the trace will be called.
func NewDecisions(name string) *Decisions {
	return &Decisions{name: name, Seeds: map[string]int{}, blocks: map[int]int{}}
}

// maxSeeds bounds how many seeds, and sizes of blocks, are told apart.
const maxSeeds = 4096

// Add adds a decision; the hashes are kept. The error says that there are too many.
func (d *Decisions) Add(one Decision) error {
	switch {
	case one.PromptTokens < 1 || one.PromptTokens > MaxPromptTokens:
		d.NoPrompt++
		return nil
	case len(d.all) >= MaxRequests:
		return fmt.Errorf("%s: more than %d requests", d.name, MaxRequests)
	}
	if one.OutputTokens < 1 || one.OutputTokens > MaxPromptTokens {
		one.OutputTokens = 0
		d.NoOutput++
	}
	if len(one.Hashes) == 0 || one.BlockTokens < 1 || one.BlockTokens > MaxPromptTokens {
		one.Hashes, one.BlockTokens = nil, 0
	} else if len(d.Seeds) < maxSeeds && len(d.blocks) < maxSeeds {
		d.Seeds[one.Seed]++
		d.blocks[one.BlockTokens]++
	}
	if one.Hashes == nil {
		d.NoHashes++
	} else if one.Cut {
		d.Cut++
	}
	d.all = append(d.all, one)
	return nil
}

// Known reports whether the log tells of any prompt what it begins with.
func (d *Decisions) Known() bool { return d.NoHashes < len(d.all) }

// Trace is the trace of what was added. Its blocks have the size that most requests' hashes have; those of another size count as
// requests without hashes. Without any the prompts of the trace have nothing in common.
func (d *Decisions) Trace() (*Trace, error) {
	if len(d.all) == 0 {
		return nil, errors.New(d.name + ": has no decision whose prompt's length is known")
	}
	t := &Trace{Name: d.name, BlockTokens: d.blockTokens(), Requests: make([]Request, 0, len(d.all))}
	slices.SortStableFunc(d.all, func(a, b Decision) int { return cmp.Compare(a.UnixNano, b.UnixNano) })
	output, err := d.meanOutput()
	if err != nil {
		return nil, err
	}
	first := d.all[0].UnixNano
	ratio := d.textPerToken()
	for i := range d.all {
		one := &d.all[i]
		if one.BlockTokens != t.BlockTokens && one.Hashes != nil {
			one.Hashes = nil
			d.NoHashes++
		}
		r := Request{
			At: time.Duration(one.UnixNano - first), PromptTokens: one.PromptTokens, OutputTokens: one.OutputTokens, Session: one.Session,
			Blocks: one.names(t.BlockTokens, i, ratio),
		}
		if r.OutputTokens == 0 {
			r.OutputTokens = output
		}
		t.Requests = append(t.Requests, r)
	}
	return t.valid()
}

// blockTokens is the size of block that most requests have, of equals the smallest.
func (d *Decisions) blockTokens() int {
	best := 0
	for size, n := range d.blocks {
		if best == 0 || n > d.blocks[best] || n == d.blocks[best] && size < best {
			best = size
		}
	}
	if best == 0 {
		return mooncakeBlock
	}
	return best
}

// meanOutput is the mean length of the answers whose length is known, at least 1.
func (d *Decisions) meanOutput() (int, error) {
	sum, n := 0, 0
	for i := range d.all {
		if out := d.all[i].OutputTokens; out > 0 {
			sum, n = sum+out, n+1
		}
	}
	if n == 0 {
		return 0, errors.New(d.name + ": has no answer whose length is known: engines tell it in the usage, which streamed answers have with " +
			"stream_options: {include_usage: true}")
	}
	return max(1, (sum+n/2)/n), nil
}

// textPerToken is how many bytes of text a token of the prompts of text stands for, over all of them: one ratio, so that blocks
// of tokens lie alike in prompts that begin alike.
func (d *Decisions) textPerToken() float64 {
	text, tokens := 0, 0
	for i := range d.all {
		if one := &d.all[i]; one.Text && one.Hashes != nil && one.PromptBytes > 0 {
			text, tokens = text+one.PromptBytes, tokens+one.PromptTokens
		}
	}
	if tokens == 0 {
		return bytesPerToken
	}
	return float64(text) / float64(tokens)
}

// names are the names of a prompt's blocks. What the log does not tell, as the last part of a block, is like nothing else.
func (d *Decision) names(blockTokens, row int, ratio float64) []uint64 {
	names := make([]uint64, (d.PromptTokens+blockTokens-1)/blockTokens)
	whole := d.PromptTokens / blockTokens
	for i := range names {
		hash := i
		if d.Text { // the block of text that the block of tokens ends in
			hash = int(float64(i+1)*ratio/bytesPerToken+1-1e-9) - 1
		}
		switch {
		case i >= whole || hash < 0 || hash >= len(d.Hashes):
			names[i] = mixed(mixed(uint64(row)+1<<40) + uint64(i))
		case d.Text: // several blocks of tokens may end in one of text
			names[i] = mixed(d.Hashes[hash] + mixed(uint64(i)))
		default:
			names[i] = d.Hashes[hash]
		}
	}
	return names
}
