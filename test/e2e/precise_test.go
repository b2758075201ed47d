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
func byEvents(parameters string) string {
	return fmt.Sprintf(`server: {decisionHeader: true}
plugins:
  - type: token-producer
  - type: precise-prefix-cache-producer
    parameters: {%s}
`, parameters)
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
}

func newPrecise(t *testing.T, p lab.Plan) *precise {
	t.Helper()
	if p.Config == "" {
		p.Config = byEvents("")
	}
	p = lab.At(fmt.Sprintf("127.0.0.1:%d", envoytest.FreePort(t)), p)
	l := &precise{Lab: lab.New(t, p), plan: p}
	l.envoy = l.Envoy(t, envoy.Params{SubsetHeader: toEngine})
	return l
}

// restart starts another Sluice in place of the one that is there, which knows nothing. It returns once it is ready and
// Envoy has found that.
func (p *precise) restart(t *testing.T, more ...string) (took time.Duration) {
	t.Helper()
	p.Sluice.Stop()
	plan := p.plan
	plan.Endpoints = append(p.Addresses(), more...)
	begun := time.Now()
	p.Sluice = lab.StartSluice(t, plan)
	took = time.Since(begun)
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
	matched                   int   // tokens in blocks that Sluice took the engine to have
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

func readAsked(t *testing.T, a lab.Answer) asked {
	t.Helper()
	u, d := usageOf(t, a), lab.ReadDecision(t, a)
	return asked{
		engine: a.Header.Get("x-sim-endpoint"), prompt: u.prompt, cached: u.cached, matched: d.Cached,
		predicted: min(d.Cached, (u.prompt-1)/blockSize*blockSize),
		output:    read[idsAnswer](t, a.Body).Choices[0].TokenIDs,
	}
}

// ask sends a request through Envoy, to a certain engine unless that is nil. What Sluice predicts, by its own header, must
// be what its own comparison counts.
func (p *precise) ask(t *testing.T, body object, to *engine.Server) asked {
	t.Helper()
	before := p.Sluice.Audit(t)
	var headers []string
	if to != nil {
		headers = []string{toEngine, to.Addr().String()}
	}
	a := lab.Post(t, p.Client, p.envoy.URL("/v1/completions"), lab.JSON(t, body), headers...)
	got := readAsked(t, a)
	var counted lab.Audit
	lab.Wait(t, "the request to be compared", func() bool {
		counted = p.Sluice.Audit(t).Minus(before)
		return counted.Requests() > 0
	})
	want := lab.Audit{Predicted: got.predicted, Reported: got.cached}
	switch {
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
	return got
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

// quietTime is how long nothing must come from the engines for their events to be in.
const quietTime = 15 * time.Millisecond

// quiet waits until Sluice knows of as many blocks as the engines hold, and no event has come for a while.
func (p *precise) quiet(t *testing.T) {
	t.Helper()
	taken, since := -1.0, time.Now()
	lab.Wait(t, "Sluice to know what the engines hold", func() bool {
		if now := p.Sluice.Total(t, "sluice_kv_event_blocks_total"); now != taken {
			taken, since = now, time.Now()
		}
		return time.Since(since) > quietTime && p.known(t) == p.CachedBlocks()
	})
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
	live := func() float64 { return p.Sluice.Total(t, "sluice_kv_sources", `state="live"`) }
	for i, before := 0, live(); ; i++ {
		p.reset(t, e)
		p.ask(t, continueIDs(ids(fmt.Sprint("veil ", i), 4*blockSize), 1), e)
		for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(5 * time.Millisecond) {
			if live() >= before && p.known(t) == p.CachedBlocks() {
				return
			}
		}
		if i == 20 {
			t.Fatal("nothing is heard from the engine")
		}
	}
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
