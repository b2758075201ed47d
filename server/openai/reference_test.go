package openai_test

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/scheduling"
)

// The reference reads a body into an ordered tree through jsontext and collects the prompt from that: slow, simple,
// and with no code of the scanner in it.

// tree is a JSON value and its range in the body.
type tree struct {
	kind  jsontext.Kind
	span  scheduling.Span
	raw   string // of a scalar
	names []string
	items []tree // elements, or the values of names
}

func parseTree(body []byte) (tree, bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return readTree(d)
}

func readTree(d *jsontext.Decoder) (t tree, ok bool) {
	t.kind = d.PeekKind()
	if t.kind == '{' || t.kind == '[' {
		if _, err := d.ReadToken(); err != nil {
			return t, false
		}
		t.span.Start = int(d.InputOffset()) - 1
		for d.PeekKind() != '}' && d.PeekKind() != ']' {
			if t.kind == '{' {
				name, err := d.ReadToken()
				if err != nil {
					return t, false
				}
				t.names = append(t.names, name.String())
			}
			item, ok := readTree(d)
			if !ok {
				return t, false
			}
			t.items = append(t.items, item)
		}
		_, err := d.ReadToken()
		t.span.End = int(d.InputOffset())
		return t, err == nil
	}
	v, err := d.ReadValue()
	if err != nil {
		return t, false
	}
	t.raw = string(v)
	t.span = scheduling.Span{Start: int(d.InputOffset()) - len(v), End: int(d.InputOffset())}
	return t, true
}

// last is the last field of that name.
func (t tree) last(name string) (tree, bool) {
	for i := len(t.names) - 1; i >= 0; i-- {
		if t.names[i] == name {
			return t.items[i], true
		}
	}
	return tree{}, false
}

func (t tree) empty() bool {
	return t.kind == 'n' || (t.span.End-t.span.Start == 2 && strings.ContainsRune(`{["`, rune(t.kind)))
}

func (t tree) contents() scheduling.Span {
	return scheduling.Span{Start: t.span.Start + 1, End: t.span.End - 1}
}

// collected is what the reference finds of a prompt.
type collected struct {
	spans  []scheduling.Span
	bytes  int
	media  int
	tokens []uint32
	count  int
	broken bool // the list holds something else than ids
}

func (c *collected) text(s scheduling.Span) {
	if s.End > s.Start {
		c.spans = append(c.spans, s)
		c.bytes += s.End - s.Start
	}
}

func (c *collected) addMedia(t tree) {
	if t.empty() {
		return
	}
	c.media++
	n := t.span.End - t.span.Start
	if n <= 1024 {
		c.spans = append(c.spans, t.span)
		return
	}
	for i := range 16 {
		at := t.span.Start + i*(n-64)/15
		c.spans = append(c.spans, scheduling.Span{Start: at, End: at + 64})
	}
}

// content collects from a string, a message or a list, at most 16 levels deep.
func (c *collected) content(t tree, depth int) {
	switch {
	case t.kind == '"':
		c.text(t.contents())
	case (t.kind == '{' || t.kind == '[') && depth >= 16:
		if !t.empty() {
			c.text(t.span)
		}
	case t.kind == '[':
		for _, item := range t.items {
			c.content(item, depth+1)
		}
	case t.kind == '{':
		for i, name := range t.names {
			c.part(name, t.items[i], depth)
		}
	}
}

func (c *collected) part(name string, v tree, depth int) {
	switch name {
	case "role":
		if v.kind == '"' {
			c.text(v.span)
		}
	case "content", "output", "summary":
		c.content(v, depth+1)
	case "text", "refusal", "reasoning", "reasoning_content", "thinking", "name":
		if v.kind == '"' {
			c.text(v.contents())
		}
	case "tool_calls", "function_call", "arguments", "input":
		if !v.empty() {
			c.text(v.span)
		}
	case "source":
		kind, _ := v.last("type")
		switch {
		case v.kind == '{' && (kind.raw == `"text"` || kind.raw == `"content"`):
			c.text(v.span)
		default:
			c.addMedia(v)
		}
	case "image_url", "image", "image_embeds", "video_url", "video", "audio_url", "input_audio", "audio",
		"audio_embeds", "file", "file_data", "file_id", "file_url":
		c.addMedia(v)
	}
}

// batch collects from a prompt of any shape.
func (c *collected) batch(t tree) {
	if t.kind != '[' {
		if t.kind == '"' || t.kind == '{' {
			c.content(t, 0)
		}
		return
	}
	prompts, flat := 0, -1
	broken := map[int]bool{}
	for _, item := range t.items {
		var one collected
		which := prompts
		switch item.kind {
		case '"', '{':
			one.content(item, 1)
			prompts++
		case '[':
			for _, id := range item.items {
				one.id(id)
			}
			prompts++
		case '0':
			if strings.HasPrefix(item.raw, "-") {
				continue
			}
			if flat < 0 {
				flat = prompts
				prompts++
			}
			which = flat
			one.broken = broken[flat]
			one.id(item)
			broken[flat] = one.broken
		default:
			continue
		}
		c.bytes += one.bytes
		c.count += one.count
		c.media += one.media
		if which == 0 && prompts == 1 {
			c.spans = append(c.spans, one.spans...)
			c.tokens = append(c.tokens, one.tokens...)
		}
	}
}

func (c *collected) id(t tree) {
	id, err := strconv.ParseUint(t.raw, 10, 32)
	if err != nil {
		c.broken = true
		return
	}
	c.count++
	if !c.broken {
		c.tokens = append(c.tokens, uint32(id))
	}
}

var referenceHead = map[scheduling.Operation][]string{
	scheduling.OperationChat: {
		"chat_template", "chat_template_kwargs", "reasoning_effort", "documents", "functions", "tools",
	},
	scheduling.OperationResponses: {"reasoning", "tools"},
	scheduling.OperationMessages:  {"chat_template_kwargs", "tools"},
}

// reference is what a scan of a valid body has to find.
func reference(op scheduling.Operation, t tree) collected {
	var c collected
	for _, name := range referenceHead[op] {
		if v, ok := t.last(name); ok && !v.empty() {
			c.text(v.span)
			if name != "documents" && name != "functions" && name != "tools" {
				c.bytes -= v.span.End - v.span.Start
			}
		}
	}
	field := func(name string, read func(tree)) {
		if v, ok := t.last(name); ok {
			read(v)
		}
	}
	content := func(v tree) { c.content(v, 0) }
	switch op {
	case scheduling.OperationChat:
		field("messages", content)
	case scheduling.OperationCompletions:
		field("prompt_embeds", c.addMedia)
		field("prompt", c.batch)
	case scheduling.OperationResponses:
		field("instructions", content)
		field("input", content)
	case scheduling.OperationMessages:
		field("system", content)
		field("messages", content)
	case scheduling.OperationEmbeddings:
		for i := len(t.names) - 1; i >= 0; i-- {
			if t.names[i] == "messages" {
				content(t.items[i])
				break
			}
			if t.names[i] == "input" {
				c.batch(t.items[i])
				break
			}
		}
	default:
	}
	return c
}
