// Package schedtest gives tests of filters, scorers and pickers a scheduler whose columns hold the values that the test
// says, in the way that httptest gives tests of handlers a server.
package schedtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

// Endpoint is one endpoint and what producers know of it; nil is unknown.
type Endpoint struct {
	scheduling.EndpointSpec
	Match    *scheduling.PrefixCacheMatchInfo
	Load     *scheduling.InFlightLoad
	Uncached *scheduling.UncachedRequestTokens
	Metrics  *scheduling.EngineMetrics
	Rates    *scheduling.LearntRates
	Latency  *scheduling.LatencyPrediction
}

// Table is what a test says of the endpoints. Its producers read it anew for every cycle.
type Table struct {
	// Endpoints have the ordinals 0, 1, 2 …
	Endpoints []Endpoint
	// Prompt is the request's tokenized prompt; nil is unknown.
	Prompt *scheduling.TokenizedPrompt
	// Pressure is what is known of the pool; nil is unknown.
	Pressure *scheduling.PoolPressure
	// Objective is what the request asks of its latency; nil is nothing.
	Objective *scheduling.LatencyObjective
}

// The plugin types that put a table's values into columns.
const (
	// EarlyType produces the match info, the engine metrics and the tokenized prompt, before the decision.
	EarlyType = "table-early"
	// LateType produces the load, the uncached tokens, the rates and the pool's pressure, inside the critical section.
	LateType = "table-late"
	// LatencyType produces the latency predictions and the objective, inside the critical section.
	LatencyType = "table-latency"
)

// Types are the producers of the table's values. They are the default producers of their data types.
func (t *Table) Types() []scheduling.PluginType {
	return []scheduling.PluginType{
		{
			Type: EarlyType,
			DefaultFor: []string{
				scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo](),
				scheduling.DataTypeOf[scheduling.EngineMetrics](),
				scheduling.DataTypeOf[scheduling.TokenizedPrompt](),
			},
			New: func(b *scheduling.Builder) (any, error) {
				return &early{
					table:   t,
					match:   scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b),
					metrics: scheduling.ProduceColumn[scheduling.EngineMetrics](b),
					prompt:  scheduling.ProduceValue[scheduling.TokenizedPrompt](b),
				}, nil
			},
		},
		{
			Type: LateType,
			DefaultFor: []string{
				scheduling.DataTypeOf[scheduling.InFlightLoad](),
				scheduling.DataTypeOf[scheduling.UncachedRequestTokens](),
				scheduling.DataTypeOf[scheduling.LearntRates](),
				scheduling.DataTypeOf[scheduling.PoolPressure](),
			},
			New: func(b *scheduling.Builder) (any, error) {
				return &late{
					table:    t,
					load:     scheduling.ProduceColumn[scheduling.InFlightLoad](b),
					uncached: scheduling.ProduceColumn[scheduling.UncachedRequestTokens](b),
					rates:    scheduling.ProduceColumn[scheduling.LearntRates](b),
					pressure: scheduling.ProduceValue[scheduling.PoolPressure](b),
				}, nil
			},
		},
		{
			Type: LatencyType,
			DefaultFor: []string{
				scheduling.DataTypeOf[scheduling.LatencyPrediction](),
				scheduling.DataTypeOf[scheduling.LatencyObjective](),
			},
			New: func(b *scheduling.Builder) (any, error) {
				return &latency{
					table:       t,
					predictions: scheduling.ProduceColumn[scheduling.LatencyPrediction](b),
					objective:   scheduling.ProduceValue[scheduling.LatencyObjective](b),
				}, nil
			},
		},
	}
}

type early struct {
	table   *Table
	match   scheduling.Key[scheduling.PrefixCacheMatchInfo]
	metrics scheduling.Key[scheduling.EngineMetrics]
	prompt  scheduling.ValueKey[scheduling.TokenizedPrompt]
}

// Produce implements scheduling.Producer.
func (p *early) Produce(_ context.Context, c *scheduling.Cycle) error {
	for i := range p.table.Endpoints {
		e := &p.table.Endpoints[i]
		set(p.match.In(c), i, e.Match)
		set(p.metrics.In(c), i, e.Metrics)
	}
	if p.table.Prompt != nil {
		p.prompt.In(c).Set(*p.table.Prompt)
	}
	return nil
}

type late struct {
	table    *Table
	load     scheduling.Key[scheduling.InFlightLoad]
	uncached scheduling.Key[scheduling.UncachedRequestTokens]
	rates    scheduling.Key[scheduling.LearntRates]
	pressure scheduling.ValueKey[scheduling.PoolPressure]
}

