package openai

import "github.com/sluice-epp/sluice/scheduling"

// counter names a number of a usage object, and the one that tells choices apart.
type counter uint8

const (
	countNone       counter = iota
	countPrompt             // prompt_tokens
	countCompletion         // completion_tokens
	countInput              // input_tokens
	countOutput             // output_tokens
	countCached             // prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens
	countCacheRead          // cache_read_input_tokens
	countCacheWrite         // cache_creation_input_tokens
	countIndex              // index of the choice that is read, where the prompt's token ids are asked for
	counters
)

// counts holds what was given, plus one: 0 means not given.
type counts [counters]int

// maxCount bounds a count; larger numbers are no token counts.
const maxCount = 1 << 40

func (c *counts) set(which counter, n int) {
	if n > 0 || c[which] == 0 {
		c[which] = n + 1
	}
}

// get is -1 where nothing was given.
func (c *counts) get(which counter) int { return c[which] - 1 }

// first is the first of several counts that was given.
func (c *counts) first(which ...counter) int {
	for _, w := range which {
		if c[w] > 0 {
			return c.get(w)
		}
	}
	return -1
}

func (c *counts) usage() scheduling.Usage {
	u := scheduling.Usage{
		PromptTokens:     c.get(countPrompt),
		CompletionTokens: c.first(countCompletion, countOutput),
		CachedTokens:     c.first(countCached, countCacheRead),
	}
	if u.PromptTokens < 0 && c[countInput] > 0 {
		u.PromptTokens = c.get(countInput) + max(0, c.get(countCacheRead)) + max(0, c.get(countCacheWrite))
	}
	return u
}
