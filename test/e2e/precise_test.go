package e2e

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// byEvents is a configuration that knows caches from the engines' events, with parameters for the producer as YAML.
func byEvents(parameters string) string { return byTokens("", parameters) }

// byTokens is byEvents with parameters for the token producer too.
func byTokens(tokens, parameters string) string {
	return fmt.Sprintf(`server: {decisionHeader: true, produceTimeout: 10s, pickTimeout: 20s}
plugins:
  - type: token-producer
    parameters: {%s}
  - type: precise-prefix-cache-producer
    parameters: {%s}
`, tokens, parameters)
}

// toEngine is a request header that restricts the pick to the engines that it lists.
const toEngine = "x-engine"

// events are engines with a small cache that publish what happens to it.
func events(p sim.Params, k engine.KVEvents) engine.Config {
	return engine.Config{Speed: 2000, Params: p, KVEvents: &k}
}

// precise is a lab whose Sluice follows the engines' KV events, behind an Envoy.
type precise struct {
	*lab.Lab
	plan  lab.Plan
	envoy *envoytest.Instance
	lossy bool // messages were lost, or read twice

	reporting    map[string]bool // engines that have told this Sluice of cached tokens
	knownAtFirst int             // blocks that the latest Sluice knew when it was ready; see restart
}

// newPrecise starts one. Tests that have one run side by side: they mostly wait.
func newPrecise(t *testing.T, p lab.Plan) *precise {
	t.Helper()
	t.Parallel()
	if p.Config == "" {
		p.Config = byEvents("")
	}
	p = lab.At(fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t)), p)
	l := &precise{Lab: lab.New(t, p), plan: p}
	// On a machine that is busy with all the tests a health check may be late for Envoy; they are tested elsewhere.
	l.envoy = l.Envoy(t, envoy.Params{SubsetHeader: toEngine, Picker: envoy.Picker{NoHealthCheck: true}})
	return l
}

// restart starts another Sluice in place of the one that is there, which knows nothing, and takes what it knows once it is
// ready. It returns once Envoy has found it, and tells how long readiness took.
func (p *precise) restart(t *testing.T, endpoints []string) (took time.Duration) {
	t.Helper()
	p.Sluice.Stop()
	plan := p.plan
	plan.Endpoints = endpoints
	begun := time.Now()
	p.Sluice, p.reporting = lab.StartSluice(t, plan), nil
	took = time.Since(begun)
	p.knownAtFirst = p.known(t)
	lab.Wait(t, "Envoy to find Sluice", func() bool {
		return lab.Get(t, p.Client, p.envoy.URL("/v1/models")).Status == http.StatusOK
	})
	return took
}

// object is a JSON object.
type object = map[string]any

// ids are n token ids that only the name decides.
func ids(name string, n int) []int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it never fails
	random := rand.New(rand.NewPCG(h.Sum64(), 0))
	all := make([]int, n)
	for i := range all {
		all[i] = 300 + random.IntN(900)
	}
	return all
}

// asked is what came of one request.
type asked struct {
	engine                    string
	prompt, cached, predicted int   // tokens
	output                    []int // token ids
}

type idsAnswer struct {
	Choices []struct {
		TokenIDs []int `json:"token_ids"`
	} `json:"choices"`
}

// continueIDs is a request for n tokens that follow a prompt of token ids.
func continueIDs(prompt []int, n int, more ...any) object {
	o := object{"prompt": prompt, "max_tokens": n, "return_token_ids": true}
	for i := 0; i+1 < len(more); i += 2 {
		o[fmt.Sprint(more[i])] = more[i+1]
	}
	return o
}

// readAsked reads an answer, but for its text.
func readAsked(t *testing.T, a lab.Answer) asked {
	t.Helper()
	u, d := usageOf(t, a), lab.ReadDecision(t, a)
	return asked{
		engine: a.Header.Get("x-sim-endpoint"), prompt: u.prompt, cached: u.cached,
		predicted: min(d.Cached, (u.prompt-1)/blockSize*blockSize),
	}
}

// ask sends a request for a completion; see post.
func (p *precise) ask(t *testing.T, body object, to *engine.Server) asked {
	t.Helper()
	got, a := p.post(t, "/v1/completions", body, to)
	got.output = read[idsAnswer](t, a.Body).Choices[0].TokenIDs
	return got
}

