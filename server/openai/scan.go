package openai

import (
	"errors"
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// Bounds of what a scan keeps. Text and tokens past them still count as load.
const (
	// MaxSpans is the number of prompt spans kept per request.
	MaxSpans = 1 << 16
	// MaxTokens is the number of token ids kept per request.
	MaxTokens = 1 << 20
	// MaxNesting is the number of levels that values may be nested to be read bracket by bracket.
	MaxNesting = maxDepth
)

// ErrNotJSON is the error for a request body that is not JSON at all; a *SyntaxError carries it.
var ErrNotJSON = errors.New("body is not JSON")

// SyntaxError says where a body stops being JSON. It holds nothing of the body's text.
type SyntaxError struct {
	// Offset is the byte at fault, counted from 0.
	Offset int
	// Truncated says that the body ends there, within a value.
	Truncated bool
}

// Error implements error.
func (e *SyntaxError) Error() string {
	if e.Truncated {
		return fmt.Sprintf("%v: it ends within a value, at byte %d", ErrNotJSON, e.Offset)
	}
	return fmt.Sprintf("%v: unexpected byte at offset %d", ErrNotJSON, e.Offset)
}

// Unwrap returns ErrNotJSON.
func (e *SyntaxError) Unwrap() error { return ErrNotJSON }

// Info is what a scan found beside what scheduling.Request holds.
type Info struct {
	// Model is the range of the model name's JSON string, quotes included; of several, the last, which is the one that
	// engines take. It is empty where the body has none or it is not a string.
	Model scheduling.Span
	// Session is the range of the contents of a session_id string; empty where there is none.
	Session scheduling.Span
	// Prompts is the number of prompts in a batch; 1 for a conversation, 0 where no prompt was found.
	Prompts int
	// Media is the number of images, audio and video clips and files in the prompts.
	Media int
	// MediaBytes is the length of their JSON values. It is no part of Request.PromptBytes: an encoded image says
	// nothing of its number of tokens.
	MediaBytes int
	// SpansDropped is the number of prompt spans past MaxSpans.
	SpansDropped int
	// TooDeep says that some value was nested deeper than MaxNesting levels, or than LimitNesting has it. What is deeper was
	// skipped by counting brackets; the rest was read.
	TooDeep bool
	// Cut says that a partial body ended within a value.
	Cut bool
	// Opaque says that the body is JSON in UTF-16 or UTF-32, which some engines read: nothing was read but its length.
	Opaque bool
}

// Scanner reads request bodies. It is safe for concurrent use. Its only memory is a bounded set of model names and one
// of cache salts, so that reading known ones allocates nothing.
type Scanner struct {
	models, salts *names
	nesting       int
}

// NewScanner returns a Scanner that knows the given model names from the start.
func NewScanner(models ...string) *Scanner {
	return &Scanner{models: newNames(models...), salts: newNames()}
}

// LimitNesting bounds how deep a value may be nested before Info.TooDeep is said of it, to less than MaxNesting levels. It is
// called before the first scan.
func (s *Scanner) LimitNesting(levels int) { s.nesting = min(max(levels, 1), MaxNesting) }

// Names is the number of model names and cache salts held; each is at most 1,024 (more where NewScanner was given more
// models).
func (s *Scanner) Names() (models, salts int) { return s.models.len(), s.salts.len() }

// Scan reads a request body into the fields of into that come from a body, replacing them: Operation, Model,
// CacheSalt, Body, Prompt, PromptBytes, Tokens, TokenCount, MaxOutputTokens, Choices, Stream, KVReportFull,
// ReturnTokenIDs. The others are left alone.
//
// Prompt lists the first prompt in the order in which engines render it: what stands before every conversation (tools,
// functions, documents, chat template and its arguments, reasoning effort; each as raw JSON), then system or
// instructions, then the messages in order. Within a message the order is the body's. A role stands with its quotes,
// which no string content can hold, so that it can't be taken for text; tool calls and their arguments stand as raw
// JSON. Fields that no template renders (cache control, types of parts) are left out; so a conversation's next turn,
// written by the same client, begins with the spans of the turn before. A media value longer than 1,024 bytes is represented by 16 samples of 64 bytes, evenly
// spread from its head to its tail: that tells media apart without weighing megabytes of base64 as if they were text.
//
// MaxOutputTokens is max_completion_tokens, else max_tokens, for chat; max_output_tokens for responses; max_tokens
// otherwise. Limits that are not positive count as none. Choices is the larger of n and best_of. A salt longer than
// 4,096 bytes becomes a digest that no shorter salt can equal. KVReportFull is read where vLLM takes vllm_xargs (all
// operations but embeddings), ReturnTokenIDs where it takes return_token_ids (chat and completions); only the string
// "full" and only true count.
//
// The only error is a *SyntaxError, for bytes that are not JSON; what was read before the fault then stands in into. A
// body of OperationOther may be anything: only its model, stream and limits are read, and it is never an error.
func (s *Scanner) Scan(op scheduling.Operation, body []byte, into *scheduling.Request) (Info, error) {
	return s.scan(op, body, into, false)
}

// ScanPartial is Scan for a body of which only the beginning is known: everything up to the cut is used, and the cut
// itself is no error. A number, a model name or a salt that the cut may have shortened counts as absent.
func (s *Scanner) ScanPartial(op scheduling.Operation, body []byte, into *scheduling.Request) (Info, error) {
	return s.scan(op, body, into, true)
}

func (s *Scanner) scan(op scheduling.Operation, body []byte, into *scheduling.Request, partial bool) (Info, error) {
	into.Operation, into.Body = op, body
	into.Model, into.CacheSalt, into.Stream = "", "", false
	into.KVReportFull, into.ReturnTokenIDs = false, false
	into.Prompt, into.Tokens = into.Prompt[:0], into.Tokens[:0]
	into.PromptBytes, into.TokenCount, into.MaxOutputTokens, into.Choices = 0, 0, 0, 1

	r := request{cursor: cursor{b: body, nesting: s.nesting}, into: into, partial: partial}
	if wide(body) {
		into.PromptBytes = len(body) / 2
		return Info{Opaque: true}, nil
	}
	if n := min(len(body), len(byteOrderMark)); string(body[:n]) == byteOrderMark[:n] && (partial || n == len(byteOrderMark)) {
		r.pos = n
	}
	ok := r.document()
	r.finish(s)
	if !ok && op != scheduling.OperationOther {
		if truncated := r.pos >= len(body); !truncated || !partial {
			return r.info, &SyntaxError{Offset: r.pos, Truncated: truncated}
		}
		r.info.Cut = true
	}
	return r.info, nil
}

// wide reports whether a body is JSON in UTF-16 or UTF-32: one of its first two bytes is 0, or it starts with UTF-16's
// byte order mark. (RFC 4627, section 3.)
func wide(b []byte) bool {
	if len(b) < 2 {
		return false
	}
	return b[0] == 0 || b[1] == 0 || (b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff)
}

// request is the state of one scan.
type request struct {
	cursor
	into    *scheduling.Request
	info    Info
	partial bool

	model, salt scheduling.Span // contents of strings
	limits      limits
	head        [headFields]scheduling.Span // raw JSON
	sections    [2]section
	current     int  // the section being read
	later       bool // what is read belongs to a batch's later prompts
}

// document reads the whole body.
func (r *request) document() bool {
	r.space()
	var ok bool
	if r.peek() == '{' {
		ok = r.object()
	} else {
		ok = r.skip()
	}
	if !ok {
		return false
	}
	r.space()
	return r.pos == len(r.b)
}

func (r *request) object() bool {
	more, ok := r.enter('}'), true
	for more && ok {
		key, found := r.key()
		if !found || !r.field(key) {
			return false
		}
		more, ok = r.next('}')
	}
	return ok
}

// field reads the value of a top-level field. Of a field that comes twice the last one counts.
func (r *request) field(key []byte) bool {
	switch string(key) {
	case "model":
		return r.name(&r.model)
	case "cache_salt":
		return r.name(&r.salt)
	case "session_id":
		return r.name(&r.info.Session)
	case "stream":
		return r.flag(&r.into.Stream)
	case "n":
		return r.limit(&r.limits.n)
	case "best_of":
		return r.limit(&r.limits.bestOf)
	case "max_tokens":
		return r.limit(&r.limits.tokens)
	case "max_completion_tokens":
		return r.limit(&r.limits.completionTokens)
	case "max_output_tokens":
		return r.limit(&r.limits.outputTokens)
	}
	switch r.into.Operation {
	case scheduling.OperationChat:
		return r.chatField(key)
	case scheduling.OperationCompletions:
		return r.completionsField(key)
	case scheduling.OperationResponses:
		return r.responsesField(key)
	case scheduling.OperationEmbeddings:
		return r.embeddingsField(key)
	case scheduling.OperationMessages:
		return r.messagesField(key)
	default:
		return r.skip()
	}
}

// finish puts what was read into the request.
func (r *request) finish(s *Scanner) {
	into := r.into
	into.Model = s.models.of(unescaped(r.b, r.model))
	into.CacheSalt = s.salts.of(boundedSalt(unescaped(r.b, r.salt)))
	if r.model.Start > 0 {
		r.info.Model = scheduling.Span{Start: r.model.Start - 1, End: r.model.End + 1}
	}
	into.MaxOutputTokens = r.limits.output(into.Operation)
	into.Choices = min(max(1, r.limits.n, r.limits.bestOf), maxChoices)
	r.arrange()
	system, main := &r.sections[systemSection], &r.sections[mainSection]
	into.PromptBytes = r.headBytes() + system.bytes + main.bytes
	r.info.Prompts = main.prompts
	r.info.Media = system.media + main.media
	r.info.MediaBytes = system.mediaBytes + main.mediaBytes
	r.info.SpansDropped = system.dropped + main.dropped
	r.info.TooDeep = r.deep
}
