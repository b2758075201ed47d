package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/bench/latency/capture"
	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/sim/trace"
	"github.com/sluice-epp/sluice/test/lab"
)

// crowd is a workload that makes requests wait in bursts: the rate changes every few seconds, prompts share heads and differ in length.
func crowd(requests int) shape {
	const customers, head = 24, 16
	random, names := rand.New(rand.NewPCG(3, 3)), &names{}
	heads := make([][]uint64, customers)
	for i := range heads {
		heads[i] = names.some(head)
	}
	t := &trace.Trace{Name: "crowd", BlockTokens: blockTokens}
	at := 0.0
	for range requests {
		rate := 14.0
		if int(at)%8 < 3 {
			rate = 42
		}
		at += random.ExpFloat64() / rate
		blocks := append(heads[random.IntN(customers)][:head:head], names.some(1+random.IntN(12))...)
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(at * float64(time.Second)), Blocks: blocks,
			PromptTokens: len(blocks)*blockTokens - random.IntN(blockTokens-2), OutputTokens: 4 + random.IntN(40),
		})
	}
	p := sim.DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxModelLen = blockTokens, 1024, 32_768
	p.Cost.PrefillToken *= 2
	return shape{name: t.Name, trace: t, Params: p}
}

// TestLatencySamples takes samples for predictors of latency where sockets, an Envoy and a busy machine are in the way, and writes
// them to the file that SLUICE_LATENCY_SAMPLES names. `make bench-latency` runs it.
func TestLatencySamples(t *testing.T) {
	path := os.Getenv("SLUICE_LATENCY_SAMPLES")
	if path == "" {
		t.Skip("it takes its time: run `make bench-latency`")
	}
	s := crowd(1500)
	if err := s.trace.Validate(); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	sampled(t, s, folder)
	rows, err := capture.FromDecisions(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	waited, mute := 0, 0
	for _, r := range rows {
		if !(r.PredictedTTFTMs > 0) {
			mute++
		}
		if r.PrefillTokensInFlight > 0 {
			waited++
		}
	}
	t.Logf("%d samples of %d requests, %d of which found work before them", len(rows), len(s.trace.Requests), waited)
	if len(rows) < len(s.trace.Requests)*9/10 || waited < len(rows)/10 {
		t.Error("there is too little to learn from")
	}
	if mute > 0 {
		t.Errorf("%d samples have no prediction", mute)
	}
	if err := sample.Write(path, rows); err != nil {
		t.Fatal(err)
	}
}

// sampled plays a shape in wall-clock time through Envoy, and a Sluice with the built-in profile that logs its decisions to a folder.
func sampled(t *testing.T, s shape, folder string) {
	t.Helper()
	text, err := capture.Observed(config.DefaultText)
	if err != nil {
		t.Fatal(err)
	}
	l := lab.New(t, lab.Plan{
		Engines: engines, Config: text + fmt.Sprintf("telemetry: {decisionLog: {path: %q}}\n", folder),
		Engine: engine.Config{Speed: 1, Params: s.Params},
	})
	url := l.Envoy(t, envoy.Params{}).URL("/v1/completions")
	client := &http.Client{Transport: l.Client.Transport} // no timeout: an answer takes as long as its queue
	bodies := make([]string, len(s.trace.Requests))
	for i := range bodies {
		bodies[i] = body(t, s.trace, &s.trace.Requests[i])
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var faults []string
	began := time.Now()
	for i := range s.trace.Requests {
		time.Sleep(time.Until(began.Add(s.trace.Requests[i].At)))
		all.Go(func() {
			if _, err := ask(t, client, url, bodies[i]); err != nil {
				mu.Lock()
				faults = append(faults, err.Error())
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(faults) > 0 {
		t.Fatalf("%d requests failed, the first of them: %s", len(faults), strings.SplitN(faults[0], "\n", 2)[0])
	}
	l.Sluice.Settle(t)
	l.Sluice.Stop() // the log is whole
}
