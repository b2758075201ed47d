package precise

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// What one engine lists, however much, keeps no model of another one from being known, and goes with the engine.
func TestC24_ModelsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		var many strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&many, `{"id":"garbage-%d"},`, i)
		}
		h.site.mu.Lock()
		h.site.models["a:1"] = `{"data":[{"id":"` + strings.Repeat("x", maxNameBytes+1) + `"},` + many.String() + `{"id":"last"}]}`
		h.site.mu.Unlock()
		h.endpoints("a:1")
		synctest.Wait()
		h.site.mu.Lock()
		h.site.models["b:1"] = `{"data":[{"id":"qwen"},{"id":"sql","parent":"qwen"}]}`
		h.site.mu.Unlock()
		h.endpoints("a:1", "b:1")
		synctest.Wait()
		adapters := &h.hub().adapters
		is := func(when, name string, want bool) {
			t.Helper()
			if got := adapters.isAdapter(name, 1); got != want {
				t.Errorf("%s: %s is an adapter: %t", when, name, got)
			}
		}
		if n := len(adapters.bases); n != maxBases+1 {
			t.Errorf("%d models are known, want %d", n, maxBases+1)
		}
		is("both", "qwen", false)
		is("both", "sql", true)
		is("both", "garbage-0", false)
		is("both", "last", true)
		h.endpoints("b:1")
		time.Sleep(time.Second)
		is("one", "qwen", false)
		is("one", "garbage-0", true)
		h.endpoints()
		time.Sleep(time.Second)
		is("none", "qwen", false) // until there is somebody who knows better
		is("none", "sql", true)
		h.site.mu.Lock()
		h.site.models["c:1"] = `{"data":[{"id":"llama"}]}`
		h.site.mu.Unlock()
		h.endpoints("c:1")
		time.Sleep(time.Second)
		is("another", "llama", false)
		is("another", "qwen", true)
	})
}

// elsewhere answers every question by a redirect, and notes who was asked.
type elsewhere struct{ asked []string }

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.asked = append(e.asked, r.URL.String())
	return &http.Response{
		StatusCode: http.StatusFound, Header: http.Header{"Location": {"http://169.254.169.254/latest"}},
		Body: io.NopCloser(strings.NewReader("")), Request: r,
	}, nil
}

// An engine cannot make this process ask somebody else, whether for models or for where events are published.
func TestQuestionsStayWithTheEngine(t *testing.T) {
	transport := &elsewhere{}
	h, err := firstHub(&Producer{params: defaultParameters()}, nil, Options{
		Transport: transport, Logger: slog.New(slog.DiscardHandler), Now: func() time.Duration { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.leave(); err != nil {
			t.Error(err)
		}
	}()
	e := &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.5:8000"}}
	if bases, err := h.fetchModels(t.Context(), e); err == nil {
		t.Errorf("got %q", bases)
	}
	res, err := h.client.Get("http://10.0.0.5:8000/kv_event_sources")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if len(transport.asked) != 2 || !strings.HasPrefix(transport.asked[0], "http://10.0.0.5:8000/") {
		t.Errorf("asked %q", transport.asked)
	}
}
