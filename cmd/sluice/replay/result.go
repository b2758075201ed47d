package replay

import (
	"cmp"
	"slices"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// Result is what came of making decisions again.
type Result struct {
	// Config and Hash name the new configuration; empty where each decision was made again by its own.
	Config string
	Hash   string
	// Rows are the decisions that were read; Unread counts what could not be, by reason.
	Rows   int64
	Unread Counts
	// LeftOut counts the decisions that could not be made again, by what the record lacks.
	LeftOut Counts
	// Replayed are the decisions that were made again. Of these, Verified were by the configuration that made them, and
	// Identical came out the same to the byte, but for the configuration's name.
	Replayed, Verified, Identical int64
	// Different are the verified ones that are not the same, and First is the first difference.
	Different int64
	First     *Difference
	// Substituted counts decisions for which a column took the values of a producer of another name, by which.
	Substituted Counts
	// Producers are the new configuration's producers that decisions rest on: what they would have found is not made again.
	Producers []string
	// All is everything; Models are the parts of each model.
	All    Part
	Models []*Part
	// Endpoints are those that could be picked.
	Endpoints []*Endpoint
	// Causes are what made the flips, most first, and Verdicts how often a gate said what, before and now.
	Causes   []Named
	Verdicts []Named
	// Times are the flips over time.
	Times Times
	// Moved is a histogram of by how many cached tokens the new pick of a flip has more (or fewer) than the old.
	Moved [len(movedBounds) + 1]int64
	// Examples are flips, kept whole.
	Examples []Example

	causes, verdicts Counts
	models           map[string]*Part
	endpoints        map[string]*Endpoint
	substitutesOf    map[string][]record.Substitute
}

// Named is a number of something that has a name.
type Named struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

// Example is a flip.
type Example struct {
	// Before and Now are its records.
	Before, Now *decisionv1.Decision
	// Change is what made the difference.
	Change explain.Change
}

// Part is what came of the decisions about one model, or of all.
type Part struct {
	// Model is the model's name; empty of all, and where requests name none.
	Model string
	// Decisions were made again; Flips have another pick. NoLonger picked an endpoint and now do not, Newly the other way round.
	Decisions, Flips, NoLonger, Newly int64
	// Which way the flips went: to a pick with more, fewer or as many cached tokens; and to one with more, fewer or as many
	// tokens in flight, where that is recorded.
	MoreCached, LessCached, SameCached int64
	MoreLoaded, LessLoaded, SameLoaded int64
	// KnownHits are the decisions for which it is recorded what the picks' caches hold, PromptTokens their prompts,
	// CachedBefore and CachedNow the tokens that the old and the new pick have cached.
	KnownHits                             int64
	PromptTokens, CachedBefore, CachedNow int64
	// Before and Now spread the decisions over the endpoints.
	Before, Now Spread
}

// HitBefore and HitNow are the predicted hit rates: cached tokens as a share of the prompts'; NaN where nothing is known.
func (p *Part) HitBefore() float64 { return share(float64(p.CachedBefore), float64(p.PromptTokens)) }

// HitNow is the predicted hit rate of the new picks.
func (p *Part) HitNow() float64 { return share(float64(p.CachedNow), float64(p.PromptTokens)) }

// Flipped is the share of decisions with another pick.
func (p *Part) Flipped() float64 { return share(float64(p.Flips), float64(p.Decisions)) }

// Spread is how evenly decisions and uncached tokens are spread over the endpoints that could be picked: the largest share
// over the mean one, 1 being even; NaN of nothing.
type Spread struct {
	// Decisions and Tokens are the largest over the mean.
	Decisions, Tokens float64

	byEndpoint map[string]*load
}

type load struct{ decisions, tokens int64 }

// maxEndpoints bounds how many endpoints are told apart.
const maxEndpoints = 4096

func (s *Spread) add(endpoint string, uncached int64) {
	if s.byEndpoint == nil {
		s.byEndpoint = map[string]*load{}
	}
	l := s.byEndpoint[endpoint]
	if l == nil {
		if len(s.byEndpoint) >= maxEndpoints {
			endpoint = otherNames
		}
		if l = s.byEndpoint[endpoint]; l == nil {
			l = &load{}
			s.byEndpoint[endpoint] = l
		}
	}
	l.decisions++
	l.tokens += uncached
}

// finish computes the figures over so many endpoints.
func (s *Spread) finish(endpoints int) {
	var most, sum load
	for _, l := range s.byEndpoint {
		most.decisions, most.tokens = max(most.decisions, l.decisions), max(most.tokens, l.tokens)
		sum.decisions, sum.tokens = sum.decisions+l.decisions, sum.tokens+l.tokens
	}
	n := float64(endpoints)
	s.Decisions, s.Tokens = share(float64(most.decisions)*n, float64(sum.decisions)), share(float64(most.tokens)*n, float64(sum.tokens))
}

// Endpoint is one that could be picked, and its shares.
type Endpoint struct {
	// Name is what people call it.
	Name string
	// DecisionsBefore and DecisionsNow are picks; TokensBefore and TokensNow what these have to compute.
	DecisionsBefore, DecisionsNow int64
	TokensBefore, TokensNow       int64
}

// movedBounds are the upper bounds of Result.Moved's classes, in tokens.
var movedBounds = [...]int64{-32768, -8192, -2048, -512, -1, 0, 512, 2048, 8192, 32768}

func newResult(config *Configuration) *Result {
	r := &Result{
		Unread: Counts{}, LeftOut: Counts{}, Substituted: Counts{}, causes: Counts{}, verdicts: Counts{},
		models: map[string]*Part{}, endpoints: map[string]*Endpoint{}, substitutesOf: map[string][]record.Substitute{},
	}
	if config != nil {
		r.Config, r.Hash = config.Name, config.Hash
		for _, info := range config.Scheduler.Columns() {
			if info.Decisive && !slices.Contains(r.Producers, info.Producer) {
				r.Producers = append(r.Producers, info.Producer)
			}
		}
	}
	return r
}

func (r *Result) leaveOut(why string) { r.LeftOut.add(why, 1) }

// substitutes counts what took the place of what. It is looked up once per recorded configuration.
func (r *Result) substitutes(config *Configuration, d *decisionv1.Decision) {
	if config.Hash == d.GetConfigHash() {
		return
	}
	found, known := r.substitutesOf[d.GetConfigHash()]
	if !known {
		found = record.Substitutes(config.Scheduler, d)
		if len(r.substitutesOf) < maxNames && d.GetConfigHash() != "" {
			r.substitutesOf[d.GetConfigHash()] = found
		}
	}
	for _, s := range found {
		what := s.Column.DataType + " of " + s.Column.Producer + " is that of " + s.Recorded
		if s.Recorded == "" {
			what = s.Column.DataType + " of " + s.Column.Producer + " is not recorded: nobody is taken to have any"
		}
		r.Substituted.add(what, 1)
	}
}

func (r *Result) differs(d, again *decisionv1.Decision) {
	if r.Different++; r.First == nil {
		first := differenceOf(d, again)
		r.First = &first
	}
}

// add adds a decision that was made again.
func (r *Result) add(before, now *decisionv1.Decision, c explain.Change, examples int) {
	r.Replayed++
	p := pick{before: side(before, c.From), now: side(before, c.To)}
	p.prompt = promptTokens(before)
	for _, part := range []*Part{&r.All, r.model(before.GetRequest().GetModel())} {
		part.add(c, &p)
	}
	r.places(before, &p)
	for _, g := range gatesOf(before, now) {
		r.verdicts.add(g, 1)
	}
	r.Times.add(time.Unix(0, before.GetTimeUnixNano()), c.Flipped())
	if !c.Flipped() {
		return
	}
	r.causes.add(c.Name(), 1)
	if p.hits() {
		i, _ := slices.BinarySearch(movedBounds[:], p.now.cached-p.before.cached)
		r.Moved[i]++
	}
	if len(r.Examples) < examples {
		r.Examples = append(r.Examples, Example{Before: before, Now: now, Change: c})
	}
}

func (r *Result) model(name string) *Part {
	if r.models[name] == nil {
		if len(r.models) >= maxNames {
			name = otherNames
		}
		if r.models[name] == nil {
			r.models[name] = &Part{Model: name}
		}
	}
	return r.models[name]
}

// places counts where the picks are.
func (r *Result) places(d *decisionv1.Decision, p *pick) {
	for _, e := range d.GetCandidates() {
		if ex := e.GetExclusion(); ex != decisionv1.Exclusion_EXCLUSION_STATE && ex != decisionv1.Exclusion_EXCLUSION_SUBSET {
			r.endpoint(nameOf(e))
		}
	}
	if p.before.picked {
		e := r.endpoint(p.before.name)
		e.DecisionsBefore, e.TokensBefore = e.DecisionsBefore+1, e.TokensBefore+p.before.uncached
	}
	if p.now.picked {
		e := r.endpoint(p.now.name)
		e.DecisionsNow, e.TokensNow = e.DecisionsNow+1, e.TokensNow+p.now.uncached
	}
}

func (r *Result) endpoint(name string) *Endpoint {
	if r.endpoints[name] == nil {
		if len(r.endpoints) >= maxEndpoints {
			name = otherNames
		}
		if r.endpoints[name] == nil {
			r.endpoints[name] = &Endpoint{Name: name}
		}
	}
	return r.endpoints[name]
}

func (p *Part) add(c explain.Change, k *pick) {
	p.Decisions++
	if k.before.picked {
		p.Before.add(k.before.name, k.before.uncached)
	}
	if k.now.picked {
		p.Now.add(k.now.name, k.now.uncached)
	}
	if k.hits() {
		p.KnownHits++
		p.PromptTokens, p.CachedBefore, p.CachedNow = p.PromptTokens+k.prompt, p.CachedBefore+k.before.cached, p.CachedNow+k.now.cached
	}
	if !c.Flipped() {
		return
	}
	p.Flips++
	switch {
	case c.To < 0:
		p.NoLonger++
	case c.From < 0:
		p.Newly++
	}
	if k.hits() {
		count(k.now.cached, k.before.cached, &p.MoreCached, &p.LessCached, &p.SameCached)
	}
	if k.before.loadKnown && k.now.loadKnown {
		count(k.now.inFlight, k.before.inFlight, &p.MoreLoaded, &p.LessLoaded, &p.SameLoaded)
	}
}

func count(now, before int64, more, less, same *int64) {
	switch cmp.Compare(now, before) {
	case 1:
		*more++
	case -1:
		*less++
	default:
		*same++
	}
}

// finish puts in order what was gathered in maps.
func (r *Result) finish() {
	r.Causes, r.Verdicts = r.causes.sorted(), r.verdicts.sorted()
	for _, e := range r.endpoints {
		r.Endpoints = append(r.Endpoints, e)
	}
	slices.SortFunc(r.Endpoints, func(a, b *Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range r.models {
		r.Models = append(r.Models, m)
	}
	slices.SortFunc(r.Models, func(a, b *Part) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(a.Model, b.Model))
	})
	for _, p := range append([]*Part{&r.All}, r.Models...) {
		p.Before.finish(len(r.Endpoints))
		p.Now.finish(len(r.Endpoints))
	}
}

// sorted are the numbers, largest first.
func (c Counts) sorted() []Named {
	all := make([]Named, 0, len(c))
	for name, n := range c {
		all = append(all, Named{name, n})
	}
	slices.SortFunc(all, func(a, b Named) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	return all
}
