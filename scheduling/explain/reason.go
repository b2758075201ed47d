package explain

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// Reason says in words why a decision came out as it did.
func Reason(d *decisionv1.Decision) string {
	if len(d.GetPicks()) == 0 {
		return nobody(d)
	}
	n := names(d)
	var parts []string
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(n.picked(d))
	for _, g := range d.GetGates() {
		add(n.gate(d, g))
	}
	add(n.margin(d))
	for _, f := range d.GetFaults() {
		add(fmt.Sprintf("%s failed (%s), so that what it would have known played no part", f.GetProducer(), f.GetError()))
	}
	return strings.Join(parts, "; ") + "."
}

// nobody is why no endpoint was picked.
func nobody(d *decisionv1.Decision) string {
	state, subset, filtered := 0, 0, map[string]int{}
	for _, e := range d.GetCandidates() {
		switch e.GetExclusion() {
		case decisionv1.Exclusion_EXCLUSION_STATE:
			state++
		case decisionv1.Exclusion_EXCLUSION_SUBSET:
			subset++
		case decisionv1.Exclusion_EXCLUSION_FILTER:
			filtered[e.GetFilteredBy()]++
		case decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
		}
	}
	var parts []string
	if state > 0 {
		parts = append(parts, fmt.Sprintf("%d not ready", state))
	}
	if subset > 0 {
		parts = append(parts, fmt.Sprintf("%d not allowed by the proxy", subset))
	}
	for _, f := range d.GetFilterSteps() { // in their order
		if k := filtered[f.GetFilter()]; k > 0 {
			parts = append(parts, fmt.Sprintf("%d left out by %s", k, f.GetFilter()))
			delete(filtered, f.GetFilter())
		}
	}
	if len(parts) == 0 {
		return "No endpoint was picked: there is none."
	}
	return fmt.Sprintf("No endpoint was picked: of %d, %s.", len(d.GetCandidates()), strings.Join(parts, ", "))
}

// endpoints are a decision's candidates by ordinal.
type endpoints map[uint32]*decisionv1.Candidate

func names(d *decisionv1.Decision) endpoints {
	n := make(endpoints, len(d.GetCandidates()))
	for _, e := range d.GetCandidates() {
		n[e.GetOrdinal()] = e
	}
	return n
}

// name is what people call an endpoint.
func (n endpoints) name(ordinal uint32) string {
	e := n[ordinal]
	if e.GetName() != "" {
		return e.GetName()
	}
	if e == nil {
		return "endpoint " + strconv.Itoa(int(ordinal))
	}
	return e.GetAddress()
}

// picked is what the pick has.
func (n endpoints) picked(d *decisionv1.Decision) string {
	pick := d.GetPicks()[0]
	e := n[pick]
	s := n.name(pick)
	if m := e.GetPrefixCacheMatches(); len(m) > 0 && m[0].GetTotalBlocks() > 0 {
		cached, total := m[0].GetCachedBlockCount(), m[0].GetTotalBlocks()
		s += fmt.Sprintf(" holds %s of %s of the prompt (%d %%)", Count(cached), plural(total, "block"), cached*100/total)
	} else {
		s += " was picked"
	}
	if len(e.GetSessionHomes()) > 0 {
		s += ", having served the session before"
	}
	if l := e.GetInFlightLoads(); len(l) > 0 {
		s += fmt.Sprintf(", with %s of %s in flight", plural(l[0].GetTokens(), "token"), plural(l[0].GetRequests(), "request"))
	}
	return s
}

