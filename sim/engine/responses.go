package engine

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

type responsesRequest struct {
	Model           string         `json:"model"`
	Input           jsontext.Value `json:"input"` // text or a list of items
	Instructions    *string        `json:"instructions"`
	Tools           jsontext.Value `json:"tools"`
	MaxOutputTokens *number        `json:"max_output_tokens"`
	PreviousID      *string        `json:"previous_response_id"`
	Stream          flag           `json:"stream"`
	cacheOptions    `json:",inline"`
}

// prompt renders instructions and input as a chat. Items that are no messages, such as calls of
// functions and their results, count as their JSON.
func (r *responsesRequest) prompt(t *template) error {
	var messages []message
	if r.Instructions != nil {
		text, err := jsontext.AppendQuote(nil, *r.Instructions)
		if err != nil {
			return invalid("body.instructions", "body.instructions: %v", err)
		}
		messages = append(messages, message{Role: "system", Content: text})
	}
	switch r.Input.Kind() {
	case '"':
		messages = append(messages, message{Role: "user", Content: r.Input})
	case '[':
		var items []jsontext.Value
		if err := decode(r.Input, &items); err != nil {
			return err
		}
		for _, raw := range items {
			var m message
			if err := decode(raw, &m); err != nil {
				return err
			}
			if m.Role == "" {
				m = message{Role: "tool", ToolCalls: raw}
			}
			messages = append(messages, m)
		}
	case 'n', 0:
		return missing("input")
	default:
		return invalid("body.input", "body.input: must be a string or a list")
	}
	if len(messages) == 0 {
		return badRequest("input", "input must not be empty")
	}
	return t.render(r.Tools, messages, true)
}

type response struct {
	ID                string          `json:"id"`
	CreatedAt         int64           `json:"created_at"`
	IncompleteDetails *incomplete     `json:"incomplete_details"`
	Instructions      *string         `json:"instructions"`
	Metadata          null            `json:"metadata"`
	Model             string          `json:"model"`
	Object            string          `json:"object"`
	Output            []responseItem  `json:"output"`
	MaxOutputTokens   int             `json:"max_output_tokens"`
	PreviousID        null            `json:"previous_response_id"`
	Status            string          `json:"status"`
	Usage             *responsesUsage `json:"usage"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Content []responsePart `json:"content"`
	Role    string         `json:"role"`
	Status  string         `json:"status"`
	Type    string         `json:"type"`
}

type responsePart struct {
	Annotations []string `json:"annotations"` // always empty
	Text        string   `json:"text"`
	Type        string   `json:"type"`
	Logprobs    null     `json:"logprobs"`
}

// responsesUsage is the Responses form of [counts].
type responsesUsage struct {
	InputTokens  int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
		Write  int `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

func (c counts) responses() *responsesUsage {
	u := &responsesUsage{InputTokens: c.prompt, OutputTokens: c.output, TotalTokens: c.prompt + c.output}
	u.InputDetails.Cached, u.InputDetails.Write = c.cached, c.created
	return u
}

// responses is POST /v1/responses. No response is stored, so no previous one is known.
func (s *Server) responses(c *call) error {
	req, t, err := s.readResponses(c.body)
	if err != nil {
		return err
	}
	g, err := s.generate(c, t)
	if err != nil {
		return err
	}
	defer g.abort()
	r := response{
		ID: c.newID("resp_"), CreatedAt: time.Now().Unix(), Instructions: req.Instructions, Model: t.model,
		Object: "response", Output: []responseItem{}, MaxOutputTokens: t.maxTokens, Status: "in_progress",
	}
	item := responseItem{ID: c.newID("msg_"), Content: []responsePart{}, Role: "assistant", Status: "in_progress", Type: "message"}
	if req.Stream {
		return s.streamResponses(c, g, r, item)
	}
	if err := s.whole(c.ctx, g); err != nil {
		return err
	}
	return c.json(s.finishResponse(g, r, item))
}

func (s *Server) finishResponse(g *generation, r response, item responseItem) response {
	item.Content = []responsePart{{Annotations: []string{}, Text: s.output(g, 0), Type: "output_text"}}
	item.Status = "completed"
	r.Output = []responseItem{item}
	r.Status, r.IncompleteDetails = "incomplete", &incomplete{"max_output_tokens"}
	r.Usage = g.counts(1).responses()
	return r
}

func (s *Server) streamResponses(c *call, g *generation, r response, item responseItem) error {
	sse, err := c.stream()
	if err != nil {
		return err
	}
	type object = map[string]any
	number := 0
	send := func(name string, fields object) error {
		name = "response." + name
		fields["type"], fields["sequence_number"] = name, number
		number++
		return sse.event(name, fields)
	}
	part := func(text string) responsePart {
		return responsePart{Annotations: []string{}, Text: text, Type: "output_text"}
	}
	at := func(fields object) object {
		fields["item_id"], fields["output_index"], fields["content_index"] = item.ID, 0, 0
		return fields
	}
	if err := send("created", object{"response": r}); err != nil {
		return err
	}
	if err := send("in_progress", object{"response": r}); err != nil {
		return err
	}
	err = s.follow(c.ctx, g, func(_, index int, _ string) error {
		if index == noToken {
			return g.interrupted()
		}
		if index == 0 {
			if err := send("output_item.added", object{"item": item, "output_index": 0}); err != nil {
				return err
			}
			if err := send("content_part.added", at(object{"part": part("")})); err != nil {
				return err
			}
		}
		return send("output_text.delta", at(object{"delta": text(s.tok, g.jobs[0].Output[index]), "logprobs": []string{}}))
	})
	if err != nil {
		return err
	}
	r = s.finishResponse(g, r, item)
	whole := r.Output[0].Content[0].Text
	for _, e := range []struct {
		name   string
		fields object
	}{
		{"output_text.done", at(object{"text": whole, "logprobs": []string{}})},
		{"content_part.done", at(object{"part": part(whole)})},
		{"output_item.done", object{"item": r.Output[0], "output_index": 0}},
		{"completed", object{"response": r}},
	} {
		if err := send(e.name, e.fields); err != nil {
			return err
		}
	}
	return nil
}
