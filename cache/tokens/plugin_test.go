package tokens

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-epp/sluice/scheduling"
)

// firstPicker picks the first candidate and reads the prompt's tokens, as the plugins behind the producer do.
type firstPicker struct {
	prompt scheduling.ValueKey[scheduling.TokenizedPrompt]
}

func (*firstPicker) Pick(_ *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, candidates.Next(0))
}

type harness struct {
	t         testing.TB
	pool      *scheduling.Pool
	registry  *prometheus.Registry
	types     []scheduling.PluginType
	scheduler *scheduling.Scheduler
	last      atomic.Pointer[scheduling.Fault] // of the last request
}

func newHarness(t testing.TB, change func(*Parameters)) *harness {
	h := &harness{t: t, pool: scheduling.NewPool(), registry: prometheus.NewRegistry()}
	h.pool.Update([]scheduling.EndpointSpec{{Address: "a:1"}})
	h.types = []scheduling.PluginType{Type(Options{Registerer: h.registry}), {Type: "first", New: func(b *scheduling.Builder) (any, error) {
		return &firstPicker{prompt: scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "", "")}, nil
	}}}
	h.reload(change)
	return h
}

func (h *harness) build(change func(*Parameters)) (*scheduling.Scheduler, error) {
	return scheduling.Build(h.types, scheduling.Config{
		Plugins: []scheduling.Spec{{Name: TypeName, Type: TypeName, Decode: func(into any) error {
			if change != nil {
				change(into.(*Parameters))
			}
			return nil
		}}},
		Profile: []scheduling.Ref{{Name: "first"}},
	}, h.scheduler)
}

