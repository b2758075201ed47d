package engine

import (
	"net/http"
	"time"
)

// Served describes a request that the model worked for. Times are wall times; those of a request with several sequences are
// its first one's.
type Served struct {
	// Header are the request's headers.
	Header http.Header
	// Path is its path.
	Path string
	// Model is the model or adapter that answered.
	Model string
	// Begun is when it was received, Total the time until its answer was over.
	Begun time.Time
	Total time.Duration
	// Queue is the time until the model began with the prompt, FirstToken that until its first token, Decode that from there
	// to the last one; negative where it did not come so far.
	Queue, FirstToken, Decode time.Duration
	// MaxTokens is the limit of each sequence's output in tokens, 0 for none; Samples the sequences of each prompt.
	MaxTokens, Samples int
	// PromptTokens, CachedTokens and CompletionTokens are what its usage says.
	PromptTokens, CachedTokens, CompletionTokens int
}

// served tells of a request once it is over.
func (c *call) served() {
	told, g := c.life.server.cfg.Served, c.generation
	if told == nil || g == nil {
		return
	}
	n, p, wall := g.counts(c.task.samples), g.at(0), c.life.loop.toWall
	s := Served{
		Header: c.req.Header, Path: c.req.URL.Path, Model: c.task.model, Begun: c.begun, Total: time.Since(c.begun),
		Queue: -1, FirstToken: -1, Decode: -1, MaxTokens: max(0, c.task.maxTokens), Samples: c.task.samples,
		PromptTokens: n.prompt, CachedTokens: n.cached, CompletionTokens: n.output,
	}
	if p.FirstToken > 0 {
		s.Queue, s.FirstToken = wall(p.Scheduled-p.Submitted), wall(p.FirstToken-p.Submitted)
	}
	if p.Finished > 0 {
		s.Decode = wall(p.Finished - p.FirstToken)
	}
	told(s)
}
