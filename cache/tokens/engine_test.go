package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chat is what the engine's templates read of a chat.
type chat struct {
	Model               string
	Messages            []message
	Tools               json.RawMessage
	Kwargs              map[string]any `json:"chat_template_kwargs"`
	Template            string         `json:"chat_template"`
	Documents           json.RawMessage
	ReasoningEffort     string `json:"reasoning_effort"`
	AddGenerationPrompt *bool  `json:"add_generation_prompt"`
	ContinueFinal       bool   `json:"continue_final_message"`
	AddSpecial          *bool  `json:"add_special_tokens"`
	MMPayload           string `json:"mm_payload"`

	Prompt json.RawMessage
	Input  json.RawMessage
	System json.RawMessage
	Count  *int `json:"truncate_prompt_tokens"`
}

// read reads a body, as engines do: one byte order mark does no harm, and null is nothing.
func (c *chat) read(body []byte) error {
	if err := json.Unmarshal(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), c); err != nil {
		return err
	}
	for _, raw := range []*json.RawMessage{&c.Tools, &c.Documents, &c.System} {
		if string(*raw) == "null" {
			*raw = nil
		}
	}
	return nil
}

type message struct {
	Role      string
	Content   json.RawMessage
	Reasoning string          `json:"reasoning_content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

func (m message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Type, Text string
		ImageURL   struct{ URL string } `json:"image_url"`
	}
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text + " ")
		if p.Type == "image_url" {
			b.WriteString("<image> <image> ")
		}
	}
	return b.String()
}

// words tokenizes: a token a word.
func words(text string) []uint32 {
	tokens := []uint32{}
	for _, word := range strings.Fields(text) {
		tokens = append(tokens, uint32(xxh3.HashString(word))%100_000)
	}
	return tokens
}

// template writes a chat.
type template func(c *chat, date string) string

func plainTemplate(c *chat, _ string) string {
	return head(c) + each(c, func(_ int, m message) string { return "<" + m.Role + "> " + m.text() + " <end> " }) + tail(c)
}

func head(c *chat) string {
	return fmt.Sprintf("<s> %s %s %v %s %s ", c.Tools, c.Documents, c.Kwargs, c.Template, c.ReasoningEffort)
}

func tail(c *chat) string {
	if c.AddGenerationPrompt != nil && !*c.AddGenerationPrompt || c.ContinueFinal {
		return ""
	}
	return "<assistant> :"
}

func each(c *chat, f func(i int, m message) string) string {
	var b strings.Builder
	for i, m := range c.Messages {
		b.WriteString(f(i, m))
	}
	return b.String()
}

// engine is an engine in memory: it renders, tokenizes, and knows what its prompts really are.
type engine struct {
	template   template
	noRender   bool
	noTokenize bool
	status     int                                              // where set, the answer
	before     func(ctx context.Context, r *http.Request) error // of every call
	knows      []string                                         // model names; nil: all

	mu    sync.Mutex
	calls []call
	date  string
}

type call struct{ host, path, body, authorization string }

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.calls = append(e.calls, call{r.URL.Host, r.URL.Path, string(body), r.Header.Get("Authorization")})
	e.mu.Unlock()
	if e.before != nil {
		if err := e.before(r.Context(), r); err != nil {
			return nil, err
		}
	}
	status, text := e.answer(r.URL.Path, body)
	return &http.Response{
		StatusCode: status, ContentLength: int64(len(text)), Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(text)),
	}, nil
}

const notFound = `{"detail":"Not Found"}`

func (e *engine) answer(path string, body []byte) (status int, text string) {
	var c chat
	switch {
	case e.status != 0:
		return e.status, "oops"
	case path == "/tokenize" && e.noTokenize, path != "/tokenize" && e.noRender:
		return 404, notFound
	}
	if err := c.read(body); err != nil {
		return 400, `{"error":{"message":"not JSON"}}`
	}
	if e.knows != nil && !slices.Contains(e.knows, c.Model) {
		return 404, `{"error":{"message":"The model does not exist.","type":"NotFoundError","param":"model","code":404}}`
	}
	switch path {
	case "/tokenize":
		c.Documents, c.ReasoningEffort, c.Count = nil, "", nil // not read
		var prompt string
		if json.Unmarshal(c.Prompt, &prompt) == nil {
			return 200, tokenized(e.completion(&c, prompt))
		}
		return 200, tokenized(e.chat(&c))
	case "/v1/completions/render":
		var objects []string
		for _, p := range e.prompts(&c) {
			objects = append(objects, rendered(p, ""))
		}
		if len(objects) == 0 {
			return 400, `{"error":{"message":"no prompt"}}`
		}
		return 200, "[" + strings.Join(objects, ",") + "]"
	case "/v1/responses/render":
		c.Messages = []message{{Role: "user", Content: c.Input}}
	case "/v1/messages/render":
		if c.System != nil {
			c.Messages = append([]message{{Role: "system", Content: c.System}}, c.Messages...)
		}
	case "/v1/chat/completions/render":
	default:
		return 404, notFound
	}
	if c.MMPayload != "none" {
		return 400, `{"error":{"message":"tensors are not for this test"}}`
	}
	tokens := e.chat(&c)
	return 200, rendered(tokens, features(tokens))
}

// chat is what the engine makes of a chat.
func (e *engine) chat(c *chat) []uint32 {
	e.mu.Lock()
	date := e.date
	e.mu.Unlock()
	f := e.template
	if f == nil {
		f = plainTemplate
	}
	tokens := words(f(c, date))
	if c.AddSpecial != nil && *c.AddSpecial {
		tokens = append([]uint32{7}, tokens...)
	}
	if c.Count != nil {
		tokens = tokens[:min(len(tokens), *c.Count)]
	}
	return tokens
}

func (e *engine) completion(c *chat, prompt string) []uint32 {
	tokens := words(prompt)
	if c.AddSpecial == nil || *c.AddSpecial {
		tokens = append([]uint32{7}, tokens...)
	}
	return tokens
}

func (e *engine) prompts(c *chat) (prompts [][]uint32) {
	var one string
	var several []string
	if json.Unmarshal(c.Prompt, &one) == nil {
		several = []string{one}
	} else if json.Unmarshal(c.Prompt, &several) != nil {
		return nil
	}
	for _, p := range several {
		prompts = append(prompts, e.completion(c, p))
	}
	return prompts
}

// truth is what the engine's prompt is for a request.
func (e *engine) truth(t testing.TB, r *scheduling.Request) []uint32 {
	t.Helper()
	var c chat
	if err := c.read(r.Body); err != nil {
		t.Fatal(err)
	}
	switch r.Operation {
	case scheduling.OperationCompletions:
		return e.prompts(&c)[0]
	case scheduling.OperationResponses:
		c.Messages = []message{{Role: "user", Content: c.Input}}
	case scheduling.OperationMessages:
		if c.System != nil {
			c.Messages = append([]message{{Role: "system", Content: c.System}}, c.Messages...)
		}
	}
	return e.chat(&c)
}

func list(tokens []uint32) string {
	text, _ := json.Marshal(tokens)
	return string(text)
}

func tokenized(tokens []uint32) string {
	return fmt.Sprintf(`{"count":%d,"max_model_len":8192,"tokens":%s,"token_strs":null}`, len(tokens), list(tokens))
}

func rendered(tokens []uint32, features string) string {
	if features == "" {
		features = "null"
	}
	return fmt.Sprintf(`{"request_id":"x","token_ids":%s,"features":%s,"sampling_params":{"stop":[]},"model":"m"}`, list(tokens), features)
}

// features are the engine's: each run of two image tokens is an image.
func features(tokens []uint32) string {
	image, hashes, places := words("<image>")[0], []string{}, []string{}
	for i := 0; i+1 < len(tokens); i++ {
		if tokens[i] == image && tokens[i+1] == image {
			hashes = append(hashes, fmt.Sprintf(`"image-%d"`, len(hashes)))
			places = append(places, fmt.Sprintf(`{"offset":%d,"length":2}`, i))
			i++
		}
	}
	if len(hashes) == 0 {
		return ""
	}
	return fmt.Sprintf(`{"mm_hashes":{"image":[%s]},"mm_placeholders":{"image":[%s]},"kwargs_data":null}`, strings.Join(hashes, ","), strings.Join(places, ","))
}

// asked takes the calls that were made since the last time.
func (e *engine) asked() []call {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := e.calls
	e.calls = nil
	return calls
}

var errRefused = errors.New("connection refused")

// newExactHarness is a harness whose producer asks an engine, and has time to wait for it.
func newExactHarness(t testing.TB, e http.RoundTripper, change func(*Parameters)) *harness {
	t.Helper()
	h := &harness{t: t, pool: scheduling.NewPool(), registry: prometheus.NewRegistry()}
	h.pool.Update([]scheduling.EndpointSpec{{Address: "a:1"}})
	h.types = []scheduling.PluginType{Type(Options{Registerer: h.registry, Transport: e}), {Type: "first", New: func(b *scheduling.Builder) (any, error) {
		return &firstPicker{prompt: scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "", "")}, nil
	}}}
	h.reload(func(p *Parameters) {
		p.VLLM = &VLLM{URL: "http://render:8000", Timeout: maxTimeout}
		if change != nil {
			change(p)
		}
	})
	return h
}

// byDefault leaves the time-outs as they are by default.
func byDefault(p *Parameters) { p.VLLM.Timeout = 0 }

func (h *harness) close() {
	h.t.Helper()
	if err := h.scheduler.Close(); err != nil {
		h.t.Error(err)
	}
}

func (h *harness) exact() *exact { return h.scheduler.Plugin(TypeName).(*Producer).exact }

// get is what is published for a request; its flight ends with the usage that the engine has, if any is given.
func (h *harness) get(r *scheduling.Request, usage ...int) scheduling.TokenizedPrompt {
	h.t.Helper()
	got, f := h.ask(r)
	outcome := complete(-1)
	if len(usage) > 0 {
		outcome = complete(usage[0])
	}
	f.Done(outcome, 0)
	return got
}

// want checks that a request's tokens are exactly the engine's.
func (h *harness) want(e *engine, r *scheduling.Request) {
	h.t.Helper()
	truth := e.truth(h.t, r)
	got := h.get(r, len(truth))
	if !got.Exact || got.Count != len(truth) || !slices.Equal(got.Tokens, truth) {
		h.t.Errorf("%.200s\ngives %v, exact: %v\nwant  %v", r.Body, got.Tokens, got.Exact, truth)
	}
}

// inexact checks that a request goes on with an estimate, and why.
func (h *harness) inexact(r *scheduling.Request, reason string) {
	h.t.Helper()
	before := h.count("sluice_token_inexact_prompts_total", reason)
	got := h.get(r)
	if got.Exact || got.Tokens != nil || got.Features != nil || got.Count <= 0 {
		h.t.Errorf("%+v, want an estimate", got)
	}
	if n := h.count("sluice_token_inexact_prompts_total", reason) - before; n != 1 {
		h.t.Errorf("counted %v times as %q; all: %v", n, reason, h.all("sluice_token_inexact_prompts_total"))
	}
}

// all are the values of a metric by their last label.
func (h *harness) all(name string) map[string]float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			last, value := "", m.GetCounter().GetValue()+m.GetGauge().GetValue()
			for _, l := range m.GetLabel() {
				if l.GetName() != "producer" {
					last = l.GetValue()
				}
			}
			if value != 0 {
				values[last] += value
			}
		}
	}
	return values
}

func (h *harness) count(name, label string) float64 { return h.all(name)[label] }

func lint(t *testing.T, r *prometheus.Registry) {
	t.Helper()
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
}

// virtual runs a test in virtual time, a minute after midnight: at midnight itself dates are not certain.
func virtual(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		f(t)
	})
}

var lastID atomic.Uint64

// post is a request with a body.
func post(op scheduling.Operation, body string) *scheduling.Request {
	var model struct{ Model string }
	_ = json.Unmarshal([]byte(body), &model) // a body that is none has no model
	return &scheduling.Request{ID: lastID.Add(1), Operation: op, Model: model.Model, Body: []byte(body), PromptBytes: max(1, len(body)/2), Choices: 1}
}

func chatRequest(body string) *scheduling.Request { return post(scheduling.OperationChat, body) }

// slow waits in an engine, or until the call is called off.
func slow(d time.Duration) func(context.Context, *http.Request) error {
	return func(ctx context.Context, _ *http.Request) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
