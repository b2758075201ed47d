package latency

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// pinPicker picks the endpoint that the request's ID says, modulo 1,000.
var pinPicker = scheduling.PluginType{
	Type: "pin-picker",
	New:  func(*scheduling.Builder) (any, error) { return pin{}, nil },
}

type pin struct{}

func (pin) Pick(c *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, int(c.Request.ID%1000))
}

// world is a plugin in a real scheduler over endpoints whose load a table says.
type world struct {
	testing.TB
	table     schedtest.Table
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	plugin    *Plugin
	now       time.Duration
	id        uint64
	request   scheduling.Request
}

func newWorld(tb testing.TB, parameters string, endpoints int) *world {
	tb.Helper()
	w := &world{TB: tb, pool: scheduling.NewPool(), now: time.Second, request: scheduling.Request{Stream: true, Choices: 1}}
	specs := make([]scheduling.EndpointSpec, endpoints)
	for i := range specs {
		specs[i].Address = address(i)
		w.table.Endpoints = append(w.table.Endpoints, schedtest.Endpoint{
			Load: &scheduling.InFlightLoad{}, Uncached: schedtest.Ref(scheduling.UncachedRequestTokens(1000)),
		})
	}
	w.table.Prompt = &scheduling.TokenizedPrompt{Count: 1000}
	w.pool.Update(specs)
	w.configure(parameters)
	tb.Cleanup(w.pool.Watch(func(s *scheduling.Snapshot) { w.scheduler.SnapshotChanged(s) }))
	tb.Cleanup(func() {
		if err := w.scheduler.Close(); err != nil {
			tb.Error(err)
		}
	})
	return w
}

func (w *world) configure(parameters string) {
	w.Helper()
	cfg := schedtest.Config([]scheduling.Spec{
		{Name: "seer", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)},
	}, pinPicker.Type)
	s, err := scheduling.Build(append(w.table.Types(), Type(), pinPicker), cfg, w.scheduler)
	if err != nil {
		w.Fatal(err)
	}
	w.scheduler = s
	w.plugin = s.Plugin("seer").(*Plugin)
	s.SnapshotChanged(w.pool.Snapshot())
}

// begin begins a request that goes to an endpoint.
func (w *world) begin(endpoint int) *scheduling.Cycle {
	w.Helper()
	w.id++
	r := w.request
	r.ID = w.id*1000 + uint64(endpoint)
	c := w.scheduler.Begin(w.pool.Snapshot(), &r, w.now)
	w.scheduler.Produce(w.Context(), c)
	return c
}

// pick sends a request to an endpoint.
func (w *world) pick(endpoint int) *scheduling.Flight {
	w.Helper()
	c := w.begin(endpoint)
	defer w.scheduler.End(c)
	f, err := w.scheduler.Commit(c)
	if err != nil {
		w.Fatal(err)
	}
	return f
}

// predict is what is predicted of a request on an endpoint now.
func (w *world) predict(endpoint int) scheduling.LatencyPrediction {
	w.Helper()
	c := w.begin(endpoint)
	defer w.scheduler.End(c)
	w.scheduler.Preview(c)
	guess, ok := scheduling.ColumnOf[scheduling.LatencyPrediction](c).Get(endpoint)
	if !ok {
		w.Fatalf("nothing is predicted of endpoint %d", endpoint)
	}
	return guess
}

func good(prompt, cached, completion int) scheduling.Outcome {
	return scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: prompt, CachedTokens: cached, CompletionTokens: completion}}
}
