package page

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// shownCandidates is how many candidates a decision is shown with unless all are asked for.
const shownCandidates = 50

// detail is a decision in full.
type detail struct {
	Title, Reason string
	Tried         bool
	ID            uint64
	Facts         []fact
	Picks         []string
	Gates         []gateDetail
	Steps         []stepDetail
	Scorers       []scorerHead
	Candidates    []candidateRow
	Times         string // what is predicted of the candidates; empty where nothing is
	Latency       []fact
	LeftOut       string // how many candidates are not shown
	Flips         []string
	Outcome       []fact
	Faults        []fact
}

// fact is a value with a name.
type fact struct{ Name, Value string }

// gateDetail is a gate's report.
type gateDetail struct {
	Name, Verdict, Class string
	Gaps                 []gap
	Sticky, Other        string
}

// gap is a gap beside its bar.
type gap struct {
	Unit, Gap, Bar     string
	GapShare, BarShare int
	Over               bool
}

// stepDetail is what a filter did.
type stepDetail struct{ Filter, Left, Out string }

// scorerHead is the head of a scorer's column.
type scorerHead struct{ Name, Weight string }

// candidateRow is a candidate in the table.
type candidateRow struct {
	Name, Address string
	Rank          int // among the picks, from 1; 0 where it is none
	Class         string
	Standing      string
	Match         string
	MatchShare    int
	Load          string
	LoadShare     int
	Uncached      string
	Engine        string
	Predicted     string
	Foreseen      []string // what else is predicted
	Scores        []scoreCell
	Total         string
	TotalShare    int
}

// scoreCell is what a scorer gave.
type scoreCell struct {
	Raw, Weighted string
	Share         int
}

// detailOf is an explanation for people.
func detailOf(x *schedulerv1.Explanation, tried bool) detail {
	d := x.GetDecision()
	v := detail{Reason: visible(x.GetReason()), Tried: tried, ID: d.GetId(), Facts: factsOf(d, tried)}
	names := namesOf(d)
	v.Title = "Decision " + strconv.FormatUint(d.GetId(), 10)
	if tried {
		v.Title = "What would be decided"
	}
	for _, p := range d.GetPicks() {
		v.Picks = append(v.Picks, names[p])
	}
	for _, g := range d.GetGates() {
		v.Gates = append(v.Gates, gateDetailOf(g, names))
	}
	v.Steps = stepsOf(x, names)
	for _, s := range d.GetScorers() {
		v.Scorers = append(v.Scorers, scorerHead{short(s.GetName()), number(s.GetWeight())})
	}
	v.Candidates, v.Latency = candidatesOf(d), latencyFacts(d)
	for _, c := range d.GetCandidates() {
		if l, ok := explain.LatencyOf(d, c); ok {
			v.Times = timed(&l.Predicted)
			break
		}
	}
	if n := x.GetCandidatesLeftOut(); n > 0 {
		v.LeftOut = plural(n, "candidate")
	}
	for _, f := range x.GetFlips() {
		v.Flips = append(v.Flips, visible(f.GetWords()))
	}
	if o := d.GetOutcome(); o != nil {
		v.Outcome = outcomeFacts(o)
	}
	for _, f := range d.GetFaults() {
		v.Faults = append(v.Faults, fact{short(f.GetProducer()), visible(f.GetError())})
	}
	return v
}

func namesOf(d *decisionv1.Decision) map[uint32]string {
	names := make(map[uint32]string, len(d.GetCandidates()))
	for _, c := range d.GetCandidates() {
		names[c.GetOrdinal()] = nameOf(c)
	}
	return names
}

func factsOf(d *decisionv1.Decision, tried bool) []fact {
	r := d.GetRequest()
	facts := []fact{
		{"Time", time.Unix(0, d.GetTimeUnixNano()).UTC().Format("2006-01-02 15:04:05.000 MST")},
		{"Request id", visible(d.GetClientRequestId())},
		{"Model", visible(r.GetModel())},
		{"Calls", strings.ToLower(strings.TrimPrefix(r.GetOperation().String(), "OPERATION_"))},
		{"Prompt", promptLength(r) + " (" + plural(r.GetPromptBytes(), "byte") + ")"},
	}
	if n := r.GetMaxOutputTokens(); n > 0 {
		facts = append(facts, fact{"Output at most", plural(n, "token")})
	}
	facts = append(facts,
		fact{"Profile", visible(d.GetProfile())},
		fact{"Configuration", visible(d.GetConfigHash())},
		fact{"Endpoints' version", strconv.FormatUint(d.GetSnapshotVersion(), 10)},
		fact{"Seed", strconv.FormatUint(d.GetSeed(), 10)},
	)
	if tried {
		facts = facts[1:]
	}
	return slices.DeleteFunc(facts, func(f fact) bool { return f.Value == "" })
}

