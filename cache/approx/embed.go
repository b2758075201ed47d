package approx

import (
	"log/slog"

	"github.com/sluice-epp/sluice/scheduling"
)

// Family makes producers whose indexes show up in one set of metrics.
type Family struct {
	options Options
	indexes *collector
}

// NewFamily returns a family; to be called once per Registerer.
func NewFamily(o Options) *Family {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Family{options: o, indexes: &collector{}}
	if o.Registerer != nil {
		o.Registerer.MustRegister(f.indexes)
	}
	return f
}

// Type is approx-prefix-cache-producer.
func (f *Family) Type() scheduling.PluginType {
	defaults := defaultParameters()
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Estimates each endpoint's prefix cache from the prompts that were sent to it.",
		DefaultFor: []string{scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]()},
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			params := defaultParameters()
			if err := b.Parameters(&params); err != nil {
				return nil, err
			}
			if err := params.complete(); err != nil {
				return nil, err
			}
			previous, _ := b.Previous.(*Producer)
			tokens := scheduling.ConsumeValue[scheduling.TokenizedPrompt](b, "tokenProducerName", params.TokenProducerName)
			return f.newProducer(b, params, tokens, scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b), previous), nil
		},
	}
}

// embeddedRuns is MaxPrefixBlocksToMatch of an embedded producer, which is told of every prompt and asked for few: a run is at
// most an eighth of what lies before it.
const embeddedRuns = 96

// Embed makes a producer with default parameters, but for fewer entries a prompt, that is a part of the plugin being built: it fills a column of that
// plugin, which calls it for the requests that it wants to be looked up so, through all of their way. previous is the
// part of the plugin that this one replaces, or nil.
func (f *Family) Embed(b *scheduling.Builder, hashSeed string, tokens scheduling.ValueKey[scheduling.TokenizedPrompt],
	column scheduling.Key[scheduling.PrefixCacheMatchInfo], previous *Producer) *Producer {
	params := defaultParameters()
	params.HashSeed = hashSeed
	params.MaxPrefixBlocksToMatch = embeddedRuns
	return f.newProducer(b, params, tokens, column, previous)
}