// post sends a request through Envoy, to a certain engine unless that is nil. What Sluice predicts, by its own header, must
// be what its own comparison counts.
func (p *precise) post(t *testing.T, path string, body any, to *engine.Server) (asked, lab.Answer) {
	t.Helper()
	before := p.Sluice.Audit(t)
	var headers []string
	if to != nil {
		headers = []string{toEngine, to.Addr().String()}
	}
	a := lab.Post(t, p.Client, p.envoy.URL(path), lab.JSON(t, body), headers...)
	got := readAsked(t, a)
	var counted lab.Audit
	lab.Wait(t, "the request to be compared", func() bool {
		counted = p.Sluice.Audit(t).Minus(before)
		return counted.Requests() > 0
	})
	if p.reporting == nil {
		p.reporting = map[string]bool{}
	}
	p.reporting[got.engine] = p.reporting[got.engine] || got.cached > 0
	want := lab.Audit{Predicted: got.predicted, Reported: got.cached}
	switch {
	case got.predicted > 0 && !p.reporting[got.engine]:
		want = lab.Audit{Unconfirmed: 1}
	case got.predicted > got.cached:
		want.Over = 1
	case got.predicted < got.cached:
		want.Under = 1
	default:
		want.Exact = 1
	}
	if counted != want {
		t.Errorf("Sluice counts %+v, want %+v", counted, want)
	}
	return got, a
}

// exactly asks for what must be predicted to the token, once all events are in.
func (p *precise) exactly(t *testing.T, name string, body object, to *engine.Server) asked {
	t.Helper()
	p.quiet(t)
	got := p.ask(t, body, to)
	if got.predicted != got.cached {
		t.Errorf("%s: of %d tokens %s has %d cached, Sluice predicted %d", name, got.prompt, got.engine, got.cached, got.predicted)
	}
	return got
}

// quiet waits until Sluice has taken in all that the engines have published, and knows of as many blocks as they hold.
func (p *precise) quiet(t *testing.T) {
	t.Helper()
	const stillness = 50 * time.Millisecond // where messages may be lost, that is all there is to go by
	taken, since := -1, time.Now()
	lab.Wait(t, "Sluice to know what the engines hold", func() bool {
		m := p.Sluice.Metrics(t)
		received := int(m.Total(t, "sluice_kv_event_messages_total", `what="received"`))
		if received != taken {
			taken, since = received, time.Now()
		}
		if int(m.Total(t, "sluice_kv_index_holder_blocks")) != p.CachedBlocks() {
			return false
		}
		return p.lossy && time.Since(since) > stillness || !p.lossy && received == p.published(t)
	})
}

// published is the number of messages that the engines have published since they started.
func (p *precise) published(t *testing.T) (n int) {
	t.Helper()
	for _, e := range p.Engines {
		n += int(lab.Metrics(lab.Get(t, p.Client, e.URL()+"/metrics").Body).Total(t, "sim:kv_event_batches_total"))
	}
	return n
}

// known is the number of blocks that Sluice knows the engines to hold.
func (p *precise) known(t *testing.T) int {
	t.Helper()
	return int(p.Sluice.Total(t, "sluice_kv_index_holder_blocks"))
}

// state waits until n sources are in a state.
func (p *precise) state(t *testing.T, state string, n int) {
	t.Helper()
	lab.Wait(t, fmt.Sprintf("%d sources to be %s", n, state), func() bool {
		return int(p.Sluice.Total(t, "sluice_kv_sources", fmt.Sprintf("state=%q", state))) == n
	})
}

// reset empties an engine's cache, which its events tell with its next step.
func (p *precise) reset(t *testing.T, e *engine.Server) {
	t.Helper()
	if a := lab.Post(t, p.Client, e.URL()+"/reset_prefix_cache", ""); a.Status != http.StatusOK || a.Body != `{"success":true}` {
		t.Fatalf("reset: status %d: %s", a.Status, a.Body)
	}
}

// unveil makes an engine's events tell all there is to know, whatever of them was lost: it empties the cache until Sluice
// has heard of that.
func (p *precise) unveil(t *testing.T, e *engine.Server) {
	t.Helper()
	for i := range 20 {
		p.reset(t, e)
		p.ask(t, continueIDs(ids(fmt.Sprint("veil ", i), 4*blockSize), 1), e)
		for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(5 * time.Millisecond) {
			if p.known(t) == p.CachedBlocks() {
				return
			}
		}
	}
	t.Fatal("nothing is heard from the engine")
}

// talk is a conversation in token ids.
type talk struct {
	name   string
	prompt []int
	turn   int
	home   string // the engine that answered last
	held   int    // tokens of whole blocks that it has
}

func newTalk(name string, n int) *talk { return &talk{name: name, prompt: ids(name, n)} }

// next asks the next question, of a length of its own each time.
func (p *precise) next(t *testing.T, c *talk, more ...any) asked {
	t.Helper()
	c.turn++
	c.prompt = append(c.prompt, ids(fmt.Sprint("question ", c.turn, " of ", c.name), 20+11*c.turn)...)
	got := p.exactly(t, fmt.Sprintf("%s, turn %d", c.name, c.turn), continueIDs(c.prompt, 15+9*c.turn, more...), nil)
	if len(got.output) != 15+9*c.turn {
		t.Errorf("%s: %d tokens of output", c.name, len(got.output))
	}
	c.prompt = append(c.prompt, got.output...)
	return got
}
