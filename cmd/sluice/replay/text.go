package replay

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

// maxLines is how many lines each table has at most.
const maxLines = 24

// WriteText writes the result for people, in lines of so many cells.
func (r *Result) WriteText(w io.Writer, cells int, styles display.Styles) error {
	t := &sheet{cells: cells, styles: styles}
	t.summary(r)
	t.models(r)
	t.named("what made the difference", "flips", r.Causes)
	t.named("gates, before and now", "decisions", r.Verdicts)
	t.endpoints(r)
	t.named("left out: cannot be made again", "decisions", r.LeftOut.sorted())
	t.named("not read", "rows", r.Unread.sorted())
	t.named("another producer's values", "decisions", r.Substituted.sorted())
	t.examples(r)
	t.caveat(r)
	_, err := io.WriteString(w, strings.Join(t.lines, "\n")+"\n")
	return err
}

// sheet is a result being written.
type sheet struct {
	cells  int
	styles display.Styles
	lines  []string
}

func (t *sheet) text(indent, s string) {
	t.lines = append(t.lines, display.Wrap(display.Plain(s), indent, t.cells)...)
}

func (t *sheet) section(name string) {
	t.lines = append(t.lines, "", t.styles.In(display.Bold, name))
}

func (t *sheet) summary(r *Result) {
	if r.Config == "" {
		t.text("", fmt.Sprintf("%s made again, each by the configuration that made it: %s the same to the byte.",
			things(r.Replayed, "decision"), explain.Count(r.Verified-r.Different)))
	} else {
		t.text("", fmt.Sprintf("%s made again by %s (%s): %s %s another pick; %s the same to the byte.", things(r.Replayed, "decision"), r.Config, r.Hash,
			flips(&r.All), have(r.All.Flips), explain.Count(r.Identical)))
	}
	if out := r.LeftOut.Total(); out > 0 {
		t.text("", fmt.Sprintf("%s cannot be made again and %s left out: see below.", things(out, "decision"), are(out)))
	}
	if r.First != nil {
		t.text("", fmt.Sprintf("%s not the same under the configuration that made %s. The first is decision %d%s: %s was %s, and is %s.",
			things(r.Different, "decision")+" "+are(r.Different), them(r.Different), r.First.ID, parenthesis(r.First.ClientRequestID),
			r.First.Field, r.First.Recorded, r.First.Again))
	}
	p := &r.All
	if p.KnownHits > 0 && r.Config != "" {
		t.text("", fmt.Sprintf("Predicted hits: %s of %s prompt tokens cached at the picks, now %s (%s → %s), over %s.",
			explain.Count(p.CachedBefore), explain.Count(p.PromptTokens), explain.Count(p.CachedNow), percent(p.HitBefore()), percent(p.HitNow()), things(p.KnownHits, "decision")))
	}
	if p.Flips > 0 {
		t.text("", fmt.Sprintf("Of the flips %s to a pick with more of the prompt cached, %s to one with less, %s with as much; %s to more tokens in flight, %s to fewer, %s to as many; %s no pick any more, %s first.",
			goes(p.MoreCached), explain.Count(p.LessCached), explain.Count(p.SameCached), goes(p.MoreLoaded), explain.Count(p.LessLoaded), explain.Count(p.SameLoaded),
			haveNumber(p.NoLonger), haveNumber(p.Newly)))
	}
}

func (t *sheet) models(r *Result) {
	if r.Replayed == 0 || r.Config == "" {
		return
	}
	columns := []display.Column{{Head: "model", Flexible: true}, {Head: "decisions", Right: true}, {Head: "flipped", Right: true}, {Head: "hits", Right: true}, {Head: "now", Right: true},
		{Head: "picks max/mean", Right: true}, {Head: "now", Right: true}, {Head: "uncached max/mean", Right: true}, {Head: "now", Right: true}}
	row := func(name string, p *Part) display.Row {
		return display.Row{Cells: []string{name, explain.Count(p.Decisions), percent(p.Flipped()), percent(p.HitBefore()), percent(p.HitNow()),
			ratio(p.Before.Decisions), ratio(p.Now.Decisions), ratio(p.Before.Tokens), ratio(p.Now.Tokens)}}
	}
	rows := []display.Row{row("all", &r.All)}
	for _, p := range r.Models[:min(len(r.Models), maxLines)] {
		rows = append(rows, row(orUnnamed(p.Model), p))
	}
	t.lines = append(t.lines, "")
	t.table(columns, rows, len(r.Models))
}

