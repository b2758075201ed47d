package precise

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/scheduling"
)

// collector reads the producers when they are scraped, so that neither requests nor events pay for a gauge.
type collector struct{ producers scheduling.Alive[*Producer] }

var (
	label      = []string{"producer"}
	labelState = []string{"producer", "state"}
	labelWhat  = []string{"producer", "what"}
)

func desc(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descSources = desc("sluice_kv_sources",
		"Engines (endpoints, data-parallel ranks) whose KV events are followed, by how far their knowledge can be trusted.", labelState)
	descDistinct    = desc("sluice_kv_index_blocks", "Distinct KV blocks in the precise prefix index, with the places that are kept for blocks that are gone.", label)
	descHeld        = desc("sluice_kv_index_holder_blocks", "KV blocks in the precise prefix index, counted once for every engine and tier that has them.", label)
	descChains      = desc("sluice_kv_index_chains", "Runs of blocks that the precise prefix index consists of.", label)
	descBytes       = desc("sluice_kv_index_bytes", "Memory of the precise prefix index with the tables of all engines.", label)
	descRouted      = desc("sluice_kv_index_routed_blocks", "KV blocks that count as present because a prompt was sent, without the engine's word.", label)
	descParked      = desc("sluice_kv_index_parked_blocks", "KV blocks that wait for an event about their parent.", label)
	descBlocks      = desc("sluice_kv_event_blocks_total", "KV blocks in events, by what became of them.", labelWhat)
	descMessages    = desc("sluice_kv_event_messages_total", "Messages of engines' event sockets, by what became of them.", labelWhat)
	descConnections = desc("sluice_kv_connections_total", "Connections to engines' event sockets, by what became of them.", labelWhat)
	descReplays     = desc("sluice_kv_replays_total", "Replays that were asked for, by what became of them.", labelWhat)
	descForgets     = desc("sluice_kv_forgets_total", "How often all that was known of an engine became void, by cause.", []string{"producer", "cause"})

	descNoTokens   = desc("sluice_prefix_cache_approximate_requests_total", "Requests looked up in the approximate index, since the prompt's exact tokens were not known.", label)
	descCapped     = desc("sluice_prefix_cache_capped_prompts_total", "Prompts longer than maxPrefixTokens; what lies beyond counts as uncached.", label)
	descAlarms     = desc("sluice_kv_alarms", "Engines that something about their KV events has to be looked at for, by what it is.", []string{"producer", "alarm"})
	allDescriptors = []*prometheus.Desc{
		descSources, descDistinct, descHeld, descChains, descBytes, descRouted, descParked, descBlocks, descMessages,
		descForgets, descConnections, descReplays, descNoTokens, descCapped, descAlarms,
	}
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range allDescriptors {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, p := range c.producers.Current() {
		p.collect(to)
	}
}

func (p *Producer) collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, append([]string{p.name}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		send(d, prometheus.GaugeValue, float64(value), labels...)
	}
	count := func(d *prometheus.Desc, value int64, labels ...string) {
		send(d, prometheus.CounterValue, float64(value), labels...)
	}
	view := p.hub.view()
	for _, state := range cursor.States() {
		gauge(descSources, view.states[state], state.String())
	}
	gauge(descDistinct, view.sizes.Positions)
	gauge(descHeld, int(p.hub.stats.blocks.Load()))
	gauge(descChains, view.sizes.Chains)
	gauge(descBytes, view.sizes.Bytes+view.tables)
	gauge(descRouted, view.routed)
	gauge(descParked, int(p.hub.stats.parked.Load()))
	for a, name := range alarmNames {
		gauge(descAlarms, int(p.hub.alarms[a].Load()), name)
	}
	s := &p.hub.stats
	for _, c := range []struct {
		what  string
		value int64
	}{
		{"applied", s.applied.Load()}, {"joined", s.joined.Load()}, {"unjoined", s.unjoined.Load()},
		{"orphaned", s.orphans.Load()}, {"orphan_dropped", s.orphansDropped.Load()},
		{"unknown_removal", s.unknownRemovals.Load()}, {"uneven", s.uneven.Load()}, {"partial", s.partial.Load()},
		{"other_group", s.otherGroup.Load()}, {"refused", s.refused.Load()}, {"evicted", s.evicted.Load()},
		{"repeated", s.reported.Load()}, {"doubted", s.doubted.Load()},
	} {
		count(descBlocks, c.value, c.what)
	}
	count(descNoTokens, p.noTokens.Load())
	count(descCapped, p.capped.Load())
	p.hub.collectFeeds(count)
}

// collectFeeds sends what the feeds have counted.
func (h *hub) collectFeeds(count func(d *prometheus.Desc, value int64, labels ...string)) {
	f := &h.feeds
	count(descMessages, f.Messages.Load(), "received")
	count(descMessages, f.Duplicates.Load(), "duplicate")
	count(descMessages, f.BadMessages.Load(), "unreadable")
	count(descMessages, f.TooLarge.Load(), "too_large")
	count(descMessages, f.BadEvents.Load(), "bad_event")
	count(descMessages, f.UnknownEvents.Load(), "unknown_event")
	count(descMessages, f.Dropped.Load(), "dropped")
	count(descMessages, f.Gaps.Load(), "after_gap")
	count(descMessages, f.Unattributed.Load(), "unattributed")
	count(descConnections, f.Connections.Load(), "opened")
	count(descConnections, f.ConnectFailures.Load(), "failed")
	count(descReplays, f.Replays.Load(), "begun")
	count(descReplays, f.ReplayFailures.Load(), "failed")
	for cause := cursor.Cause(1); cause < cursor.NumCauses; cause++ {
		count(descForgets, f.Forgets(cause), cause.String())
	}
}
