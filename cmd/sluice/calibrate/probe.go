package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat/distuv"
)

// ProbeOptions say whom to ask, and how much at most.
type ProbeOptions struct {
	// Endpoint is the engine's URL, Model one that it serves; empty takes its first.
	Endpoint, Model string
	// API is APICompletions or APIChat.
	API string
	// Header is sent with each request.
	Header http.Header
	// MaxRequests, MaxTokens (of prompts) and Timeout bound what is asked. What does not fit is not asked.
	MaxRequests, MaxTokens int
	Timeout                time.Duration
	// LongestPrompt is the longest prompt to send, in tokens.
	LongestPrompt int
	// Typical is the length of the prefix, in tokens, for which the break-even is told.
	Typical int
	// Alpha prices what recomputing takes from requests to come, in units of its own time.
	Alpha float64
}

// Validate reports what is out of range.
func (o *ProbeOptions) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	_, err := baseOf(o.Endpoint)
	errs = append(errs, err)
	check(o.API == APICompletions || o.API == APIChat, "api: must be %s or %s, got %q", APICompletions, APIChat, o.API)
	check(o.MaxRequests > 0, "max-requests: must be above 0, got %d", o.MaxRequests)
	check(o.MaxTokens > 0, "max-tokens: must be above 0, got %d", o.MaxTokens)
	check(o.Timeout > 0, "timeout: must be above 0, got %v", o.Timeout)
	check(o.LongestPrompt >= shortest, "longest-prompt: must be at least %d, got %d", shortest, o.LongestPrompt)
	check(o.Typical > 0, "typical-prefix: must be above 0, got %d", o.Typical)
	check(o.Alpha >= 0 && o.Alpha <= 1000, "alpha: must be from 0 to 1000, got %v", o.Alpha)
	return errors.Join(errs...)
}

// Plan is what a probe asks: each length a few times, alone, a new prompt and then the same again; and then several new prompts
// at once.
type Plan struct {
	// Model is whom it asks for.
	Model string
	// Lengths are those of the prompts, in tokens, each asked Repeats times and again.
	Lengths []int
	Repeats int
	// Rounds is how often Together prompts of AtOnce tokens are sent at once.
	Rounds, Together, AtOnce int
}

// Requests is how many requests a plan makes, with the first, which only counts tokens.
func (p Plan) Requests() int { return 1 + 2*len(p.Lengths)*p.Repeats + p.Rounds*p.Together }

// Tokens is how many prompt tokens they have, about: words make prompts, and how many tokens they are is an estimate.
func (p Plan) Tokens() int {
	sum := sizing
	for _, n := range p.Lengths {
		sum += 2 * n * p.Repeats
	}
	return int(headroom * float64(sum+p.Rounds*p.Together*p.AtOnce))
}

// The shape of a probe.
const (
	shortest = 128 // tokens of the shortest prompt
	sizing   = 128 // words of the first prompt, which tells how many tokens they are
	margin   = 64  // tokens left for the answer and the chat template

	headroom = 1.05 // by how much a prompt may be longer than meant
)

// planFor is the largest plan within the bounds.
func planFor(o *ProbeOptions, model string, longest int) (Plan, error) {
	most := o.LongestPrompt
	if longest > 0 {
		most = min(most, int(float64(longest-margin)/headroom))
	}
	p := Plan{Model: model, Repeats: 3, Rounds: 3, Together: 8}
	for n := most; n >= shortest && len(p.Lengths) < 5; n /= 2 {
		p.Lengths = append(p.Lengths, n)
	}
	slices.Reverse(p.Lengths)
	if len(p.Lengths) < 2 {
		return p, fmt.Errorf("prompts of %d tokens at most are too short to measure with", most)
	}
	p.AtOnce = p.Lengths[len(p.Lengths)-1]
	for _, smaller := range []func() bool{
		func() bool { return less(&p.Together, 4) }, func() bool { return less(&p.Repeats, 2) }, func() bool { return less(&p.Rounds, 2) },
		func() bool { // the longest
			n := len(p.Lengths)
			if n <= 2 {
				return false
			}
			p.Lengths = p.Lengths[:n-1]
			p.AtOnce = p.Lengths[n-2]
			return true
		},
		func() bool { return less(&p.Together, 2) }, func() bool { return less(&p.Repeats, 1) }, func() bool { return less(&p.Rounds, 1) },
	} {
		for p.Requests() > o.MaxRequests || p.Tokens() > o.MaxTokens {
			if !smaller() {
				break
			}
		}
	}
	if p.Requests() > o.MaxRequests || p.Tokens() > o.MaxTokens {
		return p, fmt.Errorf("the smallest probe makes %d requests of %d prompt tokens together, which is more than --max-requests %d or --max-tokens %d",
			p.Requests(), p.Tokens(), o.MaxRequests, o.MaxTokens)
	}
	return p, nil
}