func (h *harness) reload(change func(*Parameters)) {
	h.t.Helper()
	next, err := h.build(change)
	if err != nil {
		h.t.Fatal(err)
	}
	old := h.scheduler
	h.scheduler = next
	if old != nil {
		if err := old.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
}

// fault is what the producer said of the last request.
func (h *harness) fault() string {
	if f := h.last.Load(); f != nil {
		return f.Err.Error()
	}
	return ""
}

// ask returns what is published for a request, and its flight.
func (h *harness) ask(r *scheduling.Request) (scheduling.TokenizedPrompt, *scheduling.Flight) {
	h.t.Helper()
	return h.askWithin(h.t.Context(), r)
}

func (h *harness) askWithin(ctx context.Context, r *scheduling.Request) (scheduling.TokenizedPrompt, *scheduling.Flight) {
	h.t.Helper()
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	defer h.scheduler.End(c)
	h.scheduler.Produce(ctx, c)
	h.last.Store(nil)
	for _, f := range c.Faults {
		h.last.Store(&f)
	}
	got, ok := h.scheduler.Plugin("first").(*firstPicker).prompt.In(c).Get()
	if !ok {
		h.t.Fatal("nothing is published")
	}
	f, err := h.scheduler.Commit(c)
	if err != nil {
		h.t.Fatal(err)
	}
	return got, f
}

// answer serves a prompt of so many bytes, which the engine counts so many tokens in.
func (h *harness) answer(model string, bytes, promptTokens int) {
	h.t.Helper()
	_, f := h.ask(text(model, bytes))
	f.Done(complete(promptTokens), 0)
}

func (h *harness) ratio(model string) float64 {
	h.t.Helper()
	got, f := h.ask(text(model, 100))
	f.Done(scheduling.Outcome{Reason: scheduling.EndDisconnect}, 0)
	return got.BytesPerToken
}

func text(model string, bytes int) *scheduling.Request {
	return &scheduling.Request{Model: model, Body: make([]byte, bytes+50), PromptBytes: bytes, Choices: 1}
}

func complete(promptTokens int) scheduling.Outcome {
	u := scheduling.UnknownUsage
	u.PromptTokens = promptTokens
	return scheduling.Outcome{Status: 200, Usage: u}
}

func TestCounts(t *testing.T) {
	ids := []uint32{1, 2, 3}
	for _, tc := range []struct {
		name string
		r    scheduling.Request
		want scheduling.TokenizedPrompt
	}{
		{"text", scheduling.Request{Body: make([]byte, 500), PromptBytes: 401}, scheduling.TokenizedPrompt{Count: 100}},
		{"a single byte", scheduling.Request{Body: make([]byte, 50), PromptBytes: 1}, scheduling.TokenizedPrompt{Count: 1}},
		{"token ids", scheduling.Request{Body: make([]byte, 50), Tokens: ids, TokenCount: 3}, scheduling.TokenizedPrompt{Tokens: ids, Count: 3, Exact: true}},
		{"a batch of token ids: the sum", scheduling.Request{Body: make([]byte, 50), Tokens: ids, TokenCount: 11}, scheduling.TokenizedPrompt{Tokens: ids, Count: 11, Exact: true}},
		{"ids and text", scheduling.Request{Body: make([]byte, 50), Tokens: ids, TokenCount: 3, PromptBytes: 40}, scheduling.TokenizedPrompt{Tokens: ids, Count: 13}},
		{"no body", scheduling.Request{}, scheduling.TokenizedPrompt{Exact: true}},
		{"a body without known text", scheduling.Request{Body: make([]byte, 400)}, scheduling.TokenizedPrompt{Count: 100}},
		{"a body of one byte", scheduling.Request{Body: []byte("x")}, scheduling.TokenizedPrompt{Count: 1}},
		{"a recording", scheduling.Request{Body: make([]byte, 20<<20)}, scheduling.TokenizedPrompt{Count: 1024}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil)
			tc.r.Choices = 1
			got, f := h.ask(&tc.r)
			f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 0)
			tc.want.BytesPerToken = 4
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLearnsPerModel(t *testing.T) {
	h := newHarness(t, nil)
	for range 100 {
		h.answer("english", 4500, 1000)
		h.answer("code", 3000, 1000)
	}
	for model, want := range map[string]float64{"english": 4.5, "code": 3, "unseen": 4} {
		if got := h.ratio(model); math.Abs(got-want) > 0.05 {
			t.Errorf("%s: %v bytes per token, want %v", model, got, want)
		}
	}
	got, f := h.ask(text("code", 3000))
	f.Done(complete(1000), 0)
	if got.Count < 980 || got.Count > 1020 || got.Exact {
		t.Errorf("%+v, want about 1000 tokens, estimated", got)
	}
}

func TestLearnsQuicklyAndSteadily(t *testing.T) {
	h := newHarness(t, nil)
	h.answer("m", 6000, 2000) // 512 tokens at 4 before, 2000 at 3
	if got := h.ratio("m"); got < 3.1 || got > 3.3 {
		t.Errorf("after one answer %v bytes per token, want about 3.2", got)
	}
	for range 100 {
		h.answer("m", 6000, 2000)
	}
	h.answer("m", 1000000, 500000) // one huge prompt counts like 4096 tokens of it
	if got := h.ratio("m"); got < 2.85 {
		t.Errorf("one prompt moved the ratio to %v", got)
	}
	h.answer("m", 10, 9) // a short one, mostly chat template, hardly counts
	if got := h.ratio("m"); got < 2.85 {
		t.Errorf("a short prompt moved the ratio to %v", got)
	}
	for range 200 {
		h.answer("m", 10000, 2000)
	}
	if got := h.ratio("m"); math.Abs(got-5) > 0.1 {
		t.Errorf("%v bytes per token, want 5: it does not forget", got)
	}
}

func TestLearnsOnlyFromWholeAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		r       *scheduling.Request
		outcome scheduling.Outcome
	}{
		"no usage":        {text("m", 4000), complete(-1)},
		"zero tokens":     {text("m", 4000), complete(0)},
		"disconnect":      {text("m", 4000), with(complete(2000), scheduling.EndDisconnect, 200)},
		"error":           {text("m", 4000), with(complete(2000), scheduling.EndError, 200)},
		"estimated":       {text("m", 4000), with(complete(2000), scheduling.EndUnseen, 200)},
		"status 400":      {text("m", 4000), with(complete(2000), scheduling.EndComplete, 400)},
		"no status":       {text("m", 4000), with(complete(2000), scheduling.EndComplete, 0)},
		"token ids":       {&scheduling.Request{Model: "m", Body: []byte("[1]"), TokenCount: 2000, PromptBytes: 4000, Choices: 1}, complete(2000)},
		"no text":         {&scheduling.Request{Model: "m", Body: make([]byte, 4000), Choices: 1}, complete(2000)},
		"mostly images":   {text("m", 40), complete(2000)},
		"impossibly long": {text("m", 400000), complete(2000)},
		"endless name":    {text(strings.Repeat("m", 10000), 4000), complete(2000)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			_, f := h.ask(tc.r)
			f.Done(tc.outcome, 0)
			if got := h.ratio(tc.r.Model); got != 4 {
				t.Errorf("%v bytes per token, want the 4 it started at", got)
			}
			if n := h.scheduler.Plugin(TypeName).(*Producer).table.models.Len(); n != 0 {
				t.Errorf("%d models are kept, want none", n)
			}
		})
	}
}

