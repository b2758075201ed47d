package tokens

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// largeTool is a chat with a tool whose description is 1 MiB, told apart by a number.
func largeTool(n int) *scheduling.Request {
	return chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"question %d"}],"tools":[{"type":"function","function":{"name":"f","description":"%s"}}]}`,
		n, strings.Repeat("describe ", 1<<20/9)))
}

// timed asks within a produce timeout, and is how long it took.
func (h *harness) timed(r *scheduling.Request, timeout time.Duration) (got scheduling.TokenizedPrompt, took time.Duration) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), timeout)
	defer cancel()
	begun := time.Now()
	got, f := h.askWithin(ctx, r)
	took = time.Since(begun)
	f.Done(complete(-1), 0)
	return got, took
}

const reasons = "sluice_token_inexact_prompts_total"

// (a): the tokenizer sleeps 6 s. The first requests wait for their budget and no longer, the next do not wait at all.
func TestC07_TokenizerSleeps(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(6 * time.Second)}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		for i := range 12 {
			got, took := h.timed(largeTool(i), 150*time.Millisecond)
			if got.Exact || got.Tokens != nil || got.Count < 100_000 {
				t.Fatalf("request %d: exact: %v, %d tokens; want an estimate by bytes", i, got.Exact, got.Count)
			}
			if i < 5 && took != 150*time.Millisecond*7/8 || i >= 5 && took != 0 {
				t.Errorf("request %d took %v", i, took)
			}
		}
		if got := h.all(reasons); got["timeout"] != 5 || got["breaker_open"] != 7 || len(got) != 2 {
			t.Errorf("reasons %v", got)
		}
		if got := h.all("sluice_token_render_servers"); got["open"] != 1 {
			t.Errorf("servers %v", got)
		}
		// From time to time one request tries, and pays; the times between grow.
		waited := 0
		for i := range 600 {
			time.Sleep(100 * time.Millisecond)
			small := chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"question %d"}]}`, i))
			if _, took := h.timed(small, 150*time.Millisecond); took > 0 {
				waited++
			}
		}
		if waited < 4 || waited > 7 {
			t.Errorf("%d requests of a minute waited", waited)
		}
		// It heals by itself.
		e.before = nil
		time.Sleep(time.Minute)
		h.want(e, largeTool(1))
		if got := h.all("sluice_token_render_servers"); got["closed"] != 1 {
			t.Errorf("servers %v", got)
		}
	})
}

// The same, with one prompt again and again: the first pays, those beside it too, and no later one.
func TestC07_OnePromptAgainAndAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(6 * time.Second)}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		const text = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
		var beside sync.WaitGroup
		for range 3 {
			beside.Go(func() {
				if _, took := h.timed(chatRequest(text), 150*time.Millisecond); took != 150*time.Millisecond*7/8 {
					t.Errorf("beside the first: %v", took)
				}
			})
		}
		beside.Wait()
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			if got, took := h.timed(chatRequest(text), 150*time.Millisecond); got.Exact || took != 0 {
				t.Errorf("exact %v after %v", got.Exact, took)
			}
		}
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// (b): it answers 500.
func TestC07_TokenizerFails(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{status: 500}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		for i := range 20 {
			if got, took := h.timed(largeTool(i), 150*time.Millisecond); got.Exact || got.Count < 100_000 || took != 0 {
				t.Fatalf("exact: %v, %d tokens after %v", got.Exact, got.Count, took)
			}
		}
		if got := h.all(reasons); got["http_status"] != 5 || got["breaker_open"] != 15 || len(got) != 2 {
			t.Errorf("reasons %v", got)
		}
		if n := len(e.asked()); n != 5 {
			t.Errorf("asked %d times", n)
		}
	})
}

// listen accepts connections and never answers.
func listen(t *testing.T) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var accepted []net.Conn
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		all.Wait()
		for _, c := range accepted {
			c.Close()
		}
	})
	return "http://" + listener.Addr().String()
}

// (c): it accepts and never answers, over a real connection. The body may not even have been sent when the request goes
// on; its memory is the request's again all the same.
func TestC07_TokenizerNeverAnswers(t *testing.T) {
	h := newExactHarness(t, nil, func(p *Parameters) { p.VLLM = &VLLM{URL: listen(t)} })
	defer h.close()
	for i := range 8 {
		r := largeTool(i)
		got, took := h.timed(r, time.Second)
		if got.Exact || got.Count < 100_000 || took > 4*time.Second {
			t.Errorf("exact: %v, %d tokens after %v", got.Exact, got.Count, took)
		}
		clear(r.Body)
	}
	if got := h.all(reasons); got["timeout"] < 5 || got["breaker_open"] < 1 || got["timeout"]+got["breaker_open"] != 8 {
		t.Errorf("reasons %v", got)
	}
}

