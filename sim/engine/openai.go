package engine

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	mathrand "math/rand/v2"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// null is a member that vLLM sends and that is always null here.
type null *struct{}

// usage is the OpenAI form of [counts].
type usage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	PromptDetails    *usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	CachedTokens  int `json:"cached_tokens"`
	CreatedTokens int `json:"created_cache_tokens"`
}

func (c counts) openAI() *usage {
	return &usage{
		PromptTokens: c.prompt, TotalTokens: c.prompt + c.output, CompletionTokens: c.output,
		PromptDetails: &usageDetails{CachedTokens: c.cached, CreatedTokens: c.created},
	}
}

// generationRequest is what chat and text completions have in common.
type generationRequest struct {
	Model         string  `json:"model"`
	MaxTokens     *number `json:"max_tokens"`
	N             *number `json:"n"`
	Stream        flag    `json:"stream"`
	StreamOptions *struct {
		IncludeUsage         flag `json:"include_usage"`
		ContinuousUsageStats flag `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	CacheSalt      *string `json:"cache_salt"`
	ReturnTokenIDs flag    `json:"return_token_ids"`
}

func (r generationRequest) samples() int {
	if r.N == nil {
		return 1
	}
	return int(*r.N)
}

func (r generationRequest) salt() string {
	if r.CacheSalt == nil {
		return ""
	}
	return *r.CacheSalt
}

func (r generationRequest) finalUsage() bool {
	return r.StreamOptions != nil && bool(r.StreamOptions.IncludeUsage)
}

func (r generationRequest) everyUsage() bool {
	return r.finalUsage() && bool(r.StreamOptions.ContinuousUsageStats)
}

// ids returns token ids if the request asks for them.
func (r generationRequest) ids(tokens []uint32) *[]uint32 {
	if !r.ReturnTokenIDs {
		return nil
	}
	return &tokens
}

// completion is an answer, or one chunk of a streamed answer, of both kinds of completion.
type completion struct {
	ID                string    `json:"id"`
	Object            string    `json:"object"`
	Created           int64     `json:"created"`
	Model             string    `json:"model"`
	Choices           []choice  `json:"choices"`
	SystemFingerprint string    `json:"system_fingerprint,omitzero"`
	Usage             *usage    `json:"usage,omitzero"`
	PromptTokenIDs    *[]uint32 `json:"prompt_token_ids,omitzero"`
	nulls             `json:",inline"`
}

// nulls are members that a whole answer has and a chunk has not.
type nulls struct {
	ServiceTier *null `json:"service_tier,omitzero"`
	KVTransfer  *null `json:"kv_transfer_params,omitzero"`
}

var withNulls = nulls{ServiceTier: new(null), KVTransfer: new(null)}

// choice is a sequence's answer or a piece of it: Message, Delta or Text, by kind.
type choice struct {
	Index          int          `json:"index"`
	Message        *chatMessage `json:"message,omitzero"`
	Delta          *chatDelta   `json:"delta,omitzero"`
	Text           *string      `json:"text,omitzero"`
	Logprobs       null         `json:"logprobs"`
	FinishReason   *string      `json:"finish_reason"`
	StopReason     null         `json:"stop_reason"`
	TokenIDs       *[]uint32    `json:"token_ids"`
	PromptTokenIDs *[]uint32    `json:"prompt_token_ids,omitzero"`
}

type chatMessage struct {
	Role         string `json:"role"`
	Content      string `json:"content"`
	Refusal      null   `json:"refusal"`
	Annotations  null   `json:"annotations"`
	Audio        null   `json:"audio"`
	FunctionCall null   `json:"function_call"`
	Reasoning    null   `json:"reasoning"`
}

type chatDelta struct {
	Role    string  `json:"role,omitzero"`
	Content *string `json:"content"`
}

const fingerprint = "sluice-sim"

var finishLength = "length"

// newID makes an id; a client's X-Request-Id becomes part of it, as in vLLM.
func (c *call) newID(prefix string) string {
	if id := c.req.Header.Get("X-Request-Id"); id != "" {
		return prefix + id
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// chat is POST /v1/chat/completions.
func (s *Server) chat(c *call) error {
	var req struct {
		generationRequest   `json:",inline"`
		Messages            *[]message     `json:"messages"`
		Tools               jsontext.Value `json:"tools"`
		MaxCompletionTokens *number        `json:"max_completion_tokens"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	if req.Messages == nil {
		return missing("messages")
	}
	model, err := s.known(req.Model)
	if err != nil {
		return err
	}
	limit, err := s.limit(req.MaxCompletionTokens, req.MaxTokens)
	if err != nil {
		return err
	}
	t := template{tok: s.tok}
	if err := t.render(req.Tools, *req.Messages, true); err != nil {
		return err
	}
	return s.complete(c, req.generationRequest, chatKind, task{
		prompts: [][]uint32{t.out}, samples: req.samples(), maxTokens: limit, model: model, salt: req.salt(), bare: true,
	})
}

// completions is POST /v1/completions.
func (s *Server) completions(c *call) error {
	var req struct {
		generationRequest `json:",inline"`
		Prompt            jsontext.Value `json:"prompt"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	model, err := s.known(req.Model)
	if err != nil {
		return err
	}
	limit, err := s.limit(req.MaxTokens)
	if err != nil {
		return err
	}
	prompts, err := s.prompts("prompt", req.Prompt)
	if err != nil {
		return err
	}
	return s.complete(c, req.generationRequest, textKind, task{
		prompts: prompts, samples: req.samples(), maxTokens: limit, model: model, salt: req.salt(),
	})
}

// kind is what differs between chat and text completions.
type kind struct {
	prefix, object, chunk string
	chat                  bool
}

var (
	chatKind = kind{"chatcmpl-", "chat.completion", "chat.completion.chunk", true}
	textKind = kind{"cmpl-", "text_completion", "text_completion", false}
)

// choice makes a choice of a whole text, or of a piece of one in a chunk.
func (k kind) choice(seq int, text string, chunk bool) choice {
	ch := choice{Index: seq}
	switch {
	case !k.chat:
		ch.Text = &text
	case chunk:
		ch.Delta = &chatDelta{Content: &text}
	default:
		ch.Message = &chatMessage{Role: "assistant", Content: text}
	}
	return ch
}

func (s *Server) complete(c *call, req generationRequest, k kind, t task) error {
	g, err := s.generate(t)
	if err != nil {
		return err
	}
	defer s.loop.abort(g)
	out := completion{ID: c.newID(k.prefix), Created: time.Now().Unix(), Model: t.model}
	if req.Stream {
		out.Object = k.chunk
		return s.streamCompletion(c, req, k, t, g, out)
	}
	if err := s.wait(c.ctx, g); err != nil {
		return err
	}
	out.Object, out.SystemFingerprint, out.nulls = k.object, fingerprint, withNulls
	out.Usage = g.counts(t.samples).openAI()
	for seq, j := range g.jobs {
		ch := k.choice(seq, s.output(j), false)
		ch.FinishReason = &finishLength
		ch.TokenIDs = req.ids(j.Output)
		if !k.chat {
			ch.PromptTokenIDs = req.ids(j.Prompt)
		}
		out.Choices = append(out.Choices, ch)
	}
	if k.chat {
		out.PromptTokenIDs = req.ids(g.jobs[0].Prompt)
	}
	return c.json(out)
}

// streamCompletion sends a chunk per token. A chat begins each sequence with a chunk that has the
// role only, at the time of the first token.
func (s *Server) streamCompletion(c *call, req generationRequest, k kind, t task, g *generation, frame completion) error {
	sse, err := c.stream()
	if err != nil {
		return err
	}
	sent := 0
	send := func(ch choice) error {
		out := frame
		out.Choices = []choice{ch}
		if req.everyUsage() {
			n := g.counts(t.samples)
			n.output = sent
			out.Usage = n.openAI()
		}
		if ch.FinishReason != nil && !req.finalUsage() {
			out.SystemFingerprint = fingerprint
		}
		if k.chat && ch.Delta.Role != "" {
			out.PromptTokenIDs = req.ids(g.jobs[0].Prompt)
		}
		return sse.event("", out)
	}
	err = s.follow(c.ctx, g, func(seq, index int, last bool) error {
		if k.chat && index == 0 {
			role := k.choice(seq, "", true)
			role.Delta.Role = "assistant"
			if err := send(role); err != nil {
				return err
			}
		}
		sent++
		id := g.jobs[seq].Output[index]
		ch := k.choice(seq, text(s.tok, id), true)
		ch.TokenIDs = req.ids([]uint32{id})
		if !k.chat && index == 0 {
			ch.PromptTokenIDs = req.ids(g.jobs[seq].Prompt)
		}
		if last {
			ch.FinishReason = &finishLength
		}
		return send(ch)
	})
	if err != nil {
		return err
	}
	if req.finalUsage() {
		frame.Choices, frame.SystemFingerprint = []choice{}, fingerprint
		frame.Usage = g.counts(t.samples).openAI()
		if err := sse.event("", frame); err != nil {
			return err
		}
	}
	return sse.raw("", []byte("[DONE]"))
}

// embeddingSize is the length of an embedding.
const embeddingSize = 64

// embeddings is POST /v1/embeddings: prefill without output, and a vector of length one made from
// the prompt's hash.
func (s *Server) embeddings(c *call) error {
	var req struct {
		Model    string         `json:"model"`
		Input    jsontext.Value `json:"input"`
		Encoding string         `json:"encoding_format"`
		Salt     *string        `json:"cache_salt"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	model, err := s.known(req.Model)
	if err != nil {
		return err
	}
	prompts, err := s.prompts("input", req.Input)
	if err != nil {
		return err
	}
	g, err := s.generate(task{prompts: prompts, samples: 1, maxTokens: -1, model: model,
		salt: generationRequest{CacheSalt: req.Salt}.salt()})
	if err != nil {
		return err
	}
	defer s.loop.abort(g)
	if err := s.wait(c.ctx, g); err != nil {
		return err
	}
	type item struct {
		Index     int    `json:"index"`
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
	}
	var data []item
	for i, p := range prompts {
		v := any(embed(p))
		if req.Encoding == "base64" {
			var b []byte
			for _, x := range embed(p) {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
			}
			v = base64.StdEncoding.EncodeToString(b)
		}
		data = append(data, item{i, "embedding", v})
	}
	return c.json(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
		Data    []item `json:"data"`
		Usage   *usage `json:"usage"`
	}{c.newID("embd-"), "list", time.Now().Unix(), model, data, g.counts(1).openAI()})
}

func embed(prompt []uint32) []float32 {
	rng := mathrand.New(mathrand.NewPCG(digest(prompt), 0))
	v := make([]float32, embeddingSize)
	var norm float64
	for i := range v {
		x := rng.NormFloat64()
		v[i], norm = float32(x), norm+x*x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(norm))
	}
	return v
}
