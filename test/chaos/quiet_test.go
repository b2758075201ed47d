//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// state is what there is when nothing happens.
type state struct {
	goroutines int // Sluice's
	sluice     usage
	envoy      usage
	engines    []usage
	running    []int // goroutines of engines
}

var goroutineTotal = regexp.MustCompile(`^goroutine profile: total (\d+)`)

// look takes the state.
func (s *stage) look() (now state, err error) {
	sluice, p := s.present()
	page, err := s.get("http://" + sluice.Admin + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return now, err
	}
	found := goroutineTotal.FindStringSubmatch(page)
	if found == nil {
		return now, fmt.Errorf("no number of goroutines in %.200q", page)
	}
	if now.goroutines, err = strconv.Atoi(found[1]); err != nil {
		return now, err
	}
	if now.sluice, err = usageOf(p.pid); err != nil {
		return now, err
	}
	if now.envoy, err = usageOf(s.envoy.Pid()); err != nil {
		return now, err
	}
	for _, e := range s.engines {
		h, err := s.holdings(e)
		if err != nil {
			return now, err
		}
		u, err := usageOf(e.now().pid)
		if err != nil {
			return now, err
		}
		now.engines, now.running = append(now.engines, u), append(now.running, h.Goroutines)
	}
	return now, nil
}

func (s *stage) holdings(e *engineUnit) (h holdings, err error) {
	page, err := s.get("http://" + e.address + "/chaos/state")
	if err == nil {
		err = json.Unmarshal([]byte(page), &h)
	}
	return h, err
}

// more lists what is more than before.
func (now state) more(before state) (all []string) {
	add := func(what string, now, before int) {
		if now > before {
			all = append(all, fmt.Sprintf("%s: %d, before %d", what, now, before))
		}
	}
	add("Sluice's goroutines", now.goroutines, before.goroutines)
	add("Sluice's files", now.sluice.files, before.sluice.files)
	add("Envoy's files", now.envoy.files, before.envoy.files)
	for i := range now.engines {
		add(fmt.Sprintf("files of engine-%d", i), now.engines[i].files, before.engines[i].files)
		add(fmt.Sprintf("goroutines of engine-%d", i), now.running[i], before.running[i])
	}
	return all
}

// lift lifts what faults are left and starts what is down, and waits until everything is as at the start.
func (s *stage) lift() {
	s.t.Helper()
	for _, e := range s.engines {
		s.await(e.args.Name+" to be up", func() bool { return s.up(e) })
		s.fault(e, engine.Faults{})
		s.mode(e, mode{})
	}
	s.writeConfig(0)
	s.writeEndpoints(-1)
	s.await("every engine to be listed", func() bool { return s.metrics().Total(s.t, "sluice_endpoints", `state="ready"`) == enginesOfARun })
	for _, e := range s.engines {
		s.await(e.args.Name+" to take a step", func() bool { return s.touch(e) })
	}
	s.await("every engine to be heard", func() bool {
		if s.metrics().Total(s.t, "sluice_kv_sources", `state="live"`) == enginesOfARun {
			return true
		}
		for _, e := range s.engines {
			s.touch(e)
		}
		return false
	})
}

// touch has an engine take a step, and store what it never had: it says in an event what it has not said yet, and one that
// was lost before it shows.
func (s *stage) touch(e *engineUnit) bool {
	s.touches++
	body := fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":%s}`, conversation(9000+s.touches, 0))
	_, err := s.call(http.MethodPost, "http://"+e.address+"/v1/completions", body)
	return err == nil
}

