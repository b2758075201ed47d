package latency

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// input is what a decision knows of a request on one endpoint. It is gathered once, at the pick: what is predicted from is
// what is learnt from.
type input struct {
	tokens   float64 // of the prompt
	uncached float64 // of them, literally
	score    float64 // prefix_cache_score, which is weighted
	requests float64 // in flight, by the ledger
	inFlight float64 // their tokens
	limit    float64 // what the request lets an answer have at most, in tokens; 0: it does not say
	whole    bool    // it is the time to the end of the response that is asked for
	metrics  *scheduling.EngineMetrics
}

// inputs are where a cycle has them.
type inputs struct {
	tokens    float64
	limit     float64
	whole     bool
	match     *scheduling.Column[scheduling.PrefixCacheMatchInfo]
	load      *scheduling.Column[scheduling.InFlightLoad]
	uncached  *scheduling.Column[scheduling.UncachedRequestTokens]
	metrics   *scheduling.Column[scheduling.EngineMetrics]
	endpoints []*scheduling.Instance[endpoint]
	last      input
}

// inputs finds a cycle's. The caller holds mu.
func (p *Plugin) inputs(c *scheduling.Cycle) inputs {
	prompt, _ := p.prompt.In(c).Get()
	return inputs{
		tokens: float64(max(0, prompt.Count)), limit: float64(max(0, c.Request.MaxOutputTokens)), whole: !p.params.StreamingMode,
		match: p.match.In(c), load: p.load.In(c), uncached: p.uncached.In(c), metrics: p.metrics.In(c),
		endpoints: p.known.endpoints.All(),
	}
}

// of is an endpoint's input, valid until the next call.
func (a *inputs) of(ordinal int) *input {
	in := &a.last
	*in = input{tokens: a.tokens, uncached: a.tokens, limit: a.limit, whole: a.whole, metrics: a.metrics.At(ordinal)}
	if own := a.uncached.At(ordinal); own != nil {
		in.uncached = float64(max(0, *own))
		in.tokens = max(in.tokens, in.uncached)
	}
	if info := a.match.At(ordinal); info != nil {
		in.score = info.Score()
	}
	if load := a.load.At(ordinal); load != nil {
		in.requests, in.inFlight = float64(max(0, load.Requests)), float64(max(0, load.Tokens))
	}
	return in
}

// The terms of a TTFT. They are those of an engine's steps: a step takes a time of its own, and time for each token that it computes,
// for each pair of tokens that attend to each other, and for each request that decodes and its context.
const (
	ttftBase        = iota // 1
	ttftOwn                // uncached tokens of its own
	ttftOwnPairs           // their pairs
	ttftAhead              // uncached tokens ahead, less what is done
	ttftAheadPairs         // their pairs
	ttftSteps              // steps that take all those tokens
	ttftStepSeqs           // the same × requests that decode
	ttftStepContext        // the same × their context
	ttftStepLeft           // ms of the current step, where the endpoint only decodes
	ttftOverdue            // ms that the request at the head takes longer than it should
	ttftAnswer             // tokens of the answer, where the time to its end is asked for
	ttftAnswerSeqs         // the same × requests in flight
	ttftTerms
)

// stepTokens is what an engine computes in a step at most (vLLM's max_num_batched_tokens on large cards).
const stepTokens = 8192

// The shares of an engine's time in a cold step of stepTokens; see sim.DefaultParams. They make the prior out of a throughput.
const (
	shareTokens = 0.84
	sharePairs  = 0.137
	shareStep   = 0.023
)

// ttftPrior is what a TTFT is made of on an engine that prefills so many tokens per ms.
func ttftPrior(perMs float64) []term {
	token := 1 / perMs
	step := shareStep * stepTokens * token
	pair := sharePairs * token / (stepTokens / 2)
	return []term{
		ttftBase:        {prior: 8, ridge: 1},
		ttftOwn:         {prior: shareTokens * token, ridge: 4, least: 0.25},
		ttftOwnPairs:    {prior: pair, ridge: 2},
		ttftAhead:       {prior: shareTokens * token, ridge: 4, least: 0.25},
		ttftAheadPairs:  {prior: pair, ridge: 2},
		ttftSteps:       {prior: step, ridge: 2},
		ttftStepSeqs:    {prior: step / 240, ridge: 2},
		ttftStepContext: {prior: step / 250_000, ridge: 2},
		ttftStepLeft:    {prior: 1, ridge: 8, exact: true},
		ttftOverdue:     {prior: 0.5, ridge: 4, exact: true},
		ttftAnswer:      {prior: step, ridge: 2},
		ttftAnswerSeqs:  {prior: step / 240, ridge: 2},
	}
}

// The terms of a TPOT: the time of a step, and what of the endpoint's time goes to prompts.
const (
	tpotBase    = iota // 1
	tpotSeqs           // requests in flight, this one too
	tpotContext        // their prompts' tokens
	tpotAhead          // uncached tokens to compute, its own too
	tpotPrefill        // uncached tokens per ms that the endpoint was sent lately
	tpotTerms
)

