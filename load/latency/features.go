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
	metrics  *scheduling.EngineMetrics
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
	ttftTerms
)

// firstOfWait and those after it are what the endpoint is busy with; those before are the request's own.
const firstOfWait = ttftAhead

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

// What trees look at, beside what the linear model says.
const (
	seesLinear   = iota // log of the linear model's TTFT
	seesWait            // the part of it that is the endpoint's
	seesTokens          // log of the prompt's tokens
	seesUncached        // log of the uncached ones
	seesAhead           // log of those ahead
	seesQueue           // requests before their first token
	seesDecoding        // requests after it
	seesContext         // log of the prompts' tokens of those that decode
	seesHeld            // log of those of all in flight
	seesOverdue         // log of ttftOverdue
	seesStepLeft        // ms
	seesWaiting         // requests that wait, by the engine's metrics; -1: unknown
	seesRunning         // requests that run, by the same
	seesKVUsage         // share of the KV cache that is used, by the same
	seesAge             // log of the age of the metrics, in ms
	seesScore           // prefix_cache_score
	seesTPOT            // the TPOT that is predicted, in ms
	sights
)

// sight is what trees look at.
type sight [sights]float32

// fillTTFT computes the terms of a request's TTFT on an endpoint.
func (w *work) fillTTFT(x *terms, now time.Duration, in *input, msPerToken float64) {
	ahead, pairs, overdue := w.ahead(now, msPerToken)
	decoding := float64(w.decoding)
	steps := math.Ceil((ahead + in.uncached) / max(1, stepTokens-decoding))
	x[ttftBase] = 1
	x[ttftOwn], x[ttftOwnPairs] = in.uncached, pairsOf(in.tokens, in.uncached)
	x[ttftAhead], x[ttftAheadPairs] = ahead, pairs
	x[ttftSteps], x[ttftStepSeqs], x[ttftStepContext] = max(0, steps-1), steps*decoding, steps*w.context
	x[ttftStepLeft], x[ttftOverdue] = 0, overdue
	if len(w.queue) == 0 && w.decoding > 0 {
		x[ttftStepLeft] = w.steps.left(now)
	}
}

// fillTPOT computes the terms of its TPOT.
func (w *work) fillTPOT(x *terms, now time.Duration, in *input) {
	x[tpotBase] = 1
	x[tpotSeqs] = float64(w.decoding + len(w.queue) + 1)
	x[tpotContext] = w.context + in.tokens
	x[tpotAhead] = w.tokens + in.uncached
	x[tpotPrefill] = w.flow.now(now)
}

// fillSight gathers what trees look at.
func (w *work) fillSight(z *sight, in *input, x *terms, linear, wait, tpot float64) {
	z[seesLinear] = float32(math.Log(linear))
	z[seesWait] = float32(wait / linear)
	z[seesTokens], z[seesUncached] = logOf(in.tokens), logOf(in.uncached)
	z[seesAhead] = logOf(x[ttftAhead])
	z[seesQueue], z[seesDecoding] = float32(len(w.queue)), float32(w.decoding)
	z[seesContext], z[seesHeld] = logOf(w.context), logOf(w.context+w.held)
	z[seesOverdue], z[seesStepLeft] = logOf(x[ttftOverdue]), float32(x[ttftStepLeft])
	z[seesScore], z[seesTPOT] = float32(in.score), float32(tpot)
	z[seesWaiting], z[seesRunning], z[seesKVUsage], z[seesAge] = -1, -1, -1, -1
	if m := in.metrics; m != nil {
		z[seesAge] = logOf(m.AgeMs)
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
}

func logOf(v float64) float32 { return float32(math.Log1p(max(0, v))) }
