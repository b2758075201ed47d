package vllm

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// subsetHeader makes Envoy restrict the pick to the engines that it lists.
const subsetHeader = "x-engine"

// The budget of a prompt's tokens is one that a busy machine keeps: where they come too late there is no prediction.
const configuration = `
apiVersion: sluice/v1alpha1
kind: EndpointPickerConfig
server: {decisionHeader: true, drainDelay: 0s, produceTimeout: 10s}
plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true, timeout: 10s}}
  - type: precise-prefix-cache-producer
    parameters: {speculativeIndexing: false}
`

// stack is two engines behind an Envoy and a Sluice.
type stack struct {
	engines []*engine
	sluice  *sluice
	envoy   *envoytest.Instance
	client  *http.Client
	report  report
}

// sluice is a process of the binary.
type sluice struct {
	folder, listen, admin string
	engines               []*engine
	owner                 *testing.T // its processes end with this test
	proc                  *process
	http                  *http.Client
}

func newStack(t *testing.T, engines []*engine) *stack {
	t.Helper()
	at := func() string { return net127(envoytest.FreePort(t)) }
	s := &stack{engines: engines, client: lab.NewClient(t), sluice: &sluice{
		folder: engines[0].folder, listen: at(), admin: at(), engines: engines,
		owner: t, http: lab.NewClient(t),
	}}
	s.sluice.start(t)
	s.envoy = envoytest.Start(t, envoy.Params{Picker: envoy.Picker{Address: s.sluice.listen}, SubsetHeader: subsetHeader})
	return s
}

func net127(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// start runs Sluice and waits until it is ready.
func (s *sluice) start(t *testing.T) {
	t.Helper()
	binary := os.Getenv(envSluice)
	if binary == "" {
		t.Fatalf("%s names no binary of Sluice; run `make test-vllm`", envSluice)
	}
	config := filepath.Join(s.folder, "sluice.yaml")
	lab.WriteFile(t, config, configuration)
	args := []string{"serve", "--config", config, "--listen", s.listen, "--admin", s.admin}
	for _, e := range s.engines {
		args = append(args, "--endpoint", e.address+",name="+e.name)
	}
	s.proc = launch(t, s.owner, s.folder, "sluice", exec.Command(binary, args...))
	lab.Wait(t, "sluice to be ready", func() bool {
		if !s.proc.alive() {
			t.Fatalf("sluice ended: %v", s.proc.exit)
		}
		a, err := lab.Try(s.http, lab.Request(t, http.MethodGet, "http://"+s.admin+"/readyz", http.NoBody))
		return err == nil && a.Status == http.StatusOK
	})
}

// restart kills the process and starts another one that knows nothing.
func (s *sluice) restart(t *testing.T) {
	t.Helper()
	s.proc.kill()
	s.start(t)
}

// samples are the metrics page, by name and labels as they are written there.
type samples map[string]float64

func (s *sluice) metrics(t *testing.T) samples {
	t.Helper()
	a := lab.Get(t, s.http, "http://"+s.admin+"/metrics")
	if a.Status != http.StatusOK {
		t.Fatalf("metrics: status %d: %s", a.Status, a.Body)
	}
	all := samples{}
	for line := range strings.Lines(a.Body) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("metrics: %q: %v", line, err)
		}
		all[line[:at]] = v
	}
	return all
}

// sum adds up a family's samples, those with all of some labels such as outcome="exact".
func (m samples) sum(family string, labels ...string) (sum int) {
	for name, v := range m {
		of, rest, _ := strings.Cut(name, "{")
		matches := of == family
		for _, l := range labels {
			matches = matches && strings.Contains(rest, l)
		}
		if matches {
			sum += int(v)
		}
	}
	return sum
}

// losses is how often Sluice has seen by their metrics that engines were started anew.
func (m samples) losses() int { return m.sum("sluice_engine_cache_losses_total", `cause="restart"`) }

