package page

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// start is when the process started.
var start = time.Now()

// unknown is what the page says of what is not known yet.
const unknown = "not yet known"

// words are the functions of the templates.
var words = template.FuncMap{
	"asset": assetPath, "visible": visible, "bar": func(width int, class string) bar { return bar{width, class} },
}

// bar is a bar that fills a part of its width.
type bar struct {
	Width int // percent
	Class string
}

// visible writes out what would not show or would turn the text around it: control characters, and those that order or join
// others.
func visible(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	return r == unicode.ReplacementChar || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}

// maxShown is how many characters of a name a row shows.
const maxShown = 80

// short is a text from outside as a row shows it.
func short(s string) string {
	n := 0
	for i := range s {
		if n++; n > maxShown {
			return visible(s[:i]) + "…"
		}
	}
	return visible(s)
}

// count writes a whole number with commas between thousands, and a minus as long as its digits are wide.
func count[N int | int64 | uint64 | uint32](n N) string {
	return strings.Replace(explain.Count(int64(n)), "-", "−", 1)
}

// plural writes a number of things.
func plural[N int | int64 | uint64 | uint32](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// number writes a number with three digits that count.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return unknown
	case math.Abs(v) >= 1000 && math.Abs(v) < 1e15:
		return count(int64(math.Round(v)))
	case v < 0:
		return "−" + number(-v)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// percent writes a share, cut off as sluice explain does.
func percent(share float64) string {
	if share > 0 && share < 0.01 {
		return "< 1 %"
	}
	return explain.Percent(share)
}

// duration writes a time in ms.
func duration(ms float64) string {
	switch {
	case ms == 0:
		return "0 ms"
	case ms < 1:
		return strconv.FormatFloat(ms, 'f', 2, 64) + " ms"
	case ms < 1000:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case ms < 60_000:
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
	}
	return uptime(time.Duration(ms * float64(time.Millisecond)))
}

// uptime writes a time so that it seldom changes.
func uptime(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// size writes a number of bytes.
func size(n uint64) string {
	switch {
	case n < 1<<10:
		return count(n) + " B"
	case n < 1<<20:
		return number(float64(n)/(1<<10)) + " KiB"
	case n < 1<<30:
		return number(float64(n)/(1<<20)) + " MiB"
	}
	return number(float64(n)/(1<<30)) + " GiB"
}

// share is a part of a whole in whole percent; something is never nothing.
func share(part, whole float64) int {
	if !(part > 0) || !(whole > 0) {
		return 0
	}
	return int(math.Ceil(min(1, part/whole) * 100))
}

// ceiling is the next of 1, 2 and 5 times a power of ten: a scale that seldom changes.
func ceiling(v float64) float64 {
	if !(v > 1) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5, 10} {
		if v <= step*power*(1+1e-9) {
			return step * power
		}
	}
	return v
}

// verdict is a gate's verdict, by the name that it has everywhere, with the class of its badge.
func verdict(v decisionv1.GateVerdict) (text, class string) {
	switch v {
	case decisionv1.GateVerdict_GATE_VERDICT_UNSPECIFIED, decisionv1.GateVerdict_GATE_VERDICT_NONE:
		return "gate did not run", "quiet"
	case decisionv1.GateVerdict_GATE_VERDICT_HELD:
		class = "held"
	case decisionv1.GateVerdict_GATE_VERDICT_RELEASED_STATIC, decisionv1.GateVerdict_GATE_VERDICT_RELEASED_MATCHED,
		decisionv1.GateVerdict_GATE_VERDICT_RELEASED_CEILING, decisionv1.GateVerdict_GATE_VERDICT_RELEASED_BREAK_EVEN:
		class = "released"
	case decisionv1.GateVerdict_GATE_VERDICT_EXPLORED:
		class = "explored"
	case decisionv1.GateVerdict_GATE_VERDICT_NO_STICKY, decisionv1.GateVerdict_GATE_VERDICT_MISSING_SIGNAL:
		class = "quiet"
	}
	return record.Verdict(v), class
}

// endpointState is a state for people, with the class of its badge.
func endpointState(s decisionv1.EndpointState) (text, class string) {
	switch s {
	case decisionv1.EndpointState_ENDPOINT_STATE_READY:
		return "ready", "good"
	case decisionv1.EndpointState_ENDPOINT_STATE_NOT_READY:
		return "not ready", "bad"
	case decisionv1.EndpointState_ENDPOINT_STATE_DRAINING:
		return "draining", "warn"
	case decisionv1.EndpointState_ENDPOINT_STATE_UNSPECIFIED:
	}
	return "unknown", "quiet"
}

// eventState is how far events can be trusted, with the class of its badge.
func eventState(s string) (text, class string) {
	switch s {
	case "":
		return "estimated", "quiet"
	case "live":
		return "events live", "good"
	case "silent":
		return "events silent", "bad"
	}
	return "events " + short(s), "warn"
}
