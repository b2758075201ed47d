package engine

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// rendered is a request as the render routes answer it: with the tokens that inference on the same
// body computes.
type rendered struct {
	RequestID       string         `json:"request_id"`
	TokenIDs        []uint32       `json:"token_ids"`
	TokenOffsets    null           `json:"token_offsets"`
	Features        null           `json:"features"`
	ContentParts    null           `json:"content_parts"`
	Sampling        sampling       `json:"sampling_params"`
	Model           string         `json:"model"`
	ReasoningEnded  null           `json:"reasoning_ended"`
	ReasoningKwargs null           `json:"reasoning_parser_kwargs"`
	ReturnTokenIDs  *flag          `json:"return_token_ids"`
	OutputMode      string         `json:"output_mode"`
	Stream          flag           `json:"stream"`
	StreamOptions   jsontext.Value `json:"stream_options"`
	CacheSalt       *string        `json:"cache_salt"`
	Priority        int            `json:"priority"`
	KVTransfer      null           `json:"kv_transfer_params"`
	ECTransfer      null           `json:"ec_transfer_params"`
}

// sampling is how tokens would be sampled. The engine model ignores all of it but the length.
type sampling struct {
	PresencePenalty   float64        `json:"presence_penalty"`
	FrequencyPenalty  float64        `json:"frequency_penalty"`
	RepetitionPenalty float64        `json:"repetition_penalty"`
	Temperature       float64        `json:"temperature"`
	TopP              *float64       `json:"top_p,omitzero"`
	MinP              *float64       `json:"min_p,omitzero"`
	Stop              jsontext.Value `json:"stop"`
	StopTokenIDs      []uint32       `json:"stop_token_ids"`
	MaxTokens         int            `json:"max_tokens"`
	OutputKind        int            `json:"output_kind"`
	SkipClone         bool           `json:"skip_clone"`
	BadWords          []string       `json:"bad_words"`
	SkipReading       bool           `json:"skip_reading_prefix_cache"`
}

// renderRequest is what a render route echoes from any body.
type renderRequest struct {
	cacheOptions     `json:",inline"`
	PresencePenalty  float64        `json:"presence_penalty"`
	FrequencyPenalty float64        `json:"frequency_penalty"`
	Repetition       *float64       `json:"repetition_penalty"`
	Temperature      *float64       `json:"temperature"`
	TopP             *float64       `json:"top_p"`
	MinP             *float64       `json:"min_p"`
	Stop             jsontext.Value `json:"stop"`
	ReturnTokenIDs   *flag          `json:"return_token_ids"`
	Stream           flag           `json:"stream"`
	StreamOptions    jsontext.Value `json:"stream_options"`
}

// Kinds of output in vLLM's numbers.
const (
	outputDelta = 1
	outputFinal = 2
)

// render makes what a render route answers for each prompt of a task.
func (s *Server) render(c *call, prefix string, t task) ([]rendered, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	var req renderRequest
	if err := decode(c.body, &req); err != nil {
		return nil, err
	}
	one := 1.0
	p := sampling{
		PresencePenalty: req.PresencePenalty, FrequencyPenalty: req.FrequencyPenalty, RepetitionPenalty: or(req.Repetition, one),
		Temperature: or(req.Temperature, one), TopP: req.TopP, MinP: req.MinP, Stop: req.stop(),
		StopTokenIDs: []uint32{}, OutputKind: outputFinal, SkipClone: true, BadWords: []string{},
	}
	if req.Stream {
		p.OutputKind = outputDelta
	}
	id := c.newID(prefix)
	var all []rendered
	for i, prompt := range t.prompts {
		n, err := s.outputLen(prompt, t.maxTokens)
		if err != nil {
			return nil, err
		}
		p.MaxTokens = n
		r := rendered{
			RequestID: id, TokenIDs: prompt, Sampling: p, Model: t.model, ReturnTokenIDs: req.ReturnTokenIDs,
			OutputMode: "tokens", Stream: req.Stream, StreamOptions: req.StreamOptions, CacheSalt: req.CacheSalt,
		}
		if len(t.prompts) > 1 {
			r.RequestID += "-" + strconv.Itoa(i)
		}
		all = append(all, r)
	}
	return all, nil
}

// stop is the stop strings as a list.
func (r renderRequest) stop() jsontext.Value {
	switch r.Stop.Kind() {
	case '"':
		return jsontext.Value("[" + string(r.Stop) + "]")
	case '[':
		return r.Stop
	default:
		return jsontext.Value("[]")
	}
}

func or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// renderOne answers with the only prompt of a task.
func (s *Server) renderOne(c *call, prefix string, t task, err error) error {
	if err != nil {
		return err
	}
	all, err := s.render(c, prefix, t)
	if err != nil {
		return err
	}
	return c.json(all[0])
}

// renderChat is POST /v1/chat/completions/render.
func (s *Server) renderChat(c *call) error {
	_, t, err := s.readChat(c.body)
	return s.renderOne(c, chatKind.prefix, t, err)
}

// renderCompletions is POST /v1/completions/render, which answers with a list.
func (s *Server) renderCompletions(c *call) error {
	_, t, err := s.readCompletions(c.body)
	if err != nil {
		return err
	}
	all, err := s.render(c, textKind.prefix, t)
	if err != nil {
		return err
	}
	return c.json(all)
}

// renderMessages is POST /v1/messages/render.
func (s *Server) renderMessages(c *call) error {
	req, t, err := s.readMessages(c.body)
	if err == nil && req.MaxTokens == nil {
		err = missing("max_tokens")
	}
	return s.renderOne(c, chatKind.prefix, t, err)
}

// renderResponses is POST /v1/responses/render.
func (s *Server) renderResponses(c *call) error {
	_, t, err := s.readResponses(c.body)
	return s.renderOne(c, "resp_", t, err)
}