// audit is what Sluice's own comparison of predicted and reported tokens has come to.
type audit struct{ predicted, reported, exact, over, under int }

func (m samples) audit() audit {
	of := func(metric string, labels ...string) int {
		return m.sum("sluice_prefix_cache_"+metric, append(labels, `index="precise"`)...)
	}
	const outcomes = "predictions_total"
	return audit{
		predicted: of("predicted_tokens_total"), reported: of("reported_tokens_total"),
		exact: of(outcomes, `outcome="exact"`), over: of(outcomes, `outcome="over"`), under: of(outcomes, `outcome="under"`),
	}
}

func (a audit) count() int { return a.exact + a.over + a.under }

func (a audit) minus(b audit) audit {
	return audit{a.predicted - b.predicted, a.reported - b.reported, a.exact - b.exact, a.over - b.over, a.under - b.under}
}

// single is what one request adds to an audit.
func single(predicted, reported int) audit {
	a := audit{predicted: predicted, reported: reported}
	switch {
	case predicted > reported:
		a.over = 1
	case predicted < reported:
		a.under = 1
	default:
		a.exact = 1
	}
	return a
}

// decision is what Sluice says of a pick in a response header: ADDRESS … cached=TOKENS/TOKENS ….
type decision struct {
	engine *engine
	cached int // tokens in blocks that the engine is taken to have; -1: not said
}

func (s *stack) decision(t *testing.T, a lab.Answer) decision {
	t.Helper()
	words := strings.Fields(a.Header.Get("x-sluice-decision"))
	d := decision{cached: -1}
	for i, w := range words {
		if i == 0 {
			d.engine = s.at(w)
		} else if v, ok := strings.CutPrefix(w, "cached="); ok {
			if _, err := fmt.Sscanf(v, "%d/", &d.cached); err != nil {
				t.Fatalf("decision %q: %v", words, err)
			}
		}
	}
	if d.engine == nil || d.cached < 0 {
		t.Fatalf("the decision names no engine or no match: %q", words)
	}
	return d
}

func (s *stack) at(address string) *engine {
	for _, e := range s.engines {
		if e.address == address {
			return e
		}
	}
	return nil
}

// alive are the engines that run.
func (s *stack) alive() (all []*engine) {
	for _, e := range s.engines {
		if e.proc.alive() {
			all = append(all, e)
		}
	}
	return all
}

// quiet waits until no engine has published anything for a while, nor Sluice taken in anything, and Sluice trusts what
// it knows of every engine that runs.
func (s *stack) quiet(t *testing.T) {
	t.Helper()
	for _, e := range s.alive() {
		e.quiet(t)
	}
	taken, since := -1, time.Now()
	wait(t, "Sluice to know the engines", func() bool {
		m := s.sluice.metrics(t)
		if now := m.sum("sluice_kv_event_messages_total"); now != taken {
			taken, since = now, time.Now()
		}
		unsure := m.sum("sluice_kv_sources", `state="replaying"`) + m.sum("sluice_kv_sources", `state="degraded"`)
		return time.Since(since) > quietTime && unsure <= len(s.engines)-len(s.alive()) &&
			m.sum("sluice_kv_sources", `state="live"`) >= s.telling()
	})
}

// wait polls until ok. It is patient: an engine whose events are elsewhere after a restart is asked for them now and then.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// telling is the number of engines that run and have published something.
func (s *stack) telling() (n int) {
	for _, e := range s.alive() {
		if _, batches := e.tap.quietFor(); batches > 0 {
			n++
		}
	}
	return n
}

// settled waits until Sluice has compared one more request than before, and returns the difference.
func (s *stack) settled(t *testing.T, before audit) audit {
	t.Helper()
	for deadline := time.Now().Add(lab.Timeout); ; time.Sleep(5 * time.Millisecond) {
		now := s.sluice.metrics(t).audit().minus(before)
		if now.count() > 0 || time.Now().After(deadline) {
			return now
		}
	}
}
