package server

import (
	"iter"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-epp/sluice/load/latency"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/rates"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/certs"
)

// registerGauges registers what is read at the moment of a scrape.
func (a *App) registerGauges() {
	reg := a.options.Registry
	gauge := func(name, help string, read func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	counter := func(name, help string, read func() float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
	}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "The version that runs; always 1.",
		ConstLabels: prometheus.Labels{"version": a.options.Version, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
	reg.MustRegister(ledger.NewCollector(a.ledgers()), rates.NewCollector(a.learners()),
		latency.NewCollector(a.predictors()), configInfo{a})

	gauge("sluice_open_streams", "HTTP requests whose ext_proc stream is open.", func() float64 { return float64(a.extproc.OpenStreams()) })
	gauge("sluice_held_charges", "Charges held for their predicted time, their stream having ended before the response.",
		func() float64 { return float64(a.extproc.HeldCharges()) })
	gauge("sluice_buffered_bytes", "What the requests being served hold, in bytes as server.maxBufferedBytes counts them.",
		func() float64 { return float64(a.extproc.BufferedBytes()) })
	gauge("sluice_decisions_kept", "The newest decisions, which can be explained.", func() float64 { n, _, _ := a.decisions.Size(); return float64(n) })
	gauge("sluice_decisions_kept_bytes", "What the newest decisions take, in bytes.", func() float64 { _, _, n := a.decisions.Size(); return float64(n) })
	gauge("sluice_decision_tails", "Clients that follow the decisions over the admin port (TailDecisions); at most 32.",
		func() float64 { n, _ := a.operator.Tails(); return float64(n) })
	counter("sluice_decision_tails_refused_total", "Calls of TailDecisions that were refused because there were 32 already.",
		func() float64 { _, n := a.operator.Tails(); return float64(n) })
	a.registerLimits(reg)
	for _, state := range []scheduling.EndpointState{scheduling.EndpointReady, scheduling.EndpointNotReady, scheduling.EndpointDraining} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_endpoints", Help: "Known endpoints, by state.", ConstLabels: prometheus.Labels{"state": state.String()},
		}, func() float64 { return float64(a.endpointsIn(state)) }))
	}

	if w := a.watcher; w != nil {
		gauge("sluice_config_last_reload_successful", "1 when the configuration file as it stands is what runs, else 0.",
			func() float64 { return boolValue(w.OK()) })
		gauge("sluice_config_last_reload_success_timestamp_seconds", "When the configuration in force was loaded, in Unix time.",
			func() float64 { return float64(w.LastSuccess().UnixNano()) / float64(time.Second) })
		counter("sluice_config_reloads_total", "Configurations taken over after the first.", func() float64 { return float64(w.Reloads.Load()) })
		counter("sluice_config_reload_failures_total", "Changed configurations that were refused.", func() float64 { return float64(w.Failures.Load()) })
	}

	reg.MustRegister(a.shadowSeries())
	gauge("sluice_discovery_duplicates", "Published endpoints left out because an earlier one has their address.", func() float64 { return float64(a.stats.Duplicates.Load()) })
	gauge("sluice_discovery_refused", "Published endpoints left out because the set is at its limit.", func() float64 { return float64(a.stats.Refused.Load()) })
	gauge("sluice_discovery_bad_entries", "Entries of endpoints files that were skipped.", func() float64 { return float64(a.stats.BadEntries.Load()) })
	gauge("sluice_discovery_files_failing", "Endpoints files whose present content is not what is served.", func() float64 { return float64(a.stats.FilesFailing.Load()) })
	gauge("sluice_discovery_names_failing", "DNS names whose last look-up failed or found nothing.", func() float64 { return float64(a.stats.NamesFailing.Load()) })
	counter("sluice_discovery_updates_total", "Sets of endpoints that sources have published.", func() float64 { return float64(a.stats.Updates.Load()) })
	counter("sluice_discovery_file_errors_total", "Contents of endpoints files that could not be taken over.", func() float64 { return float64(a.stats.FileErrors.Load()) })
	gauge("sluice_discovery_invalid", "Published endpoints left out because their address is not an ip:port.", func() float64 { return float64(a.stats.Invalid.Load()) })
	counter("sluice_discovery_file_loads_total", "Contents of endpoints files taken over.", func() float64 { return float64(a.stats.FileLoads.Load()) })
	counter("sluice_discovery_lookups_total", "DNS look-ups.", func() float64 { return float64(a.stats.Lookups.Load()) })
	counter("sluice_discovery_lookups_empty_total", "DNS look-ups whose answer was that there is nothing.", func() float64 { return float64(a.stats.LookupsEmpty.Load()) })
	counter("sluice_discovery_lookup_failures_total", "DNS look-ups that failed for a time.", func() float64 { return float64(a.stats.LookupFailures.Load()) })
	gauge("sluice_discovery_kubernetes_failing", "What is followed in Kubernetes and of which the API server did not answer the last question.", func() float64 { return float64(a.stats.KubeFailing.Load()) })
	counter("sluice_discovery_kubernetes_lists_total", "Whole lists read from the Kubernetes API server.", func() float64 { return float64(a.stats.KubeLists.Load()) })
	counter("sluice_discovery_kubernetes_watches_total", "Watches of the Kubernetes API server that went on where one broke off.", func() float64 { return float64(a.stats.KubeWatches.Load()) })
	counter("sluice_discovery_kubernetes_errors_total", "Questions that the Kubernetes API server did not answer.", func() float64 { return float64(a.stats.KubeErrors.Load()) })

	a.registerCertificates(reg)
}

