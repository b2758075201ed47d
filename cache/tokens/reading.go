package tokens

import (
	"github.com/sluice-epp/sluice/cache/tokens/fields"
	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/scheduling"
)

// maxMessages is the number of messages of a conversation whose beginnings are looked for in the memo; a longer one is
// known as a whole only.
const maxMessages = 4096

// reading is what is read of a request's body; reused.
type reading struct {
	doc      fields.Document
	op       scheduling.Operation
	whole    memo.Key          // names the request
	listed   bool              // it is a conversation
	messages []scheduling.Span // its messages
	keys     []memo.Key        // keys[i] names the conversation of its first i+1 messages
	cutting  bool              // the prompt may be cut to a length
}

// read reads a request's body; false where it cannot be read.
func (rd *reading) read(r *scheduling.Request, seed uint64) bool {
	rd.op, rd.listed, rd.cutting, rd.messages, rd.keys = r.Operation, false, false, rd.messages[:0], rd.keys[:0]
	if !rd.doc.Read(r.Body) {
		return false
	}
	key := memo.Key{}.WithString(seed, r.Operation.String()).WithString(seed, r.Model)
	if rd.doc.Escaped {
		rd.whole = key.With(seed, r.Body)
		return true
	}
	for _, name := range cuttingFields {
		_, found := rd.doc.Last(name)
		rd.cutting = rd.cutting || found
	}
	list := rd.list()
	for i := range rd.doc.Fields {
		if i != list && rd.matters(i) {
			f := &rd.doc.Fields[i]
			key = key.With(seed, f.Name).With(seed, rd.doc.Raw(f.Value))
		}
	}
	if rd.listed {
		key = key.WithString(seed, "conversation")
		for _, m := range rd.messages {
			key = key.With(seed, rd.doc.Raw(m))
			rd.keys = append(rd.keys, key)
		}
	}
	rd.whole = key
	return true
}

// cuttingFields make the length of the prompt depend on how long the answer may be.
var cuttingFields = [...]string{"truncate_prompt_tokens", "truncation"}

// list finds the messages of a conversation: the index of their field, or -1.
func (rd *reading) list() int {
	if rd.op != scheduling.OperationChat && rd.op != scheduling.OperationMessages {
		return -1
	}
	for i := len(rd.doc.Fields) - 1; i >= 0; i-- {
		if f := &rd.doc.Fields[i]; string(f.Name) == "messages" {
			rd.messages, rd.listed = fields.Elements(rd.doc.Body, f.Value, rd.messages, maxMessages)
			rd.listed = rd.listed && len(rd.messages) > 0
			if rd.listed {
				return i
			}
			rd.messages = rd.messages[:0] // those before the fault
			break
		}
	}
	return -1
}

// matters reports whether the tokens of the prompt may depend on a field. Fields that are not known do.
func (rd *reading) matters(i int) bool {
	switch string(rd.doc.Fields[i].Name) {
	case "model": // the key has the name that the engine will see
		return false
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		return rd.cutting
	case "stream", "stream_options", "stream_interval", "temperature", "top_p", "top_k", "min_p", "n", "best_of", "seed",
		"stop", "stop_token_ids", "stop_sequences", "logprobs", "top_logprobs", "prompt_logprobs", "logit_bias",
		"presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "ignore_eos", "min_tokens",
		"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "user", "metadata", "store",
		"service_tier", "safety_identifier", "prompt_cache_key", "cache_salt", "request_id", "session_id", "priority",
		"return_token_ids", "return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text", "mm_payload",
		"return_mm_kwargs":
		return false
	}
	return true
}

// media says what a request holds beside text.
func (rd *reading) media() (m fields.Media) {
	for i := range rd.doc.Fields {
		f := &rd.doc.Fields[i]
		switch string(f.Name) {
		case "messages", "input", "system":
			m = max(m, fields.MediaOf(rd.doc.Body, f.Value))
		case "prompt_embeds", "prompt": // a Responses prompt is a reference to what is elsewhere
			if string(f.Name) != "prompt" || rd.op == scheduling.OperationResponses {
				m = fields.MediaRemote
			}
		}
	}
	if rd.doc.Escaped {
		m = fields.MediaRemote
	}
	return m
}

