package tokens

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/scheduling"
)

// try is what is published for a request that is only tried.
func (h *harness) try(ctx context.Context, r *scheduling.Request) scheduling.TokenizedPrompt {
	h.t.Helper()
	r.Trial = true
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	defer h.scheduler.End(c)
	h.scheduler.Produce(ctx, c)
	h.scheduler.Preview(c)
	got, _ := h.scheduler.Plugin("first").(*firstPicker).prompt.In(c).Get()
	return got
}

// numbers are all metrics but those of the calls to servers, which are made for trials too.
func (h *harness) numbers() map[string]map[string]float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "sluice_token_render_") {
			all[f.GetName()] = h.all(f.GetName())
		}
	}
	return all
}

// A request that is only tried has the tokens that it would have, and leaves neither a prompt nor a number behind.
func TestTrial(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, nil)
		defer h.close()
		known := question("m", 1)
		h.want(e, known)
		for range mismatchesToDemote {
			h.exact().known.trust.check("bad", false)
		}
		for range sampleEvery - 1 { // the next one is compared
			h.inexact(question("bad", 1), "mismatch_demoted")
		}
		before, skipped := h.numbers(), 0
		if r, ok := h.exact().known.trust.models.Peek("bad"); ok {
			skipped = r.skipped
		}
		e.asked()
		ids := scheduling.Request{Body: make([]byte, 50), Tokens: []uint32{1}, TokenCount: 1, Choices: 1}
		for name, tc := range map[string]struct {
			r     *scheduling.Request
			asks  int
			exact bool
		}{
			"a known prompt":    {known, 0, true},
			"a new prompt":      {question("m", 2), 1, true},
			"the same again":    {question("m", 2), 1, true},
			"a demoted model":   {question("bad", 2), 0, false},
			"no text":           {&scheduling.Request{Body: make([]byte, 50), Choices: 1}, 0, false},
			"token ids":         {&ids, 0, true},
			"not readable":      {chatRequest("{"), 0, false},
			"nobody renders it": {&scheduling.Request{Operation: scheduling.OperationEmbeddings, Body: []byte(`{"input":"x"}`), PromptBytes: 1, Choices: 1}, 0, false},
		} {
			if got := h.try(t.Context(), tc.r); got.Exact != tc.exact || got.Count == 0 {
				t.Errorf("%s: %+v", name, got)
			}
			synctest.Wait()
			if n := len(e.asked()); n != tc.asks {
				t.Errorf("%s: an engine is asked %d times, want %d", name, n, tc.asks)
			}
		}
		if diff := cmp.Diff(before, h.numbers()); diff != "" {
			t.Errorf("trials are counted (-before +after):\n%s", diff)
		}
		if r, _ := h.exact().known.trust.models.Peek("bad"); r.skipped != skipped {
			t.Errorf("%d requests are skipped, before it were %d", r.skipped, skipped)
		}
	})
}

// A trial uses no prompt more recently: what it looks at goes as soon as it would have gone.
func TestTrialDoesNotRefreshTheMemo(t *testing.T) {
	store := memo.NewStore(8 * 1024)
	keys := make([]memo.Key, 40)
	for i := range keys {
		keys[i] = memo.Key{}.With(1, []byte{byte(i)})
		store.Put(keys[i], &memo.Prompt{Count: i})
		if store.Peek(keys[0]) == nil && i < 10 {
			t.Fatalf("gone after %d more", i)
		}
	}
	if store.Peek(keys[0]) != nil || store.Peek(keys[len(keys)-1]) == nil {
		t.Error("what is looked at stays, or the newest is not there")
	}
}

// A request that finds its prompt's tokens under way for a trial keeps them.
func TestRequestBehindATrial(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(100 * time.Millisecond)}
		h := newExactHarness(t, e, nil)
		defer h.close()
		var both sync.WaitGroup
		both.Go(func() { h.try(t.Context(), question("m", 1)) })
		synctest.Wait()
		h.want(e, question("m", 1))
		both.Wait()
		if n := len(e.asked()); n != 1 {
			t.Errorf("an engine is asked %d times", n)
		}
		if n := h.count("sluice_token_memo_prompts", ""); n != 1 {
			t.Errorf("%v prompts are kept", n)
		}
	})
}

