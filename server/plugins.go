package server

import (
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/tokens"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/server/config"
)

// Environment is what the plugins of a process share.
type Environment struct {
	// Now is a monotonic clock: the time since the process started.
	Now func() time.Duration
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Registerer is where metrics go; nil for nowhere.
	Registerer prometheus.Registerer
	// HashSeed keys the block hashes of plugins without a configured seed; made anew per process.
	HashSeed blockhash.Seed
}

// Plugins are all plugin types of this version: what a configuration file may name. A new one is a line here (or in the
// list of its package). The function is called once per Registerer.
func Plugins(e Environment) []scheduling.PluginType {
	// What engines say of themselves is kept once per process: it outlives reloads, and the prefix index tunes itself by it.
	engines := metrics.NewStore(metrics.Options{Now: e.Now, Logger: e.Logger, Registerer: e.Registerer})
	return slices.Concat(
		[]scheduling.PluginType{
			tokens.Type(e.Registerer),
			approx.Type(approx.Options{
				CacheConfig: engines, Needs: engines.Need,
				Seed: e.HashSeed, Logger: e.Logger, Registerer: e.Registerer,
			}),
			ledger.Type(),
			gate.Type(),
		},
		engines.Types(),
		filter.Types(),
		scorer.Types(),
		picker.Types(),
		config.Later(),
	)
}

// ledgers walks the ledgers of a scheduler.
func ledgers(s *scheduling.Scheduler) iter.Seq2[string, *ledger.Plugin] {
	return func(yield func(string, *ledger.Plugin) bool) {
		for name, plugin := range s.Plugins() {
			if l, ok := plugin.(*ledger.Plugin); ok && !yield(name, l) {
				return
			}
		}
	}
}