// (d): it is down at the start, and comes up later.
func TestC07_TokenizerDownAtTheStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	h := newExactHarness(t, nil, func(p *Parameters) { p.VLLM = &VLLM{URL: "http://" + address} })
	for i := range 6 {
		if got, took := h.timed(largeTool(i), time.Second); got.Exact || got.Count < 100_000 || took > 4*time.Second {
			t.Errorf("exact: %v, %d tokens after %v", got.Exact, got.Count, took)
		}
	}
	if got := h.all(reasons); got["connect"] < 5 || got["connect"]+got["breaker_open"] != 6 {
		t.Errorf("reasons %v", got)
	}
	h.close()

	virtual(t, func(t *testing.T) {
		e := &engine{before: func(context.Context, *http.Request) error { return errRefused }}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		h.inexact(largeTool(1), "connect")
		e.before = nil
		h.want(e, largeTool(1))
	})
}

// However the two time-outs relate, the producers behind this one get a part of the process's.
func TestBudgets(t *testing.T) {
	image := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}`
	for _, tc := range []struct {
		name                       string
		timeout, mmTimeout, within time.Duration
		image                      bool
		want                       time.Duration
		blamed                     bool
	}{
		{"the process's is shorter", 5 * time.Second, 0, 150 * time.Millisecond, false, 150 * time.Millisecond * 7 / 8, false},
		{"the plugin's is shorter", 40 * time.Millisecond, 0, 150 * time.Millisecond, false, 40 * time.Millisecond, true},
		{"for images", 40 * time.Millisecond, 90 * time.Millisecond, 150 * time.Millisecond, true, 90 * time.Millisecond, true},
		{"for images by default", 40 * time.Millisecond, 0, 150 * time.Millisecond, true, 40 * time.Millisecond, true},
		{"nothing is left", 40 * time.Millisecond, 0, time.Nanosecond, false, 0, false},
		{"hardly anything is left", 40 * time.Millisecond, 0, 8 * time.Millisecond, false, 7 * time.Millisecond, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e := &engine{before: slow(time.Minute)}
				h := newExactHarness(t, e, func(p *Parameters) { p.VLLM.Timeout, p.VLLM.MMTimeout = tc.timeout, tc.mmTimeout })
				defer h.close()
				for i := range 5 {
					r := chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"x %d"}]}`, i))
					if tc.image {
						r = chatRequest(strings.Replace(image, "AA", fmt.Sprint("AA", i), 1))
					}
					if got, took := h.timed(r, tc.within); got.Exact || took > tc.want+time.Microsecond || took < tc.want-time.Microsecond {
						t.Errorf("waited %v, want %v", took, tc.want)
					}
				}
				if got := h.all("sluice_token_render_servers"); (got["open"] == 1) != tc.blamed {
					t.Errorf("servers %v; blamed: %v", got, tc.blamed)
				}
				if got := h.all(reasons); got["timeout"] != 5 {
					t.Errorf("reasons %v", got)
				}
			})
		})
	}
}

