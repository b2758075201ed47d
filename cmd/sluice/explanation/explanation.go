package explanation

import (
	"fmt"
	"io"
	"strings"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/scheduling"
)

// MinWidth is the narrowest that a decision is written.
const MinWidth = 60

// notYet stands where a value will be once it has been learnt.
const notYet = "not yet known"

// Options say how a decision is written.
type Options struct {
	// Width is the longest line, in cells; at least MinWidth. Names in sentences are not broken, and may be longer.
	Width int
	// Styles says whether anything but plain text is written.
	Styles display.Styles
	// Now is the time that the decision's age is told by; its location is that of the decision's time.
	Now time.Time
	// Tried says that the decision is about a request that is not there.
	Tried bool
	// Endpoints tell what has been learnt of the endpoints until now; nil where that could not be asked.
	Endpoints []*schedulerv1.Endpoint
}

// Write writes a decision. The error is w's.
func Write(w io.Writer, x *schedulerv1.Explanation, o Options) error {
	o.Width = max(o.Width, MinWidth)
	p := &page{Options: o, x: x, d: x.GetDecision(), byOrdinal: map[uint32]*decisionv1.Candidate{}}
	for _, e := range p.d.GetCandidates() {
		p.byOrdinal[e.GetOrdinal()] = e
	}
	p.title()
	p.section("Why")
	p.text(x.GetReason())
	p.outcome()
	p.gates()
	p.candidates()
	p.scores()
	p.engines()
	p.adapters()
	p.flips()
	p.latency()
	p.faults()
	_, err := io.WriteString(w, strings.Join(p.lines, "\n")+"\n")
	return err
}

// page is a decision being written.
type page struct {
	Options
	x         *schedulerv1.Explanation
	d         *decisionv1.Decision
	byOrdinal map[uint32]*decisionv1.Candidate
	lines     []string
}

func (p *page) line(s string)       { p.lines = append(p.lines, s) }
func (p *page) section(name string) { p.lines = append(p.lines, "", p.Styles.In(display.Bold, name)) }
func (p *page) text(s string) {
	p.lines = append(p.lines, display.Wrap(display.Plain(s), "  ", p.Width)...)
}

// field writes a named value, wrapped beside its name.
func (p *page) field(name, value string) {
	const column = 18
	for i, l := range display.Wrap(display.Plain(value), strings.Repeat(" ", column), p.Width) {
		if i == 0 {
			l = "  " + display.Pad(name, column-2, false) + strings.TrimLeft(l, " ")
		}
		p.line(l)
	}
}

// item writes an entry of a list.
func (p *page) item(s string) {
	for i, l := range display.Wrap(display.Plain(s), "    ", p.Width) {
		if i == 0 {
			l = "  - " + strings.TrimLeft(l, " ")
		}
		p.line(l)
	}
}

// name is what people call an endpoint.
func (p *page) name(ordinal uint32) string {
	e := p.byOrdinal[ordinal]
	switch {
	case e == nil:
		return fmt.Sprintf("endpoint %d", ordinal)
	case e.GetName() != "":
		return display.Plain(e.GetName())
	}
	return display.Plain(e.GetAddress())
}

// title says which decision it is, and about what.
func (p *page) title() {
	d, r := p.d, p.d.GetRequest()
	at := time.Unix(0, d.GetTimeUnixNano()).In(p.Now.Location())
	title := fmt.Sprintf("Decision %d", d.GetId())
	when := at.Format("2006-01-02 15:04:05.000 MST") + ", " + display.Since(max(0, p.Now.Sub(at))) + " ago"
	if p.Tried {
		title, when = "Dry run", "no engine computed it, nothing was charged or learnt"
	}
	p.line(p.Styles.In(display.Bold, title) + "  " + when)
	if id := d.GetClientRequestId(); id != "" {
		p.field("request id", id)
	}
	asks := []string{enum(r.GetOperation().String(), "OPERATION_")}
	if r.GetModel() != "" {
		asks = append(asks, "model "+r.GetModel())
	}
	asks = append(asks, prompt(r))
	if n := r.GetMaxOutputTokens(); n > 0 {
		asks = append(asks, "at most "+display.Things(float64(n), "output token"))
	}
	if n := r.GetChoices(); n > 1 {
		asks = append(asks, fmt.Sprintf("%d choices", n))
	}
	if r.GetStream() {
		asks = append(asks, "streamed")
	}
	p.field("asks", strings.Join(asks, ", "))
	p.field("decided by", fmt.Sprintf("profile %s, config %s, endpoint set %d", orNone(d.GetProfile()), orNone(d.GetConfigHash()), d.GetSnapshotVersion()))
}

// prompt is the length of a request's prompt.
func prompt(r *decisionv1.Request) string {
	for _, t := range r.GetTokenizedPrompts() {
		if t.GetTokens() > 0 {
			how := "about "
			if t.GetExact() {
				how = ""
			}
			return how + display.Things(float64(t.GetTokens()), "prompt token")
		}
	}
	if n := r.GetTokenCount(); n > 0 {
		return display.Things(float64(n), "prompt token")
	}
	return "prompt of " + display.Things(float64(r.GetPromptBytes()), "byte")
}

// flips are what would have made the pick another one.
func (p *page) flips() {
	if len(p.d.GetPicks()) == 0 {
		return
	}
	p.section("What would have changed the pick")
	if len(p.x.GetFlips()) == 0 {
		p.text("No single change that was tried: of tokens in flight, cached blocks, a predicted time, or a scorer's weight.")
	}
	for _, f := range p.x.GetFlips() {
		p.item(f.GetWords())
	}
}

// Pressure is what of the pool priced a pick, in words.
func Pressure(m *decisionv1.PoolPressure) string {
	v := scheduling.PoolPressure{Utilisation: m.GetUtilisation()}
	s := fmt.Sprintf("busy with prompts %s of the time (α %s); a ms of prefill holds a decode up by %s ms",
		display.Percent(m.GetUtilisation()), display.Score(v.Alpha()), display.Score(m.GetDecodeStall()))
	if m.GetCompanyMs() > 0 {
		s += fmt.Sprintf(", each request in flight by %s", display.Millis(m.GetCompanyMs()))
	}
	return s + " (confidence " + display.Percent(m.GetConfidence()) + ")"
}

// Rates are an endpoint's learnt rates in words, and where a gate breaks even by them; unknown stands for what is not known.
func Rates(r *schedulerv1.LearntRates, unknown string) (rates, breakEven string) {
	var parts []string
	if r.PrefillTokensPerSecond != nil {
		parts = append(parts, "prefills "+display.Things(r.GetPrefillTokensPerSecond(), "token")+" per second")
	}
	if r.WaitMsPerToken != nil {
		parts = append(parts, fmt.Sprintf("a token ahead is a wait of %s ms", display.Score(r.GetWaitMsPerToken())))
	}
	rates, breakEven = unknown, unknown
	if len(parts) > 0 {
		rates = strings.Join(parts, ", ") + " (confidence " + display.Percent(r.GetConfidence()) + ")"
	}
	if r.BreakEven != nil {
		breakEven = display.Things(r.GetBreakEven(), "token") + " in flight for each uncached one"
	}
	return rates, breakEven
}

// faults are the producers that failed.
func (p *page) faults() {
	if len(p.d.GetFaults()) == 0 {
		return
	}
	p.section("What failed")
	for _, f := range p.d.GetFaults() {
		p.item(f.GetProducer() + ": " + f.GetError())
	}
}

// enum is an enum's value in words.
func enum(value, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value, prefix)), "_", " ")
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}
