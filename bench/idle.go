package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

// metricsConfig is the built-in configuration and a scorer that reads the engines' load off their metrics pages: the
// built-in one reads them only now and then, for the shape of the KV cache.
const metricsConfig = `plugins:
  - type: approx-prefix-cache-producer
  - type: inflight-load-producer
  - type: prefix-cache-affinity-filter
    parameters: {explorationProbability: 0}
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: prefix-cache-affinity-filter
      - pluginRef: prefill-cost-scorer
      - pluginRef: queue-scorer
      - pluginRef: max-score-picker
`

// setupMetrics is Sluice that follows the load which engines report.
const setupMetrics = "sluice-metrics"

// idleSetups are what is measured without requests.
var idleSetups = []struct{ name, config string }{{setupApprox, ""}, {setupMetrics, metricsConfig}}

// idleWarmUp is how long what is idle gets to read every page once.
const idleWarmUp = 12 * time.Second

// measureIdle watches a setup that nobody asks anything, over engines whose metrics pages are a real vLLM's.
func (b *bench) measureIdle(ctx context.Context, setup struct{ name, config string }) (row report.Idle, err error) {
	pool, err := engines.Start(engines.Options{Engines: b.idleEndpoints, RealPage: true})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	p, err := b.startSluice(ctx, setup.config, pool)
	if err != nil {
		return row, err
	}
	defer func() {
		usage, stopErr := p.Stop()
		row.PeakRSS = usage.PeakRSS
		err = errors.Join(err, stopErr)
	}()
	if err := pass(ctx, min(idleWarmUp, b.idleTime)); err != nil {
		return row, err
	}
	pages, begin := pool.PagesRead(), time.Now()
	before, err := p.CPU()
	if err != nil {
		return row, err
	}
	if err := pass(ctx, b.idleTime); err != nil {
		return row, err
	}
	after, err := p.CPU()
	seconds := time.Since(begin).Seconds()
	row = report.Idle{
		Setup: setup.name, Endpoints: b.idleEndpoints, PageBytes: pool.PageBytes(), Seconds: seconds,
		CPUPercent: 100 * (after - before).Seconds() / seconds, PagesPerSecond: float64(pool.PagesRead()-pages) / seconds,
	}
	return row, errors.Join(err, died(p))
}

// died tells of a process that should be there.
func died(p *subject.Process) error {
	if err := p.Err(); err != nil {
		return fmt.Errorf("while idle: %w", err)
	}
	return nil
}

// pass lets time go by.
func pass(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