// metrics is the page of the Sluice that serves.
func (s *stage) metrics() lab.Metrics {
	s.t.Helper()
	sluice, _ := s.present()
	page, err := s.get("http://" + sluice.Admin + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	return lab.Metrics(page)
}

// settled waits until nothing is in flight: streams, charges, requests in Envoy and engines.
func (s *stage) settled() {
	s.t.Helper()
	s.await("streams to end", func() bool { return s.metrics().Total(s.t, "sluice_open_streams") == 0 })
	s.await("the ledger to be empty", func() bool {
		m, sum := s.metrics(), 0.0
		for _, of := range []string{"inflight_requests", "inflight_tokens", "decoding_requests"} {
			sum += m.Total(s.t, "sluice_ledger_"+of)
		}
		return sum == 0 && m.Total(s.t, "sluice_held_charges") == 0
	})
	s.await("Envoy's requests to end", func() bool {
		return s.envoy.Stat(s.t, "http.inference.downstream_rq_active") == 0 && s.envoy.Stat(s.t, "cluster.inference-pool.upstream_rq_active") == 0
	})
	for _, e := range s.engines {
		s.await(e.args.Name+" to be idle", func() bool {
			h, err := s.holdings(e)
			return err == nil && h.Running == 0
		})
	}
}

// ledgerIsExact asks the admin port too, endpoint by endpoint.
func (s *stage) ledgerIsExact(t *testing.T) {
	t.Helper()
	sluice, _ := s.present()
	page, err := s.get("http://" + sluice.Admin + "/endpoints")
	if err != nil {
		t.Fatal(err)
	}
	var views []struct {
		Address string `json:"address"`
		lab.Load
	}
	if err := json.Unmarshal([]byte(page), &views); err != nil {
		t.Fatal(err)
	}
	if len(views) != enginesOfARun {
		t.Errorf("%d endpoints: %s", len(views), page)
	}
	for _, v := range views {
		if v.Load != (lab.Load{}) {
			t.Errorf("%s: the ledger holds %+v", v.Address, v.Load)
		}
	}
}

// indexIsExact compares what Sluice knows of caches with what engines hold: how many blocks, and for prompts sent to each
// engine how many tokens are cached.
func (s *stage) indexIsExact(t *testing.T, each int) (compared int) {
	t.Helper()
	s.known(t)
	for turn := range each {
		for _, e := range s.engines {
			prompt := conversation((turn*7+e.index)%conversations, turn%8)
			s.predicted(t, e, prompt)
			compared++
		}
	}
	return compared
}

// known waits until Sluice knows of as many blocks as the engines hold.
func (s *stage) known(t *testing.T) {
	t.Helper()
	held, known := -1, -2
	for until := time.Now().Add(lab.Timeout); held != known; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("Sluice knows of %d blocks, engines hold %d; sources: %s\n%s", known, held, s.sources(), s.strangers(t))
		}
		held = 0
		for _, e := range s.engines {
			h, err := s.holdings(e)
			if err != nil {
				t.Fatal(err)
			}
			held += h.Blocks
		}
		known = int(s.metrics().Total(t, "sluice_kv_index_holder_blocks"))
	}
}

// strangers tells where Sluice and engines disagree: the prompts of which something else is cached than predicted, and what
// Sluice's log says of events at last.
func (s *stage) strangers(t *testing.T) string {
	t.Helper()
	var all []string
	for _, e := range s.engines {
		h, err := s.holdings(e)
		all = append(all, fmt.Sprintf("%s (%s) holds %d blocks, %v", e.args.Name, e.address, h.Blocks, err))
		for n := range conversations {
			if predicted, reported, prompt := s.ask(t, e, conversation(n, 7)); predicted != reported {
				all = append(all, fmt.Sprintf("  conversation %d: %d of %d tokens predicted, %d reported", n, predicted, prompt, reported))
			}
		}
	}
	_, p := s.present()
	return strings.Join(append(all, tail(p.log, 20_000)), "\n")
}

var sourceLines = regexp.MustCompile(`(?m)^sluice_kv_(sources|forgets_total|event_messages_total|index_\w+)\{.*$`)

func (s *stage) sources() string {
	return fmt.Sprint(sourceLines.FindAllString(string(s.metrics()), -1))
}

const blockTokens = 16

// predicted sends a prompt to an engine and compares the cached tokens that Sluice predicts with those the engine reports.
func (s *stage) predicted(t *testing.T, e *engineUnit, prompt string) {
	t.Helper()
	if predicted, reported, all := s.ask(t, e, prompt); predicted != reported {
		t.Errorf("%s: Sluice predicted %d cached tokens of %d, the engine reports %d", e.args.Name, predicted, all, reported)
	}
	s.known(t) // the events of this prompt are in before the next one
}

// ask sends a prompt to an engine: how many of its tokens Sluice predicts to be cached, how many the engine reports, and how
// many there are.
func (s *stage) ask(t *testing.T, e *engineUnit, prompt string) (predicted, reported, all int) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":%s}`, prompt)
	a := lab.Post(t, s.client, s.envoy.URL("/v1/completions"), body, toEngine, e.address)
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(a.Body), &answer); err != nil {
		t.Fatal(err)
	}
	d := lab.ReadDecision(t, a)
	if d.Address != e.address {
		t.Errorf("sent to %s, wanted %s", d.Address, e.address)
	}
	all = answer.Usage.Prompt
	return min(d.Cached, (all-1)/blockTokens*blockTokens), answer.Usage.Details.Cached, all
}

// nothingIsLeft waits until there is no more of anything than before.
func (s *stage) nothingIsLeft(t *testing.T, before state) (now state) {
	t.Helper()
	s.client.CloseIdleConnections()
	for until := time.Now().Add(lab.Timeout); ; time.Sleep(100 * time.Millisecond) {
		runtime.GC()
		now, err := s.look()
		if err != nil {
			t.Fatal(err)
		}
		left := now.more(before)
		if len(left) == 0 {
			return now
		}
		if time.Now().After(until) {
			sluice, _ := s.present()
			stacks, _ := s.get("http://" + sluice.Admin + "/debug/pprof/goroutine?debug=1")
			t.Errorf("more than before the faults: %v\n%.6000s", left, stacks)
			return now
		}
	}
}
