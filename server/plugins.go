package server

import (
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/precise"
	"github.com/sluice-epp/sluice/cache/tokens"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/load/latency"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/load/outlier"
	"github.com/sluice-epp/sluice/load/rates"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/server/session"
)

// Environment is what the plugins of a process share.
type Environment struct {
	// Now is a monotonic clock: the time since the process started.
	Now func() time.Duration
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Registerer is where metrics go; nil for nowhere.
	Registerer prometheus.Registerer
	// Engines is what the engines say of themselves, kept once per process: it outlives reloads.
	Engines *metrics.Store
	// Follow follows the engines' KV events, and Transport carries questions to engines; nil where engines have sockets. With
	// Follow, Now is a virtual time.
	Follow    precise.Follower
	Transport http.RoundTripper
	// Offline means that what is built will not serve: secrets in files, which may be on other machines, are not read.
	Offline bool
	// HashSeed keys the block hashes of plugins without a configured seed; made anew per process.
	HashSeed blockhash.Seed
}

// Plugins are all plugin types of this version: what a configuration file may name. A new one is a line here (or in the
// list of its package). The function is called once per Registerer.
func Plugins(e Environment) []scheduling.PluginType {
	audits := audit.NewCollector(e.Registerer)
	approximate := approx.NewFamily(approx.Options{
		CacheConfig: e.Engines, Needs: e.Engines.Need, // it tunes itself by what engines say
		Audits: audits, Seed: e.HashSeed, Logger: e.Logger, Registerer: e.Registerer,
	})
	return slices.Concat(
		[]scheduling.PluginType{
			tokens.Type(tokens.Options{Registerer: e.Registerer, Logger: e.Logger}),
			approximate.Type(),
			precise.Type(precise.Options{
				Now: e.Now, CacheConfig: e.Engines, Follow: e.Follow, Virtual: e.Follow != nil, Transport: e.Transport, Approximate: approximate, Audits: audits,
				Seed: e.HashSeed, Logger: e.Logger, Registerer: e.Registerer,
			}),
			ledger.Type(),
			rates.Type(),
			latency.Type(),
			outlier.Type(outlier.Options{Logger: e.Logger, Registerer: e.Registerer}),
			gate.Type(),
			session.Type(session.Options{Now: time.Now, Registerer: e.Registerer, Offline: e.Offline}),
		},
		e.Engines.Types(),
		filter.Types(),
		scorer.Types(),
		picker.Types(),
	)
}

// Catalogue are the plugin types for looking at them and for checking files: what they build will not serve.
func Catalogue() []scheduling.PluginType {
	now := func() time.Duration { return 0 }
	logger := slog.New(slog.DiscardHandler)
	return Plugins(Environment{
		Now: now, Logger: logger, HashSeed: blockhash.NewSeed(), Offline: true,
		Engines: metrics.NewStore(metrics.Options{Now: now, Logger: logger}),
	})
}

// cacheLoser is a plugin that believes something of engines' caches.
type cacheLoser interface {
	CacheLost(ordinal int, generation uint64, restarted bool)
}

// tellCacheLost makes the plugins in force forget what an engine held that has lost its cache.
func (a *App) tellCacheLost(ordinal int, generation uint64, restarted bool) {
	for _, p := range scheduling.PluginsOf[cacheLoser](a.current.Load().scheduler) {
		p.CacheLost(ordinal, generation, restarted)
	}
}

// ledgers walks the ledgers of a scheduler.
func ledgers(s *scheduling.Scheduler) iter.Seq2[string, *ledger.Plugin] {
	return scheduling.PluginsOf[*ledger.Plugin](s)
}