// An answer that comes too late for its request serves the next one.
func TestLateAnswerIsKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(time.Second)}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		r := chatRequest(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)
		truth := e.truth(t, r)
		got, f := h.ask(r)
		if got.Exact {
			t.Fatal("it came in time")
		}
		time.Sleep(2 * time.Second)
		f.Done(complete(len(truth)), 0)
		if n := h.count("sluice_token_checks_total", "match"); n != 1 {
			t.Errorf("%v matches: what comes late is compared all the same", n)
		}
		h.want(e, r)
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// A client that leaves is no fault of the server's.
func TestClientLeaves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(time.Minute)}
		h := newExactHarness(t, e, byDefault)
		defer h.close()
		for i := range 8 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				time.Sleep(10 * time.Millisecond)
				cancel()
			}()
			r := chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"x %d"}]}`, i))
			if got, f := h.askWithin(ctx, r); got.Exact {
				t.Error("exact")
			} else {
				f.Done(complete(-1), 0)
			}
		}
		if got := h.all(reasons); got["canceled"] != 8 {
			t.Errorf("reasons %v", got)
		}
		if got := h.all("sluice_token_render_servers"); got["closed"] != 1 {
			t.Errorf("servers %v", got)
		}
	})
}

// Others that wait for the same prompt do not lose it with the client that asked first.
func TestFirstClientLeaves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		asked := 0
		e := &engine{}
		h := newExactHarness(t, hasty(func(r *http.Request) (*http.Response, error) {
			if asked++; asked == 1 { // of the first body nothing is read
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return e.RoundTrip(r)
		}), nil)
		defer h.close()
		r := func() *scheduling.Request { return question("m", 1) }
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if got, f := h.askWithin(ctx, r()); got.Exact {
				t.Error("exact")
			} else {
				f.Done(complete(-1), 0)
			}
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() { h.want(e, r()) })
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// hasty is an engine that may answer before a body is read.
type hasty func(*http.Request) (*http.Response, error)

func (f hasty) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Everything at once: requests of all kinds, an engine that fails at times, reloads, scrapes. What is exact is right.
func TestExactConcurrently(t *testing.T) {
	var n atomic.Int64
	e := &engine{before: func(context.Context, *http.Request) error {
		switch n.Add(1) % 50 {
		case 7:
			return errRefused
		case 9:
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}}
	h := newExactHarness(t, e, func(p *Parameters) { p.VLLM.MemoBytes, p.VLLM.Timeout = minMemoBytes, 2*time.Millisecond })
	p := h.scheduler.Plugin(TypeName).(*Producer)
	prompt := h.scheduler.Plugin("first").(*firstPicker).prompt
	var exactly atomic.Int64
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			k := newTalk(w, "")
			for i := range 60 {
				k.say("user", k.text(20), "")
				r := k.request()
				if w%2 == 1 {
					r = question("m", i%7)
				}
				truth := e.truth(t, r)
				c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
				err := p.Produce(t.Context(), c)
				got, _ := prompt.In(c).Get()
				if got.Exact == (err != nil) {
					t.Errorf("exact: %v, with the fault %v", got.Exact, err)
				}
				if got.Exact {
					exactly.Add(1)
					if !slices.Equal(got.Tokens, truth) {
						t.Errorf("%v, want %v", got.Tokens, truth)
					}
				}
				f, err := h.scheduler.Commit(c)
				if err != nil {
					t.Error(err)
					return
				}
				h.scheduler.End(c)
				clear(r.Body) // another request's by now
				f.Done(complete(len(truth)), 0)
				if i%20 == 0 {
					if _, err := h.registry.Gather(); err != nil {
						t.Error(err)
					}
				}
				if k.answer(); i%6 == 5 {
					k = newTalk(w+100*i, "")
				}
			}
		})
	}
	all.Wait()
	h.close()
	if n := exactly.Load(); n < 100 {
		t.Errorf("%d of 360 requests got tokens", n)
	}
	if n := len(p.exact.jobs); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

func TestCallsAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{before: slow(time.Hour)}
		h := newExactHarness(t, e, func(p *Parameters) { p.VLLM.Concurrency, p.VLLM.MaxBodyBytes, p.VLLM.Timeout = 3, minBodyBytes, 0 })
		defer h.close()
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				r := chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"x %d"}]}`, i))
				if got := h.get(r); got.Exact || got.Count == 0 {
					t.Errorf("%+v", got)
				}
			})
		}
		synctest.Wait()
		if n := h.all("sluice_token_render_calls")[""]; n != 3 {
			t.Errorf("%v calls under way, want 3", n)
		}
		all.Wait()
		if got := h.all(reasons); got["busy"] != 7 || got["timeout"] != 3 {
			t.Errorf("reasons %v", got)
		}
		h.inexact(chatRequest(`{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("x", int(minBodyBytes))+`"}]}`), "too_large")
		time.Sleep(150*time.Millisecond + lateFor)
		synctest.Wait()
		if n := len(h.exact().jobs); n != 0 {
			t.Errorf("%d jobs are left", n)
		}
		if got := h.all("sluice_token_render_calls"); len(got) != 0 {
			t.Errorf("calls under way: %v", got)
		}
	})
}

// What a server says that is no rendering.
func TestReasons(t *testing.T) {
	r := func() *scheduling.Request {
		return chatRequest(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)
	}
	for reason, e := range map[string]*engine{
		"no_route":    {noRender: true, noTokenize: true},
		"http_status": {knows: []string{"other"}},
		"connect":     {before: func(context.Context, *http.Request) error { return errRefused }},
	} {
		h := newExactHarness(t, e, byDefault)
		h.inexact(r(), reason)
		h.close()
	}
	e := &engine{}
	h := newExactHarness(t, e, byDefault)
	h.inexact(chatRequest(`{"messages":`), "unreadable")
	h.inexact(post(scheduling.OperationEmbeddings, `{"input":"x"}`), "unsupported")
	endless := r()
	endless.Model = strings.Repeat("m", maxModelName+1)
	h.inexact(endless, "unsupported")
	h.close()
	if got := h.get(r()); got.Exact || got.Count == 0 { // a request of the configuration before
		t.Errorf("%+v", got)
	}
	if n := len(e.asked()); n != 0 {
		t.Errorf("asked %d times", n)
	}
}