func (t *sheet) table(columns []display.Column, rows []display.Row, of int) {
	t.lines = append(t.lines, display.Table(columns, rows, t.cells, t.styles)...)
	if of > maxLines {
		t.lines = append(t.lines, fmt.Sprintf("… and %d more: --json has them", of-maxLines))
	}
}

func (t *sheet) named(what, unit string, all []Named) {
	if len(all) == 0 {
		return
	}
	var rows []display.Row
	for _, n := range all[:min(len(all), maxLines)] {
		rows = append(rows, display.Row{Cells: []string{display.Plain(n.Name), explain.Count(n.Count)}})
	}
	t.lines = append(t.lines, "")
	t.table([]display.Column{{Head: what, Flexible: true}, {Head: unit, Right: true}}, rows, len(all))
}

func (t *sheet) endpoints(r *Result) {
	if len(r.Endpoints) == 0 || r.Config == "" {
		return
	}
	var picks, now, tokens, tokensNow int64
	for _, e := range r.Endpoints {
		picks, now, tokens, tokensNow = picks+e.DecisionsBefore, now+e.DecisionsNow, tokens+e.TokensBefore, tokensNow+e.TokensNow
	}
	of := func(part, whole int64) string { return percent(share(float64(part), float64(whole))) }
	var rows []display.Row
	for _, e := range r.Endpoints[:min(len(r.Endpoints), maxLines)] {
		rows = append(rows, display.Row{Cells: []string{display.Plain(e.Name), of(e.DecisionsBefore, picks), of(e.DecisionsNow, now), of(e.TokensBefore, tokens), of(e.TokensNow, tokensNow)}})
	}
	t.lines = append(t.lines, "")
	t.table([]display.Column{{Head: "endpoint", Flexible: true}, {Head: "picks", Right: true}, {Head: "now", Right: true}, {Head: "uncached tokens", Right: true}, {Head: "now", Right: true}}, rows, len(r.Endpoints))
}

func (t *sheet) examples(r *Result) {
	for i, e := range r.Examples {
		d := e.Before
		t.section(fmt.Sprintf("flip %d: decision %d%s at %s", i+1, d.GetId(), parenthesis(display.Plain(d.GetClientRequestId())), time.Unix(0, d.GetTimeUnixNano()).UTC().Format(time.RFC3339)))
		t.text("  ", "was: "+explain.Reason(d))
		t.text("  ", "now: "+explain.Reason(e.Now))
		t.text("  ", "why: "+e.Change.Words()+".")
	}
}

// caveat says what the figures cannot say.
func (t *sheet) caveat(r *Result) {
	if r.Config == "" || r.Replayed == 0 {
		return
	}
	t.lines = append(t.lines, "")
	t.text("", "This is open-loop: each decision is made on the caches and the load that were recorded, which other decisions before it would have changed. 'sluice simulate' closes the loop.")
	if len(r.Producers) > 0 {
		t.text("", fmt.Sprintf("What %s would have found is taken from the record: parameters of theirs change nothing here.", strings.Join(r.Producers, ", ")))
	}
}

func flips(p *Part) string {
	return fmt.Sprintf("%s (%s)", explain.Count(p.Flips), percent(p.Flipped()))
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

func ratio(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

func orUnnamed(model string) string {
	if model == "" {
		return "(none named)"
	}
	return display.Plain(model)
}

func parenthesis(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func things(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return explain.Count(n) + " " + thing
}

func have(n int64) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

func are(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func them(n int64) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

func goes(n int64) string {
	if n == 1 {
		return "1 goes"
	}
	return explain.Count(n) + " go"
}

func haveNumber(n int64) string { return explain.Count(n) + " " + have(n) }
