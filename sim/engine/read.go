package engine

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/sim/bpe"
)

// chatPrompt is the part of a chat that its prompt is made of.
type chatPrompt struct {
	Messages      *[]message     `json:"messages"`
	Tools         jsontext.Value `json:"tools"`
	AddGeneration *flag          `json:"add_generation_prompt"` // true
	Continue      flag           `json:"continue_final_message"`
	AddSpecial    *flag          `json:"add_special_tokens"` // false for a chat, true for a text
	Template      string         `json:"chat_template"`
	TemplateArgs  jsontext.Value `json:"chat_template_kwargs"`
	Documents     jsontext.Value `json:"documents"`
}

func (p chatPrompt) tokens(s *Server) ([]uint32, error) {
	generate := p.AddGeneration == nil || bool(*p.AddGeneration)
	if bool(p.Continue) && generate {
		return nil, badRequest("continue_final_message", "continue_final_message and add_generation_prompt cannot both be true")
	}
	t := template{tok: s.tok}
	if or(p.AddSpecial, false) {
		t.mark(bpe.Begin)
	}
	if err := t.head(p.Template, p.TemplateArgs, p.Documents); err != nil {
		return nil, err
	}
	if err := t.render(p.Tools, *p.Messages, generate); err != nil {
		return nil, err
	}
	if bool(p.Continue) && len(*p.Messages) > 0 {
		t.out = t.out[:len(t.out)-1] // the end marker of the last message
	}
	return t.out, nil
}

// readChat reads the body of /v1/chat/completions.
func (s *Server) readChat(body []byte) (generationRequest, task, error) {
	var req struct {
		generationRequest   `json:",inline"`
		chatPrompt          `json:",inline"`
		MaxCompletionTokens *number `json:"max_completion_tokens"`
	}
	fail := func(err error) (generationRequest, task, error) { return req.generationRequest, task{}, err }
	if err := decode(body, &req); err != nil {
		return fail(err)
	}
	if req.Messages == nil {
		return fail(missing("messages"))
	}
	model, err := s.known(req.Model)
	if err != nil {
		return fail(err)
	}
	limit, err := s.limit(req.MaxCompletionTokens, req.MaxTokens)
	if err != nil {
		return fail(err)
	}
	prompt, err := req.tokens(s)
	if err != nil {
		return fail(err)
	}
	if len(prompt) == 0 {
		return fail(badRequest("messages", "messages must not be empty"))
	}
	return req.generationRequest, task{
		prompts: [][]uint32{prompt}, samples: req.samples(), maxTokens: limit, model: model,
		salt: req.salt(), report: req.report(), bare: true,
	}, nil
}

// readCompletions reads the body of /v1/completions.
func (s *Server) readCompletions(body []byte) (generationRequest, task, error) {
	var req struct {
		generationRequest `json:",inline"`
		Prompt            jsontext.Value `json:"prompt"`
		AddSpecial        *flag          `json:"add_special_tokens"`
	}
	fail := func(err error) (generationRequest, task, error) { return req.generationRequest, task{}, err }
	if err := decode(body, &req); err != nil {
		return fail(err)
	}
	model, err := s.known(req.Model)
	if err != nil {
		return fail(err)
	}
	limit, err := s.limit(req.MaxTokens)
	if err != nil {
		return fail(err)
	}
	prompts, err := s.prompts("prompt", req.Prompt, bool(or(req.AddSpecial, true)))
	if err != nil {
		return fail(err)
	}
	return req.generationRequest, task{
		prompts: prompts, samples: req.samples(), maxTokens: limit, model: model,
		salt: req.salt(), report: req.report(),
	}, nil
}

// readMessages reads the body of /v1/messages and /v1/messages/count_tokens; the latter may leave
// out the output's length.
func (s *Server) readMessages(body []byte) (req messagesRequest, t task, err error) {
	if err := decode(body, &req); err != nil {
		return req, t, err
	}
	if req.Messages == nil {
		return req, t, missing("messages")
	}
	t = task{samples: 1, salt: req.salt(), report: req.report(), bare: true}
	if t.model, err = s.known(req.Model); err != nil {
		return req, t, err
	}
	if t.maxTokens, err = s.limit(req.MaxTokens); err != nil {
		return req, t, err
	}
	messages := *req.Messages
	if k := req.System.Kind(); k != 0 && k != 'n' {
		messages = append([]message{{Role: "system", Content: req.System}}, messages...)
	}
	tm := template{tok: s.tok}
	if err = tm.head("", req.TemplateArgs, nil); err == nil {
		err = tm.render(req.Tools, messages, true)
	}
	t.prompts = [][]uint32{tm.out}
	return req, t, err
}

// readResponses reads the body of /v1/responses. No response is stored, so no previous one is known.
func (s *Server) readResponses(body []byte) (req responsesRequest, t task, err error) {
	if err := decode(body, &req); err != nil {
		return req, t, err
	}
	t = task{samples: 1, salt: req.salt(), report: req.report(), bare: true}
	if t.model, err = s.known(req.Model); err != nil {
		return req, t, err
	}
	if req.PreviousID != nil {
		return req, t, apiError{status: http.StatusNotFound, kind: "invalid_request_error", param: "response_id",
			message: "response " + *req.PreviousID + " is not stored here"}
	}
	if t.maxTokens, err = s.limit(req.MaxOutputTokens); err != nil {
		return req, t, err
	}
	tm := template{tok: s.tok}
	err = req.prompt(&tm)
	t.prompts = [][]uint32{tm.out}
	return req, t, err
}
