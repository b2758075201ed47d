package engines

import (
	"bytes"
	"encoding/binary"
)

// BytesPerToken is how much of the messages' text a token stands for, and BlockTokens how many tokens a KV block has.
const (
	BytesPerToken = 4
	BlockTokens   = 16
)

// vocabulary is the number of different tokens.
const vocabulary = 128_000

// Tokens are the tokens of a chat body: one for every 4 bytes of its messages, so that bodies whose messages begin alike
// have tokens that begin alike. What is before and after the messages has none.
func Tokens(body []byte) []uint32 {
	_, text, found := bytes.Cut(body, []byte(`"messages":[`))
	if !found {
		text = body
	}
	if end := bytes.LastIndex(text, []byte(`"}]`)); found && end >= 0 {
		text = text[:end]
	}
	tokens := make([]uint32, 0, len(text)/BytesPerToken+1)
	for len(text) > 0 {
		var word [BytesPerToken]byte
		text = text[copy(word[:], text):]
		tokens = append(tokens, (binary.LittleEndian.Uint32(word[:])*2654435761)%vocabulary)
	}
	return tokens
}

// usageOf is what an answer says of a prompt: its tokens, and those that a vLLM which holds all of it reports as cached.
// It computes the last token again, so that is never one of them. Of a prompt that is longer than what an engine here
// holds nothing is reported, as without --enable-prompt-tokens-details.
func usageOf(body []byte) usage {
	n := len(Tokens(body))
	if n/BlockTokens > HeldBlocksOfAPrompt {
		return usage{prompt: n, cached: -1}
	}
	return usage{prompt: n, cached: (n - 1) / BlockTokens * BlockTokens}
}

// Usage is what the engines' answers say of a prompt; cached is -1 where they do not tell.
func Usage(body []byte) (prompt, cached int) {
	u := usageOf(body)
	return u.prompt, u.cached
}
