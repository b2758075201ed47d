package engine

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim"
)

func sleepState(t *testing.T, s *Server) (state string) {
	t.Helper()
	for key, v := range scrape(t, s) {
		if rest, ok := strings.CutPrefix(key, "vllm:engine_sleep_state{engine=0,model_name=sim,sleep_state="); ok && v == 1 {
			state += strings.TrimSuffix(rest, "}")
		}
	}
	return state
}

func isSleeping(t *testing.T, s *Server) bool {
	t.Helper()
	var b map[string]bool
	get(t, s, "/is_sleeping").json(t, &b)
	return b["is_sleeping"]
}

// begin posts a request and returns where its answer will come.
func begin(t *testing.T, s *Server, path string, body any) <-chan answer {
	t.Helper()
	req := request(t, s, http.MethodPost, path, body)
	out := make(chan answer, 1)
	go func() {
		defer close(out)
		if res, err := http.DefaultClient.Do(req); err == nil {
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body) // what is missing will be missed
			out <- answer{status: res.StatusCode, header: res.Header, body: body}
		}
	}()
	return out
}

func running(n int) func(sim.Stats) bool { return func(st sim.Stats) bool { return st.Running == n } }

func await(t *testing.T, s *Server, what string, ok func(sim.Stats) bool) {
	t.Helper()
	eventually(t, what, func() bool { return ok(s.Stats()) })
}

// An idle engine that sleeps loses its cache, answers what needs no step, and keeps requests until
// it wakes.
func TestSleepKeepsRequestsWaiting(t *testing.T) {
	s := startServer(t, Config{Speed: fast})
	post(t, s, "/v1/completions", obj{"prompt": strings.Repeat(story, 4)})
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		if a := post(t, s, "/sleep?level="+string(rune('0'+level)), ""); a.status != 200 || len(a.body) != 0 {
			t.Fatalf("sleep at level %d: %d %s", level, a.status, a.body)
		}
		if got := sleepState(t, s); got != state || !isSleeping(t, s) {
			t.Errorf("level %d: state %q, sleeping %v", level, got, isSleeping(t, s))
		}
		if cached := s.Stats().CachedBlocks; (cached == 0) != (level > 0) {
			t.Errorf("level %d: %d blocks cached", level, cached)
		}
		late := begin(t, s, "/v1/completions", obj{"prompt": strings.Repeat(story, 4)})
		await(t, s, "a request waits", func(st sim.Stats) bool { return st.Waiting == 1 })
		if a := get(t, s, "/health"); a.status != 200 {
			t.Errorf("health answers %d", a.status)
		}
		select {
		case a := <-late:
			t.Errorf("answered while asleep: %d", a.status)
		case <-time.After(30 * time.Millisecond):
		}
		post(t, s, "/wake_up", "")
		if a := <-late; a.status != 200 {
			t.Errorf("level %d: after waking %d %s", level, a.status, a.body)
		}
		if isSleeping(t, s) || sleepState(t, s) != "awake" {
			t.Errorf("level %d: still asleep after waking", level)
		}
	}
}

// By default what runs is aborted and says so, with the tokens that it has.
func TestSleepAborts(t *testing.T) {
	s := startServer(t, Config{Speed: 20})
	body := obj{"prompt": story, "max_tokens": 20_000, "return_token_ids": true}
	whole := begin(t, s, "/v1/completions", body)
	body["stream"] = true
	streamed := begin(t, s, "/v1/completions", body)
	message := begin(t, s, "/v1/messages", obj{"messages": []obj{{"role": "user", "content": "x"}}, "max_tokens": 20_000})
	await(t, s, "all decode", func(st sim.Stats) bool { return st.Running == 3 && st.GeneratedTokens > 30 })
	if a := post(t, s, "/sleep", ""); a.status != 200 {
		t.Fatalf("sleep: %d %s", a.status, a.body)
	}
	if st := s.Stats(); st.Running+st.Waiting != 0 || st.CachedBlocks != 0 || st.Aborted != 3 {
		t.Errorf("asleep with %+v", st)
	}
	var c chatAnswer
	(<-whole).json(t, &c)
	if n := len(c.Choices[0].TokenIDs); c.Choices[0].FinishReason != reasonAbort || n == 0 || n >= 20_000 || c.Usage.CompletionTokens != n {
		t.Errorf("aborted answer ends with %q after %d tokens, usage %+v", c.Choices[0].FinishReason, n, c.Usage)
	}
	evs := sseEvents(t, (<-streamed).body)
	if last := evs[len(evs)-2].data; !strings.Contains(last, `"finish_reason":"abort"`) || !strings.Contains(last, `"token_ids":[]`) {
		t.Errorf("aborted stream ends with %s", last)
	}
	if a := <-message; a.status != http.StatusServiceUnavailable {
		t.Errorf("aborted message answers %d %s", a.status, a.body)
	}
}