// less lowers a number by one, but not below a bound.
func less(n *int, bound int) bool {
	if *n <= bound {
		return false
	}
	*n--
	return true
}

// Prober asks a live endpoint.
type Prober struct {
	options  ProbeOptions
	client   client
	plan     Plan
	rng      *rand.Rand
	perToken float64 // words
	probe    Probe
	// Progress, where not nil, is told what is done.
	Progress func(done string)
}

// Probe is what a live endpoint was asked and how it answered.
type Probe struct {
	Endpoint     string  `json:"endpoint"`
	Model        string  `json:"model"`
	Requests     int     `json:"requests"`
	PromptTokens int     `json:"prompt_tokens"`
	Alone        []Alone `json:"alone"`
	Rounds       []Round `json:"rounds"`
	// Stopped says which bound ended it early; empty where it came to its end.
	Stopped string `json:"stopped,omitempty"`
}

// Alone is a prompt that was sent alone, and again.
type Alone struct {
	PromptTokens int     `json:"prompt_tokens"`
	ColdMs       float64 `json:"cold_ms"`
	WarmMs       float64 `json:"warm_ms"`
	// CachedTokens is what the engine found of the second in its cache; -1 where it does not say.
	CachedTokens int `json:"cached_tokens"`
}

// Round is several prompts that were sent at once.
type Round struct {
	Requests     int     `json:"requests"`
	PromptTokens int     `json:"prompt_tokens"`
	Ms           float64 `json:"ms"`
	PerS         float64 `json:"prompt_tokens_per_s"`
}

// NewProber asks an endpoint for its models and plans.
func NewProber(ctx context.Context, o ProbeOptions) (*Prober, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	base, err := baseOf(o.Endpoint)
	if err != nil {
		return nil, err
	}
	p := &Prober{
		options: o, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), // other prompts than any probe before
		client: client{base: base, api: o.API, model: o.Model, header: o.Header, http: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 16, Proxy: http.ProxyFromEnvironment},
			// The headers, a key among them, are for the endpoint alone: a redirect is an answer like any other that is not 200.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}},
	}
	ctx, cancel := context.WithTimeout(ctx, min(o.Timeout, 15*time.Second))
	defer cancel()
	model, longest, err := p.client.served(ctx)
	if err != nil {
		return nil, err
	}
	p.client.model = model
	p.plan, err = planFor(&o, model, longest)
	p.probe = Probe{Endpoint: base, Model: model}
	return p, err
}

// Plan is what Run will ask.
func (p *Prober) Plan() Plan { return p.plan }

// words are frequent enough to be one token each in most vocabularies.
var words = strings.Fields(`time year people way day man thing woman life child world school state family student group country problem
	hand part place case week company system program question work government number night point home water room mother area money
	story fact month lot right study book eye job word business issue side kind head house service friend father power hour game line
	end member law car city community name president team minute idea body information back parent face others level office door
	health person art war history party result change morning reason research girl guy moment air teacher force education`)

