// Package tokens provides token-producer: what tokens a prompt has, or how many. Prompts that come as token ids are exact;
// the length of text is estimated from its bytes, by a ratio that is learnt per model from what engines report, or, where
// so configured, its tokens are asked of an engine, remembered, and held against what engines report.
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

// logger is the logger, or one that drops everything.
func (o Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

// Type is token-producer. To be called once per Registerer.
func Type(o Options) scheduling.PluginType {
	o.Logger = o.logger()
	m := newCollector()
	if o.Registerer != nil {
		o.Registerer.MustRegister(m, m.seconds)
	}
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Counts or estimates the tokens of a prompt.",
		DefaultFor: []string{scheduling.DataTypeOf[scheduling.TokenizedPrompt]()},
		Parameters: &Parameters{BytesPerToken: defaultBytesPerToken},
		New:        func(b *scheduling.Builder) (any, error) { return newProducer(b, &o, m) },
	}
}

// Producer is the plugin.
type Producer struct {
	name    string
	params  Parameters
	table   *table
	exact   *exact // nil: estimates only
	metrics *collector

	prompt  scheduling.ValueKey[scheduling.TokenizedPrompt]
	attempt scheduling.ValueKey[attempt]
	sample  scheduling.StateKey[sample]
}

// sample is what a flight can teach once its usage is known.
type sample struct {
	bytes int // of its text
	attempt
}

func newProducer(b *scheduling.Builder, o *Options, m *collector) (*Producer, error) {
	params := Parameters{BytesPerToken: defaultBytesPerToken}
	if err := b.Parameters(&params); err != nil {
		return nil, err
	}
	if err := params.complete(); err != nil {
		return nil, err
	}
	p := &Producer{name: b.Name, params: params, metrics: m}
	previous, _ := b.Previous.(*Producer)
	if previous != nil {
		p.table = previous.table
	} else {
		p.table = newTable(maxModels)
	}
	if params.VLLM != nil {
		p.exact = newExact(&params, o, b, previous, m.observer(b.Name))
	}
	p.prompt = scheduling.ProduceValue[scheduling.TokenizedPrompt](b)
	p.attempt = scheduling.ProduceValue[attempt](b)
	p.sample = scheduling.KeepState[sample](b)
	m.producers.Add(p.name, p)
	return p, nil
}

// ExactWithin is how long a request waits for its tokens; 0 where they are only estimated.
func (p *Producer) ExactWithin() time.Duration {
	if p.params.VLLM == nil {
		return 0
	}
	return max(p.params.VLLM.Timeout, p.params.VLLM.MMTimeout)
}

// Close takes the plugin out of the metrics and ends its calls.
func (p *Producer) Close() error {
	p.metrics.producers.Remove(p)
	if p.exact != nil {
		p.exact.close()
	}
	return nil
}

// SnapshotChanged makes the endpoints known, where they are asked for tokens.
func (p *Producer) SnapshotChanged(s *scheduling.Snapshot) {
	if p.exact != nil {
		p.exact.adopt(s)
	}
}

// Produce publishes the request's TokenizedPrompt. What is not known is estimated: an error says why tokens that were to be
// known are not.
func (p *Producer) Produce(ctx context.Context, c *scheduling.Cycle) (fault error) {
	r := c.Request
	out := scheduling.TokenizedPrompt{BytesPerToken: p.table.of(r.Model, p.params.BytesPerToken)}
	switch {
	case r.TokenCount > 0:
		out.Tokens, out.Count, out.Exact = r.Tokens, r.TokenCount, r.PromptBytes == 0
		out.Count += estimate(r.PromptBytes, out.BytesPerToken)
		if p.exact != nil && out.Exact && !r.Trial {
			p.exact.counts.exact[sourceIDs].Add(1)
		}
	case len(r.Body) == 0:
		p.estimate(r, &out)
	default:
		if fault = p.ask(ctx, c, &out); !out.Exact {
			p.estimate(r, &out)
		}
	}
	p.prompt.In(c).Set(out)
	return fault
}

// estimate fills in how many tokens a prompt may have.
func (p *Producer) estimate(r *scheduling.Request, out *scheduling.TokenizedPrompt) {
	switch {
	case r.PromptBytes > 0:
		out.Count = estimate(r.PromptBytes, out.BytesPerToken)
	case len(r.Body) > 0:
		if !r.Trial {
			p.table.guessed.Add(1)
		}
		out.Count = min(maxGuess, estimate(len(r.Body), out.BytesPerToken))
	default:
		out.Exact = true // no body, no tokens
	}
}

// ask fills in a prompt's tokens where an engine is asked for them and they are known in time.
func (p *Producer) ask(ctx context.Context, c *scheduling.Cycle, out *scheduling.TokenizedPrompt) error {
	if p.exact == nil {
		return nil
	}
	var at attempt
	found, fault := p.exact.prompt(ctx, c, &at)
	p.attempt.In(c).Set(at)
	if found == nil {
		return fault
	}
	out.Tokens, out.Features, out.Count, out.Exact = found.Tokens, found.Features, found.Count, true
	return nil
}

// estimate is the number of tokens in so many bytes: at least 1 where there are any.
func estimate(bytes int, bytesPerToken float64) int {
	if bytes <= 0 {
		return 0
	}
	return max(1, int(math.Round(float64(bytes)/bytesPerToken)))
}

// Committed keeps what the end of the flight is held against.
func (p *Producer) Committed(c *scheduling.Cycle, f *scheduling.Flight) {
	s := p.sample.Of(f)
	if r := c.Request; r.TokenCount == 0 {
		s.bytes = r.PromptBytes
	}
	s.attempt, _ = p.attempt.In(c).Get()
}

// FirstToken teaches nothing.
func (p *Producer) FirstToken(*scheduling.Flight, time.Duration) {}

// Done learns from a whole, successful answer. The engine's count has the tokens of the chat template in it, which the
// text does not: the ratio takes them in, as the load that they are.
func (p *Producer) Done(f *scheduling.Flight, _ time.Duration) {
	o := f.Outcome
	s := p.sample.Of(f)
	if p.exact != nil {
		p.exact.check(f, &s.attempt)
	}
	bytes := s.bytes
	*s = sample{} // a finished flight holds no prompt
	if bytes == 0 || o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299 || o.Usage.PromptTokens <= 0 {
		return
	}
	p.table.learn(f.Model, p.params.BytesPerToken, bytes, o.Usage.PromptTokens)
}
