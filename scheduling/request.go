package scheduling

// Operation is the API that a request calls, as far as routing cares.
type Operation uint8

// The operations that Sluice reads the body of; every other path is OperationOther and is routed by load.
const (
	OperationOther       Operation = iota
	OperationChat                  // POST /v1/chat/completions
	OperationCompletions           // POST /v1/completions
	OperationResponses             // POST /v1/responses
	OperationEmbeddings            // POST /v1/embeddings
	OperationMessages              // POST /v1/messages (Anthropic)
)

var operationNames = [...]string{"other", "chat", "completions", "responses", "embeddings", "messages"}

// String is the operation's name as metrics and records show it.
func (o Operation) String() string {
	if int(o) < len(operationNames) {
		return operationNames[o]
	}
	return operationNames[OperationOther]
}

// Span is the half-open byte range [Start, End) of a request's body.
type Span struct{ Start, End int }

// Header is one request header; Name is lower case.
type Header struct {
	Name  string
	Value []byte
}

// Request is what scheduling knows of one HTTP request. Body, Prompt, Tokens and Headers alias the caller's buffers
// and are valid until Schedule returns; nothing in the core keeps them longer.
type Request struct {
	// ID is made per stream, unique within the process, and never the client's x-request-id. The seed derives from it.
	ID uint64
	// Operation is the API called.
	Operation Operation
	// Model is the model (or adapter) name that the engine will see; empty when the body has none.
	Model string
	// CacheSalt separates prefix caches of tenants; empty means none.
	CacheSalt string
	// Body is the raw request body; nil when the pick happens at the headers.
	Body []byte
	// Prompt is the text of the first prompt: ranges of Body, in the order in which an engine renders them. The
	// ranges are raw JSON string contents: escapes are left as they stand.
	Prompt []Span
	// PromptBytes is the length of all prompts' text in bytes (of a batch: the sum, which is what load means).
	PromptBytes int
	// Tokens is the first prompt as token ids, where the body gave ids.
	Tokens []uint32
	// TokenCount is the exact number of input tokens over all prompts that came as token ids.
	TokenCount int
	// MaxOutputTokens is the client's limit on generated tokens per choice; 0 when it set none.
	MaxOutputTokens int
	// Choices is how many completions are asked for (n, best_of); at least 1.
	Choices int
	// Stream says that the client asked for a streamed answer.
	Stream bool
	// KVReportFull says that the engine was asked to announce again the KV blocks that it reuses for this request (vLLM's
	// vllm_xargs.kv_cache_report_mode "full").
	KVReportFull bool
	// ReturnTokenIDs says that the client asked for the prompt's token ids in the answer (vLLM's return_token_ids).
	ReturnTokenIDs bool
	// TraceID is the trace that records this request, 32 hexadecimal digits; empty where none does.
	TraceID string
	// Headers are the request's headers.
	Headers []Header
	// Trial says that nobody sent the request: it is decided about to see the decision. What plugins count, and what they
	// learn for the requests to come, leaves it out.
	Trial bool
}

// Header returns the last value of a header by its lower-case name; ok is false where there is none.
func (r *Request) Header(name string) (value []byte, ok bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Name == name {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// Reset empties r for reuse, keeping the memory of its slices.
func (r *Request) Reset() {
	*r = Request{Prompt: r.Prompt[:0], Tokens: r.Tokens[:0], Headers: r.Headers[:0], Choices: 1}
}