func tpotPrior(perMs float64) []term {
	token := 1 / perMs
	step := shareStep * stepTokens * token
	return []term{
		tpotBase:    {prior: step, ridge: 1},
		tpotSeqs:    {prior: step / 240, ridge: 2},
		tpotContext: {prior: step / 250_000, ridge: 2},
		tpotAhead:   {prior: token / 500, ridge: 2},
		tpotPrefill: {prior: step * token, ridge: 2},
	}
}

// What trees look at, beside what the linear model says. They only compare, so that no value has to be scaled.
const (
	seesLinear   = iota // the linear model's TTFT, in ms
	seesWait            // the part of it that is the endpoint's
	seesTokens          // the prompt's tokens
	seesUncached        // the uncached ones
	seesAhead           // those ahead
	seesRequests        // requests in flight, by the ledger
	seesInFlight        // their tokens, by the same
	seesQueue           // requests before their first token
	seesDecoding        // requests after it
	seesContext         // tokens that those attend to
	seesHeld            // the same and the prompts of the others
	seesOverdue         // ttftOverdue
	seesStepLeft        // ttftStepLeft
	seesWaiting         // requests that wait, by the engine's metrics; -1: unknown
	seesRunning         // requests that run, by the same
	seesKVUsage         // share of the KV cache that is used, by the same
	seesAge             // age of the metrics, in ms
	seesScore           // prefix_cache_score
	seesTPOT            // the TPOT that is predicted, in ms
	seesLimit           // the tokens that an answer has at most, where the time to its end is asked for
	sights
)

// sight is what trees look at.
type sight [sights]float32

// fillTTFT computes the terms of a request's TTFT on an endpoint.
func (w *work) fillTTFT(x *terms, now time.Duration, in *input, msPerToken float64) {
	ahead, pairs, overdue := w.ahead(now, msPerToken)
	decoding := float64(w.decoding)
	steps := max(1, math.Ceil((ahead+in.uncached)/max(1, stepTokens-decoding)))
	x[ttftBase] = 1
	x[ttftOwn], x[ttftOwnPairs] = in.uncached, pairsOf(in.tokens, in.uncached)
	x[ttftAhead], x[ttftAheadPairs] = ahead, pairs
	x[ttftSteps], x[ttftStepSeqs], x[ttftStepContext] = steps-1, steps*decoding, steps*w.contextTokens()
	x[ttftStepLeft], x[ttftOverdue] = 0, overdue
	switch {
	case len(w.queue) > 0:
		x[ttftStepLeft] = max(0, ms(w.since-now))
	case w.decoding > 0:
		x[ttftStepLeft] = w.steps.left(now)
	}
	x[ttftAnswer], x[ttftAnswerSeqs] = 0, 0
	if in.whole {
		tokens := w.length.expected(in.limit)
		x[ttftAnswer], x[ttftAnswerSeqs] = tokens, tokens*(decoding+float64(len(w.queue)))
	}
}

// fillTPOT computes the terms of its TPOT.
func (w *work) fillTPOT(x *terms, now time.Duration, in *input) {
	x[tpotBase] = 1
	x[tpotSeqs] = float64(w.decoding + len(w.queue) + 1)
	x[tpotContext] = w.contextTokens() + in.tokens
	x[tpotAhead] = w.tokens + in.uncached
	x[tpotPrefill] = w.flow.now(now)
}

// fillSight gathers what trees look at.
func (w *work) fillSight(z *sight, in *input, x *terms, linear *scheduling.LatencyPrediction) {
	context := w.contextTokens()
	*z = sight{
		seesLinear: float32(linear.TTFTMs), seesWait: float32(linear.WaitMs / linear.TTFTMs),
		seesTokens: float32(in.tokens), seesUncached: float32(in.uncached), seesAhead: float32(x[ttftAhead]),
		seesRequests: float32(in.requests), seesInFlight: float32(in.inFlight),
		seesQueue: float32(len(w.queue)), seesDecoding: float32(w.decoding),
		seesContext: float32(context), seesHeld: float32(context + w.held),
		seesOverdue: float32(x[ttftOverdue]), seesStepLeft: float32(x[ttftStepLeft]),
		seesScore: float32(in.score), seesTPOT: float32(linear.TPOTMs),
		seesLimit:   float32(in.limit),
		seesWaiting: -1, seesRunning: -1, seesKVUsage: -1, seesAge: -1,
	}
	if !in.whole {
		z[seesLimit] = 0 // nobody knows it who is asked for a first token
	}
	m := in.metrics
	if m == nil {
		return
	}
	z[seesAge] = float32(m.AgeMs)
	if m.Has(scheduling.MetricsWaiting) {
		z[seesWaiting] = float32(m.Waiting)
	}
	if m.Has(scheduling.MetricsRunning) {
		z[seesRunning] = float32(m.Running)
	}
	if m.Has(scheduling.MetricsKVUsage) {
		z[seesKVUsage] = float32(m.KVUsage)
	}
}
