package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Order is an order of the endpoints.
type Order string

// The orders.
const (
	ByLoad  Order = "load" // the most tokens in flight first
	ByKV    Order = "kv"   // the fullest KV cache first
	ByPicks Order = "picks"
	ByName  Order = "name"
)

// Orders are all of them, in the order in which a key goes through them.
var Orders = []Order{ByLoad, ByKV, ByPicks, ByName}

// next is the order after one.
func (o Order) next() Order { return Orders[(slices.Index(Orders, o)+1)%len(Orders)] }

// sorted are the endpoints in an order.
func sorted(endpoints []endpoint, o Order) []endpoint {
	all := slices.Clone(endpoints)
	slices.SortStableFunc(all, func(a, b endpoint) int {
		la, lb := a.GetInFlight(), b.GetInFlight()
		load := cmp.Or(cmp.Compare(lb.GetTokens(), la.GetTokens()), cmp.Compare(lb.GetRequests(), la.GetRequests()))
		picks := cmp.Compare(b.rate, a.rate)
		switch o {
		case ByKV:
			return cmp.Or(cmp.Compare(b.GetEngineMetrics().GetKvUsage(), a.GetEngineMetrics().GetKvUsage()), load, picks)
		case ByPicks:
			return cmp.Or(picks, load)
		case ByName:
			return cmp.Compare(called(a.GetName(), a.GetAddress()), called(b.GetName(), b.GetAddress()))
		case ByLoad:
		}
		return cmp.Or(load, picks)
	})
	return all
}

// state is whether an endpoint may be picked, in a word.
func (e endpoint) stateWord() string {
	switch e.GetState() {
	case decisionv1.EndpointState_ENDPOINT_STATE_READY:
		switch {
		case e.GetAsleep():
			return "asleep"
		case e.GetMetricsStale(): // picked all the same, by what Sluice sees itself
			return "stale"
		}
		return "ready"
	case decisionv1.EndpointState_ENDPOINT_STATE_NOT_READY:
		return "not ready"
	case decisionv1.EndpointState_ENDPOINT_STATE_DRAINING:
		return "draining"
	case decisionv1.EndpointState_ENDPOINT_STATE_UNSPECIFIED:
	}
	return display.Unknown
}

func (e endpoint) style() display.Style {
	switch {
	case e.GetState() != decisionv1.EndpointState_ENDPOINT_STATE_READY:
		return display.Red
	case e.GetAsleep(), e.GetMetricsStale():
		return display.Yellow
	}
	return ""
}

// barCells is how long a bar is.
const barCells = 6

// readCells is the width of the longest time since a reading, 999 ms.
const readCells = 6

// endpointColumns are the columns of the endpoints.
var endpointColumns = []column[endpoint]{
	{head: "endpoint", rank: 0, max: 20, grow: true, cell: func(e endpoint, _ *table) string { return called(e.GetName(), e.GetAddress()) }},
	{head: "state", rank: 1, cell: func(e endpoint, _ *table) string { return e.stateWord() }},
	{head: "reqs", rank: 3, right: true, cell: func(e endpoint, _ *table) string {
		return known(e.InFlight != nil, display.Count(float64(e.GetInFlight().GetRequests())))
	}},
	{head: "tokens", rank: 2, right: true, cell: func(e endpoint, _ *table) string {
		return known(e.InFlight != nil, display.Count(float64(e.GetInFlight().GetTokens())))
	}},
	{head: "dec", rank: 8, right: true, cell: func(e endpoint, _ *table) string {
		return known(e.InFlight != nil, display.Count(float64(e.GetInFlight().GetDecoding())))
	}},
	{head: "wait", rank: 7, right: true, cell: func(e endpoint, _ *table) string {
		m := e.GetEngineMetrics()
		return known(m != nil && m.Waiting != nil, display.Count(m.GetWaiting()))
	}},
	{head: "run", rank: 9, right: true, cell: func(e endpoint, _ *table) string {
		m := e.GetEngineMetrics()
		return known(m != nil && m.Running != nil, display.Count(m.GetRunning()))
	}},
	{head: "KV cache", rank: 4, cell: func(e endpoint, t *table) string {
		m := e.GetEngineMetrics()
		if m == nil || m.KvUsage == nil {
			return display.Unknown
		}
		return display.Bar(m.GetKvUsage(), barCells, t.ascii) + display.Pad(display.Percent(m.GetKvUsage()), 6, true)
	}},
	{head: "blocks", rank: 11, right: true, cell: func(e endpoint, _ *table) string {
		var blocks uint64
		for _, c := range e.GetCaches() {
			blocks = max(blocks, c.GetBlocks())
		}
		return known(len(e.GetCaches()) > 0, display.Count(float64(blocks)))
	}},
	{head: "events", optional: true, rank: 10, cell: func(e endpoint, _ *table) string {
		var states []string
		for _, c := range e.GetCaches() {
			if c.GetEvents() != "" {
				states = append(states, c.GetEvents())
			}
		}
		return known(len(states) > 0, strings.Join(states, "+"))
	}},
	{head: "read", rank: 12, right: true, min: readCells, cell: func(e endpoint, _ *table) string {
		s := display.Millis(e.GetEngineMetrics().GetAgeMs())
		if e.GetMetricsStale() {
			s = "stale " + s
		}
		return known(e.EngineMetrics != nil, s)
	}},
	{head: "picks/s", rank: 5, right: true, cell: func(e endpoint, _ *table) string { return perSecond(e.rate) }},
	{head: "hit", rank: 6, right: true, cell: func(e endpoint, _ *table) string { return display.Percent(e.hit) }},
	{head: "false hit", optional: true, rank: 15, right: true, cell: func(e endpoint, _ *table) string {
		return audited(e, (*schedulerv1.CacheKnowledge).GetFalseHitRate, func(c *schedulerv1.CacheKnowledge) bool { return c.FalseHitRate != nil })
	}},
	{head: "miss", optional: true, rank: 16, right: true, cell: func(e endpoint, _ *table) string {
		return audited(e, (*schedulerv1.CacheKnowledge).GetMissRate, func(c *schedulerv1.CacheKnowledge) bool { return c.MissRate != nil })
	}},
	{head: "prefill tok/s", optional: true, rank: 13, right: true, cell: func(e endpoint, _ *table) string {
		r := e.GetRates()
		return known(r != nil && r.PrefillTokensPerSecond != nil, display.Count(r.GetPrefillTokensPerSecond()))
	}},
}

// audited is the share of the first index that knows one.
func audited(e endpoint, share func(*schedulerv1.CacheKnowledge) float64, is func(*schedulerv1.CacheKnowledge) bool) string {
	for _, c := range e.GetCaches() {
		if is(c) {
			return display.Percent(share(c))
		}
	}
	return display.Unknown
}

func known(is bool, s string) string {
	if is {
		return s
	}
	return display.Unknown
}

// perSecond writes a rate with a decimal, so that it does not jump in width.
func perSecond(rate float64) string {
	if rate < 99.95 {
		return fmt.Sprintf("%.1f", rate)
	}
	return display.Count(rate)
}
