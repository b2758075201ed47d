package operator

import (
	"context"
	"time"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cache"
	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/load/metrics"
	learner "github.com/sluice-epp/sluice/load/rates"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// prefixIndex is a plugin that knows something of prefix caches.
type prefixIndex interface {
	Stats() cache.Stats
	Holding(e *scheduling.Endpoint) (h cache.Holding, ok bool)
	Audit() *audit.Table
}

// accounts is a plugin that knows what is in flight.
type accounts interface {
	Load(ordinal int, generation uint64) (load scheduling.InFlightLoad, ok bool)
}

// ListEndpoints lists the endpoints and what is known of each.
func (s *Service) ListEndpoints(context.Context, *schedulerv1.ListEndpointsRequest) (*schedulerv1.ListEndpointsResponse, error) {
	scheduler, stale := s.config.Scheduler(), s.config.Engines.StaleAfter()
	answer := &schedulerv1.ListEndpointsResponse{}
	if s.config.State != nil {
		answer.Process = s.config.State()
	}
	for _, e := range s.config.Pool.Snapshot().Endpoints {
		if e == nil {
			continue
		}
		to := &schedulerv1.Endpoint{
			Address: e.Address, Name: e.Name, Ordinal: uint32(e.Ordinal), Generation: e.Generation,
			State: record.State(e.State), Labels: e.Labels,
		}
		for _, a := range scheduling.PluginsOf[accounts](scheduler) {
			if load, ok := a.Load(e.Ordinal, e.Generation); ok {
				to.InFlight = record.InFlightLoad(load, "")
				break
			}
		}
		if r, ok := s.config.Engines.Reading(e.Ordinal, e.Generation); ok {
			age := s.config.Now() - r.At
			r.Load.AgeMs = float64(age) / float64(time.Millisecond)
			to.EngineMetrics, to.MetricsStale = record.EngineMetrics(r.Load, ""), age > stale
			to.Asleep = r.Sleep == metrics.Asleep
		}
		for name, index := range scheduling.PluginsOf[prefixIndex](scheduler) {
			if h, ok := index.Holding(e); ok {
				told := index.Audit().Of(e)
				c := &schedulerv1.CacheKnowledge{
					Producer: name, Blocks: uint64(h.Blocks), BlockSizeTokens: uint64(h.BlockSizeTokens), Events: h.Events,
					Audited: uint64(told.Answers), Unconfirmed: uint64(told.Unconfirmed),
				}
				c.FalseHitRate, c.MissRate = rates(told)
				to.Caches = append(to.Caches, c)
			}
		}
		for _, l := range scheduling.PluginsOf[*learner.Plugin](scheduler) {
			to.Rates = learnt(l, e)
			break
		}
		answer.Endpoints = append(answer.Endpoints, to)
	}
	return answer, nil
}

// learnt is what has been measured of an endpoint; nil where nothing has.
func learnt(from *learner.Plugin, e *scheduling.Endpoint) *schedulerv1.LearntRates {
	known, ok := from.Rates(e.Ordinal, e.Generation)
	if !ok || known.Confidence == 0 {
		return nil
	}
	throughput := 1000 / known.PrefillMsPerToken
	return &schedulerv1.LearntRates{
		PrefillTokensPerSecond: &throughput, WaitMsPerToken: &known.WaitMsPerToken, BreakEven: &known.BreakEven, Confidence: known.Confidence,
	}
}

// rates are the shares of false hits and misses; nil where nothing was audited.
func rates(c audit.Counts) (falseHits, misses *float64) {
	if c.Answers == 0 {
		return nil, nil
	}
	f, m := c.FalseHitRate(), c.MissRate()
	return &f, &m
}

// GetIndexStats says how large the prefix indices are and how well they have predicted.
func (s *Service) GetIndexStats(context.Context, *schedulerv1.GetIndexStatsRequest) (*schedulerv1.GetIndexStatsResponse, error) {
	scheduler := s.config.Scheduler()
	answer := &schedulerv1.GetIndexStatsResponse{}
	for name, index := range scheduling.PluginsOf[prefixIndex](scheduler) {
		stats, told := index.Stats(), index.Audit().Sum()
		to := &schedulerv1.IndexStats{
			Producer: name, Type: scheduler.TypeOf(name), Entries: uint64(stats.Entries), HolderEntries: uint64(stats.HolderEntries),
			Bytes: uint64(stats.Bytes), Evicted: uint64(stats.Evicted),
			Audited: uint64(told.Answers), Unconfirmed: uint64(told.Unconfirmed),
		}
		to.FalseHitRate, to.MissRate = rates(told)
		if stats.Sources != nil {
			to.Sources = make(map[string]uint32, len(stats.Sources))
			for state, n := range stats.Sources {
				to.Sources[state] = uint32(n)
			}
		}
		answer.Indices = append(answer.Indices, to)
	}
	return answer, nil
}
