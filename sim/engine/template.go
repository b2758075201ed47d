package engine

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/sim/bpe"
)

// message is one message of a chat, in OpenAI's or Anthropic's form.
type message struct {
	Role      string         `json:"role"`
	Content   jsontext.Value `json:"content"` // text, null or a list of parts
	ToolCalls jsontext.Value `json:"tool_calls"`
}

// part is one part of a message's content. Fields that a part has beyond these are read from the
// raw JSON.
type part struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// template renders a chat to tokens. Each message is its role's marker, its content and the end
// marker; an answer is generated after the marker of the assistant. Markers are single tokens and
// contents are encoded one by one, so the rendering of a chat is a prefix of that of the same chat
// with more messages, and an answer sent back takes the tokens it was generated with.
type template struct {
	tok *bpe.Tokenizer
	out []uint32
}

// head renders what a request says of the rendering itself. No template is run: each of the parts,
// where it is given, takes a section of its own before the chat, a template as it stands and the
// other two as canonical JSON. So whatever is given changes the tokens from there on.
func (t *template) head(text string, args, documents jsontext.Value) error {
	if text != "" {
		t.section("template", text)
	}
	for _, p := range []struct {
		name, field string
		v           jsontext.Value
		kind        jsontext.Kind
	}{{"arguments", "chat_template_kwargs", args, '{'}, {"documents", "documents", documents, '['}} {
		switch p.v.Kind() {
		case 0, 'n':
			continue
		case p.kind:
		default:
			return invalid("body."+p.field, "body.%s: a JSON %s is not valid here", p.field, p.v.Kind())
		}
		v := p.v.Clone()
		if err := v.Canonicalize(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
			return invalid("body."+p.field, "body.%s: %v", p.field, err)
		}
		if len(v) > len("{}") {
			t.section(p.name, string(v))
		}
	}
	return nil
}

func (t *template) section(name, text string) {
	t.mark(bpe.Other)
	t.text(name + "\n" + text)
	t.mark(bpe.End)
}

// render renders tools and messages, and the beginning of an answer if generate is set.
func (t *template) render(tools jsontext.Value, messages []message, generate bool) error {
	if k := tools.Kind(); k != 0 && k != 'n' {
		t.mark(bpe.Tool)
		t.text(string(tools))
		t.mark(bpe.End)
	}
	for i, m := range messages {
		path := fmt.Sprintf("messages.%d", i)
		if m.Role == "" {
			return missing(path + ".role")
		}
		t.role(m.Role)
		if err := t.content(path+".content", m.Content); err != nil {
			return err
		}
		if k := m.ToolCalls.Kind(); k != 0 && k != 'n' {
			t.text(string(m.ToolCalls))
		}
		t.mark(bpe.End)
	}
	if generate {
		t.mark(bpe.Assistant)
	}
	return nil
}

func (t *template) mark(s bpe.Special) { t.out = append(t.out, t.tok.ID(s)) }
func (t *template) text(s string)      { t.out = t.tok.Append(t.out, s) }

func (t *template) role(name string) {
	switch name {
	case "system":
		t.mark(bpe.System)
	case "user":
		t.mark(bpe.User)
	case "assistant":
		t.mark(bpe.Assistant)
	case "tool", "function":
		t.mark(bpe.Tool)
	default:
		t.mark(bpe.Other)
		t.text(name + "\n")
	}
}

// content renders a message's content. A part that is an image, or other media, becomes one marker
// and a digest of the part.
func (t *template) content(path string, v jsontext.Value) error {
	switch v.Kind() {
	case 0, 'n':
		return nil
	case '"':
		var s string
		if err := decode(v, &s); err != nil {
			return err
		}
		t.text(s)
		return nil
	case '[':
	default:
		return invalid("body."+path, "body.%s: must be a string, null or a list", path)
	}
	var parts []jsontext.Value
	if err := decode(v, &parts); err != nil {
		return err
	}
	for i, raw := range parts {
		var p part
		if err := decode(raw, &p); err != nil {
			return err
		}
		switch p.Type {
		case "text", "input_text", "output_text":
			t.text(p.Text)
		case "refusal":
			t.text(p.Refusal)
		case "tool_use", "tool_result", "thinking", "redacted_thinking":
			t.text(string(raw))
		case "image", "image_url", "input_image", "video_url", "audio_url", "input_audio":
			t.mark(bpe.Image)
			t.text(fmt.Sprintf("%016x", xxh3.Hash(raw)))
		default:
			return badRequest(fmt.Sprintf("%s.%d.type", path, i), "unknown part type: %q", p.Type)
		}
	}
	return nil
}
