package replay

import (
	"strconv"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// pick is a decision's old and new pick, both as the record knows them.
type pick struct {
	before, now place
	prompt      int64 // tokens; 0 where it is not known
}

// hits reports whether it is known what both have cached.
func (p *pick) hits() bool { return p.before.cachedKnown && p.now.cachedKnown && p.prompt > 0 }

// place is an endpoint, and what is recorded of it.
type place struct {
	picked                 bool
	name                   string
	cached, uncached       int64 // tokens
	cachedKnown, loadKnown bool
	inFlight               int64 // tokens
}

// side is what a record knows of an endpoint. Both picks are looked up in the record that was written: it has every column,
// and the one that was made again only those that the new configuration knows.
func side(d *decisionv1.Decision, ordinal int) place {
	for _, e := range d.GetCandidates() {
		if int(e.GetOrdinal()) != ordinal {
			continue
		}
		p := place{picked: true, name: nameOf(e)}
		prompt := promptTokens(d)
		if m := e.GetPrefixCacheMatches(); len(m) > 0 {
			p.cachedKnown = true
			p.cached = min(max(0, m[0].GetCachedBlockCount()*m[0].GetBlockSizeTokens()), prompt)
		}
		p.uncached = prompt - p.cached
		if u := e.GetUncachedRequestTokens(); len(u) > 0 {
			p.uncached = max(0, u[0].GetTokens())
		}
		if l := e.GetInFlightLoads(); len(l) > 0 {
			p.loadKnown, p.inFlight = true, l[0].GetTokens()
		}
		return p
	}
	return place{}
}

// maxPrompt bounds what a record can say of a prompt's length, so that sums stay sums.
const maxPrompt = 1 << 30

// promptTokens is the length of a decision's prompt, in tokens: as the engine counted it, else as the decision knew it.
func promptTokens(d *decisionv1.Decision) int64 {
	if o := d.GetOutcome(); o != nil && o.PromptTokens != nil {
		return int64(min(o.GetPromptTokens(), maxPrompt))
	}
	for _, t := range d.GetRequest().GetTokenizedPrompts() {
		if t.GetTokens() > 0 {
			return int64(min(t.GetTokens(), maxPrompt))
		}
	}
	return int64(min(d.GetRequest().GetTokenCount(), maxPrompt))
}

func nameOf(e *decisionv1.Candidate) string {
	switch {
	case e.GetName() != "":
		return e.GetName()
	case e.GetAddress() != "":
		return e.GetAddress()
	}
	return "endpoint " + strconv.Itoa(int(e.GetOrdinal()))
}

// gatesOf are the verdicts of each gate, before and now.
func gatesOf(before, now *decisionv1.Decision) (all []string) {
	was := map[string]string{}
	for _, g := range before.GetGates() {
		was[g.GetFilter()] = record.Verdict(g.GetVerdict())
	}
	for _, g := range now.GetGates() {
		verdict := was[g.GetFilter()]
		if verdict == "" {
			verdict = "not there"
		}
		delete(was, g.GetFilter())
		all = append(all, g.GetFilter()+": "+verdict+" → "+record.Verdict(g.GetVerdict()))
	}
	for _, g := range before.GetGates() {
		if verdict, gone := was[g.GetFilter()]; gone {
			all = append(all, g.GetFilter()+": "+verdict+" → not there")
		}
	}
	return all
}

// Times counts decisions and flips in steps of equal width, which doubles where there are too many of them.
type Times struct {
	// Begin is the start of the first step, Width that of each.
	Begin time.Time
	Width time.Duration
	// Decisions and Flips are those of each step.
	Decisions, Flips []int64
}

const (
	// maxSteps is how many steps there are at most.
	maxSteps = 120
	// mostAway is how far from the first step a time may be.
	mostAway = 10 * 365 * 24 * time.Hour
)

func (t *Times) add(at time.Time, flipped bool) {
	if len(t.Decisions) == 0 {
		t.Begin, t.Width = at.Truncate(time.Second), time.Second
		t.Decisions, t.Flips = []int64{0}, []int64{0}
	}
	if away := at.Sub(t.Begin).Abs(); away > mostAway {
		return // no log is so long: a clock was wrong
	}
	for at.Before(t.Begin) { // another file, or another process
		t.before()
	}
	step := int(at.Sub(t.Begin) / t.Width)
	for step >= maxSteps {
		t.halve()
		step = int(at.Sub(t.Begin) / t.Width)
	}
	for len(t.Decisions) <= step {
		t.Decisions, t.Flips = append(t.Decisions, 0), append(t.Flips, 0)
	}
	t.Decisions[step]++
	if flipped {
		t.Flips[step]++
	}
}

// halve makes one step of each two.
func (t *Times) halve() {
	t.Width *= 2
	for _, steps := range []*[]int64{&t.Decisions, &t.Flips} {
		old := *steps
		next := make([]int64, (len(old)+1)/2)
		for i, n := range old {
			next[i/2] += n
		}
		*steps = next
	}
}

// before makes room for as many steps before the first as there are.
func (t *Times) before() {
	n := len(t.Decisions)
	if 2*n > maxSteps {
		t.halve()
		n = len(t.Decisions)
	}
	t.Begin = t.Begin.Add(-time.Duration(n) * t.Width)
	t.Decisions = append(make([]int64, n, 2*n), t.Decisions...)
	t.Flips = append(make([]int64, n, 2*n), t.Flips...)
}
