// Package openai reads the bodies of the inference APIs: what a request asks for (chat completions, completions,
// responses and embeddings as OpenAI defines them, messages as Anthropic does), and what a response says of its token
// usage and its first token.
//
// A request is read in one pass over its raw bytes; a response is read as it flows by, in pieces cut anywhere. Neither
// is copied, collected or changed; of a response, only the prompt's token ids are collected, where that is asked for.
// Both readers are lenient by intent: the engine is the judge of a request, so a body that is only unusual is read as far
// as it goes, and the contents of strings are not validated at all.
package openai
