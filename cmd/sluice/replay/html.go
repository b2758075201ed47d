package replay

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling/explain"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"count": explain.Count, "percent": percent, "ratio": ratio, "unnamed": orUnnamed, "svg": svg, "reason": explain.Reason,
	"at": func(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) },
}).Parse(pageText))

// chart is a bar chart: one or two bars a group.
type chart struct {
	// Title says what it shows, Unit what its values are.
	Title, Unit string
	// Labels are the groups' names, Before and Now their bars; without Now there is one bar a group.
	Labels      []string
	Before, Now []float64
}

// WriteHTML writes the result as a page that needs nothing else.
func (r *Result) WriteHTML(w io.Writer) error {
	return page.Execute(w, struct {
		*Result
		LeftOutOf, UnreadOf, SubstitutedOf []Named
		Charts                             []chart
	}{r, r.LeftOut.sorted(), r.Unread.sorted(), r.Substituted.sorted(), r.charts()})
}

func (r *Result) charts() (all []chart) {
	if r.Config == "" || r.Replayed == 0 {
		return nil
	}
	if c := r.flipsOverTime(); len(c.Labels) > 1 {
		all = append(all, c)
	}
	if r.All.Flips > 0 {
		causes := chart{Title: "What made the difference", Unit: "flips"}
		for _, n := range r.Causes[:min(len(r.Causes), maxLines)] {
			causes.Labels, causes.Before = append(causes.Labels, n.Name), append(causes.Before, float64(n.Count))
		}
		moved := chart{Title: "Cached tokens of the new pick, less those of the old", Unit: "flips"}
		for i, n := range r.Moved {
			moved.Labels, moved.Before = append(moved.Labels, movedLabel(i)), append(moved.Before, float64(n))
		}
		all = append(all, causes, moved)
	}
	picks, tokens := chart{Title: "Picks of each endpoint", Unit: "picks"}, chart{Title: "Uncached tokens of each endpoint's picks", Unit: "tokens"}
	for _, e := range r.Endpoints[:min(len(r.Endpoints), 64)] {
		picks.Labels, tokens.Labels = append(picks.Labels, e.Name), append(tokens.Labels, e.Name)
		picks.Before, picks.Now = append(picks.Before, float64(e.DecisionsBefore)), append(picks.Now, float64(e.DecisionsNow))
		tokens.Before, tokens.Now = append(tokens.Before, float64(e.TokensBefore)), append(tokens.Now, float64(e.TokensNow))
	}
	return append(all, picks, tokens)
}

func (r *Result) flipsOverTime() chart {
	c := chart{Title: "Share of decisions that flip, over time", Unit: "%"}
	for i, n := range r.Times.Decisions {
		c.Labels = append(c.Labels, r.Times.Begin.Add(time.Duration(i)*r.Times.Width).UTC().Format("01-02 15:04:05"))
		v := 0.0
		if n > 0 {
			v = 100 * float64(r.Times.Flips[i]) / float64(n)
		}
		c.Before = append(c.Before, v)
	}
	return c
}

func movedLabel(i int) string {
	if i == len(movedBounds) {
		return "> " + explain.Count(movedBounds[i-1])
	}
	if movedBounds[i] == 0 {
		return "0"
	}
	return "≤ " + explain.Count(movedBounds[i])
}

// The size of a chart, in pixels.
const (
	chartWidth, chartHeight = 880, 310
	left, bottom, top       = 150, 135, 10 // room for the first label, and for the longest
)

// svg draws a chart. Labels come from outside and are escaped.
func svg(c chart) template.HTML {
	var b strings.Builder
	most := 0.0
	for _, v := range append(append([]float64{}, c.Before...), c.Now...) {
		most = max(most, v)
	}
	if most == 0 {
		most = 1
	}
	ticks := []float64{0, most / 2, most}
	if c.Unit != "%" { // whole things
		if half := math.Ceil(most / 2); most > 1 {
			most = 2 * half
			ticks = []float64{0, half, most}
		} else {
			ticks = []float64{0, most}
		}
	}
	height, width := float64(chartHeight-bottom-top), float64(chartWidth-left-8)
	y := func(v float64) float64 { return top + height*(1-v/most) }
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, chartHeight, template.HTMLEscapeString(c.Title))
	for _, v := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, chartWidth-8, y(v), y(v), left-6, y(v)+4, tick(v))
	}
	group := width / float64(max(1, len(c.Labels)))
	bars := 1
	if c.Now != nil {
		bars = 2
	}
	bar := min(40, group*0.8/float64(bars))
	every := 1 + len(c.Labels)/32
	for i, label := range c.Labels {
		middle := left + group*(float64(i)+0.5)
		under := template.HTMLEscapeString(short(label))
		label = template.HTMLEscapeString(label)
		draw := func(class string, k int, v float64) {
			x := middle + bar*(float64(k)-float64(bars)/2)
			fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s: %s %s</title></rect>`,
				class, x, y(v), max(0.5, bar-1), max(0, top+height-y(v)), label, tick(v), c.Unit)
		}
		draw("before", 0, c.Before[i])
		if c.Now != nil {
			draw("now", 1, c.Now[i])
		}
		if i%every == 0 {
			fmt.Fprintf(&b, `<text class="label" transform="translate(%.1f %d) rotate(-35)" text-anchor="end">%s</text>`, middle+4, chartHeight-bottom+14, under)
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped
}

// short keeps the end of a name, which is what tells names apart.
func short(s string) string {
	const most = 32
	if r := []rune(s); len(r) > most {
		return "…" + string(r[len(r)-most+1:])
	}
	return s
}

func tick(v float64) string {
	if v >= 10 || v == float64(int64(v)) {
		return explain.Count(int64(v + 0.5))
	}
	return fmt.Sprintf("%.2g", v)
}
