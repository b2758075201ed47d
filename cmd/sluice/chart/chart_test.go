package chart_test

import (
	"bytes"
	"encoding/xml"
	"math"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/cmd/sluice/chart"
)

// parse reads XML to its end and returns how many elements of each name there are.
func parse(t *testing.T, text string) map[string]int {
	t.Helper()
	found := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if token == nil {
			return found
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			found[e.Name.Local]++
		}
	}
}

func TestPlot(t *testing.T) {
	p := chart.Plot{
		Title: "a < b", X: "gap in ms", Y: "share", LogX: true, TopY: 1,
		Lines: []chart.Line{
			{Name: "<script>alert(1)</script>", Steps: true, Points: []chart.Point{{-5, 0}, {1, 0.1}, {1000, 0.5}, {math.NaN(), 1}, {1e5, 1}}},
			{Name: "dots", Dots: true, Points: []chart.Point{{10, 0.2}, {math.Inf(1), 0.3}}},
		},
		Marks: []chart.Mark{{X: 18000, Name: "bar 18 s"}},
	}
	svg := string(p.SVG())
	found := parse(t, svg)
	if found["svg"] != 1 || found["script"] != 0 || found["circle"] != 1 || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("%v in %s", found, svg)
	}
	if !strings.Contains(svg, `d="M64.0 256.0H64.0V231.6H`) {
		t.Errorf("the line does not begin at the left: %s", svg)
	}
}

// Whatever the values, there is a picture.
func TestPlotOfOddValues(t *testing.T) {
	for _, points := range [][]chart.Point{nil, {{0, 0}}, {{1, 1}, {1, 1}}, {{math.NaN(), 0}}, {{-1e300, 1e300}, {1e300, -1e300}}, {{1e-300, 1}, {2e-300, 1}}} {
		for _, log := range []bool{false, true} {
			p := chart.Plot{LogX: log, LogY: log, Lines: []chart.Line{{Points: points}}}
			if svg := string(p.SVG()); parse(t, svg)["svg"] != 1 || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Errorf("%v: %s", points, svg)
			}
		}
	}
}

func TestPage(t *testing.T) {
	var b bytes.Buffer
	p := chart.Page{
		Title: "gates <1>", Lead: "lead",
		Sections: []chart.Section{{
			Title: "one", Text: []string{"a & b"}, Plots: []chart.Plot{{Title: "plot"}},
			Table: &chart.Table{Head: []string{"rule", "share"}, Rows: [][]string{{"<b>", "1"}}}, Code: "x: <y>",
		}},
	}
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"<h1>gates &lt;1&gt;</h1>", "<td>&lt;b&gt;</td>", "<pre>x: &lt;y&gt;</pre>", "<svg", "prefers-color-scheme: dark"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the page", want)
		}
	}
	if strings.Contains(page, "http") {
		t.Error("the page wants something from elsewhere")
	}
}