// Fill implements scheduling.Filler.
func (p *late) Fill(c *scheduling.Cycle) {
	for i := range p.table.Endpoints {
		e := &p.table.Endpoints[i]
		set(p.load.In(c), i, e.Load)
		set(p.uncached.In(c), i, e.Uncached)
		set(p.rates.In(c), i, e.Rates)
	}
	if p.table.Pressure != nil {
		p.pressure.In(c).Set(*p.table.Pressure)
	}
}

type latency struct {
	table       *Table
	predictions scheduling.Key[scheduling.LatencyPrediction]
	objective   scheduling.ValueKey[scheduling.LatencyObjective]
}

// Fill implements scheduling.Filler.
func (p *latency) Fill(c *scheduling.Cycle) {
	for i := range p.table.Endpoints {
		set(p.predictions.In(c), i, p.table.Endpoints[i].Latency)
	}
	if p.table.Objective != nil {
		p.objective.In(c).Set(*p.table.Objective)
	}
}

func set[T any](column *scheduling.Column[T], ordinal int, value *T) {
	if value != nil {
		column.Set(ordinal, *value)
	}
}

// Pool is a pool with the table's endpoints. Those without an address get 10.0.x.y:8000 by their ordinal.
func (t *Table) Pool() *scheduling.Pool {
	specs := make([]scheduling.EndpointSpec, len(t.Endpoints))
	for i := range t.Endpoints {
		specs[i] = t.Endpoints[i].EndpointSpec
		if specs[i].Address == "" {
			specs[i].Address = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
		}
	}
	pool := scheduling.NewPool()
	pool.Update(specs)
	return pool
}

// Decide runs one request through a scheduler over the table's endpoints, without charging, and returns the cycle,
// which the test may read until it ends.
func (t *Table) Decide(tb testing.TB, s *scheduling.Scheduler, r *scheduling.Request) *scheduling.Cycle {
	tb.Helper()
	c := s.Begin(t.Pool().Snapshot(), r, 0)
	s.Produce(tb.Context(), c)
	s.Preview(c)
	tb.Cleanup(func() { s.End(c) })
	return c
}

// Build builds a scheduler of plugin types and a profile, with the table's producers beside them, and fails the test
// where that is an error. Every scorer has the weight 1.
func (t *Table) Build(tb testing.TB, types []scheduling.PluginType, plugins []scheduling.Spec, profile ...string) *scheduling.Scheduler {
	tb.Helper()
	s, err := scheduling.Build(append(t.Types(), types...), Config(plugins, profile...), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// Config is a configuration of declared plugins and a profile of names, each with the weight 1, that picks one
// endpoint.
func Config(plugins []scheduling.Spec, profile ...string) scheduling.Config {
	cfg := scheduling.Config{Plugins: plugins, ProfileName: "test", MaxPicks: 1}
	for i, name := range profile {
		cfg.Profile = append(cfg.Profile, scheduling.Ref{Name: name, Weight: 1, Path: fmt.Sprintf("profile[%d]", i)})
	}
	return cfg
}

// Scores scores the table's endpoints with one scorer, built from its type and a YAML parameter block (empty: the
// defaults), and returns the raw scores by ordinal.
func (t *Table) Scores(tb testing.TB, types []scheduling.PluginType, scorer, parameters string, r *scheduling.Request) []float64 {
	tb.Helper()
	spec := scheduling.Spec{Name: scorer, Type: scorer, Decode: YAML(parameters)}
	s := t.Build(tb, append(types, First), []scheduling.Spec{spec}, scorer, First.Type)
	return t.Decide(tb, s, r).Scores[0].Raw
}

// First is the plainest picker: it picks the candidate with the highest total, of equals the first.
var First = scheduling.PluginType{
	Type: "first-picker",
	New:  func(*scheduling.Builder) (any, error) { return first{}, nil },
}

type first struct{}

// Pick implements scheduling.Picker.
func (first) Pick(c *scheduling.Cycle, candidates scheduling.Set, totals []float64, picks []int) []int {
	best := -1
	for e := range candidates.All() {
		if best < 0 || totals[e] > totals[best] {
			best = e
		}
	}
	if best < 0 {
		return picks
	}
	return append(picks, best)
}

// Ref returns a pointer to a value, for the fields of Endpoint.
func Ref[T any](v T) *T { return &v }