func gateDetailOf(g *decisionv1.GateReport, names map[uint32]string) gateDetail {
	v := gateDetail{Name: short(g.GetFilter())}
	v.Verdict, v.Class = verdict(g.GetVerdict())
	if g.Sticky != nil {
		v.Sticky = names[g.GetSticky()]
	}
	if g.Other != nil {
		v.Other = names[g.GetOther()]
	}
	add := func(unit string, value, bound *float64) {
		if value == nil {
			return
		}
		most := math.Abs(*value)
		gap := gap{Unit: unit, Gap: number(*value), Bar: "no bar"}
		if bound != nil && *bound > 0 {
			most = max(most, *bound)
			gap.Bar, gap.BarShare = "bar "+number(*bound)+" "+unit, share(*bound, most*1.05)
			gap.Over = *value > *bound
		}
		gap.GapShare = share(*value, most*1.05)
		v.Gaps = append(v.Gaps, gap)
	}
	add("ms", g.GapMs, g.BarMs)
	add("tokens", g.GapTokens, g.BarTokens)
	return v
}

// stepsOf says what each filter left, and whom it left out where they are few.
func stepsOf(x *schedulerv1.Explanation, names map[uint32]string) []stepDetail {
	const few = 8
	var steps []stepDetail
	all := x.GetDecision().GetFilterSteps()
	for i, s := range all {
		v := stepDetail{Filter: short(s.GetFilter()), Left: plural(s.GetLeft(), "candidate")}
		var out []string
		for _, c := range x.GetDecision().GetCandidates() {
			if c.GetExclusion() == decisionv1.Exclusion_EXCLUSION_FILTER && c.GetFilteredBy() == s.GetFilter() {
				out = append(out, names[c.GetOrdinal()])
			}
		}
		gone := len(out)
		if i > 0 { // some of them may not be among those that are shown
			gone = max(gone, int(all[i-1].GetLeft())-int(s.GetLeft()))
		}
		out = out[:min(few, len(out))]
		if n := gone - len(out); n > 0 {
			out = append(out, count(n)+" more")
		}
		v.Out = strings.Join(out, ", ")
		steps = append(steps, v)
	}
	return steps
}

