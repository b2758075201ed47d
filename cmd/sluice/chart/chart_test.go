package chart_test

import (
	"bytes"
	"encoding/xml"
	"html/template"
	"math"
	"strconv"
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

func TestSmallPlot(t *testing.T) {
	p := chart.Plot{
		Title: "by load", Small: true, LogY: true, Least: 0.01, TicksX: []float64{0, 5, 10}, FormatX: func(v float64) string { return "at " + strconv.Itoa(int(v)) },
		Lines: []chart.Line{
			{Name: "a", Marked: true, Points: []chart.Point{{0, 1}, {10, 10}}, Halves: []float64{0.5, math.NaN()}},
			{Name: "b", Colour: 12, Points: []chart.Point{{0, 2}, {5, 3}}},
		},
	}
	svg := string(p.SVG())
	found := parse(t, svg)
	if found["circle"] != 2 || found["path"] != 3+5+3 || strings.Contains(svg, "legend") || strings.Contains(svg, "NaN") {
		t.Errorf("%v in %s", found, svg)
	}
	for _, want := range []string{`viewBox="0 0 420 240"`, `class="s3 dashed"`, ">at 10<", ">5<", `text-anchor="end" x="404.0"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in %s", want, svg)
		}
	}
	legend := string(chart.Legend([]chart.Key{{Name: "<a>"}, {Name: "b", Colour: 11}, {Name: "c", Dots: true}}))
	if parse(t, legend)["span"] != 3 || !strings.Contains(legend, `class="l0 dots"`) || !strings.Contains(legend, `class="l3 dashed"`) {
		t.Error(legend)
	}
}

func TestBars(t *testing.T) {
	bars := string(chart.Bars("goodput", 1, []chart.Bar{
		{Name: "<b>", Value: 0.5, Half: 0.25, Text: "50 %"}, {Name: "a name that is longer than there was room for", Colour: 9, Value: 2}, {Value: math.NaN()},
	}))
	found := parse(t, bars)
	if found["rect"] != 6 || found["path"] != 1 || strings.Contains(bars, "NaN") || !strings.Contains(bars, ">a name that is longer than there was room for<title>") {
		t.Errorf("%v in %s", found, bars)
	}
	if !strings.Contains(bars, `width="83.5"`) || !strings.Contains(bars, `width="334.0"`) { // a quarter, and the longest
		t.Error(bars)
	}
	if empty := string(chart.Bars("none", 0, []chart.Bar{{Name: "a"}})); strings.Contains(empty, "NaN") {
		t.Error(empty)
	}
	strips := string(chart.Strips("prefill", []chart.Strip{{Name: "a", Shares: []float64{0.25, 0.25, 0.5, 0}, Text: "2.00"}, {Name: "none"}}))
	if found := parse(t, strips); found["rect"] != 4 || !strings.Contains(strips, `height="14.0"`) || !strings.Contains(strips, `height="28.0"`) {
		t.Error(strips)
	}
}

// A short logarithmic axis has values along it too.
func TestTicksOfShortAxes(t *testing.T) {
	for _, ends := range [][2]float64{{11, 14}, {2.1, 2.2}, {1, 30}, {1, 1e5}, {0.051, 0.058}, {6, 11}} {
		p := chart.Plot{LogX: true, LogY: true, Least: 1e-3, Lines: []chart.Line{{Points: []chart.Point{{ends[0], ends[0]}, {ends[1], ends[1]}}}}}
		if n := strings.Count(string(p.SVG()), `class="tick"`); n < 6 || n > 26 {
			t.Errorf("%v: %d values along both axes", ends, n)
		}
	}
}

func TestTableClasses(t *testing.T) {
	var b bytes.Buffer
	p := chart.Page{Wide: true, Sections: []chart.Section{{
		Legend:  []chart.Key{{Name: "a"}},
		Plots:   []chart.Plot{{Title: "small", Small: true}, {Title: "wide"}},
		Figures: []template.HTML{chart.Bars("bars", 1, nil)},
		More:    &chart.Table{Head: []string{"h"}, Rows: [][]string{{"1", "2"}, {"3"}}, Classes: [][]string{{"", "best"}}}, MoreTitle: "the <rest>",
	}}}
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<body class="across">`, `<td class="best">2</td>`, "<td>3</td>", "<summary>the &lt;rest&gt;</summary>", `<div class="plots"><figure><figcaption>small`, "bars</figcaption>"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in the page", want)
		}
	}
}

// A mark at the right edge has its name on its left, where there is room.
func TestMarkAtTheEdge(t *testing.T) {
	p := chart.Plot{Title: "a", Lines: []chart.Line{{Name: "b", Points: []chart.Point{{X: 0, Y: 1}, {X: 10, Y: 2}}}},
		Marks: []chart.Mark{{X: 1, Name: "near the left"}, {X: 10, Name: "matchedTokens"}}}
	svg := string(p.SVG())
	for name, anchor := range map[string]string{"near the left": "start", "matchedTokens": "end"} {
		before, _, found := strings.Cut(svg, ">"+name+"<")
		if at := strings.LastIndex(before, "text-anchor"); !found || !strings.HasPrefix(before[at:], `text-anchor="`+anchor+`"`) {
			t.Errorf("%s is not anchored at its %s", name, anchor)
		}
	}
}
