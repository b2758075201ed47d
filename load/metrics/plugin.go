package metrics

import (
	"context"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// The plugins' types in configuration files.
const (
	TypeName     = "engine-metrics-producer"
	InfoTypeName = "engine-info-producer"
)

// Types are the store's plugin types.
func (s *Store) Types() []scheduling.PluginType {
	load, info := DefaultParameters(), DefaultInfoParameters()
	return []scheduling.PluginType{
		{
			Type:       TypeName,
			Summary:    "Reads how many requests wait and run on each engine, and how full its KV cache is, from its metrics page.",
			DefaultFor: []string{scheduling.DataTypeOf[scheduling.EngineMetrics]()},
			Parameters: &load,
			New:        func(b *scheduling.Builder) (any, error) { return newProducer(s, b) },
		},
		{
			Type:       InfoTypeName,
			Summary:    "Reads now and then what seldom changes of an engine: the shape of its KV cache, restarts and sleep.",
			DefaultFor: []string{scheduling.DataTypeOf[EngineInfo]()},
			Parameters: &info,
			New:        func(b *scheduling.Builder) (any, error) { return newInfoProducer(s, b) },
		},
	}
}

// Producer is engine-metrics-producer. Its goroutines run from the first snapshot to Close.
type Producer struct {
	poller  *poller
	metrics scheduling.Key[scheduling.EngineMetrics]
}

func newProducer(s *Store, b *scheduling.Builder) (*Producer, error) {
	params := DefaultParameters()
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	settings, err := params.complete()
	if err != nil {
		return nil, err
	}
	return &Producer{newPoller(s, settings), scheduling.ProduceColumn[scheduling.EngineMetrics](b)}, nil
}

// Produce publishes what the candidates' engines last said, with its age. Engines that have said nothing, or nothing for
// too long, stay absent. It waits for nobody and takes no lock.
func (p *Producer) Produce(_ context.Context, c *scheduling.Cycle) error {
	column, staleAfter := p.metrics.In(c), p.poller.staleAfter()
	table := *p.poller.store.table.Load()
	for i := c.Candidates.Next(0); i >= 0; i = c.Candidates.Next(i + 1) {
		if i >= len(table) || table[i] == nil || table[i].generation != c.Snapshot.Endpoints[i].Generation {
			continue
		}
		r := table[i].last.Load()
		if r == nil {
			continue
		}
		age := max(0, c.Now-r.At) // a page may have come in since the request began
		if age > staleAfter {
			continue
		}
		m := r.Load
		m.AgeMs = float64(age) / float64(time.Millisecond)
		if m.Has(scheduling.MetricsAdapters) && c.Request.Model != "" {
			m.Adapter = r.Adapters.UseOf(c.Request.Model)
		}
		column.Set(i, m)
	}
	return nil
}

// SnapshotChanged reads the pages of a new set of endpoints.
func (p *Producer) SnapshotChanged(s *scheduling.Snapshot) { p.poller.follow(s) }

// Close ends the scrapes.
func (p *Producer) Close() error {
	p.poller.close()
	return nil
}

// EngineInfo is the value under which engine-info-producer stands in the graph: a plugin that reads a Store's CacheConfig,
// Adapters or OnCacheLost depends on it, see Store.Need.
type EngineInfo struct{ *Store }

// Need makes the plugin that b builds depend on the store being filled: where nothing else reads the engines' pages, an
// engine-info-producer is created.
func (s *Store) Need(b *scheduling.Builder) { scheduling.ConsumeValue[EngineInfo](b, InfoTypeName, "") }

// InfoProducer is engine-info-producer. Its goroutines run from the first snapshot to Close.
type InfoProducer struct {
	poller *poller
	info   scheduling.ValueKey[EngineInfo]
}

func newInfoProducer(s *Store, b *scheduling.Builder) (*InfoProducer, error) {
	params := DefaultInfoParameters()
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	settings, err := params.complete()
	if err != nil {
		return nil, err
	}
	return &InfoProducer{newPoller(s, settings), scheduling.ProduceValue[EngineInfo](b)}, nil
}

// Produce says where the engines' information is.
func (p *InfoProducer) Produce(_ context.Context, c *scheduling.Cycle) error {
	p.info.In(c).Set(EngineInfo{p.poller.store})
	return nil
}

// SnapshotChanged reads the pages of a new set of endpoints.
func (p *InfoProducer) SnapshotChanged(s *scheduling.Snapshot) { p.poller.follow(s) }

// Close ends the scrapes.
func (p *InfoProducer) Close() error {
	p.poller.close()
	return nil
}

var (
	_ scheduling.Producer = (*Producer)(nil)
	_ scheduling.Watcher  = (*Producer)(nil)
	_ scheduling.Closer   = (*Producer)(nil)
	_ scheduling.Producer = (*InfoProducer)(nil)
	_ scheduling.Watcher  = (*InfoProducer)(nil)
	_ scheduling.Closer   = (*InfoProducer)(nil)
)
