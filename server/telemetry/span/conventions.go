package span

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// The names of OpenTelemetry's semantic conventions, version 1.41.0. It is the last one that has gen_ai.*: these moved to
// conventions of their own afterwards, whose state is Development, so that they may change. Nothing else in this module
// spells them.
const (
	GenAIOperation     = semconv.GenAIOperationNameKey
	GenAIProvider      = semconv.GenAIProviderNameKey
	GenAIRequestModel  = semconv.GenAIRequestModelKey
	GenAIMaxTokens     = semconv.GenAIRequestMaxTokensKey
	GenAIChoices       = semconv.GenAIRequestChoiceCountKey
	GenAIStream        = semconv.GenAIRequestStreamKey
	GenAIFirstChunk    = semconv.GenAIResponseTimeToFirstChunkKey
	GenAIInputTokens   = semconv.GenAIUsageInputTokensKey
	GenAIOutputTokens  = semconv.GenAIUsageOutputTokensKey
	GenAICachedTokens  = semconv.GenAIUsageCacheReadInputTokensKey
	GenAIResponseModel = semconv.GenAIResponseModelKey

	ServerAddress  = semconv.ServerAddressKey
	ServerPort     = semconv.ServerPortKey
	ResponseStatus = semconv.HTTPResponseStatusCodeKey
	ErrorType      = semconv.ErrorTypeKey
	ServiceName    = semconv.ServiceNameKey
)

// The values of GenAIOperation.
const (
	OperationChat       = "chat"
	OperationText       = "text_completion"
	OperationEmbeddings = "embeddings"
)

// What vLLM puts into the span of a request beside the conventions: names of its own in their namespace.
const (
	VLLMRequestID     = attribute.Key("gen_ai.request.id")
	VLLMChoices       = attribute.Key("gen_ai.request.n")
	VLLMInputTokens   = attribute.Key("gen_ai.usage.prompt_tokens")
	VLLMOutputTokens  = attribute.Key("gen_ai.usage.completion_tokens")
	VLLMTimeInQueue   = attribute.Key("gen_ai.latency.time_in_queue")
	VLLMTimeToFirst   = attribute.Key("gen_ai.latency.time_to_first_token")
	VLLMTimeInPrefill = attribute.Key("gen_ai.latency.time_in_model_prefill")
	VLLMTimeInDecode  = attribute.Key("gen_ai.latency.time_in_model_decode")
	VLLMEndToEnd      = attribute.Key("gen_ai.latency.e2e")
)
