package span

// Meaning says what a span or an attribute tells.
type Meaning struct {
	// Name is the span's or the attribute's; PLUGIN in it stands for a plugin's name.
	Name string
	// On is the span that has the attribute; empty for a span.
	On string
	// Means is the meaning, a sentence without its full stop.
	Means string
}

// Spans are the spans of Sluice and what they cover.
func Spans() []Meaning {
	return []Meaning{
		{Name: Request, Means: "the whole stream of one HTTP request, from its headers to the end of its answer; a server span"},
		{Name: Receive, Means: "from the headers to a complete request: the client's upload, and reading it"},
		{Name: Tokenize, Means: "a producer that turns the prompt into tokens; an error says why it could not"},
		{Name: Lookup, Means: "a producer that looks the prompt up in a prefix index"},
		{Name: Produce, Means: "any other producer"},
		{Name: Wait, Means: "the wait for the lock that all picks of a pool share"},
		{Name: Fill, Means: "the ledger's columns, under that lock"},
		{Name: Filter, Means: "the filters, the load gate among them"},
		{Name: Score, Means: "the scorers"},
		{Name: Pick, Means: "the picker, and charging the pick"},
		{Name: FirstToken, Means: "from the pick to the first token: the way to the engine, its queue and its prefill; a client span. Without a streamed answer there is none"},
		{Name: End, Means: "from the first token, or from the pick where there was none, to the end of the request; a client span"},
	}
}

// Attributes are the attributes of these spans.
func Attributes() []Meaning {
	return []Meaning{
		{string(GenAIOperation), Request, "the API called: `chat` (chat completions, responses, messages), `text_completion` or `embeddings`"},
		{string(GenAIRequestModel), Request, "the model or adapter that the engine sees"},
		{string(GenAIProvider), Request, "what the picked endpoint runs, as its `engine` says; `vllm` where it does not"},
		{string(GenAIMaxTokens), Request, "the client's limit on generated tokens, where it set one"},
		{string(GenAIChoices), Request, "how many completions are asked for, where more than one"},
		{string(GenAIStream), Request, "whether a streamed answer is asked for"},
		{string(ServerAddress), Request, "the IP of the endpoint that was picked"},
		{string(ServerPort), Request, "its port"},
		{string(RequestID), Request, "the decision's id, by which `Explain` finds it"},
		{string(ClientRequestID), Request, "the `x-request-id` of the client or the proxy"},
		{string(ConfigHash), Request, "the hash of the configuration that decided"},
		{string(Profile), Request, "its scheduling profile"},
		{string(PromptTokens), Request, "the prompt's length in tokens"},
		{string(PromptExact), Request, "whether the engine will count the same, rather than about the same"},
		{string(Candidates), Request, "how many endpoints the decision began with"},
		{string(CandidatesLeft), Request, "how many the filters left"},
		{string(Gate), Request, "the verdict of the last load gate"},
		{string(GateFilter), Request, "the gate's name"},
		{string(GateGapMs), Request, "by how much the best sticky endpoint's TTFT exceeds the best other one's, in ms"},
		{string(GateBarMs), Request, "what that was held against; 0 where no bound applies"},
		{string(GateGapTokens), Request, "the same difference in tokens in flight"},
		{string(GateBarTokens), Request, "what that was held against"},
		{string(MatchBlocks), Request, "the prompt's blocks in the pick's prefix cache, weighted by tier"},
		{string(MatchCached), Request, "their literal number: what need not be computed"},
		{string(MatchTotal), Request, "the blocks that were looked up"},
		{string(MatchBlockSize), Request, "the size of a block in tokens"},
		{string(LoadRequests), Request, "requests in flight on the pick, this one left out"},
		{string(LoadTokens), Request, "tokens in flight on the pick, this request's left out"},
		{string(Uncached), Request, "the tokens of this request that the pick has to compute"},
		{string(FirstTokenMs), Request, "the predicted time to the first token on the pick, the median, in ms; this and the next ones where a producer predicts"},
		{string(FirstTokenP90), Request, "what nine of ten such requests are predicted to stay below, in ms"},
		{string(ResponseMs), Request, "the predicted time to the end of the answer instead, in ms, with `streamingMode: false`"},
		{string(PerTokenMs), Request, "the predicted time per output token, the median, in ms"},
		{string(WaitMs), Request, "of the first time: what the work ahead makes, in ms"},
		{string(PrefillMs), Request, "of the first time: what the prompt's own tokens make, in ms"},
		{string(Residual), Request, "the factor that comes on top of both"},
		{string(Confidence), Request, "how far the prediction is measured, 0 to 1"},
		{string(AskedFirst), Request, "the longest time to the first token that the request asks for, in ms"},
		{string(AskedPerToken), Request, "the longest time per output token that it asks for, in ms"},
		{string(SpareFirst), Request, "by how much the pick's 90th percentile stays below the first times `sloBufferFactor`, in ms; negative where it does not, absent where it is not predicted"},
		{string(SparePerToken), Request, "the same of the second"},
		{string(SeenFirst), Request, "what came of `sluice.predicted.ttft_ms`, in ms; this and the next ones of answers that the pick gave, with a 2xx and to their end"},
		{string(SeenPerToken), Request, "what came of `sluice.predicted.tpot_ms`, by the engine's count of tokens"},
		{string(SeenResponse), Request, "what came of `sluice.predicted.response_ms`"},
		{string(Picks), Request, "the ordered picks, where there are several"},
		{string(Total), Request, "the pick's weighted sum of scores"},
		{string(Margin), Request, "by how much that exceeds the runner-up's"},
		{string(ScorePrefix) + "PLUGIN", Request, "what the scorer PLUGIN gave the pick, 0 to 1, before its weight"},
		{string(ResponseStatus), Request, "the HTTP status: the engine's, or that of Sluice's own refusal"},
		{string(ErrorType), Request, "why Sluice refused, as `x-sluice-reason` has it, or why the request failed"},
		{string(EndReason), Request, "how the stream ended: complete, error, disconnect or estimated"},
		{string(ServedBy), Request, "the endpoint that served, where the proxy reports another one than the pick"},
		{string(GenAIFirstChunk), Request, "from the pick to the first token, in seconds"},
		{string(GenAIInputTokens), Request, "input tokens as the engine counted them"},
		{string(GenAICachedTokens), Request, "of these, out of the prefix cache"},
		{string(GenAIOutputTokens), Request, "generated tokens as the engine counted them"},
		{string(Plugin), "producers", "the plugin whose turn it was"},
	}
}
