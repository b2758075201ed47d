package explanation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// endpointColumn names the endpoints, as far as the other columns leave room.
var endpointColumn = display.Column{Head: "endpoint", Flexible: true}

// ranked are the candidates: the picks in their order, then by how far they came and by their total.
func (p *page) ranked() []*decisionv1.Candidate {
	all := slices.Clone(p.d.GetCandidates())
	slices.SortStableFunc(all, func(a, b *decisionv1.Candidate) int {
		return cmp.Or(
			cmp.Compare(p.pickOrder(a), p.pickOrder(b)), cmp.Compare(p.stage(b), p.stage(a)),
			cmp.Compare(b.GetTotal(), a.GetTotal()), cmp.Compare(a.GetOrdinal(), b.GetOrdinal()),
		)
	})
	return all
}

// pickOrder is the place among the picks; behind all of them for the others.
func (p *page) pickOrder(e *decisionv1.Candidate) int {
	if i := slices.Index(p.d.GetPicks(), e.GetOrdinal()); i >= 0 {
		return i
	}
	return len(p.d.GetPicks())
}

// stage is how far a candidate came: past more filters is more.
func (p *page) stage(e *decisionv1.Candidate) int {
	switch e.GetExclusion() {
	case decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
		return len(p.d.GetFilterSteps()) + 1
	case decisionv1.Exclusion_EXCLUSION_FILTER:
		return p.step(e.GetFilteredBy())
	case decisionv1.Exclusion_EXCLUSION_STATE, decisionv1.Exclusion_EXCLUSION_SUBSET:
	}
	return -1
}

func (p *page) step(filter string) int {
	return slices.IndexFunc(p.d.GetFilterSteps(), func(s *decisionv1.FilterStep) bool { return s.GetFilter() == filter })
}

// why is how far a candidate came, in a word.
func (p *page) why(e *decisionv1.Candidate) string {
	if i := p.pickOrder(e); i == 0 && len(p.d.GetPicks()) > 0 {
		return "picked"
	} else if i < len(p.d.GetPicks()) {
		return "fallback " + strconv.Itoa(i)
	}
	switch e.GetExclusion() {
	case decisionv1.Exclusion_EXCLUSION_STATE:
		return enum(e.GetState().String(), "ENDPOINT_STATE_")
	case decisionv1.Exclusion_EXCLUSION_SUBSET:
		return "not allowed"
	case decisionv1.Exclusion_EXCLUSION_FILTER:
		return fmt.Sprintf("by filter %d", p.step(e.GetFilteredBy())+1)
	case decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
	}
	return "passed"
}

func (p *page) style(e *decisionv1.Candidate) display.Style {
	switch {
	case len(p.d.GetPicks()) > 0 && p.pickOrder(e) == 0:
		return display.Bold
	case e.GetExclusion() != decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
		return display.Faint
	}
	return ""
}

func (p *page) mark(e *decisionv1.Candidate) string {
	if len(p.d.GetPicks()) > 0 && p.pickOrder(e) == 0 {
		return ">"
	}
	return ""
}

// candidates are the endpoints, what was known of each, and which filter left it out.
func (p *page) candidates() {
	if len(p.d.GetCandidates()) == 0 {
		return
	}
	p.section("Candidates")
	columns := []display.Column{
		{}, endpointColumn, {Head: "came to", Max: 13}, {Head: "cached", Right: true}, {Right: true},
		{Head: "uncached", Right: true}, {Head: "in flight", Right: true}, {Right: true}, {Head: "total", Right: true},
	}
	rows := []display.Row{{Style: display.Faint, Cells: []string{"", "", "", "blocks", "", "tokens", "tokens", "reqs", "score"}}}
	for _, e := range p.ranked() {
		rows = append(rows, display.Row{Style: p.style(e), Cells: p.candidate(e)})
	}
	p.lines = append(p.lines, display.Table(columns, rows, p.Width, p.Styles)...)
	if n := p.x.GetCandidatesLeftOut(); n > 0 {
		p.line(fmt.Sprintf("  and %d more that are left out here: --candidates 0 shows all", n))
	}
	for i, s := range p.d.GetFilterSteps() {
		p.line(fmt.Sprintf("  filter %d (%s) left %d", i+1, display.Plain(s.GetFilter()), s.GetLeft()))
	}
	p.margin()
}

// candidate are the cells of one.
func (p *page) candidate(e *decisionv1.Candidate) []string {
	cells := []string{p.mark(e), p.name(e.GetOrdinal()), p.why(e)}
	const no = display.Unknown
	if m := e.GetPrefixCacheMatches(); len(m) > 0 {
		share := no
		if m[0].GetTotalBlocks() > 0 {
			share = display.Percent(float64(m[0].GetCachedBlockCount()) / float64(m[0].GetTotalBlocks()))
		}
		cells = append(cells, fmt.Sprintf("%s/%s", display.Count(float64(m[0].GetCachedBlockCount())), display.Count(float64(m[0].GetTotalBlocks()))), share)
	} else {
		cells = append(cells, no, "")
	}
	if u := e.GetUncachedRequestTokens(); len(u) > 0 {
		cells = append(cells, display.Count(float64(u[0].GetTokens())))
	} else {
		cells = append(cells, no)
	}
	if l := e.GetInFlightLoads(); len(l) > 0 {
		cells = append(cells, display.Count(float64(l[0].GetTokens())), display.Count(float64(l[0].GetRequests())))
	} else {
		cells = append(cells, no, no)
	}
	if len(e.GetScores()) > 0 {
		return append(cells, display.Score(e.GetTotal()))
	}
	return append(cells, no)
}

