package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/load/latency"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Plan is a run that samples are taken of.
type Plan struct {
	// Trace are the requests as recorded.
	Trace *trace.Trace
	// Jitter delays each request by up to so much, and Speed is how many times faster than recorded they come.
	Jitter time.Duration
	Speed  float64
	// Engines is their number, KVTokens the size of each one's cache in tokens.
	Engines, KVTokens int
	// Slower, where it is not 0, is by what the steps of engine SlowEngine take longer from the share SlowAt of the trace's span on.
	Slower     float64
	SlowEngine int
	SlowAt     float64
	// Noise is that of the engines' steps; see fleet.Config.
	Noise float64
	// Seed is the source of all chance.
	Seed uint64
}

// scrapeInterval is how old metrics become, that of llm-d's router.
const scrapeInterval = 50 * time.Millisecond

// Run plays the plan. shiftMs is when the slow engine became slow, in ms; negative where none does.
func Run(p Plan) (rows []sample.Row, shiftMs float64, err error) {
	if p.Trace == nil || p.Engines < 1 || p.KVTokens < 1 {
		return nil, -1, errors.New("a run needs a trace, engines and a size of their caches")
	}
	t, err := p.Trace.Jittered(p.Jitter, rand.New(rand.NewPCG(p.Seed, 0x71773))).Faster(p.Speed)
	if err != nil {
		return nil, -1, err
	}
	c := fleet.Config{
		Trace: t, Engines: p.engines(t), Seed: p.Seed, Noise: p.Noise,
		Sight:     fleet.Sight{EventDelay: 5 * time.Millisecond, ScrapeInterval: scrapeInterval},
		NewPicker: func(v *fleet.View) (fleet.Picker, error) { return newPicker(v, &rows) },
	}
	shiftMs = -1
	if p.Slower != 0 {
		at := time.Duration(p.SlowAt * float64(t.Span()))
		c.Shifts = []fleet.Shift{{At: at, Engine: p.SlowEngine, Slower: p.Slower}}
		shiftMs = ms(at)
	}
	if _, err := fleet.Run(c); err != nil {
		return nil, -1, err
	}
	return ordered(rows), shiftMs, nil
}

// engines take the longest request of the trace, as far as it fits into their caches.
func (p *Plan) engines(t *trace.Trace) []sim.Params {
	longest := 1
	for _, r := range t.Requests {
		longest = max(longest, r.PromptTokens+r.OutputTokens)
	}
	all := make([]sim.Params, p.Engines)
	for i := range all {
		e := sim.DefaultParams()
		e.MaxWaiting = 1 << 20
		e.BlockSize = t.BlockTokens
		e.NumBlocks = max(1, p.KVTokens/e.BlockSize)
		e.MaxModelLen = min(longest, e.NumBlocks*e.BlockSize)
		all[i] = e
	}
	return all
}

// newPicker is the built-in configuration, with a predictor and a watcher, who both only look on.
func newPicker(v *fleet.View, rows *[]sample.Row) (fleet.Picker, error) {
	types := append(server.Plugins(server.Environment{
		Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("latency"), Transport: v,
		Follow: v.Follow, Offline: true,
	}), watcherType(rows))
	text, err := Observed(config.DefaultText, typeName)
	if err != nil {
		return nil, err
	}
	_, s, err := config.OpenText("built-in configuration, looked at", []byte(text), func(string) (string, bool) { return "", false }, types)
	if err != nil {
		return nil, err
	}
	return fleet.NewScheduled(v, s), nil
}

// Observed is a configuration's text with the predictor and more plugin types added, which no profile refers to.
func Observed(text string, more ...string) (string, error) {
	const list = "\nplugins:\n"
	if strings.Count(text, list) != 1 {
		return "", fmt.Errorf("configuration: want one list of plugins to add to, got %q", text)
	}
	added := list + "  - type: " + latency.TypeName + "\n    parameters: {streamingMode: true}\n"
	for _, typ := range more {
		added += "  - type: " + typ + "\n"
	}
	return strings.Replace(text, list, added, 1), nil
}
