package chart

import (
	"fmt"
	"html"
	"html/template"
	"strings"
	"unicode/utf8"
)

// Bar is a value with a name.
type Bar struct {
	Name string
	// Colour is the number of its colour.
	Colour int
	// Value is how long it is, and Half half of its interval; 0: it has none.
	Value, Half float64
	// Text is what is written beside it.
	Text string
}

// The places in a figure of bars: names stand above what is drawn, which goes from barsBegin to barsEnd. namesHigh is how high a
// name is, and namesRunes how long it may be.
const (
	barsBegin, barsEnd    = 2, 336
	namesHigh, namesRunes = 15, 64
)

// Bars draws values below each other, as a figure of the size of small plots. They begin at 0, and end at most at the longest of
// them or at whole, whichever is longer.
func Bars(title string, whole float64, all []Bar) template.HTML {
	const each = namesHigh + 22
	most := whole
	for _, b := range all {
		if finite(b.Value + b.Half) {
			most = max(most, b.Value+b.Half)
		}
	}
	if !(most > 0) {
		most = 1
	}
	at := func(v float64) float64 {
		return barsBegin + min(1, max(0, v/most))*(barsEnd-barsBegin)
	}
	var d strings.Builder
	begin(&d, title, each*len(all)+4)
	for i, b := range all {
		y := each*i + namesHigh
		label(&d, b.Name, b.Text, y, y+14)
		if !finite(b.Value) {
			b.Value = 0
		}
		fmt.Fprintf(&d, `<rect class="rail" x="%d" y="%d" width="%d" height="14"/>`, barsBegin, y+3, barsEnd-barsBegin)
		fmt.Fprintf(&d, `<rect class="%s bar" x="%d" y="%d" width="%.1f" height="14"><title>%s: %s</title></rect>`, class("d", b.Colour), barsBegin, y+3,
			at(b.Value)-barsBegin, html.EscapeString(b.Name), html.EscapeString(b.Text))
		if b.Half > 0 {
			low, high := at(b.Value-b.Half), at(b.Value+b.Half)
			fmt.Fprintf(&d, `<path class="interval" d="M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8"/>`, low, y+10, high, low, y+6, high, y+6)
		}
	}
	return end(&d)
}

// Strip is a row of shares, as of endpoints.
type Strip struct {
	Name   string
	Colour int
	Shares []float64
	// Text is what is written beside it.
	Text string
}

// Strips draws rows of columns, each as high as its share: up to the line in the middle where all shares are equal, and at most
// twice as high.
func Strips(title string, all []Strip) template.HTML {
	const high, each = 28, namesHigh + 36
	var d strings.Builder
	begin(&d, title, each*len(all)+4)
	for i, s := range all {
		y := each*i + namesHigh
		label(&d, s.Name, s.Text, y, y+high/2+4)
		fmt.Fprintf(&d, `<path class="grid" d="M%d %dH%dM%d %dH%d"/>`, barsBegin, y+high/2, barsEnd, barsBegin, y+high, barsEnd)
		wide := float64(barsEnd-barsBegin) / max(1, float64(len(s.Shares)))
		for j, share := range s.Shares {
			h := min(high, max(0, share*float64(len(s.Shares))*high/2))
			fmt.Fprintf(&d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%d: %.1f %%</title></rect>`, class("d", s.Colour),
				barsBegin+wide*(float64(j)+0.1), float64(y+high)-h, wide*0.8, h, j, 100*share)
		}
	}
	return end(&d)
}

func begin(d *strings.Builder, title string, height int) {
	title = html.EscapeString(title)
	fmt.Fprintf(d, `<figure><figcaption>%s</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, title, smallWidth, height, title)
}

func end(d *strings.Builder) template.HTML {
	d.WriteString(`</svg></figure>`)
	return template.HTML(d.String()) //nolint:gosec // every text in it is escaped
}

// label writes a row's name above it, and a text behind it.
func label(d *strings.Builder, name, text string, above, behind int) {
	short := name
	if r := []rune(name); utf8.RuneCountInString(name) > namesRunes { // names differ at their ends
		short = string(r[:namesRunes/2]) + "…" + string(r[len(r)-namesRunes/2+1:])
	}
	fmt.Fprintf(d, `<text class="name" x="%d" y="%d">%s<title>%s</title></text>`, barsBegin, above-2, html.EscapeString(short), html.EscapeString(name))
	fmt.Fprintf(d, `<text class="name" x="%d" y="%d">%s</text>`, barsEnd+6, behind, html.EscapeString(text))
}
