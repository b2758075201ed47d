package openai

import (
	"bytes"

	"github.com/sluice-epp/sluice/scheduling"
)

// Response reads an answer as it flows by: its token usage, its first token and its end. Start makes it ready, also for
// reuse. It is not safe for concurrent use.
//
// Of an answer it collects nothing but what CollectPromptTokens asks for: without that, its memory is the struct,
// whatever the size of the answer or of one event in it.
//
// The usage is found only where the APIs have it (usage, message.usage or response.usage of an event or of the whole
// answer), never in generated text. An answer whose content encoding is not identity is not read.
type Response struct {
	status  int
	format  format
	encoded bool
	lines   lines
	doc     document
}

// format is what a response body is read as.
type format uint8

const (
	formatUnknown format = iota // no content type: the first byte decides
	formatJSON
	formatEvents
	formatOpaque
)

// Start begins a new response with its status and the values of its content-type and content-encoding headers (nil
// where absent).
func (r *Response) Start(status int, contentType, contentEncoding []byte) {
	*r = Response{status: status, format: formatOf(contentType)}
	r.doc.root = nodeRoot
	encoding := bytes.TrimSpace(contentEncoding)
	r.encoded = len(encoding) > 0 && !bytes.EqualFold(encoding, []byte("identity"))
}

func formatOf(contentType []byte) format {
	media, _, _ := bytes.Cut(contentType, []byte(";"))
	media = bytes.TrimSpace(media)
	_, sub, _ := bytes.Cut(media, []byte("/"))
	switch {
	case len(media) == 0:
		return formatUnknown
	case bytes.EqualFold(media, []byte("text/event-stream")):
		return formatEvents
	case hasSuffixFold(sub, "json"): // application/json, problem+json, x-ndjson
		return formatJSON
	}
	return formatOpaque
}

func hasSuffixFold(b []byte, suffix string) bool {
	return len(b) >= len(suffix) && bytes.EqualFold(b[len(b)-len(suffix):], []byte(suffix))
}

// Push reads the next piece of the body, cut anywhere. It neither changes p nor keeps it.
func (r *Response) Push(p []byte) {
	if len(p) == 0 {
		return
	}
	if r.encoded {
		r.doc.facts.first = true
		return
	}
	if r.format == formatUnknown {
		r.format = sniff(p)
	}
	switch r.format {
	case formatJSON:
		r.doc.push(p)
	case formatEvents:
		r.lines.push(p, &r.doc)
	case formatUnknown, formatOpaque: // nothing to read
	}
}

// sniff tells events from JSON by their first byte; of white space alone nothing can be told yet.
func sniff(p []byte) format {
	p = bytes.TrimLeft(p, " \t\r\n")
	switch {
	case len(p) == 0:
		return formatUnknown
	case p[0] == '{' || p[0] == '[':
		return formatJSON
	}
	return formatEvents
}

// Streamed reports whether the answer is a stream of events.
func (r *Response) Streamed() bool { return r.format == formatEvents }

// FirstToken reports whether generated content was seen: text, reasoning, a refusal, a tool call. Events without any
// (the role, pings, empty deltas) don't count. It is for streams of events only: an answer in one piece, and one whose
// status is an error, has no first token apart from its end. Of an encoded stream the first byte counts as the first
// token.
func (r *Response) FirstToken() bool {
	return r.doc.facts.first && r.format == formatEvents && r.status < 400
}

// Usage is what the engine counted so far; a field that it did not give is negative. Counts are merged field by field:
// a later number replaces an earlier one, null never does, nor does a zero.
//
// PromptTokens is the whole prompt. The Messages API counts cached tokens apart from input_tokens, so there it is
// input_tokens + cache_read_input_tokens + cache_creation_input_tokens (vLLM does the same); in the other APIs the
// cached tokens are part of prompt_tokens or input_tokens.
func (r *Response) Usage() scheduling.Usage { return r.doc.facts.counts.usage() }

// Done reports whether the answer said that it is complete: [DONE], message_stop, response.completed (or another
// terminal event), or the end of a JSON document.
func (r *Response) Done() bool {
	return r.doc.facts.done || (r.format == formatJSON && r.doc.facts.documents > 0)
}

// Failed reports whether the answer holds an error object, in place of an answer or amid a stream.
func (r *Response) Failed() bool { return r.doc.facts.failed }

// CollectPromptTokens asks for the first prompt's token ids, which engines give to clients that sent return_token_ids. It
// is called between Start and the first Push, and holds until the next Start or ReleasePromptTokens. The ids are
// collected in the memory of into, or in newly allocated memory where that does not suffice: 4 bytes an id, of at most
// MaxTokens ids.
func (r *Response) CollectPromptTokens(into []uint32) {
	r.doc.ids.ask(into)
	r.doc.root = nodeAskedRoot
}

// PromptTokens is the first prompt's token ids: of a batch, those of choice 0. It is nil until all of them were read, and
// where they were not asked for or not given. It is valid until ReleasePromptTokens.
func (r *Response) PromptTokens() []uint32 {
	if r.doc.ids.phase != idsGiven || len(r.doc.ids.tokens) == 0 {
		return nil
	}
	return r.doc.ids.tokens
}

// PromptTokensDropped reports whether there are no PromptTokens because they were more than MaxTokens, or no token ids.
func (r *Response) PromptTokensDropped() bool { return r.doc.ids.phase == idsDropped }

// ReleasePromptTokens ends the collecting and gives the memory back, empty, for use with another answer; nil where there is
// none.
func (r *Response) ReleasePromptTokens() []uint32 {
	if r.doc.state == docIDs {
		r.doc.state, r.doc.skipped = docSkip, 1
	}
	memory := r.doc.ids.tokens[:0]
	r.doc.ids = promptIDs{}
	r.doc.root = nodeRoot
	return memory
}

// LimitEvents bounds how much of the data of one event is read, in bytes; 0 is for no bound. What is beyond passes unread
// up to the next event. It is called between Start and the first Push, and holds until the next Start.
func (r *Response) LimitEvents(bytes int) { r.lines.limit = bytes }

// Oversized is the number of events that were larger than LimitEvents has it.
func (r *Response) Oversized() int { return r.doc.facts.oversized }

// Encoded reports whether the body was not read because of its content encoding.
func (r *Response) Encoded() bool { return r.encoded }

// Malformed is the number of documents (events' data, or the whole answer) that were not JSON or broke off.
func (r *Response) Malformed() int { return r.doc.facts.malformed }