func with(o scheduling.Outcome, reason scheduling.EndReason, status int) scheduling.Outcome {
	o.Reason, o.Status = reason, status
	return o
}

func TestRatioStaysInBounds(t *testing.T) {
	h := newHarness(t, nil)
	for range 500 {
		h.answer("dense", 1000, 2000)
		h.answer("sparse", 16000, 1000)
	}
	if lo, hi := h.ratio("dense"), h.ratio("sparse"); lo < minRatio || lo > 0.6 || hi > maxRatio || hi < 15.5 {
		t.Errorf("ratios %v and %v, want about %v and %v", lo, hi, minRatio, maxRatio)
	}
}

// Names that clients make up cost nothing; of models that answer the last thousand are kept.
func TestModelsAreBounded(t *testing.T) {
	h := newHarness(t, nil)
	models := h.scheduler.Plugin(TypeName).(*Producer).table.models
	for i := range 5000 {
		_, f := h.ask(text(fmt.Sprintf("made-up-%d", i), 100))
		f.Done(with(complete(-1), scheduling.EndComplete, 404), 0)
	}
	if n := models.Len(); n != 0 {
		t.Errorf("%d models kept that no engine has", n)
	}
	for i := range 2500 {
		h.answer(fmt.Sprintf("adapter-%d", i), 3000, 1000)
		h.answer("base", 3000, 1000)
	}
	if n := models.Len(); n != maxModels {
		t.Errorf("%d models kept, want %d", n, maxModels)
	}
	if got := h.ratio("base"); math.Abs(got-3) > 0.1 {
		t.Errorf("the model in use was forgotten: %v", got)
	}
	if n, err := testutil.GatherAndCount(h.registry, "sluice_token_bytes_per_token"); n != maxModels || err != nil {
		t.Errorf("%d series, %v; want %d", n, err, maxModels)
	}
}

func TestParameters(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Parameters)
		want   string // of the error; empty: none
	}{
		{"defaults", nil, ""},
		{"model name", func(p *Parameters) { p.ModelName = "Qwen/Qwen3-32B" }, ""},
		{"estimate", func(p *Parameters) { p.Backend, p.Estimate = "estimate", map[string]any{} }, ""},
		{"zero ratio is the default", func(p *Parameters) { p.BytesPerToken = 0 }, ""},
		{"vllm", func(p *Parameters) { p.VLLM = &VLLM{URL: "http://localhost:8000"} }, ""},
		{"backend vllm", func(p *Parameters) { p.Backend = "vllm" }, ""},
		{"unknown backend", func(p *Parameters) { p.Backend = "estimat" }, `parameters.backend: must be "estimate" or "vllm", got "estimat" (did you mean "estimate"?)`},
		{"negative ratio", func(p *Parameters) { p.BytesPerToken = -4 }, "parameters.bytesPerToken: must be 0.5 to 16, got -4"},
		{"no number", func(p *Parameters) { p.BytesPerToken = math.NaN() }, "parameters.bytesPerToken: must be"},
		{"infinite", func(p *Parameters) { p.BytesPerToken = math.Inf(1) }, "parameters.bytesPerToken: must be"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil)
			s, err := h.build(tc.change)
			if err == nil {
				defer s.Close()
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one with %q", err, tc.want)
			case tc.want == "" && s.Plugin(TypeName).(*Producer).params.BytesPerToken != 4:
				t.Errorf("starts at %v", s.Plugin(TypeName).(*Producer).params.BytesPerToken)
			}
		})
	}
}

