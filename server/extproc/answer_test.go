package extproc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/server/openai"
)

// answered sends a request body to path and lets the engine answer it, in pieces of so many bytes.
func (b *bench) answered(t *testing.T, path, request, contentType, answer string, piece int) *call {
	t.Helper()
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false, ":method", "POST", ":path", path, "content-type", "application/json")
	c.requestBody(request, true)
	c.pickOf(c.recv())
	c.echoed(false)
	c.responseHeaders(false, ":status", "200", "content-type", contentType)
	c.recv()
	for len(answer) > piece {
		c.echo(answer[:piece], false)
		answer = answer[piece:]
	}
	c.echo(answer, true)
	return c
}

// ender is a follower that keeps a copy of how flights end.
type ender struct {
	mu       sync.Mutex
	outcomes []scheduling.Outcome
}

func (*ender) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (*ender) FirstToken(*scheduling.Flight, time.Duration)    {}
func (e *ender) Done(f *scheduling.Flight, _ time.Duration)    { e.keep(f.Outcome) }
func (e *ender) plugin(*scheduling.Builder) (any, error)       { return e, nil }
func (e *ender) options() options {
	return options{
		types: []scheduling.PluginType{{Type: "ender", New: e.plugin}},
		specs: []scheduling.Spec{{Name: "ender", Type: "ender", Decode: schedtest.YAML("")}},
	}
}

func (e *ender) keep(o scheduling.Outcome) {
	o.PromptTokens = slices.Clone(o.PromptTokens)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outcomes = append(e.outcomes, o)
}

// ended waits for the end of n flights.
func (e *ender) ended(t *testing.T, n int) []scheduling.Outcome {
	t.Helper()
	var got []scheduling.Outcome
	waitFor(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		got = slices.Clone(e.outcomes)
		return len(got) >= n
	})
	return got
}

func recordedAnswer(t *testing.T, name string) (body, contentType string) {
	t.Helper()
	b, err := os.ReadFile("../openai/testdata/responses/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".sse") {
		return string(b), "text/event-stream; charset=utf-8"
	}
	return string(b), "application/json"
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
	responsesPath   = "/v1/responses"
	messagesPath    = "/v1/messages"
)

// TestUsageOfEveryAPI reads answers of a real engine, and of what others are known to send, in every shape of the APIs.
// What an answer does not say is unknown, and never 0.
func TestUsageOfEveryAPI(t *testing.T) {
	usage := func(prompt, completion, cached int) scheduling.Usage {
		return scheduling.Usage{PromptTokens: prompt, CompletionTokens: completion, CachedTokens: cached}
	}
	type shape struct {
		path, answer string
		want         scheduling.Usage
	}
	shapes := []shape{
		{chatPath, "chat.json", usage(29, 12, -1)}, // an engine without --enable-prompt-tokens-details
		{chatPath, "chat_cached_2.json", usage(190, 2, 160)},
		{chatPath, "chat_cached_stream.sse", usage(190, 2, 160)},
		{chatPath, "chat_stream_usage.sse", usage(29, 12, -1)},
		{chatPath, "chat_stream_usage_continuous.sse", usage(29, 12, -1)},
		{chatPath, "chat_stream.sse", scheduling.UnknownUsage}, // without include_usage
		{completionsPath, "completion_cached.json", usage(800, 2, 416)},
		{completionsPath, "completion_list_strings.json", usage(7, 24, -1)},
		{completionsPath, "completion_stream_usage.sse", usage(5, 12, -1)},
		{completionsPath, "completion_stream.sse", scheduling.UnknownUsage},
		{responsesPath, "responses_cached2.json", usage(91, 2, 64)},
		{responsesPath, "responses_stream.sse", usage(17, 12, 0)},
		{messagesPath, "messages.json", usage(17, 12, -1)},
		{messagesPath, "messages_cached.json", usage(190, 2, 160)}, // the same prompt as the chat's: cached reads are apart
		{messagesPath, "messages_stream.sse", usage(17, 12, -1)},
	}
	e := &ender{}
	b := newBench(t, e.options())
	for i, s := range shapes {
		body, contentType := recordedAnswer(t, s.answer)
		b.answered(t, s.path, `{"model":"m"}`, contentType, body, []int{len(body), 50}[i%2])
		got := e.ended(t, i+1)[i]
		if diff := cmp.Diff(scheduling.Outcome{Status: 200, Usage: s.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.answer, diff)
		}
	}
	for i, s := range []shape{
		{completionsPath, `data: {"choices":[{"text":"x"}]}` + "\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\ndata: [DONE]\n\n", usage(64, 2, 32)},
		{chatPath, `data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2,"prompt_tokens_details":null}}` + "\n\n", usage(64, 2, -1)},
		{chatPath, `data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n", usage(64, 2, 0)},
		{chatPath, `data: {"choices":[],"usage":null}` + "\n\n", scheduling.UnknownUsage},
		{responsesPath, `event: response.completed` + "\n" +
			`data: {"type":"response.completed","response":{"usage":{"input_tokens":91,"input_tokens_details":{"cached_tokens":64},"output_tokens":2}}}` + "\n\n", usage(91, 2, 64)},
		{responsesPath, `data: {"type":"response.completed","response":{"usage":{"input_tokens":91,"output_tokens":2}}}` + "\n\n", usage(91, 2, -1)},
		{messagesPath, `data: {"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":0,"cache_read_input_tokens":160,"cache_creation_input_tokens":0}}}` + "\n\n" +
			`data: {"type":"message_delta","usage":{"output_tokens":2}}` + "\n\n", usage(190, 2, 160)},
		{messagesPath, `data: {"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}` + "\n\n" +
			`data: {"type":"message_delta","usage":{"input_tokens":30,"output_tokens":2,"cache_read_input_tokens":160}}` + "\n\n", usage(190, 2, 160)},
	} {
		b.answered(t, s.path, `{"model":"m","stream":true}`, "text/event-stream", s.answer, 33)
		got := e.ended(t, len(shapes)+i+1)[len(shapes)+i]
		if diff := cmp.Diff(scheduling.Outcome{Status: 200, Usage: s.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.answer, diff)
		}
	}
}