// plainFrom reports whether the messages from an index on are plain: system messages come first, and all others are a
// user's or an assistant's.
func (rd *reading) plainFrom(first int) bool {
	if !rd.listed {
		return false
	}
	leading := first == 0
	for _, s := range rd.messages[first:] {
		m := fields.ReadMessage(rd.doc.Body, s)
		leading = leading && isSystem(m)
		if !m.Plain || isSystem(m) && !leading {
			return false
		}
	}
	return true
}

func isSystem(m fields.Message) bool {
	return m.Role == fields.RoleSystem || m.Role == fields.RoleDeveloper
}

// lookBack is how many messages, counted from the end, are taken for new at most.
const lookBack = 16

// beginning is the longest beginning of the conversation that the memo holds, and its number of messages.
func (rd *reading) beginning(look func(memo.Key) *memo.Prompt) (*memo.Prompt, int) {
	for i := len(rd.keys) - 2; i >= 0 && i >= len(rd.keys)-1-lookBack; i-- {
		if known := look(rd.keys[i]); known != nil {
			return known, i + 1
		}
	}
	return nil, 0
}

// What is worth joining: at least so many bytes need not be rendered, and more than have to be.
const minDropped = 4 << 10

// cut is a conversation without the messages in its middle.
type cut struct {
	dropped scheduling.Span // the messages between the system's and the last known one, with the comma behind them
	behind  scheduling.Span // the messages behind the last known one, with the comma before them
	shape   uint64
}

// cutBehind cuts the conversation whose first messages are known; ok is false where it cannot be joined, or need not be.
func (rd *reading) cutBehind(known int, seed uint64) (c cut, ok bool) {
	for _, name := range unjoinable {
		if _, found := rd.doc.Last(name); found {
			return c, false
		}
	}
	system := 0
	for system < known && isSystem(fields.ReadMessage(rd.doc.Body, rd.messages[system])) {
		system++
	}
	last := known - 1
	if system >= last {
		return c, false
	}
	c.dropped = scheduling.Span{Start: rd.messages[system].Start, End: rd.messages[last].Start}
	c.behind = scheduling.Span{Start: rd.messages[last].End, End: rd.messages[len(rd.messages)-1].End}
	length := c.dropped.End - c.dropped.Start
	if length < minDropped || length < len(rd.doc.Body)-length {
		return c, false
	}
	c.shape, ok = rd.shape(system, last, seed)
	return c, ok
}

// shape names what a template may go by when it writes a conversation: the fields beside the messages (of those that hold
// text of the prompt only whether they are there), whether there are system messages, how many messages there are, and the
// form of those from the last known one on. ok is false where these are not a user's and an assistant's in turn,
// with a user's at the end.
func (rd *reading) shape(system, last int, seed uint64) (shape uint64, ok bool) {
	key := memo.Key{}.WithString(seed, rd.op.String())
	for i := range rd.doc.Fields {
		f := &rd.doc.Fields[i]
		if string(f.Name) == "messages" || !rd.matters(i) {
			continue
		}
		key = key.With(seed, f.Name)
		switch string(f.Name) {
		case "tools", "functions", "documents", "system":
		default:
			key = key.With(seed, rd.doc.Raw(f.Value))
		}
	}
	n := len(rd.messages)
	form := [4 + lookBack + 1]byte{byte(min(system, 255)), byte(n), byte(n >> 8), byte(n - last)}
	for i, s := range rd.messages[last:] {
		m := fields.ReadMessage(rd.doc.Body, s)
		want := fields.RoleUser
		if i%2 == 1 {
			want = fields.RoleAssistant
		}
		if m.Role != want {
			return 0, false
		}
		if m.Parts {
			form[4+i] = 1
		}
	}
	return key.With(seed, form[:]).Sum(), (len(rd.messages)-last)%2 == 1
}

// unjoinable are fields with which a prompt has no plain end, or is not made of the messages alone.
var unjoinable = [...]string{
	"add_generation_prompt", "continue_final_message", "truncate_prompt_tokens", "truncation", "truncation_side", "echo",
	"kv_transfer_params", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds", "use_beam_search",
}
