package tokens

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/scheduling"
)

func question(model string, n int) *scheduling.Request {
	return chatRequest(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"question %d"}]}`, model, n))
}

func TestTrust(t *testing.T) {
	tr := newTrust(10, Options{}.logger())
	is := func(want bool, when string) {
		t.Helper()
		if got, _ := tr.demoted("m", false); got != want {
			t.Fatalf("demoted: %v %s", got, when)
		}
	}
	is(false, "before any check")
	for range 3 {
		tr.check("m", false)
	}
	is(false, "after three mismatches")
	for range windowSize - 3 {
		tr.check("m", true)
	}
	for range 3 {
		tr.check("m", true) // a mismatch leaves the window
		tr.check("m", false)
	}
	is(false, "with three mismatches in the window")
	tr.check("m", false)
	is(true, "with four mismatches in the window")
	for range matchesToPromote - 1 {
		tr.check("m", true)
	}
	tr.check("m", false)
	for range matchesToPromote - 1 {
		tr.check("m", true)
	}
	is(true, "before enough matches in a row")
	tr.check("m", true)
	is(false, "after enough matches in a row")
	for range 3 {
		tr.check("m", false)
	}
	is(false, "with a window that began anew")
	r, _ := tr.models.Get("m")
	if matches, mismatches, ratio, _ := r.state(); matches != 61+3+2*31+1 || mismatches != 3+3+1+1+3 || ratio != 1 {
		t.Errorf("%d matches, %d mismatches, ratio %v", matches, mismatches, ratio)
	}
	tr.check("m", false)
	samples := 0
	for range 10 * sampleEvery {
		if _, sample := tr.demoted("m", false); sample {
			samples++
		}
	}
	if samples != 10 {
		t.Errorf("%d samples", samples)
	}
	for i := range 100 {
		tr.check(fmt.Sprint("model-", i), true)
	}
	if n := tr.models.Len(); n != 10 {
		t.Errorf("%d models are kept, want 10", n)
	}
}

// A model whose counts disagree is demoted by itself, goes on being compared, and comes back.
func TestDemotionAndPromotion(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		n := 0
		next := func() *scheduling.Request { n++; return question("m", n) }
		for range 20 {
			h.want(e, next())
		}
		checks := h.all("sluice_token_checks_total")
		if checks["match"] != 20 || checks["mismatch"] != 0 {
			t.Errorf("checks %v", checks)
		}
		for i := range mismatchesToDemote {
			r := next()
			if got := h.get(r, len(e.truth(t, r))+1); !got.Exact {
				t.Errorf("demoted after %d mismatches", i)
			}
			if again := h.exact().known.memo.Get(key(t, h, r)); again != nil {
				t.Error("a prompt that its engine counts otherwise is remembered")
			}
		}
		h.inexact(next(), "mismatch_demoted")
		if h.count("sluice_token_model_demoted", "m") != 1 || h.count("sluice_token_mismatch_ratio", "m") != 4.0/24 {
			t.Errorf("demoted %v, ratio %v", h.all("sluice_token_model_demoted"), h.all("sluice_token_mismatch_ratio"))
		}
		h.want(e, question("other", 1)) // its neighbour is not
		e.asked()
		for range 10 * sampleEvery {
			r := next()
			truth := len(e.truth(t, r))
			got, f := h.ask(r)
			if got.Exact {
				t.Fatal("promoted without a match")
			}
			synctest.Wait()
			f.Done(complete(truth+1), 0)
		}
		if asked := len(e.asked()); asked != 10 {
			t.Errorf("%d of %d requests are rendered to compare", asked, 10*sampleEvery)
		}
		promoted := 0
		for ; promoted < 1000; promoted++ {
			r := next()
			truth := len(e.truth(t, r))
			got, f := h.ask(r)
			synctest.Wait()
			f.Done(complete(truth), 0)
			if got.Exact {
				break
			}
		}
		if promoted < (matchesToPromote-1)*sampleEvery || promoted > (matchesToPromote+1)*sampleEvery {
			t.Errorf("promoted after %d requests that agree", promoted)
		}
		h.want(e, next())
		if got := h.all("sluice_token_model_demoted"); len(got) != 0 {
			t.Errorf("demoted %v", got)
		}
	})
}

// key names a request in the memo.
func key(t *testing.T, h *harness, r *scheduling.Request) memo.Key {
	t.Helper()
	rd := &reading{}
	if !rd.read(r, h.exact().known.seed) {
		t.Fatal("cannot read")
	}
	return rd.whole
}

// What says nothing of a prompt's tokens is not compared with it.
func TestWhatIsNotCompared(t *testing.T) {
	e := &engine{}
	h := newExactHarness(t, e, nil)
	defer h.close()
	for name, tc := range map[string]struct {
		r       *scheduling.Request
		outcome scheduling.Outcome
	}{
		"no usage":     {question("m", 1), complete(-1)},
		"an error":     {question("m", 2), with(complete(1), scheduling.EndError, 200)},
		"a disconnect": {question("m", 3), with(complete(1), scheduling.EndDisconnect, 200)},
		"an estimate":  {question("m", 4), with(complete(1), scheduling.EndUnseen, 200)},
		"status 400":   {question("m", 5), with(complete(1), scheduling.EndComplete, 400)},
		"a batch":      {post(scheduling.OperationCompletions, `{"model":"m","prompt":["a","b"]}`), complete(1)},
		"no tokens":    {post(scheduling.OperationEmbeddings, `{"model":"m","input":"a"}`), complete(1)},
		"token ids":    {&scheduling.Request{Model: "m", Body: []byte(`{"prompt":[1]}`), Tokens: []uint32{1}, TokenCount: 1, Choices: 1}, complete(9)},
	} {
		_, f := h.ask(tc.r)
		f.Done(tc.outcome, 0)
		if got := h.all("sluice_token_checks_total"); len(got) != 0 {
			t.Fatalf("%s: checks %v", name, got)
		}
	}
}

// answered ends a request as an engine does that gives the prompt's token ids.
func (h *harness) answered(r *scheduling.Request, tokens []uint32, usage int) scheduling.TokenizedPrompt {
	h.t.Helper()
	got, f := h.ask(r)
	o := complete(usage)
	o.PromptTokens = slices.Clone(tokens)
	f.Done(o, 0)
	clear(o.PromptTokens) // they were valid until Done returned
	return got
}

// The token ids that engines give with their answers (return_token_ids) check the own ones and fill the memo.
func TestReturnedTokenIDs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		r := question("m", 1)
		truth := e.truth(t, r)
		h.answered(r, truth, len(truth))
		if got := h.all("sluice_token_checks_total"); got["match"] != 1 {
			t.Errorf("checks %v", got)
		}
		// The same number of other tokens is a mismatch that the number does not show.
		other := slices.Clone(truth)
		other[0]++
		h.answered(r, other, len(other))
		if got := h.all("sluice_token_checks_total"); got["mismatch"] != 1 {
			t.Errorf("checks %v", got)
		}
		if got := h.get(r, len(truth)); !slices.Equal(got.Tokens, other) {
			t.Errorf("%v; the engine's own are %v", got.Tokens, other)
		}
		e.asked()

		// Nothing renders: what engines give is all there is.
		e.status = 503
		r = question("m", 2)
		truth = words("what the engine says")
		if got := h.answered(r, truth, len(truth)); got.Exact {
			t.Error("exact without a rendering")
		}
		got := h.get(question("m", 2), len(truth))
		if diff := cmp.Diff(scheduling.TokenizedPrompt{Tokens: truth, Count: 4, Exact: true, BytesPerToken: got.BytesPerToken}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if n := h.all("sluice_token_memo_learned_total")[""]; n != 2 {
			t.Errorf("%v prompts learnt, want 2", n)
		}
		for name, tc := range map[string]struct {
			r     *scheduling.Request
			usage int
		}{
			"the first of a batch": {post(scheduling.OperationCompletions, `{"model":"m","prompt":["a","b"]}`), 9},
			"perhaps of a batch":   {post(scheduling.OperationCompletions, `{"model":"m","prompt":"a"}`), -1},
			"with images":          {chatRequest(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}`), 4},
			"not all":              {question("m", 3), 5},
		} {
			h.answered(tc.r, truth, tc.usage)
			if got := h.get(tc.r); got.Exact {
				t.Errorf("%s: %v is taken for the prompt's tokens", name, got.Tokens)
			}
		}
		for _, usage := range []int{-1, 4} { // a stream may have no usage
			r := question("m", 10+usage)
			h.answered(r, truth, usage)
			if got := h.get(r); !got.Exact {
				t.Errorf("usage %d: what the engine gave was not kept", usage)
			}
		}
	})
}

// Names that clients make up cost nothing: only models that engines answer for are kept, the last thousand.
func TestTrustedModelsAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		for i := range 300 {
			_, f := h.ask(question(fmt.Sprint("made-up-", i), 1))
			f.Done(with(complete(-1), scheduling.EndComplete, 404), 0)
		}
		if n := h.exact().known.trust.models.Len(); n != 0 {
			t.Errorf("%d models are kept that no engine has", n)
		}
		for i := range maxModels + 200 {
			r := question(fmt.Sprint("adapter-", i), 1)
			h.get(r, len(e.truth(t, r)))
		}
		if n := h.exact().known.trust.models.Len(); n != maxModels {
			t.Errorf("%d models are kept, want %d", n, maxModels)
		}
		h.want(e, question(strings.Repeat("m", maxModelName), 1))
		time.Sleep(time.Second)
	})
}