// gate is a verdict in words.
func (n endpoints) gate(d *decisionv1.Decision, g *decisionv1.GateReport) string {
	name := g.GetFilter()
	switch g.GetVerdict() {
	case decisionv1.GateVerdict_GATE_VERDICT_EXPLORED:
		return name + " explored: this request was drawn to seed a cache elsewhere"
	case decisionv1.GateVerdict_GATE_VERDICT_NO_STICKY:
		if !HeldKnown(d) {
			return name + " let all pass: what anybody holds of the prompt is not known"
		}
		return name + " let all pass: nobody holds enough of the prompt"
	case decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL:
		if g.GetPredicted() {
			return name + " kept to who holds the prompt: of one side nothing is predicted"
		}
		return name + " kept to who holds the prompt: the load of one side is not known"
	case decisionv1.GateVerdict_GATE_VERDICT_HELD:
		if g.Other == nil {
			return name + " kept to who holds the prompt: everybody does"
		}
		return fmt.Sprintf("%s kept to who holds the prompt: %s %s, %s", name, n.name(g.GetSticky()), n.gap(g), bar(g))
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC, decisionv1.GateVerdict_GATE_VERDICT_RELEASED_MATCHED,
		decisionv1.GateVerdict_GATE_VERDICT_RELEASED_CEILING, decisionv1.GateVerdict_GATE_VERDICT_RELEASED_BREAK_EVEN:
		return fmt.Sprintf("%s let go of who holds the prompt: %s %s, %s", name, n.name(g.GetSticky()), n.gap(g), bar(g))
	case decisionv1.GateVerdict_GATE_VERDICT_UNSPECIFIED, decisionv1.GateVerdict_GATE_VERDICT_NONE:
	}
	return ""
}

// HeldKnown reports whether it was known of any endpoint that could have been picked what it holds of the prompt; not so, for
// example, where nothing was looked up because the time ran out.
func HeldKnown(d *decisionv1.Decision) bool {
	for _, e := range d.GetCandidates() {
		if len(e.GetPrefixCacheMatches()) > 0 {
			return true
		}
	}
	return false
}

// gap is how the best endpoint that holds the prompt compares with the best other one.
func (n endpoints) gap(g *decisionv1.GateReport) string {
	if g.GetPredicted() {
		word := "later"
		if g.GetGapMs() < 0 {
			word = "sooner"
		}
		return fmt.Sprintf("is predicted to answer %s %s than %s", millis(math.Abs(g.GetGapMs())), word, n.name(g.GetOther()))
	}
	tokens, word := int64(g.GetGapTokens()), "more"
	if tokens < 0 {
		tokens, word = -tokens, "fewer"
	}
	return fmt.Sprintf("has %s %s in flight than %s (%s of prefill)",
		plural(tokens, "token"), word, n.name(g.GetOther()), millis(math.Abs(g.GetGapMs())))
}

