package page

import (
	"fmt"
	"strconv"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
)

const (
	shownDecisions    = 50   // in the stream
	freshDecisions    = 20   // of these, that one state adds: making records is what costs
	measuredDecisions = 1000 // in the plots
)

// decisionRow is a decision in the stream.
type decisionRow struct {
	ID           uint64
	Time, Stamp  string
	Pick         string
	Verdict      string
	VerdictClass string
	Match        int // percent of the prompt's blocks; -1 where it is not known
	Prompt       string
	Model        string
	RequestID    string
	Reason       string
	Outcome      string
	OutcomeClass string
}

// renderDecisions renders decisions of the stream. A record is made once of each, when it is new.
func (p *Page) renderDecisions(v *view, r recent, before *view) (list, error) {
	pieces := make([]piece, 0, len(r.shown))
	for _, b := range r.shown {
		row, known := decisionRow{}, false
		if before != nil {
			row, known = before.decisions[b.ID]
		}
		if !known {
			e, ok := p.config.Decisions.Get(b.ID)
			if !ok {
				continue // gone by now
			}
			row = decisionRowOf(e.Decision)
		}
		if b.Ended {
			row.Outcome, row.OutcomeClass = outcomeWords(b.Ending.Record())
		}
		v.decisions[b.ID] = row
		pieces = append(pieces, piece{"d" + strconv.FormatUint(b.ID, 10), row})
	}
	return v.render(listDecisions, "decision", pieces, before)
}

// words is what stands above the stream.
func (r recent) words() string {
	switch {
	case len(r.shown) == 0:
		return "No decision has been made yet."
	case r.left > 0:
		return fmt.Sprintf("Newest first, %s in all. %s in between came faster than they could be read and are left out: look them up by their ids. Times are UTC.",
			count(len(r.shown)), count(r.left))
	}
	return fmt.Sprintf("The newest %s, newest first. Times are UTC.", count(len(r.shown)))
}

func decisionRowOf(d *decisionv1.Decision) decisionRow {
	at := time.Unix(0, d.GetTimeUnixNano()).UTC()
	row := decisionRow{
		ID: d.GetId(), Time: at.Format("15:04:05.000"), Stamp: at.Format(time.RFC3339Nano), Pick: "nowhere", Match: -1,
		Model: short(d.GetRequest().GetModel()), RequestID: short(d.GetClientRequestId()), Reason: visible(explain.Reason(d)),
		Outcome: "in flight", OutcomeClass: "quiet",
	}
	if len(d.GetPicks()) > 0 {
		for _, c := range d.GetCandidates() {
			if c.GetOrdinal() == d.GetPicks()[0] {
				row.Pick, row.Match = nameOf(c), matched(c)
			}
		}
	} else {
		row.Outcome = "not sent"
	}
	if g := d.GetGates(); len(g) > 0 {
		row.Verdict, row.VerdictClass = verdict(g[len(g)-1].GetVerdict())
	}
	row.Prompt = promptLength(d.GetRequest())
	if o := d.GetOutcome(); o != nil {
		row.Outcome, row.OutcomeClass = outcomeWords(o)
	}
	return row
}

// nameOf is what people call a candidate.
func nameOf(c *decisionv1.Candidate) string {
	if n := c.GetName(); n != "" {
		return short(n)
	}
	return short(c.GetAddress())
}

// matched is the share of the prompt that a candidate's cache holds, in percent; -1 where that is not known.
func matched(c *decisionv1.Candidate) int {
	if m := c.GetPrefixCacheMatches(); len(m) > 0 && m[0].GetTotalBlocks() > 0 {
		return int(m[0].GetCachedBlockCount() * 100 / m[0].GetTotalBlocks())
	}
	return -1
}

// promptLength is the length of a prompt as well as it is known.
func promptLength(r *decisionv1.Request) string {
	for _, p := range r.GetTokenizedPrompts() {
		if p.GetExact() {
			return plural(p.GetTokens(), "token")
		}
	}
	if p := r.GetTokenizedPrompts(); len(p) > 0 {
		return "about " + plural(p[0].GetTokens(), "token")
	}
	if n := r.GetTokenCount(); n > 0 {
		return plural(n, "token")
	}
	return plural(r.GetPromptBytes(), "byte")
}

// outcomeWords are how a request ended.
func outcomeWords(o *decisionv1.Outcome) (text, class string) {
	class = "good"
	if o.TtftMs != nil {
		text = "first token " + duration(o.GetTtftMs()) + ", "
	}
	text += duration(o.GetTotalMs()) + " in all"
	if o.CachedTokens != nil && o.PromptTokens != nil {
		text += ", " + count(o.GetCachedTokens()) + " of " + plural(o.GetPromptTokens(), "token") + " cached"
	}
	if o.GetReason() != "complete" {
		text, class = visible(o.GetReason())+", "+text, "warn"
	}
	if s := o.GetStatus(); s >= 400 {
		text, class = "status "+strconv.Itoa(int(s))+", "+text, "bad"
	}
	if o.GetServedBy() != "" {
		text, class = text+", served by "+short(o.GetServedBy()), "warn"
	}
	return text, class
}