// candidatesOf are the candidates: the picks first, then those that were scored, best first, then the others.
func candidatesOf(d *decisionv1.Decision) []candidateRow {
	rank := map[uint32]int{}
	for i, p := range d.GetPicks() {
		rank[p] = i + 1
	}
	var tokens, total float64
	all := slices.Clone(d.GetCandidates())
	for _, c := range all {
		if l := c.GetInFlightLoads(); len(l) > 0 {
			tokens = max(tokens, float64(l[0].GetTokens()))
		}
		total = max(total, math.Abs(c.GetTotal()))
	}
	place := func(c *decisionv1.Candidate) float64 {
		switch {
		case rank[c.GetOrdinal()] > 0:
			return float64(rank[c.GetOrdinal()]) - 1e9
		case len(c.GetScores()) > 0:
			return -c.GetTotal()
		}
		return 1e9 + float64(c.GetExclusion())
	}
	slices.SortStableFunc(all, func(a, b *decisionv1.Candidate) int {
		switch x, y := place(a), place(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	rows := make([]candidateRow, 0, len(all))
	for _, c := range all {
		rows = append(rows, candidateOf(d, c, rank[c.GetOrdinal()], tokens, total))
	}
	return rows
}

func candidateOf(d *decisionv1.Decision, c *decisionv1.Candidate, rank int, tokens, total float64) candidateRow {
	scorers := d.GetScorers()
	row := candidateRow{Name: nameOf(c), Rank: rank, Match: "–", Load: "–", Uncached: "–", Engine: "–"}
	if c.GetName() != "" {
		row.Address = short(c.GetAddress())
	}
	row.Standing, row.Class = standing(c, rank)
	if m := c.GetPrefixCacheMatches(); len(m) > 0 {
		row.Match = count(m[0].GetCachedBlockCount()) + " of " + plural(m[0].GetTotalBlocks(), "block")
		row.MatchShare = share(float64(m[0].GetCachedBlockCount()), float64(m[0].GetTotalBlocks()))
	}
	if l := c.GetInFlightLoads(); len(l) > 0 {
		row.Load = plural(l[0].GetTokens(), "token") + ", " + plural(l[0].GetRequests(), "request")
		row.LoadShare = share(float64(l[0].GetTokens()), tokens)
	}
	if u := c.GetUncachedRequestTokens(); len(u) > 0 {
		row.Uncached = plural(u[0].GetTokens(), "token")
	}
	if m := c.GetEngineMetrics(); len(m) > 0 {
		row.Engine = engineWords(m[0])
	}
	row.Predicted, row.Foreseen = predicted(d, c)
	for i, s := range c.GetScores() {
		if i < len(scorers) {
			row.Scores = append(row.Scores, scoreCell{number(s), number(s * scorers[i].GetWeight()), share(s, 1)})
		}
	}
	for len(row.Scores) < len(scorers) {
		row.Scores = append(row.Scores, scoreCell{Raw: "–"})
	}
	row.Total = "–"
	if len(c.GetScores()) > 0 {
		row.Total, row.TotalShare = number(c.GetTotal()), share(c.GetTotal(), total)
	}
	return row
}

// standing is how far a candidate came, with its class.
func standing(c *decisionv1.Candidate, rank int) (text, class string) {
	switch {
	case rank == 1:
		return "picked", "good"
	case rank > 1:
		return "fallback " + strconv.Itoa(rank-1), "held"
	}
	switch c.GetExclusion() {
	case decisionv1.Exclusion_EXCLUSION_STATE:
		return endpointState(c.GetState())
	case decisionv1.Exclusion_EXCLUSION_SUBSET:
		return "not allowed by the proxy", "quiet"
	case decisionv1.Exclusion_EXCLUSION_FILTER:
		return "left out by " + short(c.GetFilteredBy()), "quiet"
	case decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
	}
	return "passed", "quiet"
}

func engineWords(m *decisionv1.EngineMetrics) string {
	var parts []string
	if m.Waiting != nil {
		parts = append(parts, number(m.GetWaiting())+" waiting")
	}
	if m.Running != nil {
		parts = append(parts, number(m.GetRunning())+" running")
	}
	if m.KvUsage != nil {
		parts = append(parts, "KV "+percent(m.GetKvUsage()))
	}
	if use := explain.AdapterUse(m); use != "" {
		parts = append(parts, "its adapter "+use+adaptersInUse(m))
	}
	return strings.Join(append(parts, duration(m.GetAgeMs())+" old"), ", ")
}

// adaptersInUse is how many adapters an engine uses, of how many.
func adaptersInUse(m *decisionv1.EngineMetrics) string {
	n := strconv.Itoa(int(m.GetAdapters()))
	if most := m.GetMaxAdapters(); most > 0 {
		n += " of " + strconv.Itoa(int(most))
	}
	return " (" + n + " in use)"
}

func outcomeFacts(o *decisionv1.Outcome) []fact {
	facts := []fact{{"Ended", visible(o.GetReason())}}
	if o.GetStatus() > 0 {
		facts = append(facts, fact{"Status", strconv.Itoa(int(o.GetStatus()))})
	}
	if o.GetServedBy() != "" {
		facts = append(facts, fact{"Served by", short(o.GetServedBy())})
	}
	if o.TtftMs != nil {
		facts = append(facts, fact{"First token after", duration(o.GetTtftMs())})
	}
	facts = append(facts, fact{"Whole time", duration(o.GetTotalMs())})
	for _, c := range []struct {
		name string
		n    *uint64
	}{{"Input tokens", o.PromptTokens}, {"Of these cached", o.CachedTokens}, {"Generated tokens", o.CompletionTokens}} {
		value := "not told by the engine"
		if c.n != nil {
			value = count(*c.n)
		}
		facts = append(facts, fact{c.name, value})
	}
	return facts
}
