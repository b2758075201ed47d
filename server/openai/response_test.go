package openai_test

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

const eventStream = "text/event-stream"

// answer is what a Response says.
type answer struct {
	Usage               scheduling.Usage
	First, Done, Failed bool
	Malformed           int
}

func read(contentType string, pieces ...[]byte) answer {
	var r openai.Response
	r.Start(200, []byte(contentType), nil)
	for _, p := range pieces {
		r.Push(p)
	}
	return answer{r.Usage(), r.FirstToken(), r.Done(), r.Failed(), r.Malformed()}
}

func usage(prompt, completion, cached int) scheduling.Usage {
	return scheduling.Usage{PromptTokens: prompt, CompletionTokens: completion, CachedTokens: cached}
}

func recorded(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/responses/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// recordings are answers of a real engine and what is in them.
var recordings = map[string]answer{
	"chat_stream_usage.sse":            {Usage: usage(29, 12, -1), First: true, Done: true},
	"chat_stream.sse":                  {Usage: scheduling.UnknownUsage, First: true, Done: true},
	"chat_stream_usage_continuous.sse": {Usage: usage(29, 12, -1), First: true, Done: true},
	"completion_stream_usage.sse":      {Usage: usage(5, 12, -1), First: true, Done: true},
	"completion_stream.sse":            {Usage: scheduling.UnknownUsage, First: true, Done: true},
	"chat_stream_return_token_ids.sse": {Usage: scheduling.UnknownUsage, First: true, Done: true},
	"messages_stream.sse":              {Usage: usage(17, 12, -1), First: true, Done: true},
	"responses_stream.sse":             {Usage: usage(17, 12, 0), First: true, Done: true},
	"chat_cached_stream.sse":           {Usage: usage(190, 2, 160), First: true, Done: true},
	"chat.json":                        {Usage: usage(29, 12, -1), Done: true},
	"chat_return_token_ids.json":       {Usage: usage(29, 12, -1), Done: true},
	"chat_cached_2.json":               {Usage: usage(190, 2, 160), Done: true},
	"completion_cached.json":           {Usage: usage(800, 2, 416), Done: true},
	"completion_return_token_ids.json": {Usage: usage(5, 12, -1), Done: true},
	"chat_logprobs_n2.json":            {Usage: usage(29, 24, -1), Done: true},
	"messages.json":                    {Usage: usage(17, 12, -1), Done: true},
	"messages_cached.json":             {Usage: usage(190, 2, 160), Done: true},
	"responses_cached2.json":           {Usage: usage(91, 2, 64), Done: true},
	"completion_list_strings.json":     {Usage: usage(7, 24, -1), Done: true},
	"completion_list_token_ids.json":   {Usage: usage(5, 24, -1), Done: true},
	"err_stream_bad_model.json":        {Usage: scheduling.UnknownUsage, Done: true, Failed: true},
	"err_messages_bad_model.json":      {Usage: scheduling.UnknownUsage, Done: true, Failed: true},
}

func typeOf(name string) string {
	if strings.HasSuffix(name, ".sse") {
		return eventStream
	}
	return "application/json"
}

func TestRecordedAnswers(t *testing.T) {
	for name, want := range recordings {
		if got := read(typeOf(name), recorded(t, name)); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestC31_CutAtEveryOffset(t *testing.T) {
	stride := 1
	if raceEnabled { // ten times slower there, and there is nothing to race
		stride = 13
	}
	for name, want := range recordings {
		body := recorded(t, name)
		original := bytes.Clone(body)
		for cut := 0; cut < len(body); cut += stride {
			if got := read(typeOf(name), body[:cut], body[cut:]); got != want {
				t.Fatalf("%s cut at %d: %+v, want %+v", name, cut, got, want)
			}
		}
		if !bytes.Equal(body, original) {
			t.Errorf("%s: the bytes were changed", name)
		}
	}
}

func TestC31_OneBytePieces(t *testing.T) {
	for name, want := range recordings {
		body := recorded(t, name)
		pieces := make([][]byte, len(body))
		for i := range body {
			pieces[i] = []byte{body[i]} // a buffer of its own: reading past its end would show
		}
		if got := read(typeOf(name), pieces...); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// variants are ways to write the same stream.
var variants = map[string]func(string) string{
	"\\r\\n":                func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
	"\\r":                   func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
	"data without a space":  func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") },
	"comments":              func(s string) string { return ": ping\n\n" + strings.ReplaceAll(s, "data: ", ": ping\ndata: ") },
	"event lines":           func(s string) string { return strings.ReplaceAll(s, "data: ", "event: message\nid: 7\ndata: ") },
	"event lines after":     func(s string) string { return strings.ReplaceAll(s, "\n\n", "\nevent: x\n\n") },
	"multi-line data":       func(s string) string { return strings.ReplaceAll(s, `,"`, ",\ndata: \"") },
	"no blank line at end":  func(s string) string { return strings.TrimRight(s, "\n") },
	"no blank lines at all": func(s string) string { return strings.ReplaceAll(s, "\n\n", "\n") },
	"many blank lines":      func(s string) string { return strings.ReplaceAll(s, "\n\n", "\n\n\n\n") },
	"byte order mark":       func(s string) string { return "\ufeff" + s },
	"fields named alike":    func(s string) string { return strings.ReplaceAll(s, "data: ", "datax: {\"usage\":1\ndat: {\ndata: ") },
	"data without a colon":  func(s string) string { return "data\n\n" + s },
}

func TestC31_LineShapes(t *testing.T) {
	for name, want := range recordings {
		if typeOf(name) != eventStream {
			continue
		}
		for kind, vary := range variants {
			body := []byte(vary(string(recorded(t, name))))
			if got := read(eventStream, body); got != want {
				t.Errorf("%s, %s: %+v, want %+v", name, kind, got, want)
			}
			for cut := 0; cut < len(body); cut += 1 + len(body)/40 {
				if got := read(eventStream, body[:cut], body[cut:]); got != want {
					t.Fatalf("%s, %s, cut at %d: %+v, want %+v", name, kind, cut, got, want)
				}
			}
		}
	}
}

// A line's end may be cut in two, and a stream may end its lines in several ways.
func TestC31_LineEndsCutAnywhere(t *testing.T) {
	want := answer{Usage: usage(3, 4, -1), First: true, Done: true}
	for _, body := range []string{
		"data: {\"usage\":{\"prompt_tokens\":3,\r\ndata: \"completion_tokens\":4}}\r\n\r\ndata: [DONE]\r\n\r\n",
		"data: {\"usage\":{\"prompt_tokens\":3,\ndata: \"completion_tokens\":4}}\r\n\ndata: [DONE]\r\n\n",
		"data: {\"usage\":{\"prompt_tokens\":3,\rdata: \"completion_tokens\":4}}\n\rdata: [DONE]\n\r",
		"data: {\"usage\":\r\n: ping\ndata: {\"prompt_tokens\":3,\"completion_tokens\":4}}\r\rdata: [DONE]\r\r",
	} {
		for cut := range len(body) + 1 {
			if got := read(eventStream, []byte(body[:cut]), []byte(body[cut:])); got != want {
				t.Fatalf("%q cut at %d: %+v, want %+v", body, cut, got, want)
			}
		}
	}
}

func TestC31_ContentTypes(t *testing.T) {
	stream, whole := recorded(t, "chat_stream_usage.sse"), recorded(t, "chat.json")
	for _, ct := range []string{
		"text/event-stream", "text/event-stream; charset=utf-8", "text/event-stream;charset=utf-8", "TEXT/EVENT-STREAM; Charset=UTF-8",
		" Text/Event-Stream ", "",
	} {
		if got := read(ct, stream); got != recordings["chat_stream_usage.sse"] {
			t.Errorf("%q: %+v", ct, got)
		}
	}
	for _, ct := range []string{"application/json", "Application/JSON; charset=utf-8", "application/problem+json", ""} {
		if got := read(ct, whole[:10], whole[10:40], whole[40:]); got != recordings["chat.json"] {
			t.Errorf("%q: %+v", ct, got)
		}
	}
	for _, ct := range []string{"text/html", "audio/wav", "json"} {
		if got := read(ct, whole); got != (answer{Usage: scheduling.UnknownUsage}) {
			t.Errorf("%q: %v, want nothing read", ct, got)
		}
	}
}

func TestC31_ContentEncoding(t *testing.T) {
	body := recorded(t, "chat_stream_usage.sse")
	for encoding, encoded := range map[string]bool{"gzip": true, "GZIP": true, "br": true, "zstd": true, "identity": false, "": false, " Identity ": false} {
		for _, ct := range []string{eventStream, "application/json"} {
			var r openai.Response
			r.Start(200, []byte(ct), []byte(encoding))
			if r.Push(nil); r.FirstToken() {
				t.Errorf("%q: a first token before the first byte", encoding)
			}
			r.Push(body)
			if r.Encoded() != encoded || r.FirstToken() != (ct == eventStream) {
				t.Errorf("%q, %s: encoded %v, first token %v", encoding, ct, r.Encoded(), r.FirstToken())
			}
			if known := r.Usage() != scheduling.UnknownUsage; known != (!encoded && ct == eventStream) {
				t.Errorf("%q, %s: usage %+v", encoding, ct, r.Usage())
			}
		}
	}
}

func TestC31_HugeEventInBoundedMemory(t *testing.T) {
	text := strings.Repeat(`a\"usage\":{\"prompt_tokens\":9}`, 2<<20/31)
	event := []byte(`data: {"choices":[{"index":0,"delta":{"content":"` + text + `"},"logprobs":{"content":[` +
		strings.Repeat(`{"token":"x","logprob":-0.1},`, 10_000) + `{}]}}],"usage":{"prompt_tokens":4,"completion_tokens":5}}` + "\n\n")
	want := answer{Usage: usage(4, 5, -1), First: true}
	if got := read(eventStream, event); got != want {
		t.Errorf("whole: %+v, want %+v", got, want)
	}
	var r openai.Response
	r.Start(200, []byte(eventStream), nil)
	for i := 0; i < len(event); i += 1000 {
		r.Push(event[i:min(i+1000, len(event))])
	}
	if got := (answer{r.Usage(), r.FirstToken(), r.Done(), r.Failed(), r.Malformed()}); got != want {
		t.Errorf("in pieces: %+v, want %+v", got, want)
	}
}

// TestC18_LargeAnswersAreNotCollected reads a 44 MB embeddings answer and looks at the heap meanwhile.
func TestC18_LargeAnswersAreNotCollected(t *testing.T) {
	piece := []byte(strings.Repeat("-0.0123456789,", 4681))[:65_520] // whole numbers with a comma behind each
	var before, after runtime.MemStats
	var r openai.Response
	r.Start(200, []byte("application/json"), nil)
	r.Push([]byte(`{"object":"list","data":[{"embedding":[`))
	runtime.GC()
	runtime.ReadMemStats(&before)
	sent := 0
	for ; sent < 44_000_000; sent += len(piece) {
		r.Push(piece)
	}
	runtime.ReadMemStats(&after)
	r.Push([]byte(`1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`))
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("reading %d bytes allocated %d", sent, grown)
	}
	if r.Usage() != usage(8, -1, -1) || !r.Done() || r.Malformed() != 0 {
		t.Errorf("usage %+v, done %v, malformed %d", r.Usage(), r.Done(), r.Malformed())
	}
}

func TestUsageShapes(t *testing.T) {
	event := func(lines ...string) []byte {
		return []byte("data: " + strings.Join(lines, "\n\ndata: ") + "\n\n")
	}
	for name, c := range map[string]struct {
		events []byte
		want   scheduling.Usage
	}{
		"null never overwrites": {event(`{"usage":{"prompt_tokens":3,"completion_tokens":4}}`, `{"usage":null}`, `{"usage":{"prompt_tokens":null,"completion_tokens":5}}`), usage(3, 5, -1)},
		"fields merge":          {event(`{"usage":{"prompt_tokens":3}}`, `{"usage":{"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}`), usage(3, 4, 2)},
		"a zero overwrites nothing": {event(`{"type":"message_start","message":{"usage":{"input_tokens":17,"output_tokens":1}}}`,
			`{"type":"message_delta","usage":{"input_tokens":0,"output_tokens":12}}`), usage(17, 12, -1)},
		"cached reads are apart in messages": {event(`{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":100,"cache_creation_input_tokens":20}}}`,
			`{"type":"message_delta","usage":{"output_tokens":7}}`), usage(125, 7, 100)},
		"cached reads beside a whole prompt":  {event(`{"usage":{"prompt_tokens":100,"cache_read_input_tokens":90,"completion_tokens":1}}`), usage(100, 1, 90)},
		"cached part in responses":            {event(`{"type":"response.completed","response":{"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":8},"output_tokens":2}}}`), usage(10, 2, 8)},
		"details null":                        {event(`{"usage":{"prompt_tokens":1,"prompt_tokens_details":null,"completion_tokens":2}}`), usage(1, 2, -1)},
		"zero is known":                       {event(`{"usage":{"prompt_tokens":1,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}}`), usage(1, 0, 0)},
		"in generated text":                   {event(`{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":9}"}}]}`), scheduling.UnknownUsage},
		"in generated text after a backslash": {event(`{"choices":[{"delta":{"content":"\\\"usage\":{\"prompt_tokens\":9}\\"}}]}`), scheduling.UnknownUsage},
		"somewhere else":                      {event(`{"metadata":{"usage":{"prompt_tokens":9}},"choices":[{"usage":{"prompt_tokens":9},"delta":{"usage":{"prompt_tokens":9}}}],"response":{"output":[{"usage":{"input_tokens":9}}]}}`), scheduling.UnknownUsage},
		"no numbers":                          {event(`{"usage":{"prompt_tokens":"9","completion_tokens":[9],"input_tokens":{"a":9},"output_tokens":true}}`), scheduling.UnknownUsage},
		"odd numbers":                         {event(`{"usage":{"prompt_tokens":-9,"completion_tokens":12.0,"output_tokens":1e3,"input_tokens":99999999999999999999}}`), usage(-1, 12, -1)},
		"a broken event between":              {event(`{"usage":{"prompt_tokens":3}}`, `{"oops`, `}{]`, `{"usage":{"completion_tokens":4}}`), usage(3, 4, -1)},
		"usage in a list":                     {event(`{"usage":[{"prompt_tokens":9},9]}`, `[{"usage":{"prompt_tokens":9}}]`), scheduling.UnknownUsage},
	} {
		if got := read(eventStream, c.events); got.Usage != c.want {
			t.Errorf("%s: %+v, want %+v", name, got.Usage, c.want)
		}
	}
}

func TestFirstTokenIsToldApart(t *testing.T) {
	for event, want := range map[string]bool{
		`: ping`: false, `data: {"type":"ping"}`: false, `event: ping`: false, `data: [DONE]`: false, `data:`: false,
		`data: {"choices":[{"delta":{"role":"assistant","content":""}}]}`:                                            false,
		`data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[],"reasoning_content":null}}]}`: false,
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`:                                                    false,
		`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}`:                                     false,
		`data: {"choices":[{"text":""}]}`:                                                                            false,
		`data: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":1,"output_tokens":1}}}`:       false,
		`data: {"type":"content_block_start","content_block":{"type":"text","text":""}}`:                             false,
		`data: {"type":"response.created","response":{"output":[],"instructions":"x"}}`:                              false,
		`data: {"type":"response.output_item.added","item":{"type":"message","content":[]}}`:                         false,
		`data: {"type":"response.content_part.added","part":{"text":""}}`:                                            false,
		`data: {"type":"response.output_text.delta","delta":""}`:                                                     false,
		`data: {"error":{"message":"no"}}`:                                                                           false,
		`data: {"choices":[{"delta":{"content":"x"}}]}`:                                                              true,
		`data: {"choices":[{"delta":{"content":"\n"}}]}`:                                                             true,
		`data: {"choices":[{"delta":{"content":[{"type":"text","text":"x"}]}}]}`:                                     true,
		`data: {"choices":[{"delta":{"reasoning_content":"x"}}]}`:                                                    true,
		`data: {"choices":[{"delta":{"reasoning":"x"}}]}`:                                                            true,
		`data: {"choices":[{"delta":{"refusal":"x"}}]}`:                                                              true,
		`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:                                                 true,
		`data: {"choices":[{"delta":{"function_call":{"name":"f"}}}]}`:                                               true,
		`data: {"choices":[{"delta":{"content":""}},{"delta":{"content":"x"}}]}`:                                     true,
		`data: {"choices":[{"delta":{"content":""}}],"usage":{"completion_tokens":1}}`:                               true,
		`data: {"choices":[{"text":"x"}]}`:                                                                           true,
		`data: {"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}`:             true,
		`data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`:                              true,
		`data: {"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}`:                      true,
		`data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`:                true,
		`data: {"type":"response.output_text.delta","delta":"x"}`:                                                    true,
		`data: {"type":"response.refusal.delta","delta":"x"}`:                                                        true,
		`data: {"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}`:                     true,
	} {
		if got := read(eventStream, []byte(event+"\n\n")); got.First != want || got.Malformed != 0 {
			t.Errorf("%s: first token %v, malformed %d, want %v", event, got.First, got.Malformed, want)
		}
	}
}

func TestFirstTokenComesWithItsPiece(t *testing.T) {
	body := recorded(t, "chat_stream_usage.sse")
	at := bytes.Index(body, []byte(`"content":" pseudo"`)) + len(`"content":"`)
	var r openai.Response
	r.Start(200, []byte(eventStream), nil)
	if r.Push(body[:at]); r.FirstToken() {
		t.Fatal("told before the first content byte")
	}
	if r.Push(body[at : at+1]); !r.FirstToken() {
		t.Fatal("not told with the first content byte")
	}
	for name, status := range map[string]int{"chat_stream_usage.sse": 503, "chat.json": 200} {
		r.Start(status, []byte(typeOf(name)), nil)
		if r.Push(recorded(t, name)); r.FirstToken() {
			t.Errorf("%s with status %d has a first token", name, status)
		}
	}
}

func TestEnds(t *testing.T) {
	for event, want := range map[string]answer{
		`data: [DONE]`:                                   {Done: true},
		`data:[DONE]`:                                    {Done: true},
		`data: [DON]`:                                    {},
		`data: ["DONE"]`:                                 {},
		`data: {"type":"message_stop"}`:                  {Done: true},
		`data: {"type":"response.completed"}`:            {Done: true},
		`data: {"type":"response.incomplete"}`:           {Done: true},
		`data: {"type":"response.failed"}`:               {Done: true, Failed: true},
		`data: {"type":"error","error":{"message":"m"}}`: {Failed: true},
		`data: {"error":{"message":"m"}}`:                {Failed: true},
		`data: {"error":"m"}`:                            {Failed: true},
		`data: {"error":null}`:                           {},
		`data: {"error":""}`:                             {},
		`data: {"response":{"error":null}}`:              {},
		`data: {"choices":[{"delta":{"content":"[DONE]","type":"message_stop"}}]}`: {First: true},
		`data: DONE`:      {Malformed: 1},
		`data: {"a":1]`:   {Malformed: 1},
		`data: {"a":`:     {Malformed: 1},
		`data: <html>`:    {Malformed: 1},
		`data: {"a":1} x`: {Malformed: 1},
	} {
		want.Usage = scheduling.UnknownUsage
		if diff := cmp.Diff(want, read(eventStream, []byte(event+"\n\n"))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", event, diff)
		}
	}
	if got := read("application/json", []byte(`{"choices":[`)); got.Done {
		t.Error("half an answer is done")
	}
}

func TestResponseIsReusable(t *testing.T) {
	var r openai.Response
	for range 2 {
		for name, want := range recordings {
			r.Start(200, []byte(typeOf(name)), nil)
			r.Push(recorded(t, name))
			if got := (answer{r.Usage(), r.FirstToken(), r.Done(), r.Failed(), r.Malformed()}); got != want {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
		}
		r.Start(200, []byte(eventStream), nil)
		r.Push([]byte(`data: {"a":"unfinished \`))
	}
}

func TestPushAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name := range recordings {
		body, ct := recorded(t, name), []byte(typeOf(name))
		var r openai.Response
		allocs := testing.AllocsPerRun(20, func() {
			r.Start(200, ct, nil)
			for i := 0; i < len(body); i += 100 {
				r.Push(body[i:min(i+100, len(body))])
			}
			if r.Usage() == (scheduling.Usage{}) {
				t.Fatal("no usage at all")
			}
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
