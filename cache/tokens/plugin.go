// Package tokens provides token-producer: how many tokens a prompt has. Prompts that come as token ids are counted
// exactly; the length of text is estimated from its bytes, by a ratio that is learnt per model from what engines report.
package tokens

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "token-producer"

// maxGuess is the largest estimate, in tokens, for a request whose text is not known: the bytes of its body are mostly
// something else than text (an image, a recording), so they are taken for text only up to here.
const maxGuess = 1024

// Options are what the plugin is given by the process.
type Options struct {
	// Registerer is where metrics go; nil means nowhere.
	Registerer prometheus.Registerer
	// Logger may be nil.
	Logger *slog.Logger
	// Transport carries the calls of render routes; nil means one of the plugin's own.
	Transport http.RoundTripper
}

// Type is token-producer. To be called once per Registerer.
func Type(o Options) scheduling.PluginType {
	ratios := &collector{}
	if o.Registerer != nil {
		o.Registerer.MustRegister(ratios)
	}
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Counts or estimates the tokens of a prompt.",
		DefaultFor: []string{scheduling.DataTypeOf[scheduling.TokenizedPrompt]()},
		Parameters: &Parameters{BytesPerToken: defaultBytesPerToken},
		New:        func(b *scheduling.Builder) (any, error) { return newProducer(b, ratios) },
	}
}

// Producer is the plugin.
type Producer struct {
	name   string
	params Parameters
	table  *table
	ratios *collector

	prompt scheduling.ValueKey[scheduling.TokenizedPrompt]
	sample scheduling.StateKey[sample]
}

// sample is what a flight can teach once its usage is known.
type sample struct{ bytes int }

func newProducer(b *scheduling.Builder, ratios *collector) (*Producer, error) {
	params := Parameters{BytesPerToken: defaultBytesPerToken}
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	if err := params.complete(); err != nil {
		return nil, err
	}
	p := &Producer{name: b.Name, params: params, ratios: ratios}
	if previous, ok := b.Previous.(*Producer); ok {
		p.table = previous.table
	} else {
		p.table = newTable(maxModels)
	}
	p.prompt = scheduling.ProduceValue[scheduling.TokenizedPrompt](b)
	p.sample = scheduling.KeepState[sample](b)
	ratios.producers.Add(p.name, p)
	return p, nil
}

// Close takes the plugin out of the metrics.
func (p *Producer) Close() error {
	p.ratios.producers.Remove(p)
	return nil
}

// Produce publishes the request's TokenizedPrompt.
func (p *Producer) Produce(_ context.Context, c *scheduling.Cycle) error {
	r := c.Request
	bytesPerToken := p.table.of(r.Model, p.params.BytesPerToken)
	out := scheduling.TokenizedPrompt{BytesPerToken: bytesPerToken}
	switch {
	case r.TokenCount > 0:
		out.Tokens, out.Count, out.Exact = r.Tokens, r.TokenCount, r.PromptBytes == 0
		out.Count += estimate(r.PromptBytes, bytesPerToken)
	case r.PromptBytes > 0:
		out.Count = estimate(r.PromptBytes, bytesPerToken)
	case len(r.Body) > 0:
		p.table.guessed.Add(1)
		out.Count = min(maxGuess, estimate(len(r.Body), bytesPerToken))
	default:
		out.Exact = true // no body, no tokens
	}
	p.prompt.In(c).Set(out)
	return nil
}

// estimate is the number of tokens in so many bytes: at least 1 where there are any.
func estimate(bytes int, bytesPerToken float64) int {
	if bytes <= 0 {
		return 0
	}
	return max(1, int(math.Round(float64(bytes)/bytesPerToken)))
}

// Committed keeps the length of the text for the end of the flight.
func (p *Producer) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	if r := c.Request; r.TokenCount == 0 {
		p.sample.Of(f).bytes = r.PromptBytes
	}
}

// FirstToken teaches nothing.
func (p *Producer) FirstToken(*scheduling.Flight, time.Duration) {}

// Done learns from a whole, successful answer. The engine's count has the tokens of the chat template in it, which the
// text does not: the ratio takes them in, as the load that they are.
func (p *Producer) Done(f *scheduling.Flight, _ time.Duration) {
	o := f.Outcome
	bytes := p.sample.Of(f).bytes
	if bytes == 0 || o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299 || o.Usage.PromptTokens <= 0 {
		return
	}
	p.table.learn(f.Model, p.params.BytesPerToken, bytes, o.Usage.PromptTokens)
}
