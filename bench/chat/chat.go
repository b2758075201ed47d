// Package chat makes what the benchmarks send: chat completion bodies of exact sizes that share prefixes in groups, and
// streamed answers.
package chat

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// MinSize is the smallest body in bytes.
const MinSize = 512

// Set says which bodies to make.
type Set struct {
	// Bodies is how many distinct bodies there are.
	Bodies int
	// Groups is how many prefixes they share: body i has that of group i % Groups.
	Groups int
	// Size is the size of each body in bytes.
	Size int
}

// The fields before and after the messages. What a client asks for is the same in every body.
const (
	head = `{"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"stream_options":{"include_usage":true},` +
		`"max_tokens":256,"temperature":0.7,"messages":[`
	tail = `]}`

	openSystem    = `{"role":"system","content":"`
	openUser      = `,{"role":"user","content":"`
	openAssistant = `,{"role":"assistant","content":"`
	closeMessage  = `"}`
)

// turnBytes is about how long a turn of the conversation is.
const turnBytes = 600

// Make returns the set's bodies; the same set is the same bytes every time. The first half of a body is its group's
// system prompt, the rest a conversation of its own that ends with a question.
func (s Set) Make() ([][]byte, error) {
	if s.Size < MinSize {
		return nil, fmt.Errorf("body size %d: must be at least %d bytes", s.Size, MinSize)
	}
	if s.Groups < 1 || s.Bodies < 1 {
		return nil, fmt.Errorf("%d bodies in %d groups: there must be at least one of each", s.Bodies, s.Groups)
	}
	prefixes := make([]string, s.Groups)
	for g := range prefixes {
		prefixes[g] = text(rand.New(rand.NewPCG(1, uint64(g))), s.Size/2-len(head)-len(openSystem))
	}
	bodies := make([][]byte, s.Bodies)
	for i := range bodies {
		bodies[i] = s.body(prefixes[i%s.Groups], rand.New(rand.NewPCG(2, uint64(i))))
	}
	return bodies, nil
}

func (s Set) body(prefix string, r *rand.Rand) []byte {
	var b strings.Builder
	b.Grow(s.Size)
	b.WriteString(head + openSystem + prefix + closeMessage)
	// Turns while the last question still has room for a turn's length.
	const frame = len(openUser) + len(closeMessage) + len(openAssistant) + len(closeMessage)
	for s.Size-b.Len() > frame+3*turnBytes {
		b.WriteString(openUser + text(r, turnBytes) + closeMessage)
		b.WriteString(openAssistant + text(r, turnBytes) + closeMessage)
	}
	b.WriteString(openUser)
	b.WriteString(text(r, s.Size-b.Len()-len(closeMessage)-len(tail)))
	b.WriteString(closeMessage + tail)
	return []byte(b.String())
}

// words is what texts are made of; some of them are escapes, as line breaks and quotes are in a body.
var words = strings.Fields(`the of and to a in is that for it as was with be by on not he his but at are this have from or
	had an they which one you were all her she there would their we him been has when who will no more if out so up said
	what its about than into them can only other time new some could these two may first then do any like my now over
	such our man me even most made after also did many off before must well back through years much where your way down
	\n \" \n\n \\ cache engine request latency throughput tokens attention prefill decode schedule Zürich 東京`)

// text is n bytes of escaped JSON text.
func text(r *rand.Rand, n int) string {
	var b strings.Builder
	b.Grow(n)
	for {
		w := words[r.IntN(len(words))]
		if b.Len()+len(w)+1 > n {
			break
		}
		b.WriteString(w)
		b.WriteByte(' ')
	}
	b.WriteString(strings.Repeat("x", n-b.Len()))
	return b.String()
}

// open begins every event of an answer.
const open = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"meta-llama/Llama-3.1-8B-Instruct",`

// Answer returns a streamed answer of n chunks, one event each but for the last, which holds the usage and the end mark.
// What was cached is not told.
func Answer(n, promptTokens int) [][]byte { return AnswerCached(n, promptTokens, -1) }

// AnswerCached is Answer of an engine that tells how many of the prompt's tokens it had cached; -1 is one that does not.
func AnswerCached(n, promptTokens, cachedTokens int) [][]byte {
	chunks := make([][]byte, 0, n)
	for i := range n - 1 {
		delta := `{"content":" token"}`
		if i == 0 {
			delta = `{"role":"assistant","content":"A"}`
		}
		chunks = append(chunks, []byte(open+`"choices":[{"index":0,"delta":`+delta+`,"finish_reason":null}]}`+"\n\n"))
	}
	return append(chunks, Last(n, promptTokens, cachedTokens))
}

// Last is the last chunk of AnswerCached.
func Last(n, promptTokens, cachedTokens int) []byte {
	details := ""
	if cachedTokens >= 0 {
		details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cachedTokens)
	}
	return fmt.Appendf(nil, open+`"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%s}}`+"\n\ndata: [DONE]\n\n",
		promptTokens, n-1, promptTokens+n-1, details)
}