func TestSleepWaitsForWhatRuns(t *testing.T) {
	s := startServer(t, Config{Speed: 20})
	first := begin(t, s, "/v1/completions", obj{"prompt": story, "max_tokens": 2000})
	await(t, s, "one runs", running(1))
	// A client that does not wait for the sleep leaves the engine awake.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if res, err := http.DefaultClient.Do(request(t, s, http.MethodPost, "/sleep?mode=wait", "").WithContext(ctx)); err == nil {
		res.Body.Close()
		t.Error("asleep while a request runs")
	}
	eventually(t, "admits again", func() bool {
		return post(t, s, "/v1/completions", obj{"prompt": "x", "max_tokens": 1}).status == 200
	})
	slept := begin(t, s, "/sleep?mode=wait&level=1", "")
	eventually(t, "the sleep waits", func() bool {
		waits, l := false, s.present().loop
		if err := l.do(func() { waits = len(l.idle) > 0 }); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	late := begin(t, s, "/v1/completions", obj{"prompt": "x", "max_tokens": 1})
	await(t, s, "one runs, one waits", func(st sim.Stats) bool { return st.Running == 1 && st.Waiting == 1 })
	if a := <-first; a.status != 200 || !strings.Contains(string(a.body), `"finish_reason":"length"`) {
		t.Errorf("the request that ran answers %d", a.status)
	}
	if a := <-slept; a.status != 200 || !isSleeping(t, s) {
		t.Errorf("sleep answers %d, asleep %v", a.status, isSleeping(t, s))
	}
	await(t, s, "one waits", func(st sim.Stats) bool { return st.Running == 0 && st.Waiting == 1 })
	post(t, s, "/wake_up", "")
	if a := <-late; a.status != 200 {
		t.Errorf("the request that waited answers %d", a.status)
	}
}

// Kept requests go on after waking, without a token lost, though their cache is.
func TestSleepKeepsWhatRuns(t *testing.T) {
	s := startServer(t, Config{Speed: 20})
	body := obj{"prompt": story, "max_tokens": 600}
	kept := begin(t, s, "/v1/completions", body)
	await(t, s, "it decodes", func(st sim.Stats) bool { return st.GeneratedTokens > 10 })
	post(t, s, "/sleep?mode=keep", "")
	st := s.Stats()
	if st.CachedBlocks != 0 || st.Running != 0 || st.Waiting != 1 || st.FreeBlocks != st.TotalBlocks {
		t.Errorf("asleep with %+v", st)
	}
	post(t, s, "/wake_up", "")
	var a, b chatAnswer
	(<-kept).json(t, &a)
	post(t, s, "/v1/completions", body).json(t, &b)
	if a.Choices[0].Text != b.Choices[0].Text || a.Usage.CompletionTokens != 600 {
		t.Errorf("the answer differs after a sleep, %d tokens", a.Usage.CompletionTokens)
	}
}

func TestResetWhileRunning(t *testing.T) {
	s := startServer(t, Config{Speed: 20, Params: sim.Params{OffloadBlocks: 100}})
	kept := begin(t, s, "/v1/completions", obj{"prompt": strings.Repeat(story, 4), "max_tokens": 600})
	await(t, s, "it decodes", func(st sim.Stats) bool { return st.GeneratedTokens > 10 })
	if a := post(t, s, "/reset_prefix_cache?reset_external=true", ""); string(a.body) != `{"success":false}` || s.Stats().OffloadedBlocks == 0 {
		t.Errorf("reset while running answers %s, %d blocks offloaded", a.body, s.Stats().OffloadedBlocks)
	}
	a := post(t, s, "/reset_prefix_cache?reset_running_requests=true", "")
	if string(a.body) != `{"success":true}` || s.Stats().Preemptions != 1 {
		t.Errorf("reset of running requests answers %s, stats %+v", a.body, s.Stats())
	}
	if a := <-kept; a.status != 200 || !strings.Contains(string(a.body), `"completion_tokens":600`) {
		t.Errorf("the preempted request answers %d", a.status)
	}
	if post(t, s, "/reset_prefix_cache", ""); s.Stats().OffloadedBlocks == 0 || s.Stats().CachedBlocks != 0 {
		t.Errorf("after a plain reset %+v", s.Stats())
	}
	if post(t, s, "/reset_prefix_cache?reset_external=true", ""); s.Stats().OffloadedBlocks != 0 {
		t.Errorf("after a reset of both tiers %+v", s.Stats())
	}
	for path, want := range map[string]string{
		"/reset_prefix_cache?reset_external=maybe": "query.reset_external",
		"/sleep?level=3":  "query.level: must be from 0 to 2, got 3",
		"/sleep?level=x":  "query.level",
		"/sleep?mode=nap": `must be abort, wait or keep, got \"nap\"`,
	} {
		if a := post(t, s, path, ""); a.status != http.StatusUnprocessableEntity || !strings.Contains(string(a.body), want) {
			t.Errorf("%s: %d %s, want %s", path, a.status, a.body, want)
		}
	}
	if isSleeping(t, s) {
		t.Error("asleep after refused requests")
	}
}