// Followers get the prompt's token ids where the client asked for them, and nobody else's.
func TestPromptTokensOfAnswers(t *testing.T) {
	chat := []uint32{
		1, 85, 2704, 201, 59, 1234, 562, 1093, 2098, 16, 2, 201, 1, 3557, 201, 1029, 904, 14, 2727, 310, 499, 33, 2, 201, 1, 4071, 75, 1632, 201,
	}
	completion := []uint32{465, 2962, 839, 201, 260}
	const asking, silent = `{"model":"m","return_token_ids":true}`, `{"model":"m"}`
	e := &ender{}
	b := newBench(t, e.options())
	n := 0
	for range 2 { // the second time in memory that was used before
		for _, c := range []struct {
			path, request, answer string
			want                  []uint32
		}{
			{chatPath, asking, "chat_return_token_ids.json", chat},
			{completionsPath, asking, "completion_return_token_ids.json", completion},
			{chatPath, asking, "chat.json", nil},
			{chatPath, asking, "chat_stream_return_token_ids.sse", chat},
			{chatPath, silent, "chat_return_token_ids.json", nil},
			{chatPath, silent, "chat_stream_return_token_ids.sse", nil},
			{completionsPath, silent, "completion_return_token_ids.json", nil},
			{messagesPath, asking, "chat_return_token_ids.json", nil},
		} {
			body, contentType := recordedAnswer(t, c.answer)
			b.answered(t, c.path, c.request, contentType, body, 61)
			n++
			if diff := cmp.Diff(c.want, e.ended(t, n)[n-1].PromptTokens); diff != "" {
				t.Errorf("%s to %s (-want +got):\n%s", c.answer, c.request, diff)
			}
			if diff := cmp.Diff(c.want, b.notes.ended()[n-1].PromptTokens); diff != "" {
				t.Errorf("the observer, %s to %s (-want +got):\n%s", c.answer, c.request, diff)
			}
		}
	}
	if b.notes.count(NoteTokensDropped) != 0 {
		t.Errorf("%d answers' ids were dropped", b.notes.count(NoteTokensDropped))
	}
}