// shadowSeries are the metrics of the second configuration's file, which are there only where one is named.
func (a *App) shadowSeries() prometheus.Collector {
	return &sometimes{when: func() bool { return a.config().Shadow.Config != "" }, all: []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_shadow_config_last_reload_successful", Help: "1 when shadow.config as it stands is what decides beside, else 0.",
		}, func() float64 { return boolValue(a.shadow.ok.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_shadow_config_reloads_total", Help: "Changes of shadow.config that were taken over.",
		}, func() float64 { return float64(a.shadow.changed.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_shadow_config_reload_failures_total", Help: "Changes of shadow.config that were refused, or that its new neighbour does not go with.",
		}, func() float64 { return float64(a.shadow.failed.Load()) }),
	}}
}

// sometimes are metrics that have series only at times.
type sometimes struct {
	when func() bool
	all  []prometheus.Collector
}

// Describe implements prometheus.Collector.
func (s *sometimes) Describe(to chan<- *prometheus.Desc) {
	for _, c := range s.all {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *sometimes) Collect(to chan<- prometheus.Metric) {
	if !s.when() {
		return
	}
	for _, c := range s.all {
		c.Collect(to)
	}
}

// registerCertificates shows the certificates of the listeners that have one.
func (a *App) registerCertificates(reg prometheus.Registerer) {
	for listener, keeper := range map[string]*certs.Keeper{"grpc": a.keeper, "admin": a.adminKeeper} {
		if keeper == nil {
			continue
		}
		of := prometheus.Labels{"listener": listener}
		reg.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "sluice_tls_certificate_expiry_timestamp_seconds", Help: "When a listener's certificate expires, in Unix time.", ConstLabels: of,
			}, func() float64 { return float64(keeper.Expiry().UnixNano()) / float64(time.Second) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sluice_tls_reloads_total", Help: "Changed certificates taken over.", ConstLabels: of,
			}, func() float64 { taken, _ := keeper.Reloads(); return float64(taken) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sluice_tls_reload_failures_total", Help: "Changed certificates refused.", ConstLabels: of,
			}, func() float64 { _, refused := keeper.Reloads(); return float64(refused) }),
		)
	}
}

// configInfo names the configuration in force.
type configInfo struct{ app *App }

var configInfoDesc = prometheus.NewDesc("sluice_config_info", "The configuration in force, by the hash that /config shows; always 1.", []string{"hash"}, nil)

// Describe implements prometheus.Collector.
func (configInfo) Describe(to chan<- *prometheus.Desc) { to <- configInfoDesc }

// Collect implements prometheus.Collector.
func (c configInfo) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(configInfoDesc, prometheus.GaugeValue, 1, c.app.current.Load().hash)
}

// ledgers walks the ledgers of the configuration in force at the moment of the walk.
func (a *App) ledgers() iter.Seq2[string, *ledger.Plugin] {
	return func(yield func(string, *ledger.Plugin) bool) {
		ledgers(a.current.Load().scheduler)(yield)
	}
}

func (a *App) learners() iter.Seq2[string, *rates.Plugin] {
	return func(yield func(string, *rates.Plugin) bool) {
		scheduling.PluginsOf[*rates.Plugin](a.current.Load().scheduler)(yield)
	}
}

// forgetEndpoints returns a watch of the pool that drops the metrics of endpoints that went.
func (a *App) forgetEndpoints() func(*scheduling.Snapshot) {
	known := map[string]bool{}
	return func(s *scheduling.Snapshot) {
		var left []string
		for address := range known {
			if s.ByAddress(address) == nil {
				left = append(left, address)
				delete(known, address)
			}
		}
		for _, e := range s.Endpoints {
			if e != nil {
				known[e.Address] = true
			}
		}
		a.metrics.EndpointsChanged(left)
	}
}

func (a *App) endpointsIn(state scheduling.EndpointState) int {
	n := 0
	for _, e := range a.pool.Snapshot().Endpoints {
		if e != nil && e.State == state {
			n++
		}
	}
	return n
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// registerLimits shows the bounds that hold, which are those of the start.
func (a *App) registerLimits(reg prometheus.Registerer) {
	s := a.config().Server
	show := func(name, help string, bounds map[string]int64) {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"key"})
		reg.MustRegister(v)
		for key, bound := range bounds {
			v.WithLabelValues(key).Set(float64(bound))
		}
	}
	show("sluice_limit", "The bounds that hold on numbers of things, by the configuration key that sets each.", map[string]int64{
		"server.maxOpenStreams": int64(s.MaxOpenStreams), "server.maxRequestHeaders": int64(s.MaxRequestHeaders),
		"server.maxBodyNesting": int64(s.MaxBodyNesting), "telemetry.maxModelLabels": int64(a.config().Telemetry.MaxModelLabels),
	})
	show("sluice_limit_bytes", "The bounds that hold on sizes, by the configuration key that sets each.", map[string]int64{
		"server.maxBufferedBytes": int64(a.limits.buffered), "server.maxRequestBodyBytes": int64(a.limits.body),
		"server.maxRequestHeaderBytes": int64(s.MaxRequestHeaderBytes), "server.maxEventBytes": int64(s.MaxEventBytes),
		"telemetry.maxDecisionBytes": int64(a.config().Telemetry.MaxDecisionBytes),
	})
}

// predictors walks the predictors of latency of the configuration in force, by name.
func (a *App) predictors() iter.Seq2[string, *latency.Plugin] {
	return func(yield func(string, *latency.Plugin) bool) {
		scheduling.PluginsOf[*latency.Plugin](a.current.Load().scheduler)(yield)
	}
}
