package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// herds are the bodies of many requests at once, by API: about 1,000 tokens of which the first 64 are the same. No two
// APIs, and no two names, share a prompt.
func herds(herd string) map[string]struct {
	path string
	body func(i int) any
} {
	type object = map[string]any
	text := func(api string, i int) string {
		const shared = 64 * 4
		random := rand.New(rand.NewPCG(uint64(i), uint64(len(api+herd))))
		b := []byte(strings.Repeat(herd+": the same for all of "+api+". ", shared)[:shared])
		for len(b) < 4000 {
			b = fmt.Appendf(b, " %x", random.Uint32())
		}
		return string(b)
	}
	ids := func(i int) []int {
		random := rand.New(rand.NewPCG(uint64(i), uint64(len(herd))))
		all := make([]int, 1000)
		for j := range all {
			all[j] = 300 + len(herd)
			if j >= 64 {
				all[j] += random.IntN(900)
			}
		}
		return all
	}
	say := func(api string, i int) []object { return []object{{"role": "user", "content": text(api, i)}} }
	return map[string]struct {
		path string
		body func(i int) any
	}{
		"chat":        {"/v1/chat/completions", func(i int) any { return object{"messages": say("chat", i), "max_tokens": 1} }},
		"completions": {"/v1/completions", func(i int) any { return object{"prompt": text("completions", i), "max_tokens": 1} }},
		"token ids":   {"/v1/completions", func(i int) any { return object{"prompt": ids(i), "max_tokens": 1} }},
		"responses":   {"/v1/responses", func(i int) any { return object{"input": say("responses", i), "max_output_tokens": 1} }},
		"messages":    {"/v1/messages", func(i int) any { return object{"messages": say("messages", i), "max_tokens": 1} }},
		"embeddings":  {"/v1/embeddings", func(i int) any { return object{"input": text("embeddings", i)} }},
	}
}

// C21: 48 requests at once over 8 idle engines that do not answer: simultaneous picks see one another, on each path.
func TestC21_Herd(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 8, Engine: roomy()})
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered} {
		e := l.Envoy(t, envoy.Params{RequestBody: mode})
		for name, h := range herds(string(mode)) {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				l.Fault(t, engine.Faults{Freeze: true})
				answers := stampede(t, l, e, h.path, h.body)
				lab.Wait(t, "every request to be charged", func() bool { return l.Sluice.InFlight(t).Requests == herd })
				loads := l.Sluice.Loads(t)
				least, most := int64(herd), int64(0)
				for _, load := range loads {
					least, most = min(least, load.Requests), max(most, load.Requests)
					if load.Tokens < 300*load.Requests {
						t.Errorf("%d requests are charged %d tokens", load.Requests, load.Tokens)
					}
				}
				if len(loads) != 8 || most-least > 2 {
					t.Errorf("from %d to %d requests an engine, want a spread of at most 2: %v", least, most, loads)
				}
				l.Fault(t, engine.Faults{})
				for range herd {
					if a := <-answers; a.Status != http.StatusOK {
						t.Errorf("status %d: %s", a.Status, a.Body)
					}
				}
				l.Sluice.Settle(t)
			})
		}
	}
}

const herd = 48

// stampede sends a herd at once.
func stampede(t *testing.T, l *lab.Lab, e *envoytest.Instance, path string, body func(i int) any) chan lab.Answer {
	answers := make(chan lab.Answer, herd)
	start := make(chan struct{})
	var ready sync.WaitGroup
	for i := range herd {
		r := lab.Request(t, http.MethodPost, e.URL(path), strings.NewReader(lab.JSON(t, body(i))))
		ready.Add(1)
		go func() {
			ready.Done()
			<-start
			a, err := lab.Try(l.Client, r)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	ready.Wait()
	close(start)
	return answers
}
