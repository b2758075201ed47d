// Package span names the spans of a request's trace and their attributes, and says what each means.
package span

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// The spans of Sluice. Request is the server span, the others are its children, in the order of their beginnings.
const (
	Request    = "request"
	Receive    = "receive"
	Tokenize   = "tokenize"
	Lookup     = "index look-up"
	Produce    = "produce"
	Wait       = "wait"
	Fill       = "fill"
	Filter     = "filter"
	Score      = "score"
	Pick       = "pick"
	FirstToken = "first token"
	End        = "end"
)

// Engine is the span of an engine, which vLLM and the simulated engine make.
const Engine = "llm_request"

// Sluice's own attributes.
const (
	RequestID       = attribute.Key("sluice.request.id")
	ClientRequestID = attribute.Key("sluice.request.client_id")
	ConfigHash      = attribute.Key("sluice.config.hash")
	Profile         = attribute.Key("sluice.profile")
	PromptTokens    = attribute.Key("sluice.prompt.tokens")
	PromptExact     = attribute.Key("sluice.prompt.exact")
	Candidates      = attribute.Key("sluice.candidates")
	CandidatesLeft  = attribute.Key("sluice.candidates.left")
	Gate            = attribute.Key("sluice.gate")
	GateFilter      = attribute.Key("sluice.gate.filter")
	GateGapMs       = attribute.Key("sluice.gate.gap_ms")
	GateBarMs       = attribute.Key("sluice.gate.bar_ms")
	GateGapTokens   = attribute.Key("sluice.gate.gap_tokens")
	GateBarTokens   = attribute.Key("sluice.gate.bar_tokens")
	MatchBlocks     = attribute.Key("sluice.match.blocks")
	MatchCached     = attribute.Key("sluice.match.cached_blocks")
	MatchTotal      = attribute.Key("sluice.match.total_blocks")
	MatchBlockSize  = attribute.Key("sluice.match.block_tokens")
	LoadRequests    = attribute.Key("sluice.load.requests")
	LoadTokens      = attribute.Key("sluice.load.tokens")
	Uncached        = attribute.Key("sluice.uncached_tokens")
	FirstTokenMs    = attribute.Key("sluice.predicted.ttft_ms")
	FirstTokenP90   = attribute.Key("sluice.predicted.ttft_p90_ms")
	ResponseMs      = attribute.Key("sluice.predicted.response_ms")
	PerTokenMs      = attribute.Key("sluice.predicted.tpot_ms")
	WaitMs          = attribute.Key("sluice.predicted.wait_ms")
	PrefillMs       = attribute.Key("sluice.predicted.prefill_ms")
	Residual        = attribute.Key("sluice.predicted.residual")
	Confidence      = attribute.Key("sluice.predicted.confidence")
	AskedFirst      = attribute.Key("sluice.slo.ttft_ms")
	AskedPerToken   = attribute.Key("sluice.slo.tpot_ms")
	SpareFirst      = attribute.Key("sluice.slo.ttft_headroom_ms")
	SparePerToken   = attribute.Key("sluice.slo.tpot_headroom_ms")
	SeenFirst       = attribute.Key("sluice.seen.ttft_ms")
	SeenPerToken    = attribute.Key("sluice.seen.tpot_ms")
	SeenResponse    = attribute.Key("sluice.seen.response_ms")
	Picks           = attribute.Key("sluice.picks")
	Total           = attribute.Key("sluice.total")
	Margin          = attribute.Key("sluice.margin")
	ScorePrefix     = attribute.Key("sluice.score.")
	EndReason       = attribute.Key("sluice.end.reason")
	ServedBy        = attribute.Key("sluice.served_by")
	Plugin          = attribute.Key("sluice.plugin")
)

// MaxText bounds the texts in spans, in bytes.
const MaxText = 256

// Text is a text from outside as spans take it: bounded, and in UTF-8, since one that is not costs the whole batch that it
// is exported in.
func Text(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), MaxText)], "\uFFFD")
}