// margin is by how much the pick was ahead.
func (p *page) margin() {
	if p.d.RunnerUpMargin == nil || len(p.d.GetPicks()) == 0 {
		return
	}
	runnerUp := "the runner-up"
	for _, e := range p.ranked() {
		if e.GetExclusion() == decisionv1.Exclusion_EXCLUSION_UNSPECIFIED && e.GetOrdinal() != p.d.GetPicks()[0] {
			runnerUp = p.name(e.GetOrdinal())
			break
		}
	}
	switch m := p.d.GetRunnerUpMargin(); {
	case m == 0:
		p.field("margin", "none: "+runnerUp+" has the same total")
	case m < 0:
		p.field("margin", display.Score(-m)+" behind another one: the picker drew")
	default:
		p.field("margin", display.Score(m)+" ahead of "+runnerUp)
	}
}

// scorersBeside is how many scorers fit beside each other.
const scorersBeside = 3

// scores are what each scorer gave each candidate, and what that is worth by its weight.
func (p *page) scores() {
	scorers := p.d.GetScorers()
	var scored []*decisionv1.Candidate
	for _, e := range p.ranked() {
		if len(e.GetScores()) == len(scorers) && len(scorers) > 0 {
			scored = append(scored, e)
		}
	}
	if len(scored) == 0 {
		return
	}
	p.section("Scores")
	for i, s := range scorers {
		p.line(fmt.Sprintf("  %s: %s, weight %s", letter(i), display.Plain(s.GetName()), display.Score(s.GetWeight())))
	}
	for from := 0; from < len(scorers); from += scorersBeside {
		to := min(from+scorersBeside, len(scorers))
		columns := []display.Column{{}, endpointColumn}
		units := []string{"", ""}
		for i := from; i < to; i++ {
			columns = append(columns, display.Column{Head: letter(i), Right: true}, display.Column{Head: letter(i), Right: true})
			units = append(units, "raw", "weighted")
		}
		rows := []display.Row{{Style: display.Faint, Cells: append(units, "total")}}
		columns = append(columns, display.Column{Right: true})
		for _, e := range scored {
			cells := []string{p.mark(e), p.name(e.GetOrdinal())}
			for i := from; i < to; i++ {
				cells = append(cells, display.Score(e.GetScores()[i]), display.Score(e.GetScores()[i]*scorers[i].GetWeight()))
			}
			rows = append(rows, display.Row{Style: p.style(e), Cells: append(cells, display.Score(e.GetTotal()))})
		}
		p.lines = append(p.lines, display.Table(columns, rows, p.Width, p.Styles)...)
	}
}

// letter names a scorer in a table.
func letter(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return strconv.Itoa(i + 1)
}

// times names what the predicted times are of.
func (p *page) times() string {
	for _, e := range p.d.GetCandidates() {
		if l := e.GetLatencyPredictions(); len(l) > 0 && l[0].GetWholeResponse() {
			return "response"
		}
	}
	return "TTFT"
}

// engines are what the engines said of themselves.
func (p *page) engines() {
	columns := []display.Column{
		{}, endpointColumn, {Head: "waiting", Right: true}, {Head: "running", Right: true}, {Head: "decoding", Right: true},
		{Head: "KV used", Right: true}, {Head: "read", Right: true}, {Head: p.times(), Right: true},
	}
	rows := []display.Row{{Style: display.Faint, Cells: []string{"", "", "requests", "requests", "requests", "", "before", "predicted"}}}
	for _, e := range p.ranked() {
		if len(e.GetEngineMetrics())+len(e.GetLatencyPredictions()) == 0 {
			continue
		}
		waiting, running, decoding, kv, read, ttft := display.Unknown, display.Unknown, display.Unknown, display.Unknown, display.Unknown, display.Unknown
		if l := e.GetInFlightLoads(); len(l) > 0 {
			decoding = display.Count(float64(l[0].GetDecoding()))
		}
		for _, m := range e.GetEngineMetrics()[:min(1, len(e.GetEngineMetrics()))] {
			waiting, running, kv = optional(m.Waiting, display.Count), optional(m.Running, display.Count), optional(m.KvUsage, display.Percent)
			read = display.Millis(m.GetAgeMs())
		}
		if l := e.GetLatencyPredictions(); len(l) > 0 {
			ttft = display.Millis(l[0].GetTtftMs())
		}
		rows = append(rows, display.Row{Style: p.style(e), Cells: []string{p.mark(e), p.name(e.GetOrdinal()), waiting, running, decoding, kv, read, ttft}})
	}
	if len(rows) > 1 {
		p.section("Engines")
		p.lines = append(p.lines, display.Table(columns, rows, p.Width, p.Styles)...)
	}
}

func optional(v *float64, write func(float64) string) string {
	if v == nil {
		return display.Unknown
	}
	return write(*v)
}
