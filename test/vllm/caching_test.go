package vllm

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim/capture"
	"github.com/sluice-epp/sluice/test/lab"
)

var update = flag.Bool("update", false, "write what the real engine reports to the model's test data")

// What the committed capture was taken with: little, so that much is evicted, and prompts computed in several steps.
const (
	smallBlocks = 40 // one of them is vLLM's own
	smallTokens = 1024
	smallBudget = 256
)

// TestCaching asks a real vLLM one request at a time and compares the tokens that it reports as cached with those of the
// engine model, request by request, and with those that the committed capture has.
func TestCaching(t *testing.T) {
	e := newEngines(t)[0]
	e.blocks, e.longest, e.budget = smallBlocks, smallTokens, smallBudget
	e.start(t)
	e.ready(t)
	got := &capture.Capture{Engine: capture.Engine{
		Name: "vllm " + e.version(t), BlockSize: blockSize, NumBlocks: smallBlocks - 1, MaxBatchedTokens: smallBudget, MaxModelLen: smallTokens,
	}}
	prompts := capture.Prompts{Longest: smallTokens}
	steps := cachingCases()
	steps = append(steps, cachingWalk(len(steps), 400)...)
	steps = append(steps, cachingTogether()...)
	hits := 0
	for group := range groups(steps) {
		if s := group[0].Step; s.Reset {
			e.reset(t)
			if _, err := prompts.Next(got.Steps, s); err != nil { // it counts as a step
				t.Fatalf("%s: %v", s.Name, err)
			}
		} else {
			e.together(t, &prompts, got.Steps, group)
		}
		for _, s := range group {
			got.Steps = append(got.Steps, s.Step)
			hits += s.Cached
		}
	}
	different, err := got.Compare()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range different {
		t.Errorf("step %d, %s: the engine reports %d cached tokens, the model %d", d.Step, d.Name, d.Engine, d.Modeled)
	}
	t.Logf("%s: %d requests, %d tokens cached, %d mismatches", got.Engine.Name, len(got.Steps), hits, len(different))
	path := filepath.Join("..", "..", "sim", "capture", "testdata", "vllm.jsonl")
	if *update {
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Write(out); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	committed, err := capture.Read(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(committed.Steps) != len(got.Steps) {
		t.Fatalf("the capture has %d steps, want %d: renew it with -update", len(committed.Steps), len(got.Steps))
	}
	for i, s := range committed.Steps {
		if s.Prompt != got.Steps[i].Prompt || s.Cached != got.Steps[i].Cached {
			t.Errorf("step %d, %s: the capture has prompt %q with %d cached tokens, the engine %q with %d: renew it with -update",
				i, s.Name, s.Prompt, s.Cached, got.Steps[i].Prompt, got.Steps[i].Cached)
		}
	}
}

// cachingStep is a step yet to be taken.
type cachingStep struct {
	capture.Step
	tokens int // of its answer
}

// cachingCases are the rules that are known of vLLM's cache, one after the other.
func cachingCases() []cachingStep {
	ask := func(name, prompt string, tokens int) cachingStep {
		return cachingStep{capture.Step{Name: name, Prompt: prompt}, tokens}
	}
	salted := func(s cachingStep, salt, adapter string) cachingStep {
		s.Salt, s.Adapter = salt, adapter
		return s
	}
	all := []cachingStep{
		ask("less than a block", "100+20", 2),
		ask("less than a block again", "100+20", 2),
		ask("four blocks", "100+128", 1),
		ask("exactly four blocks again: the last token is computed", "100+128", 1),
		ask("and a token", "100+129", 1),
		ask("one token less", "100+127", 1),
		ask("half of it", "100+70", 1),
		ask("the same tokens elsewhere", "99+129", 1),
		ask("another third block", "100+64 500+64", 1),
		salted(ask("salted", "100+129", 1), "a", ""),
		salted(ask("salted again", "100+129", 1), "a", ""),
		salted(ask("another salt", "100+129", 1), "b", ""),
		salted(ask("an adapter", "100+129", 1), "", "sql"),
		salted(ask("an adapter again", "100+129", 1), "", "sql"),
		salted(ask("an adapter, salted", "100+129", 1), "a", "sql"),
		{capture.Step{Name: "reset", Reset: true}, 0},
		ask("after a reset", "100+129", 1),
		ask("a conversation", "600+50", 47), // step 17
		ask("its next turn", "=17 @17+47 700+30", 40),
		ask("and the next", "=18 @18+40 800+30", 33),
		ask("and the next, of its first tokens only", "=18 @18+20", 3),
		ask("whole blocks with the answer", "900+40", 25), // 40+24 computed: two blocks
		ask("of which the last token was never computed", "=21 @21+25", 2),
		ask("an answer that fills a block with its last token", "950+40", 24), // 63 computed
		ask("whose block is not cached", "=23 @23+24 1+1", 2),
		{capture.Step{Name: "reset", Reset: true}, 0},
	}
	// Texts of eight blocks fill the 39 blocks with a partial one each: the oldest goes first, its tail before its head.
	text := func(i int) string { return fmt.Sprintf("%d+270", 1000+300*i) }
	for i := range 5 {
		all = append(all, ask(fmt.Sprintf("text %d", i), text(i), 1))
	}
	for _, i := range []int{0, 4, 2, 1, 4, 3, 0, 2} {
		all = append(all, ask(fmt.Sprintf("text %d again", i), text(i), 1))
	}
	all = append(all,
		ask("longer than the budget of a step", "100+900", 1),
		ask("longer than the budget of a step, again", "100+900", 1),
		ask("most of the cache", "100+900 3000+100", 20),
		ask("what is left of a text", text(2), 1),
	)
	for i := range 4 { // the same whole blocks, computed several times: each leaves a copy of the last one
		all = append(all, ask(fmt.Sprintf("copy %d", i), "2000+160", 1))
	}
	for i := range 6 {
		all = append(all, ask(fmt.Sprintf("pushing out, %d", i), fmt.Sprintf("%d+140", 3000+150*i), 1),
			ask(fmt.Sprintf("copies left, %d", i), "2000+161", 1))
	}
	return all
}

// cachingWalk mixes conversations that share beginnings, more than the cache holds, in an order of chance.
func cachingWalk(first, n int) []cachingStep {
	chance := rand.New(rand.NewPCG(7, 11))
	type talk struct {
		last, prompt, output int // the step of the latest turn, and its tokens
		salt, adapter        string
	}
	var talks []talk
	var all []cachingStep
	for i := range n {
		name := fmt.Sprintf("walk %d", i)
		if chance.IntN(100) == 0 {
			all = append(all, cachingStep{capture.Step{Name: name, Reset: true}, 0})
			continue
		}
		s := cachingStep{capture.Step{Name: name}, 1 + chance.IntN(40)}
		question := 1 + chance.IntN(60)
		k := len(talks) - 1 - chance.IntN(4)
		if k < 0 || talks[k].prompt+talks[k].output+question+s.tokens > smallTokens || chance.IntN(3) == 0 {
			talks = append(talks, talk{salt: []string{"", "", "", "a"}[chance.IntN(4)], adapter: []string{"", "", "", "sql"}[chance.IntN(4)]})
			k = len(talks) - 1
			system := 32 * chance.IntN(9) // whole blocks, so that some prompts are
			s.Prompt = fmt.Sprintf("%d+%d %d+%d", 10+600*chance.IntN(3), system, 100+chance.IntN(2000), question)
			talks[k].prompt = system + question
		} else {
			heard := talks[k].output - chance.IntN(2)*chance.IntN(talks[k].output)
			s.Prompt = fmt.Sprintf("=%d @%d+%d %d+%d", talks[k].last, talks[k].last, heard, 100+chance.IntN(2000), question)
			talks[k].prompt += heard + question
		}
		s.Salt, s.Adapter = talks[k].salt, talks[k].adapter
		talks[k].last, talks[k].output = first+i, s.tokens
		all = append(all, s)
	}
	return all
}

// cachingTogether are requests that wait together when the engine begins with them.
func cachingTogether() []cachingStep {
	var all []cachingStep
	group := func(name string, tokens int, prompts ...string) {
		for i, p := range prompts {
			all = append(all, cachingStep{capture.Step{Name: name, Prompt: p, Together: i > 0}, tokens})
		}
	}
	reset := func() { all = append(all, cachingStep{capture.Step{Name: "reset", Reset: true}, 0}) }
	reset()
	group("equal prompts", 3, "100+161", "100+161", "100+161")
	group("equal prompts, again", 3, "100+161", "100+161", "100+161")
	group("a shared beginning, in two steps", 3, "500+64 600+136", "500+64 800+136", "500+64 600+136")
	group("longer than a step", 3, "1000+400", "1000+400", "1000+350")
	reset()
	group("more than fits", 4, "1+300", "401+300", "801+300", "1201+300", "1601+300")
	group("more than fits, backwards", 4, "1601+300", "1201+300", "801+300", "401+300", "1+300")
	chance := rand.New(rand.NewPCG(3, 5))
	for i := range 60 {
		var prompts []string
		for range 2 + chance.IntN(5) {
			prompts = append(prompts, fmt.Sprintf("%d+%d %d+%d", 10+600*chance.IntN(4), 16*chance.IntN(16), 100+50*chance.IntN(8), 1+chance.IntN(150)))
		}
		group(fmt.Sprintf("crowd %d", i), 1+chance.IntN(30), prompts...)
	}
	return all
}

// groups yields the steps that are taken together.
func groups(steps []cachingStep) iter.Seq[[]cachingStep] {
	return func(yield func([]cachingStep) bool) {
		for len(steps) > 0 {
			n := 1
			for n < len(steps) && steps[n].Together {
				n++
			}
			if !yield(steps[:n]) {
				return
			}
			steps = steps[n:]
		}
	}
}

// queueTime is many times what a request takes to its place in an engine's queue.
const queueTime = 100 * time.Millisecond

// together asks for all answers of a group, with the engine held until they wait, in their order.
func (e *engine) together(t *testing.T, prompts *capture.Prompts, before []capture.Step, group []cachingStep) {
	t.Helper()
	if len(group) > 1 {
		e.post(t, "/pause?mode=keep&clear_cache=false")
	}
	var all sync.WaitGroup
	for i := range group {
		s := &group[i]
		prompt, err := prompts.Next(before, s.Step)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		all.Go(func() { e.generate(t, s, prompt) })
		if len(group) > 1 {
			time.Sleep(queueTime)
		}
	}
	if len(group) > 1 {
		e.post(t, "/resume")
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func (e *engine) post(t *testing.T, path string) {
	t.Helper()
	if a := lab.Post(t, e.http, e.url(path), ""); a.Status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, a.Status, a.Body)
	}
}

// generate asks for an answer and notes its tokens, and how many of the prompt's were cached.
func (e *engine) generate(t *testing.T, s *cachingStep, prompt []uint32) {
	model := baseModel
	if s.Adapter != "" {
		model = s.Adapter
	}
	r := newRequest(completions, model, s.tokens).with("prompt", prompt).with("return_token_ids", true)
	if s.Salt != "" {
		r = r.with("cache_salt", s.Salt)
	}
	body, err := json.Marshal(r.body)
	if err != nil {
		t.Error(err)
		return
	}
	a, err := lab.Try(e.http, lab.Request(t, http.MethodPost, e.url(r.path), bytes.NewReader(body)))
	var got struct {
		Choices []struct {
			Tokens []uint32 `json:"token_ids"`
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(a.Body), &got)
	}
	if err != nil || len(got.Choices) != 1 || len(got.Choices[0].Tokens) != s.tokens || got.Usage.Prompt != len(prompt) || got.Usage.Details == nil {
		t.Errorf("%s: want %d tokens for %d: %v, status %d: %s", s.Name, s.tokens, len(prompt), err, a.Status, a.Body)
		return
	}
	s.Output, s.Cached = got.Choices[0].Tokens, got.Usage.Details.Cached
}

// version is what the engine says of itself.
func (e *engine) version(t *testing.T) string {
	t.Helper()
	var v struct{ Version string }
	a := lab.Get(t, e.http, e.url("/version"))
	if err := json.Unmarshal([]byte(a.Body), &v); err != nil || v.Version == "" {
		t.Fatalf("version: %v: %s", err, a.Body)
	}
	return v.Version
}
