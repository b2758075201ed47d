// Package precise provides precise-prefix-cache-producer: it knows what each engine's prefix cache holds from the engine's
// own KV events. Package chain is the index; a source follows one engine's events into it, and the producer looks prompts
// up.
package precise

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/scheduling"
)

// CacheConfig knows what engines say of the shape of their KV cache, as approx.CacheConfig does.
type CacheConfig = approx.CacheConfig

// Options are what the plugin is given by the process.
type Options struct {
	// Now is the process's monotonic clock, that of scheduling.Cycle.Now.
	Now func() time.Duration
	// CacheConfig tells block sizes before the first event does; nil means that no engine says anything.
	CacheConfig CacheConfig
	// Approximate makes the index that serves prompts whose tokens are not known.
	Approximate *approx.Family
	// Seed keys block hashes where hashSeed is not configured. The same in the whole process, so that a reload keeps
	// the index; see blockhash.NewSeed.
	Seed blockhash.Seed
	// Transport carries the questions to engines about their events and models; nil means one of the plugin's own.
	Transport http.RoundTripper
	// Logger may be nil.
	Logger *slog.Logger
	// Audits shows what engines report against what was predicted; nil means nobody does.
	Audits *audit.Collector
	// Registerer is where the index's metrics go; nil means nowhere.
	Registerer prometheus.Registerer

	// Follow follows the engines' events; nil means kvevents.Follow. A simulation, whose engines have no sockets, has its own.
	Follow Follower
	// Virtual says that Now is not the real time: nothing is done by the real one, and what is due is done at the next request.
	Virtual bool
}

// Type is precise-prefix-cache-producer. To be called once per Registerer.
func Type(o Options) scheduling.PluginType {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 5 * time.Second,
		}
	}
	if o.Follow == nil {
		o.Follow = func(e *scheduling.Endpoint, c kvevents.Config, opts kvevents.Options, open func(int) kvevents.Sink) Feed {
			return kvevents.Follow(e, c, opts, open)
		}
	}
	producers := &collector{}
	if o.Registerer != nil {
		o.Registerer.MustRegister(producers)
	}
	defaults := defaultParameters()
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Knows what each endpoint's prefix cache holds from its engine's KV events.",
		Parameters: &defaults,
		New:        func(b *scheduling.Builder) (any, error) { return newProducer(b, o, producers) },
	}
}

func newProducer(b *scheduling.Builder, o Options, producers *collector) (*Producer, error) {
	params := defaultParameters()
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	if err := params.complete(); err != nil {
		return nil, err
	}
	p := &Producer{name: b.Name, params: params, config: o.CacheConfig, now: o.Now, logger: o.Logger, types: producers}
	p.tokens = scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "tokenProducerName", params.TokenProducerName)
	p.blocks = scheduling.ProduceValue[promptValue](b)
	p.info = scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
	p.state = scheduling.KeepState[flightState](b)
	previous, _ := b.Previous.(*Producer)
	var before *approx.Producer
	if previous != nil {
		before = previous.fallback
	}
	p.fallback = o.Approximate.Embed(b, params.HashSeed, p.tokens, p.info, before)
	var err error
	if p.hub, err = firstHub(p, previous, o); err != nil {
		return nil, errors.Join(err, p.fallback.Close())
	}
	configured := 0
	if params.BlockSizeTokens != defaultBlock { // the default is nobody's word
		configured = params.BlockSizeTokens
	}
	p.hub.configured.Store(int32(configured))
	p.audit = &audit.Table{}
	if previous != nil {
		p.audit = previous.audit
	}
	p.withdraw = o.Audits.Add(p.name, audit.Precise, p.audit)
	producers.producers.Add(p.name, p)
	return p, nil
}

// firstHub is the hub of the plugin that this one replaces where all that it depends on is the same, else a new one.
func firstHub(p *Producer, previous *Producer, o Options) (*hub, error) {
	seed := o.Seed
	if p.params.HashSeed != "" {
		seed = blockhash.SeedOf(p.params.HashSeed)
	}
	tiers, err := newTierWeights(p.params.Tiers, p.params.OtherTier)
	if err != nil {
		return nil, err
	}
	if previous != nil {
		h := previous.hub
		if h.keys.seed == seed && h.tiers.equal(tiers) && h.maxBlocks == p.params.MaxBlocksPerEndpoint && h.maxParked == p.params.MaxParkedBlocks &&
			previous.params.KVEvents == p.params.KVEvents && h.join() {
			return h, nil
		}
	}
	h := newHub(seed, tiers, p.params.MaxBlocksPerEndpoint)
	h.maxParked = p.params.MaxParkedBlocks
	h.logger, h.follow, h.users, h.config = o.Logger, o.Follow, 1, feedConfig(&p.params.KVEvents)
	h.client = &http.Client{
		Transport: o.Transport, Timeout: modelsTimeout,
		// An engine answers for itself: it cannot make this process ask somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.cacheConfig, h.clock = o.CacheConfig, o.Now
	if h.virtual = o.Virtual; !h.virtual {
		h.work.Go(h.watch)
	}
	h.bind = p.params.KVEvents.Bind
	if previous != nil {
		h.listener = previous.hub.share(h.bind)
	}
	o.Logger.Info("precise prefix index starts empty", "producer", p.name, "hash_seed_id", seed.ID())
	return h, nil
}
