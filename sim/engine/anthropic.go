package engine

import (
	"github.com/go-json-experiment/json/jsontext"
)

// messagesRequest is the body of /v1/messages and /v1/messages/count_tokens.
type messagesRequest struct {
	Model        string         `json:"model"`
	Messages     *[]message     `json:"messages"`
	System       jsontext.Value `json:"system"`
	Tools        jsontext.Value `json:"tools"`
	TemplateArgs jsontext.Value `json:"chat_template_kwargs"`
	MaxTokens    *number        `json:"max_tokens"`
	Stream       flag           `json:"stream"`
	cacheOptions `json:",inline"`
}

// countTokens is POST /v1/messages/count_tokens.
func (s *Server) countTokens(c *call) error {
	_, t, err := s.readMessages(c.body)
	if err != nil {
		return err
	}
	return c.json(map[string]int{"input_tokens": len(t.prompts[0])})
}

// messageUsage is the Anthropic form of [counts]: input excludes what was read from the cache.
type messageUsage struct {
	InputTokens   int `json:"input_tokens"`
	OutputTokens  int `json:"output_tokens"`
	CacheCreation int `json:"cache_creation_input_tokens"`
	CacheRead     int `json:"cache_read_input_tokens"`
}

func (c counts) anthropic() messageUsage {
	return messageUsage{InputTokens: c.prompt - c.cached, OutputTokens: c.output, CacheRead: c.cached}
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type messageAnswer struct {
	ID           string       `json:"id"`
	Type         string       `json:"type"`
	Role         string       `json:"role"`
	Content      []textBlock  `json:"content"`
	Model        string       `json:"model"`
	StopReason   *string      `json:"stop_reason"`
	StopSequence null         `json:"stop_sequence"`
	Usage        messageUsage `json:"usage"`
}

var stopMaxTokens = "max_tokens"

// messages is POST /v1/messages.
func (s *Server) messages(c *call) error {
	req, t, err := s.readMessages(c.body)
	if err != nil {
		return err
	}
	if req.MaxTokens == nil {
		return missing("max_tokens")
	}
	g, err := s.generate(c, t)
	if err != nil {
		return err
	}
	defer g.abort()
	answer := messageAnswer{ID: c.newID("chatcmpl-"), Type: "message", Role: "assistant", Content: []textBlock{}, Model: t.model}
	if req.Stream {
		return s.streamMessages(c, g, answer)
	}
	if err := s.whole(c.ctx, g); err != nil {
		return err
	}
	answer.Content = append(answer.Content, textBlock{"text", s.output(g, 0)})
	answer.StopReason, answer.Usage = &stopMaxTokens, g.counts(1).anthropic()
	return c.json(answer)
}

func (s *Server) streamMessages(c *call, g *generation, answer messageAnswer) error {
	sse, err := c.stream()
	if err != nil {
		return err
	}
	type object = map[string]any
	send := func(name string, fields object) error {
		fields["type"] = name
		return sse.event(name, fields)
	}
	err = s.follow(c.ctx, g, func(_, index int, _ string) error {
		if index == noToken {
			return g.interrupted()
		}
		if index == 0 {
			answer.Usage = g.counts(1).anthropic()
			answer.Usage.OutputTokens = 0
			if err := send("message_start", object{"message": answer}); err != nil {
				return err
			}
			if err := send("content_block_start", object{"index": 0, "content_block": textBlock{Type: "text"}}); err != nil {
				return err
			}
		}
		delta := textBlock{"text_delta", text(s.tok, g.jobs[0].Output[index])}
		return send("content_block_delta", object{"index": 0, "delta": delta})
	})
	if err != nil {
		return err
	}
	if err := send("content_block_stop", object{"index": 0}); err != nil {
		return err
	}
	if err := send("message_delta", object{
		"delta": object{"stop_reason": stopMaxTokens, "stop_sequence": nil},
		"usage": g.counts(1).anthropic(),
	}); err != nil {
		return err
	}
	return send("message_stop", object{})
}
