package openai

import (
	"math"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxContentDepth bounds how deep contents within contents are read as such; deeper ones count as text as they stand.
const maxContentDepth = 16

func (r *request) chatField(key []byte) bool {
	switch string(key) {
	case "messages":
		return r.conversation()
	case "tools":
		return r.raw(&r.head[headTools])
	case "functions":
		return r.raw(&r.head[headFunctions])
	case "documents":
		return r.raw(&r.head[headDocuments])
	case "chat_template":
		return r.raw(&r.head[headTemplate])
	case "chat_template_kwargs":
		return r.raw(&r.head[headArguments])
	case "reasoning_effort":
		return r.raw(&r.head[headEffort])
	case "return_token_ids":
		return r.yes(&r.into.ReturnTokenIDs)
	case "vllm_xargs":
		return r.extras()
	}
	return r.skip()
}

func (r *request) completionsField(key []byte) bool {
	switch string(key) {
	case "prompt":
		return r.prompts()
	case "prompt_embeds":
		r.begin(systemSection)
		ok := r.media()
		r.end()
		return ok
	case "return_token_ids":
		return r.yes(&r.into.ReturnTokenIDs)
	case "vllm_xargs":
		return r.extras()
	}
	return r.skip()
}

func (r *request) responsesField(key []byte) bool {
	switch string(key) {
	case "input":
		return r.conversation()
	case "instructions":
		return r.instructions()
	case "tools":
		return r.raw(&r.head[headTools])
	case "reasoning":
		return r.raw(&r.head[headEffort])
	case "vllm_xargs":
		return r.extras()
	}
	return r.skip()
}

func (r *request) embeddingsField(key []byte) bool {
	switch string(key) {
	case "input":
		return r.prompts()
	case "messages":
		return r.conversation()
	}
	return r.skip()
}

func (r *request) messagesField(key []byte) bool {
	switch string(key) {
	case "messages":
		return r.conversation()
	case "system":
		return r.instructions()
	case "tools":
		return r.raw(&r.head[headTools])
	case "chat_template_kwargs":
		return r.raw(&r.head[headArguments])
	case "vllm_xargs":
		return r.extras()
	}
	return r.skip()
}

// conversation reads messages, or the single string that the Responses API takes in their place.
func (r *request) conversation() bool {
	r.begin(mainSection)
	if b := r.peek(); b == '[' || b == '"' || b == '{' {
		r.sections[mainSection].prompts = 1
	}
	ok := r.content(0)
	r.end()
	return ok
}

// instructions reads what stands before the messages.
func (r *request) instructions() bool {
	r.begin(systemSection)
	ok := r.content(0)
	r.end()
	return ok
}

// content reads a string, a message or part, or a list of these.
func (r *request) content(depth int) bool {
	switch r.peek() {
	case '"':
		return r.text()
	case '{':
		return r.part(depth)
	case '[':
		if depth >= maxContentDepth {
			return r.rawText()
		}
		more, ok := r.enter(']'), true
		for more && ok {
			if !r.content(depth + 1) {
				return false
			}
			more, ok = r.next(']')
		}
		return ok
	}
	return r.skip()
}

// part reads a message, an item or a part of either. Their fields don't clash, so one function reads all: what a
// template renders is known by its name, whatever the type of the part is called.
func (r *request) part(depth int) bool {
	if depth >= maxContentDepth {
		return r.rawText()
	}
	more, ok := r.enter('}'), true
	for more && ok {
		key, found := r.key()
		if !found || !r.partField(key, depth) {
			return false
		}
		more, ok = r.next('}')
	}
	return ok
}

func (r *request) partField(key []byte, depth int) bool {
	switch string(key) {
	case "role":
		return r.role()
	case "content", "output", "summary":
		return r.content(depth + 1)
	case "text", "refusal", "reasoning", "reasoning_content", "thinking", "name":
		if r.peek() == '"' {
			return r.text()
		}
	case "tool_calls", "function_call", "arguments", "input":
		return r.rawText()
	case "source":
		return r.source()
	case "image_url", "image", "image_embeds", "video_url", "video", "audio_url", "input_audio", "audio",
		"audio_embeds", "file", "file_data", "file_id", "file_url":
		return r.media()
	}
	return r.skip()
}

// text reads a string of the prompt. Where the body ends within it, the part that is there counts.
func (r *request) text() bool {
	s, ok := r.str()
	r.add(s)
	return ok
}

// role reads a message's role, quotes included.
func (r *request) role() bool {
	start := r.pos
	quoted := r.peek() == '"'
	ok := r.skip()
	if quoted {
		r.add(scheduling.Span{Start: start, End: r.pos})
	}
	return ok
}

// raw notes the range of a value of any kind; one that says nothing (null, empty) leaves the range empty.
func (r *request) raw(into *scheduling.Span) bool {
	start := r.pos
	ok := r.skip()
	*into = scheduling.Span{Start: start, End: r.pos}
	if saysNothing(r.b[start:r.pos]) {
		*into = scheduling.Span{}
	}
	return ok
}

// rawText reads a value of any kind as text of the prompt.
func (r *request) rawText() bool {
	var s scheduling.Span
	ok := r.raw(&s)
	r.add(s)
	return ok
}

// media reads an image, a clip or a file.
func (r *request) media() bool {
	var s scheduling.Span
	ok := r.raw(&s)
	if s.End > s.Start {
		r.addMedia(s)
	}
	return ok
}

// source reads the source of an Anthropic image or document, which is text where its type says so.
func (r *request) source() bool {
	if r.peek() != '{' {
		return r.media()
	}
	start, text := r.pos, false
	more, ok := r.enter('}'), true
	for more && ok {
		var key []byte
		if key, ok = r.key(); !ok {
			break
		}
		at := r.pos
		if ok = r.skip(); !ok {
			break
		}
		if string(key) == "type" {
			kind := string(r.b[at:r.pos])
			text = kind == `"text"` || kind == `"content"`
		}
		more, ok = r.next('}')
	}
	switch s := (scheduling.Span{Start: start, End: r.pos}); {
	case text:
		r.add(s)
	case !saysNothing(r.b[start:r.pos]):
		r.addMedia(s)
	}
	return ok
}

// saysNothing reports whether a raw value is null or empty, so that a client that writes it out equals one that does
// not.
func saysNothing(raw []byte) bool {
	if len(raw) == 0 || raw[0] == 'n' {
		return true
	}
	return len(raw) == 2 && (raw[0] == '[' || raw[0] == '{' || raw[0] == '"')
}

// prompts reads a prompt or a batch: a string, a list of strings, a list of token ids, a list of such lists, or a mix.
func (r *request) prompts() bool {
	r.begin(mainSection)
	var ok bool
	switch r.peek() {
	case '[':
		ok = r.batch()
	case '"', '{':
		r.nextPrompt()
		ok = r.content(0)
	default:
		ok = r.skip()
	}
	r.end()
	return ok
}

func (r *request) batch() bool {
	more, ok, flat := r.enter(']'), true, false
	for more && ok {
		switch b := r.peek(); {
		case b == '[':
			r.nextPrompt()
			ok = r.tokens()
		case b == '"' || b == '{':
			r.nextPrompt()
			ok = r.content(1)
		case b-'0' <= 9: // all ids that stand in the batch itself are one prompt
			if !flat {
				r.nextPrompt()
				flat = true
			}
			if r.ids(); r.peek()-'0' > 9 {
				continue // all had a comma behind them
			}
			ok = r.token()
		default:
			ok = r.skip()
		}
		if !ok {
			return false
		}
		more, ok = r.next(']')
	}
	return ok
}

// nextPrompt starts a prompt of a batch.
func (r *request) nextPrompt() {
	r.sections[r.current].prompts++
	r.later = r.sections[r.current].prompts > 1
}

// tokens reads a list of token ids.
func (r *request) tokens() bool {
	more, ok := r.enter(']'), true
	for more && ok {
		r.ids()
		if !r.token() {
			return false
		}
		more, ok = r.next(']')
	}
	return ok
}

// token reads one id of a token list. Anything else there (an engine refuses it) is passed over, and ends what is
// collected of the list.
func (r *request) token() bool {
	b, start, id := r.b, r.pos, uint64(0)
	i := start
	for i < len(b) && b[i]-'0' <= 9 && i-start < maxIDDigits {
		id = id*10 + uint64(b[i]-'0')
		i++
	}
	if i == len(b) && i > start {
		r.pos = i // the body ends here, and the cut may have shortened the id
		return true
	}
	if i == start || id > math.MaxUint32 || (b[start] == '0' && i-start > 1) || inNumber(b[i]) {
		r.later = true
		return r.skip()
	}
	r.pos = i
	r.into.TokenCount++
	if !r.later && len(r.into.Tokens) < MaxTokens {
		r.into.Tokens = append(r.into.Tokens, uint32(id))
	}
	return true
}

// ids reads the ids at pos that have a comma behind them: all but the last of a plain list, and then the space up to
// the next element. It stops before anything that token has to judge.
func (r *request) ids() {
	b, i, tokens, n := r.b, r.pos, r.into.Tokens, 0
	for {
		start, id := i, uint64(0)
		for i < len(b) && b[i]-'0' <= 9 && i-start < maxIDDigits {
			id = id*10 + uint64(b[i]-'0')
			i++
		}
		if i == start || i == len(b) || b[i] != ',' || id > math.MaxUint32 || (b[start] == '0' && i-start > 1) {
			r.pos = start
			break
		}
		n++
		if !r.later && len(tokens) < MaxTokens {
			tokens = append(tokens, uint32(id))
		}
		i++
		for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
			i++
		}
	}
	r.into.Tokens = tokens
	r.into.TokenCount += n
}

// maxIDDigits is the length of the longest 32-bit number.
const maxIDDigits = 10

// inNumber reports whether a byte after digits makes them a part of a longer number.
func inNumber(b byte) bool { return b-'0' <= 9 || b == '.' || b|0x20 == 'e' }