// prompt is a new prompt of so many tokens, about.
func (p *Prober) prompt(tokens int) string {
	var b strings.Builder
	for range max(1, int(math.Round(float64(tokens)*p.perToken))) {
		b.WriteString(words[p.rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return strings.TrimSuffix(b.String(), " ")
}

// Run asks, as planned, and says what was measured. It ends at the bounds, with ctx, and at the first error.
func (p *Prober) Run(ctx context.Context) (*Report, error) {
	defer p.client.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.Timeout, errTimeout)
	defer cancel()
	err := p.measure(ctx)
	switch timeout := errors.Is(context.Cause(ctx), errTimeout); {
	case err == nil:
		return p.report(), nil
	case !timeout && !errors.Is(err, errMost):
		return nil, err
	case !p.enough() && timeout:
		return nil, fmt.Errorf("%w of %v: too little was measured by then: %w", errTimeout, p.options.Timeout, err)
	case !p.enough():
		return nil, fmt.Errorf("%w: too little was measured by then", err)
	case timeout:
		p.probe.Stopped = fmt.Sprintf("--timeout %v", p.options.Timeout)
	default:
		p.probe.Stopped = fmt.Sprintf("--max-tokens %d", p.options.MaxTokens)
	}
	return p.report(), nil
}

var (
	errTimeout = errors.New("the probe came to its timeout")
	errMost    = errors.New("prompts became longer than planned: the next would be above --max-tokens")
)

// enough reports whether what was measured makes a report: two lengths and a round.
func (p *Prober) enough() bool {
	lengths := map[int]bool{}
	for _, a := range p.probe.Alone {
		lengths[a.PromptTokens] = true
	}
	return len(lengths) >= 2 && len(p.probe.Rounds) > 0
}

func (p *Prober) measure(ctx context.Context) error {
	p.perToken = 1
	first, err := p.ask(ctx, p.prompt(sizing))
	if err != nil {
		return err
	}
	p.learn(sizing, first)
	for range p.plan.Repeats { // the short ones of each repeat first
		for _, n := range p.plan.Lengths {
			if err := p.alone(ctx, n); err != nil {
				return err
			}
		}
	}
	for range p.plan.Rounds {
		if err := p.round(ctx); err != nil {
			return err
		}
	}
	return nil
}

// mostPerToken bounds how many words are taken for a token, and so what is sent, whatever an engine says that it counted.
const mostPerToken = 2

// learn takes from a prompt of so many words how many make a token.
func (p *Prober) learn(words int, a answer) {
	p.perToken = min(mostPerToken, float64(words)/float64(a.prompt))
}

// room reports an error where so many more tokens would be above the bound.
func (p *Prober) room(tokens int) error {
	if p.probe.PromptTokens+tokens > p.options.MaxTokens {
		return errMost
	}
	return nil
}

func (p *Prober) ask(ctx context.Context, prompt string) (answer, error) {
	a, err := p.client.ask(ctx, prompt)
	if err == nil {
		p.probe.Requests++
		p.probe.PromptTokens += a.prompt
	}
	return a, err
}

// alone sends a new prompt, and again.
func (p *Prober) alone(ctx context.Context, tokens int) error {
	if err := p.room(2 * tokens); err != nil {
		return err
	}
	prompt := p.prompt(tokens)
	cold, err := p.ask(ctx, prompt)
	if err != nil {
		return err
	}
	p.learn(strings.Count(prompt, " ")+1, cold)
	warm, err := p.ask(ctx, prompt)
	if err != nil {
		return err
	}
	a := Alone{PromptTokens: cold.prompt, ColdMs: ms(cold.ttft), WarmMs: ms(warm.ttft), CachedTokens: warm.cached}
	p.probe.Alone = append(p.probe.Alone, a)
	p.tell("%d tokens: %.0f ms, again %.0f ms", a.PromptTokens, a.ColdMs, a.WarmMs)
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// longestRound is how long a round is to take at most.
const longestRound = 20 * time.Second

// round sends several new prompts at once: shorter ones than planned where the engine would need too long.
func (p *Prober) round(ctx context.Context) error {
	budget := longestRound
	if deadline, ok := ctx.Deadline(); ok {
		left := max(1, p.plan.Rounds-len(p.probe.Rounds))
		budget = min(budget, time.Until(deadline)/time.Duration(left+1))
	}
	perMs := 0.0 // tokens, of the longest prompt alone
	for _, a := range p.probe.Alone {
		perMs = max(perMs, float64(a.PromptTokens)/a.ColdMs)
	}
	tokens := p.plan.AtOnce
	for tokens/2 >= p.plan.Lengths[0] && float64(tokens*p.plan.Together) > perMs*ms(budget) {
		tokens /= 2
	}
	if err := p.room(tokens * p.plan.Together); err != nil {
		return err
	}
	prompts := make([]string, p.plan.Together)
	for i := range prompts {
		prompts[i] = p.prompt(tokens)
	}
	answers := make([]answer, len(prompts))
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	firsts := make([]time.Duration, len(prompts))
	for i := range prompts {
		g.Go(func() (err error) {
			sent := time.Since(began)
			answers[i], err = p.client.ask(ctx, prompts[i])
			firsts[i] = sent + answers[i].ttft
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	r := Round{Requests: len(prompts), Ms: ms(slices.Max(firsts))}
	for _, a := range answers {
		p.probe.Requests++
		p.probe.PromptTokens += a.prompt
		r.PromptTokens += a.prompt - max(0, a.cached)
	}
	r.PerS = float64(r.PromptTokens) / r.Ms * 1000
	p.probe.Rounds = append(p.probe.Rounds, r)
	p.tell("%d at once, %d tokens: %.0f ms, %.0f tokens per second", r.Requests, r.PromptTokens, r.Ms, r.PerS)
	return nil
}

func (p *Prober) tell(format string, args ...any) {
	if p.Progress != nil {
		p.Progress(fmt.Sprintf("%d of %d requests: ", p.probe.Requests, p.plan.Requests()) + fmt.Sprintf(format, args...))
	}
}

// unlike is from which spread on times that should be the same are said not to be.
const unlike = 0.2

// report says what the answers mean.
func (p *Prober) report() *Report {
	d := Deployment{Name: p.probe.Model, Samples: uint64(p.probe.Requests)}
	r := &Report{Alpha: p.options.Alpha, Probe: &p.probe}
	var cold, saved []sample
	var again []float64 // the time of the same prompt again, as a share of the first
	for _, a := range p.probe.Alone {
		cold = append(cold, sample{uncached: float64(a.PromptTokens), ms: a.ColdMs})
		saved = append(saved, sample{uncached: float64(a.PromptTokens), ms: max(1e-3, a.ColdMs-a.WarmMs)})
		again = append(again, a.WarmMs/a.ColdMs)
	}
	m := fitModel(cold, nil, rounds)
	var base, even []float64
	resampled(cold, m, func(m model, _ *rand.Rand) { base = append(base, m.terms[0]) })
	d.BaseMs = ptr(intervalOf(m.terms[0], base))
	var rates []float64
	for _, round := range p.probe.Rounds {
		rates = append(rates, round.PerS)
	}
	d.PeakPerS = ptr(meanOf(rates))
	typical := float64(p.options.Typical)
	s := fitModel(saved, nil, rounds)
	resampled(saved, s, func(m model, _ *rand.Rand) { even = append(even, m.of(sample{uncached: typical})) })
	if median(again) < 0.8 {
		d.BreakEvenMs = ptr(intervalOf(s.of(sample{uncached: typical}), even))
		d.BreakEvenTokens = d.BreakEvenMs.Value * d.PeakPerS.Value / 1000
		by := 1 + p.options.Alpha
		d.PricedMs = ptr(Interval{Value: by * d.BreakEvenMs.Value, Low: by * d.BreakEvenMs.Low, High: by * d.BreakEvenMs.High})
	} else {
		r.Notes = append(r.Notes, "The same prompt again was hardly faster: this engine has no prefix cache, or too small a one. Affinity gains nothing then.")
	}
	r.Deployments = []Deployment{d}
	if d.PeakPerS.Wide() > unlike {
		r.Notes = append(r.Notes, fmt.Sprintf("The rounds differ by %.0f %%: was the endpoint idle? Measure again when nothing else asks it.", 100*d.PeakPerS.Wide()))
	}
	if p.probe.Stopped != "" {
		r.Notes = append(r.Notes, "It ended early: "+p.probe.Stopped+".")
	}
	r.Notes = append(r.Notes, fmt.Sprintf("The break-even is that of a prefix of %d tokens (--typical-prefix) on an idle engine. "+
		"That of your traffic is in its log: sluice calibrate LOG.", p.options.Typical))
	return r
}

// meanOf is a mean and the interval of Student's t; a single value is its own.
func meanOf(all []float64) Interval {
	n := float64(len(all))
	sum, squares := 0.0, 0.0
	for _, v := range all {
		sum += v
	}
	mean := sum / n
	if n < 2 {
		return Interval{Value: mean, Low: mean, High: mean}
	}
	for _, v := range all {
		squares += (v - mean) * (v - mean)
	}
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975) * math.Sqrt(squares/(n-1)/n)
	return Interval{Value: mean, Low: mean - half, High: mean + half}
}
