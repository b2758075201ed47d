package openai

// node says what an object or array of a response is: where in the document the reader stands.
type node uint8

const (
	nodeSkip    node = iota // nothing in it matters
	nodeRoot                // an event's data, or the whole answer
	nodeChoices             // choices
	nodeChoice              // one of them
	nodeDelta               // choices[].delta, or the delta of a Messages event
	nodeHolder              // message or response: an answer within an event
	nodeBlock               // content_block or item: a part of an answer that begins
	nodeFilled              // content that exists when it is not empty, such as tool_calls
	nodeUsage               // usage
	nodeDetails             // prompt_tokens_details, input_tokens_details

	// Where the prompt's token ids are asked for, these stand for nodeRoot, nodeChoices and nodeChoice until the ids
	// were read. Other answers never meet them, and pay nothing.
	nodeAskedRoot
	nodeAskedChoices
	nodeAskedChoice
	nodeIDs // prompt_token_ids
)

// want says what the value of a field means.
type want struct {
	node    node    // what an object or array there is
	count   counter // what a number there counts
	text    bool    // a string there that is not empty is generated content
	name    bool    // a string there is the event's type
	failure bool    // an object there, or a string that is not empty, is an error
}

// element is what an object or array within an array is.
func (n node) element() node {
	switch n {
	case nodeChoices:
		return nodeChoice
	case nodeAskedChoices:
		return nodeAskedChoice
	default:
		return nodeSkip
	}
}

// field is what the value of a field of n means.
func (n node) field(key []byte) want {
	switch n {
	case nodeRoot:
		return rootField(key)
	case nodeAskedRoot:
		return askedRootField(key)
	case nodeHolder:
		return holderField(key)
	case nodeChoice:
		return choiceField(key)
	case nodeAskedChoice:
		return askedChoiceField(key)
	case nodeDelta:
		return deltaField(key)
	case nodeBlock:
		switch string(key) {
		case "text", "thinking", "name":
			return want{text: true}
		}
	case nodeUsage:
		return usageField(key)
	case nodeDetails:
		if string(key) == "cached_tokens" {
			return want{count: countCached}
		}
	default: // lists, and what is not followed
	}
	return want{}
}

func rootField(key []byte) want {
	switch string(key) {
	case "choices":
		return want{node: nodeChoices}
	case "usage":
		return want{node: nodeUsage}
	case "delta": // an object in the Messages API, the text itself in the Responses API
		return want{node: nodeDelta, text: true}
	case "message", "response":
		return want{node: nodeHolder}
	case "content_block", "item":
		return want{node: nodeBlock}
	case "type":
		return want{name: true}
	case "error":
		return want{failure: true}
	}
	return want{}
}

func askedRootField(key []byte) want {
	switch string(key) {
	case "choices":
		return want{node: nodeAskedChoices}
	case "prompt_token_ids":
		return want{node: nodeIDs}
	}
	return rootField(key)
}

func choiceField(key []byte) want {
	switch string(key) {
	case "delta":
		return want{node: nodeDelta}
	case "text":
		return want{text: true}
	}
	return want{}
}

func askedChoiceField(key []byte) want {
	switch string(key) {
	case "index":
		return want{count: countIndex}
	case "prompt_token_ids":
		return want{node: nodeIDs}
	}
	return choiceField(key)
}

func holderField(key []byte) want {
	switch string(key) {
	case "usage":
		return want{node: nodeUsage}
	case "error":
		return want{failure: true}
	}
	return want{}
}

func deltaField(key []byte) want {
	switch string(key) {
	case "content", "audio":
		return want{text: true, node: nodeFilled}
	case "reasoning_content", "reasoning", "refusal", "text", "thinking", "partial_json":
		return want{text: true}
	case "tool_calls", "function_call":
		return want{node: nodeFilled}
	}
	return want{}
}

func usageField(key []byte) want {
	switch string(key) {
	case "prompt_tokens":
		return want{count: countPrompt}
	case "completion_tokens":
		return want{count: countCompletion}
	case "input_tokens":
		return want{count: countInput}
	case "output_tokens":
		return want{count: countOutput}
	case "cache_read_input_tokens":
		return want{count: countCacheRead}
	case "cache_creation_input_tokens":
		return want{count: countCacheWrite}
	case "prompt_tokens_details", "input_tokens_details":
		return want{node: nodeDetails}
	}
	return want{}
}
