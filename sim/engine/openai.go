package engine

import (
	"crypto/rand"
	"encoding/hex"
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
	ReturnTokenIDs flag `json:"return_token_ids"`
	cacheOptions   `json:",inline"`
}

// cacheOptions are what a request says about the prefix cache.
type cacheOptions struct {
	CacheSalt *string `json:"cache_salt"`
	XArgs     *struct {
		Report jsontext.Value `json:"kv_cache_report_mode"`
	} `json:"vllm_xargs"`
}

func (o cacheOptions) salt() string {
	if o.CacheSalt == nil {
		return ""
	}
	return *o.CacheSalt
}

// report says that events are to announce the blocks that are reused too.
func (o cacheOptions) report() bool { return o.XArgs != nil && string(o.XArgs.Report) == `"full"` }

func (r generationRequest) samples() int {
	if r.N == nil {
		return 1
	}
	return int(*r.N)
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
	req, t, err := s.readChat(c.body)
	if err != nil {
		return err
	}
	return s.complete(c, req, chatKind, t)
}

// completions is POST /v1/completions.
func (s *Server) completions(c *call) error {
	req, t, err := s.readCompletions(c.body)
	if err != nil {
		return err
	}
	return s.complete(c, req, textKind, t)
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
	g, err := s.generate(c, t)
	if err != nil {
		return err
	}
	defer g.abort()
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
		ch := k.choice(seq, s.output(g, seq), false)
		_, end := g.next(seq)
		ch.FinishReason = &end
		ch.TokenIDs = req.ids(g.output(seq))
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
	err = s.follow(c.ctx, g, func(seq, index int, end string) error {
		if k.chat && index == 0 {
			role := k.choice(seq, "", true)
			role.Delta.Role = "assistant"
			if err := send(role); err != nil {
				return err
			}
		}
		tokens := []uint32{}
		if index != noToken {
			sent++
			tokens = g.jobs[seq].Output[index : index+1]
		}
		ch := k.choice(seq, s.text(tokens), true)
		ch.TokenIDs = req.ids(tokens)
		if !k.chat && index == 0 {
			ch.PromptTokenIDs = req.ids(g.jobs[seq].Prompt)
		}
		if end != "" {
			ch.FinishReason = &end
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
