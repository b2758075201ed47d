package tokens

import (
	"github.com/sluice-epp/sluice/cache/tokens/fields"
	"github.com/sluice-epp/sluice/cache/tokens/render"
	"github.com/sluice-epp/sluice/scheduling"
)

// query is what a server is asked for the request, with edits: the body as the client wrote it, but for the model's name
// where the server is asked for another, and for the payload of media, which would otherwise come back as tensors.
func (rd *reading) query(model string, media fields.Media, edits ...fields.Edit) render.Query {
	q := render.Query{Operation: rd.op}
	if media == fields.MediaNone {
		q.Tokenize = rd.tokenize(model, edits)
	}
	edits = append(edits, rd.doc.With("mm_payload", []byte(`"none"`)))
	if model != "" {
		if quoted := fields.AppendQuoted(nil, model); !rd.doc.Is("model", string(quoted)) {
			edits = append(edits, rd.doc.With("model", quoted))
		}
	}
	q.Render = rd.doc.AppendPieces(nil, edits)
	return q
}

// chatFields are the fields of a chat that the tokenize route reads, and completionFields those of a completion.
var (
	chatFields = [...]string{
		"messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
		"add_special_tokens", "mm_processor_kwargs", "media_io_kwargs",
	}
	completionFields = [...]string{"add_special_tokens"}
)

// unfaithful are the fields that an engine makes a prompt with and that the tokenize route does not read.
var unfaithful = [...]string{
	"documents", "functions", "reasoning_effort", "response_format", "structured_outputs", "truncate_prompt_tokens",
	"truncation_side", "kv_transfer_params", "suffix", "prompt_embeds", "use_beam_search",
}

// tokenize is the body for the tokenize route, or nil where that would not give the engine's tokens.
func (rd *reading) tokenize(model string, edits []fields.Edit) [][]byte {
	if rd.doc.Escaped {
		return nil
	}
	for _, name := range unfaithful {
		if _, found := rd.doc.Last(name); found {
			return nil
		}
	}
	body := [][]byte{[]byte(`{"return_token_strs":false`)}
	if model != "" {
		body = append(body, []byte(`,"model":`), fields.AppendQuoted(nil, model))
	}
	switch rd.op {
	case scheduling.OperationChat:
		_, tools := rd.doc.Last("tools")
		if _, chosen := rd.doc.Last("tool_choice"); tools && chosen && !rd.doc.Is("tool_choice", `"auto"`) {
			return nil // how tools are written may depend on the choice
		}
		for _, name := range chatFields {
			if value, found := rd.doc.Last(name); found {
				body = rd.appendField(body, name, value, edits)
			}
		}
	case scheduling.OperationCompletions:
		prompt, found := rd.doc.Last("prompt")
		if !found {
			return nil
		}
		if rd.doc.Body[prompt.Start] == '[' {
			var room [2]scheduling.Span
			prompts, ok := fields.Elements(rd.doc.Body, prompt, room[:0], 1)
			if !ok || len(prompts) != 1 {
				return nil // the route takes one prompt
			}
			prompt = prompts[0]
		}
		if rd.doc.Body[prompt.Start] != '"' {
			return nil
		}
		body = rd.appendField(body, "prompt", prompt, nil)
		for _, name := range completionFields {
			if value, found := rd.doc.Last(name); found {
				body = rd.appendField(body, name, value, nil)
			}
		}
	default:
		return nil // the route knows no other API
	}
	return append(body, []byte("}"))
}

// appendField appends a field with its raw value, as edited.
func (rd *reading) appendField(body [][]byte, name string, value scheduling.Span, edits []fields.Edit) [][]byte {
	body = append(body, []byte(`,"`+name+`":`))
	from := value.Start
	for _, e := range edits {
		if e.At.Start >= from && e.At.End <= value.End {
			body = append(body, rd.doc.Body[from:e.At.Start], e.Text)
			from = e.At.End
		}
	}
	return append(body, rd.doc.Body[from:value.End])
}