func TestConfiguredStart(t *testing.T) {
	h := newHarness(t, func(p *Parameters) { p.BytesPerToken = 2 })
	got, f := h.ask(text("m", 100))
	f.Done(complete(-1), 0)
	if got.Count != 50 || got.BytesPerToken != 2 {
		t.Errorf("%+v, want 50 tokens at 2 bytes", got)
	}
}

func TestReloadKeepsWhatWasLearnt(t *testing.T) {
	h := newHarness(t, nil)
	for range 100 {
		h.answer("m", 3000, 1000)
	}
	_, late := h.ask(text("m", 3000))
	h.reload(func(p *Parameters) { p.BytesPerToken = 5 })
	late.Done(complete(1000), 0)
	if got := h.ratio("m"); math.Abs(got-3) > 0.05 {
		t.Errorf("%v bytes per token after a reload, want 3", got)
	}
	if got := h.ratio("unseen"); got != 5 {
		t.Errorf("an unseen model starts at %v, want 5", got)
	}
}

func TestMetrics(t *testing.T) {
	h := newHarness(t, nil)
	h.answer("m", 2048, 512)
	h.answer("m", 10, 2000)
	h.answer("bad\xff", 2048, 512) // no label value
	_, f := h.ask(&scheduling.Request{Body: []byte("opaque"), Choices: 1})
	f.Done(complete(7), 0)
	if _, err := h.build(func(p *Parameters) { p.BytesPerToken = -1 }); err == nil {
		t.Fatal("a bad configuration was built")
	}
	want := `
# HELP sluice_token_bytes_per_token Learnt bytes of prompt text per token.
# TYPE sluice_token_bytes_per_token gauge
sluice_token_bytes_per_token{model="m",producer="token-producer"} 4
# HELP sluice_token_guessed_prompts_total Requests with a body whose text is not known; their length is a guess.
# TYPE sluice_token_guessed_prompts_total counter
sluice_token_guessed_prompts_total{producer="token-producer"} 1
# HELP sluice_token_models Models whose bytes per token are learnt.
# TYPE sluice_token_models gauge
sluice_token_models{producer="token-producer"} 2
# HELP sluice_token_samples_total Answers whose prompt length was compared with its text, by whether the ratio was plausible.
# TYPE sluice_token_samples_total counter
sluice_token_samples_total{producer="token-producer",result="learned"} 2
sluice_token_samples_total{producer="token-producer",result="rejected"} 1
`
	if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(h.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
}

func TestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHarness(t, nil)
	h.answer("m", 3000, 1000)
	r := text("m", 3000)
	if n := testing.AllocsPerRun(200, func() {
		_, f := h.ask(r)
		f.Done(complete(1000), 0)
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func TestConcurrently(t *testing.T) {
	h := newHarness(t, nil)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 500 {
				h.answer(fmt.Sprintf("m%d", (w+i)%5), 3000, 1000)
				if i%100 == 0 {
					if _, err := h.registry.Gather(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	for i := range 5 {
		if got := h.ratio(fmt.Sprintf("m%d", i)); math.Abs(got-3) > 0.01 {
			t.Errorf("m%d: %v bytes per token, want 3", i, got)
		}
	}
}

func BenchmarkProduce(b *testing.B) {
	h := newHarness(b, nil)
	h.answer("m", 3000, 1000)
	p := h.scheduler.Plugin(TypeName).(*Producer)
	c := h.scheduler.Begin(h.pool.Snapshot(), text("m", 3000), 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Produce(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