// millis writes a time, rounded as everything rounds it that shows the same.
func millis(ms float64) string {
	if ms < 10 && ms != math.Trunc(ms) {
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
	return Count(int64(math.Round(ms))) + " ms"
}

// bar is the bound that decided, or would have.
func bar(g *decisionv1.GateReport) string {
	tokens, ms := "", ""
	if g.BarTokens != nil {
		tokens = plural(int64(g.GetBarTokens()), "token")
	}
	if g.GetBarMs() > 0 {
		ms = millis(g.GetBarMs())
	}
	switch g.GetVerdict() {
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_MATCHED:
		return "above the " + tokens + " that the match saves"
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC:
		return "above the bound of " + ms
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_CEILING:
		return "above the ceiling of " + ms
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_BREAK_EVEN:
		return "which costs more than the match saves"
	}
	switch {
	case tokens != "" && ms != "":
		return "within the " + tokens + " that the match saves and the ceiling of " + ms
	case tokens != "":
		return "within the " + tokens + " that the match saves"
	case ms != "" && g.GetPredicted() && g.GetGapMs() < 0:
		return "and might be up to " + ms + " later"
	case ms != "":
		return "within the bound of " + ms
	}
	return "and no bound is set"
}

// margin is how the scores decided among those that were left.
func (n endpoints) margin(d *decisionv1.Decision) string {
	left := passed(d)
	switch {
	case len(left) == 0:
		return ""
	case d.RunnerUpMargin == nil:
		return "nobody else was left to choose from"
	case d.GetRunnerUpMargin() < 0:
		return fmt.Sprintf("the picker drew it among %d, though another one had a higher total", len(left))
	case d.GetRunnerUpMargin() == 0:
		return fmt.Sprintf("of %d candidates others had the same total, %s, and a draw decided", len(left), score(n[d.GetPicks()[0]].GetTotal()))
	}
	pick, second := n[d.GetPicks()[0]], runnerUp(d, left)
	if second == nil { // the record was shortened
		return fmt.Sprintf("it had the highest total, %s, ahead of the next by %s", score(pick.GetTotal()), score(d.GetRunnerUpMargin()))
	}
	s := fmt.Sprintf("of %d candidates it had the highest total, %s, ahead of %s by %s",
		len(left), score(pick.GetTotal()), n.name(second.GetOrdinal()), score(d.GetRunnerUpMargin()))
	if scorer, by := decisive(d, pick, second); scorer != "" {
		s += fmt.Sprintf(", most of it by %s (%s)", scorer, score(by))
	}
	return s
}

// runnerUp is the best of those that were not picked.
func runnerUp(d *decisionv1.Decision, left []*decisionv1.Candidate) (second *decisionv1.Candidate) {
	for _, e := range left {
		if e.GetOrdinal() != d.GetPicks()[0] && (second == nil || e.GetTotal() > second.GetTotal()) {
			second = e
		}
	}
	return second
}

// decisive is the scorer that put one candidate most ahead of another, where there are several; and by how much.
func decisive(d *decisionv1.Decision, pick, second *decisionv1.Candidate) (name string, by float64) {
	if len(d.GetScorers()) < 2 {
		return "", 0
	}
	for i, s := range d.GetScorers() {
		if v := s.GetWeight() * (pick.GetScores()[i] - second.GetScores()[i]); v > by {
			name, by = s.GetName(), v
		}
	}
	return name, by
}

// Words is a flip in words.
func (f Flip) Words(d *decisionv1.Decision) string {
	n := names(d)
	then := fmt.Sprintf("%s would have been picked", n.name(uint32(f.Pick)))
	switch f.Input {
	case InFlight:
		return fmt.Sprintf("with %s in flight on %s instead of %s, %s", plural(int64(f.To), "token"), n.name(uint32(f.Ordinal)), Count(int64(f.From)), then)
	case Cached:
		return fmt.Sprintf("with %s of the prompt in the cache of %s instead of %s, %s", plural(int64(f.To), "block"), n.name(uint32(f.Ordinal)), Count(int64(f.From)), then)
	case Weight:
		return fmt.Sprintf("with %s's weight beyond %s instead of %s, %s", f.Scorer, score(f.To), score(f.From), then)
	case PredictedTTFT:
		from, to := apart(f.From, f.To)
		if from == to { // a draw among equals
			word := "more"
			if f.To < f.From {
				word = "less"
			}
			return fmt.Sprintf("with a little %s than %s ms predicted of %s, %s", word, from, n.name(uint32(f.Ordinal)), then)
		}
		return fmt.Sprintf("with %s ms predicted of %s instead of %s, %s", to, n.name(uint32(f.Ordinal)), from, then)
	case Tie:
		return "with another draw, " + then
	}
	return ""
}

// score writes a number of scores' size.
func score(v float64) string {
	if math.Abs(v) >= 1000 {
		return Count(int64(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// apart writes two times in ms with as many decimals as tell them apart.
func apart(a, b float64) (string, string) {
	x, y := Count(int64(math.Round(a))), Count(int64(math.Round(b)))
	for decimals := 1; x == y && decimals <= 3; decimals++ {
		x, y = strconv.FormatFloat(a, 'f', decimals, 64), strconv.FormatFloat(b, 'f', decimals, 64)
	}
	return x, y
}

// plural writes a number of things.
func plural(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return Count(n) + " " + thing
}

// Count writes a whole number with commas between thousands.
func Count(v int64) string {
	s := strconv.FormatInt(v, 10)
	sign := ""
	if v < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Percent writes a share in whole percent, cut off: what is not all is never 100 %.
func Percent(share float64) string {
	return strconv.FormatFloat(math.Floor(100*share+1e-9), 'f', 0, 64) + " %"
}
