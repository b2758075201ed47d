package replay

import (
	"regexp"
	"strings"
	"testing"
)

// Counts have whole numbers beside them, and names are cut before they are escaped.
func TestChartOfCounts(t *testing.T) {
	for most, want := range map[float64]string{1: "0 1", 3: "0 2 4", 8: "0 4 8"} {
		svg := string(svg(chart{Title: "t", Unit: "flips", Labels: []string{strings.Repeat("x", 40) + "&<"}, Before: []float64{most}}))
		var ticks []string
		for _, m := range regexp.MustCompile(`text-anchor="end">([0-9.]+)</text>`).FindAllStringSubmatch(svg, -1) {
			ticks = append(ticks, m[1])
		}
		if got := strings.Join(ticks, " "); got != want {
			t.Errorf("up to %v: ticks %s, want %s", most, got, want)
		}
		if !strings.Contains(svg, ">…"+strings.Repeat("x", 29)+"&amp;&lt;</text>") {
			t.Errorf("the label is not clipped: %s", svg)
		}
	}
}
