package tokens

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestReload(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, byDefault)
		r := chatRequest(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)
		h.want(e, r)
		h.reload(func(p *Parameters) { p.VLLM = &VLLM{URL: "http://render:8000", Timeout: time.Second} })
		h.want(e, r)
		if n := len(e.asked()); n != 1 {
			t.Errorf("asked %d times: a reload forgot the prompt", n)
		}
		for name, change := range map[string]func(*Parameters){
			"another server": func(p *Parameters) { p.VLLM = &VLLM{URL: "http://other:8000"} },
			"another model":  func(p *Parameters) { p.VLLM, p.ModelName = &VLLM{URL: "http://other:8000"}, "base" },
		} {
			h.reload(change)
			h.want(e, r)
			if n := len(e.asked()); n != 1 {
				t.Errorf("%s: asked %d times: its tokens may be others", name, n)
			}
		}
		if n := h.count("sluice_token_exact_prompts_total", "render"); n != 3 {
			t.Errorf("%v renderings counted over reloads, want 3", n)
		}
		// What is under way when a configuration goes is called off.
		e.before = slow(time.Hour)
		got, f := h.ask(chatRequest(`{"model":"m","messages":[{"role":"user","content":"y"}]}`))
		if got.Exact {
			t.Error("a rendering that takes an hour is waited for")
		}
		begun := time.Now()
		h.reload(func(p *Parameters) { p.VLLM = nil })
		if took := time.Since(begun); took > time.Second {
			t.Errorf("closing took %v", took)
		}
		f.Done(complete(5), 0)
		if got := h.get(r); got.Exact {
			t.Error("estimates are exact")
		}
		h.close()
	})
}

func TestEndpointsAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{}
		h := newExactHarness(t, e, func(p *Parameters) { p.VLLM = &VLLM{Endpoints: true} })
		defer h.close()
		h.pool.Update([]scheduling.EndpointSpec{
			{Address: "a:1"}, {Address: "[::1]:2", Engine: "vllm"}, {Address: "s:1", Engine: "sglang"},
			{Address: "d:1", State: scheduling.EndpointDraining},
		})
		for i := range 100 {
			h.want(e, chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"question %d"}]}`, i)))
		}
		hosts := map[string]int{}
		for _, c := range e.asked() {
			hosts[c.host]++
		}
		if len(hosts) != 2 || hosts["a:1"] < 30 || hosts["[::1]:2"] < 30 {
			t.Errorf("asked %v", hosts)
		}
		// One that cannot be reached costs a request nothing: another is asked.
		e.before = func(_ context.Context, r *http.Request) error {
			if r.URL.Host == "a:1" {
				return errRefused
			}
			return nil
		}
		for i := range 50 {
			h.want(e, chatRequest(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"and %d"}]}`, i)))
		}
		if got := h.all("sluice_token_render_servers"); got["closed"] != 1 || got["open"] != 1 {
			t.Errorf("servers %v", got)
		}
		h.scheduler.SnapshotChanged(h.pool.Update([]scheduling.EndpointSpec{{Address: "s:1", Engine: "sglang"}}))
		h.inexact(chatRequest(`{"model":"m","messages":[{"role":"user","content":"no"}]}`), "no_server")
		if got := h.all("sluice_token_render_servers"); len(got) != 0 {
			t.Errorf("servers %v after all went", got)
		}
	})
}