// A client that leaves amid its answer was told the prompt's ids all the same.
func TestPromptTokensOfAnInterruptedAnswer(t *testing.T) {
	body, contentType := recordedAnswer(t, "chat_stream_return_token_ids.sse")
	first, rest, _ := strings.Cut(body, "\n\n")
	for name, c := range map[string]struct {
		seen string
		ids  int
	}{"behind the first event": {first + "\n\n" + rest[:10], 29}, "amid the ids": {first[:260], 0}} {
		t.Run(name, func(t *testing.T) {
			e := &ender{}
			b := newBench(t, e.options())
			c1 := b.call(t, modeFullDuplex, modeFullDuplex)
			c1.requestHeaders(false)
			c1.requestBody(`{"model":"m","stream":true,"return_token_ids":true}`, true)
			c1.pickOf(c1.recv())
			c1.echoed(false)
			c1.responseHeaders(false, ":status", "200", "content-type", contentType)
			c1.recv()
			c1.echo(c.seen, false)
			c1.cancel()
			got := e.ended(t, 1)[0]
			if got.Reason != scheduling.EndDisconnect || len(got.PromptTokens) != c.ids {
				t.Errorf("reason %v, %d ids, want %d", got.Reason, len(got.PromptTokens), c.ids)
			}
		})
	}
}

// An engine that fails once its headers have gone says so in the body: what comes of that is no answer.
func TestErrorInTheBodyIsAnError(t *testing.T) {
	e := &ender{}
	b := newBench(t, e.options())
	const event, stream, whole = `{"error":{"message":"EngineCore encountered an issue","code":500}}`, "text/event-stream", "application/json"
	for i, c := range []struct {
		path, contentType, answer string
		want                      scheduling.EndReason
	}{
		{chatPath, stream, "data: " + event + "\n\ndata: [DONE]\n\n", scheduling.EndError},
		{chatPath, stream, `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\ndata: " + event + "\n\ndata: [DONE]\n\n", scheduling.EndError},
		{chatPath, whole, event, scheduling.EndError},
		{responsesPath, stream, `data: {"type":"response.failed"}` + "\n\n", scheduling.EndError},
		{chatPath, stream, `data: {"choices":[{"delta":{"content":"{\"error\":\"x\"}"}}],"error":null}` + "\n\ndata: [DONE]\n\n", scheduling.EndComplete},
		{responsesPath, stream, `data: {"type":"response.incomplete","response":{"error":null}}` + "\n\n", scheduling.EndComplete},
	} {
		b.answered(t, c.path, `{"model":"m","stream":true}`, c.contentType, c.answer, 33)
		if got := e.ended(t, i+1)[i]; got.Reason != c.want || got.Status != 200 {
			t.Errorf("%s: ended as %v with status %d, want %v with 200", c.answer, got.Reason, got.Status, c.want)
		}
	}
}

// Requests at the same time never see each other's token ids, whoever's memory they get.
func TestPromptTokensOfStreamsAreApart(t *testing.T) {
	e := &ender{}
	b := newBench(t, e.options())
	const clients, rounds = 8, 20
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for round := range rounds {
				n := 1 + (client*rounds+round)%97
				answer := fmt.Sprintf(`{"prompt_token_ids":[%d%s],"usage":{"prompt_tokens":%d}}`,
					n, strings.Repeat(fmt.Sprint(",", n), n-1), n)
				b.answered(t, chatPath, `{"model":"m","return_token_ids":true}`, "application/json", answer, 40)
			}
		})
	}
	wg.Wait()
	for _, o := range e.ended(t, clients*rounds) {
		n := o.Usage.PromptTokens
		if len(o.PromptTokens) != n || slices.ContainsFunc(o.PromptTokens, func(id uint32) bool { return int(id) != n }) {
			t.Errorf("a prompt of %d tokens that are all %d has the ids %v", n, n, o.PromptTokens)
		}
	}
}

// Token ids that are too many, or none, are dropped and counted; the answer goes on and its usage is read.
func TestPromptTokensAreDroppedAndCounted(t *testing.T) {
	e := &ender{}
	b := newBench(t, e.options())
	for i, ids := range []string{"[" + strings.Repeat("1,", openai.MaxTokens) + "1]", `["a"]`, "[1,2]"} {
		answer := `{"prompt_token_ids":` + ids + `,"usage":{"prompt_tokens":9}}`
		b.answered(t, chatPath, `{"model":"m","return_token_ids":true}`, "application/json", answer, maxChunk)
		got := e.ended(t, i+1)[i]
		if (got.PromptTokens == nil) != (i < 2) || got.Usage.PromptTokens != 9 {
			t.Errorf("answer %d: %d ids, usage %+v", i, len(got.PromptTokens), got.Usage)
		}
		if want := min(i+1, 2); b.notes.count(NoteTokensDropped) != want {
			t.Errorf("answer %d: %d counted, want %d", i, b.notes.count(NoteTokensDropped), want)
		}
	}
}