// Servers are not blamed for being too slow for a trial, and nobody is kept from waiting by one.
func TestTrialsBlameNobody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(6 * time.Second)}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		for i := range 12 {
			if got := h.try(t.Context(), largeTool(i)); got.Exact {
				t.Error("exact")
			}
		}
		if got := h.all("sluice_token_render_servers"); got["open"] != 0 {
			t.Errorf("servers %v", got)
		}
		if _, took := h.timed(largeTool(11), 150*time.Millisecond); took == 0 {
			t.Error("a request does not wait for what a trial has waited for in vain")
		}
	})
}

// A conversation that is tried is joined where it would be, and its class learns nothing of it.
func TestTrialOfAConversation(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := trained(t, e, nil)
		defer h.close()
		k := newTalk(121, "")
		for range 5 {
			k.say("user", k.text(15), "")
			h.want(e, k.request())
			synctest.Wait()
			k.answer()
		}
		k.say("user", k.text(15), "")
		before := h.numbers()
		e.asked()
		for range 3 * 16 { // more than there are between two checks
			r := k.request()
			truth := e.truth(t, r)
			if got := h.try(t.Context(), r); !got.Exact || !cmp.Equal(got.Tokens, truth) {
				t.Errorf("%d tokens, want %d", got.Count, len(truth))
			}
			synctest.Wait()
		}
		if diff := cmp.Diff(before, h.numbers()); diff != "" {
			t.Errorf("trials are counted (-before +after):\n%s", diff)
		}
		for _, c := range e.asked() {
			if len(c.body) > len(k.request().Body)/2 {
				t.Fatalf("a body of %d bytes is rendered", len(c.body))
			}
		}
	})
}

// What keeps a prompt's tokens from being known is a fault of the producer, where it is not the request's own.
func TestFaults(t *testing.T) {
	status := func(code int) func(*engine) { return func(e *engine) { e.status = code } }
	for name, tc := range map[string]struct {
		engine func(*engine)
		r      *scheduling.Request
		want   string
	}{
		"well":            {func(*engine) {}, question("m", 1), ""},
		"too slow":        {func(e *engine) { e.before = slow(time.Minute) }, question("m", 1), "the prompt's length is estimated: its tokens did not come within 131ms"},
		"refused":         {func(e *engine) { e.before = refuse }, question("m", 1), "the prompt's length is estimated: render: connect: connection refused"},
		"fails":           {status(500), question("m", 1), "the prompt's length is estimated: render: http_status: status 500"},
		"no such model":   {func(e *engine) { e.knows = []string{"n"} }, question("m", 1), "the prompt's length is estimated: render: http_status: "},
		"a bad request":   {status(400), question("m", 1), ""},
		"not readable":    {func(*engine) {}, chatRequest("{"), ""},
		"no render route": {func(e *engine) { e.noRender, e.noTokenize = true, true }, question("m", 1), "the prompt's length is estimated: render: no_route"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e := &engine{}
				tc.engine(e)
				h := newExactHarness(t, e, byDefault)
				defer h.close()
				h.timed(tc.r, 150*time.Millisecond)
				got := h.fault()
				if !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
					t.Errorf("the fault is %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func refuse(context.Context, *http.Request) error { return errRefused }

// The producer that the time ran out for is named, and so are those that come behind it.
func TestFaultOfTheTimeForProducers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(time.Minute)}
		h := newExactHarness(t, e, nil)
		defer h.close()
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(errRefused) })
		h.askWithin(ctx, question("m", 1))
		if got := h.fault(); got != "the prompt's length is estimated: connection refused" {
			t.Errorf("the fault is %q", got)
		}
	})
}
