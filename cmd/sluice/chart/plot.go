// Package chart draws plots as inline SVG, and pages of HTML around them that need nothing from elsewhere, in light and dark.
package chart

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
	"unicode/utf8"
)

// Point is one of a line's.
type Point struct{ X, Y float64 }

// Line is a series.
type Line struct {
	// Name stands in the legend.
	Name string
	// Points are in the order of their X. Those that are not finite are left out.
	Points []Point
	// Steps draws it as steps, as distributions are.
	Steps bool
	// Dots draws its points alone.
	Dots bool
	// Marked draws its points beside the line, with whiskers as long as Halves says on either side, by point.
	Marked bool
	Halves []float64
	// Colour is 1 and the number of its colour; 0: its place among the lines says it. From the ninth on colours come again,
	// dashed.
	Colour int
}

// colour is the number of a line's colour.
func (l *Line) colour(place int) int {
	if l.Colour > 0 {
		return l.Colour - 1
	}
	return place
}

// Mark is a vertical line at a value of the x axis.
type Mark struct {
	X    float64
	Name string
}

// Plot is a chart of lines over two axes.
type Plot struct {
	// Title says what it shows.
	Title string
	// X and Y name the axes, with their units.
	X, Y string
	// LogX and LogY make the axes logarithmic. What is below Least counts as Least then.
	LogX, LogY bool
	// Least is the smallest value of a logarithmic axis; 1 where it is 0.
	Least float64
	// TopY is the end of the y axis; 0 takes it from the lines.
	TopY float64
	// FormatX and FormatY write values at the axes; nil writes them short.
	FormatX, FormatY func(float64) string
	// Lines and Marks are what is drawn.
	Lines []Line
	Marks []Mark
	// TicksX are the values to write along the x axis; none: round ones.
	TicksX []float64
	// Small draws it for a place beside others, without a legend: the section has one.
	Small bool
}

// The size of a plot and of what is around its axes. Small ones have the letters of large ones, so that they are as easy to read
// in half the width.
const (
	wideWidth, wideHeight    = 720, 300
	smallWidth, smallHeight  = 420, 240
	left, right, top, bottom = 64, 16, 12, 44
	colours                  = 8
)

func (p *Plot) size() (width, height int) {
	if p.Small {
		return smallWidth, smallHeight
	}
	return wideWidth, wideHeight
}

// class is the class of a colour: stroke s, fill d, letters l.
func class(kind string, colour int) string {
	name := fmt.Sprintf("%s%d", kind, colour%colours)
	if colour/colours%2 == 1 {
		name += " dashed"
	}
	return name
}

// axis maps values to places.
type axis struct {
	low, high float64 // in the scale's own units
	from, to  float64 // places
	log       bool
	least     float64
	format    func(float64) string
}

func (a *axis) scale(v float64) float64 {
	if a.log {
		return math.Log10(max(v, a.least))
	}
	return v
}

func (a *axis) at(v float64) float64 {
	if a.high == a.low {
		return (a.from + a.to) / 2
	}
	return a.from + (a.scale(v)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks are the values to write: powers of ten, with what is between them where there are few, or round steps.
func (a *axis) ticks() []float64 {
	var all []float64
	if a.log {
		steps := []float64{1}
		if a.high-a.low < 2 {
			steps = []float64{1, 2, 5}
		}
		for e := math.Floor(a.low); e <= a.high+1e-9 && len(all) < 20; e++ {
			for _, f := range steps {
				if v := e + math.Log10(f); v >= a.low-1e-9 && v <= a.high+1e-9 {
					all = append(all, f*math.Pow(10, e))
				}
			}
		}
		if len(all) > 2 {
			return all
		}
		return round(math.Pow(10, a.low), math.Pow(10, a.high)) // so short an axis is nearly even
	}
	return round(a.low, a.high)
}

// round are values in round steps from low to high.
func round(low, high float64) (all []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, f := range []float64{5, 2} {
		if (high-low)/(step*f) >= 4 {
			step *= f
			break
		}
	}
	if !(step > 0) || math.IsInf(step, 0) {
		return []float64{low}
	}
	for v := math.Ceil(low/step) * step; v <= high+step/1e6 && len(all) < 20; v += step {
		all = append(all, v)
	}
	return all
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// axes are those that all lines and marks fit between.
func (p *Plot) axes() (x, y axis) {
	least := p.Least
	if least <= 0 {
		least = 1
	}
	width, height := p.size()
	x = axis{low: math.Inf(1), high: math.Inf(-1), from: left, to: float64(width - right), log: p.LogX, least: least, format: p.FormatX}
	y = axis{low: math.Inf(1), high: math.Inf(-1), from: float64(height - bottom), to: top, log: p.LogY, least: least, format: p.FormatY}
	for _, l := range p.Lines {
		for i, pt := range l.Points {
			if finite(pt.X) && finite(pt.Y) {
				half := l.half(i)
				x.low, x.high = min(x.low, x.scale(pt.X)), max(x.high, x.scale(pt.X))
				y.low, y.high = min(y.low, y.scale(pt.Y-half)), max(y.high, y.scale(pt.Y+half))
			}
		}
	}
	for _, v := range p.TicksX {
		x.low, x.high = min(x.low, x.scale(v)), max(x.high, x.scale(v))
	}
	for _, m := range p.Marks {
		if finite(m.X) {
			x.low, x.high = min(x.low, x.scale(m.X)), max(x.high, x.scale(m.X))
		}
	}
	if !p.LogY {
		y.low = min(0, y.low)
	}
	if p.TopY > 0 {
		y.high = max(y.high, y.scale(p.TopY))
	}
	for _, a := range []*axis{&x, &y} {
		if !finite(a.low) || !finite(a.high) {
			a.low, a.high = 0, 1
		}
		if a.high == a.low {
			a.high++
		}
		if a.format == nil {
			a.format = func(v float64) string { return fmt.Sprintf("%.4g", v) }
		}
	}
	return x, y
}

// letter is about how wide a letter of a tick is, in pixels.
const letter = 7.0

// SVG draws the plot.
func (p *Plot) SVG() template.HTML {
	x, y := p.axes()
	width, height := p.size()
	var b strings.Builder
	fmt.Fprintf(&b, `<figure><figcaption>%s</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		html.EscapeString(p.Title), width, height, html.EscapeString(p.Title))
	ticks := p.TicksX
	if ticks == nil {
		ticks = x.ticks()
	}
	for _, v := range ticks {
		anchor := "middle"
		if text := x.format(v); len(text) > 3 && x.at(v) > float64(width-right-8) { // the last one ends where the plot does
			anchor = "end"
		}
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text class="tick" text-anchor="%s" x="%.1f" y="%d">%s</text>`,
			x.at(v), top, height-bottom, anchor, x.at(v), height-bottom+16, html.EscapeString(x.format(v)))
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text class="tick" text-anchor="end" x="%d" y="%.1f">%s</text>`,
			left, y.at(v), width-right, left-6, y.at(v)+4, html.EscapeString(y.format(v)))
	}
	fmt.Fprintf(&b, `<text class="name" text-anchor="middle" x="%d" y="%d">%s</text>`, (left+width-right)/2, height-8, html.EscapeString(p.X))
	fmt.Fprintf(&b, `<text class="name" text-anchor="middle" transform="translate(14 %d) rotate(-90)">%s</text>`,
		(top+height-bottom)/2, html.EscapeString(p.Y))
	for i, m := range p.Marks {
		anchor, at := "start", x.at(m.X)+3
		if at+letter*float64(utf8.RuneCountInString(m.Name)) > float64(width) { // it has no room on its right
			anchor, at = "end", x.at(m.X)-3
		}
		fmt.Fprintf(&b, `<path class="mark" d="M%.1f %dV%d"/><text class="tick" text-anchor="%s" x="%.1f" y="%d">%s</text>`,
			x.at(m.X), top, height-bottom, anchor, at, top+10+12*(i%4), html.EscapeString(m.Name))
	}
	for i, l := range p.Lines {
		l.draw(&b, &x, &y, l.colour(i))
	}
	b.WriteString(`</svg>`)
	if len(p.Lines) > 1 && !p.Small {
		legend := make([]Key, len(p.Lines))
		for i, l := range p.Lines {
			legend[i] = Key{l.Name, l.colour(i), l.Dots}
		}
		b.WriteString(string(Legend(legend)))
	}
	b.WriteString(`</figure>`)
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped above
}

// Key is an entry of a legend: a name and the number of its colour, of a line or of Dots.
type Key struct {
	Name   string
	Colour int
	Dots   bool
}

// Legend writes which colour stands for what.
func Legend(all []Key) template.HTML {
	var b strings.Builder
	b.WriteString(`<p class="legend">`)
	for _, k := range all {
		kind := class("l", k.Colour)
		if k.Dots {
			kind += " dots"
		}
		fmt.Fprintf(&b, `<span class="%s">%s</span> `, kind, html.EscapeString(k.Name))
	}
	b.WriteString(`</p>`)
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped above
}

// half is half of the interval of a point.
func (l *Line) half(point int) float64 {
	if l.Marked && point < len(l.Halves) && finite(l.Halves[point]) {
		return l.Halves[point]
	}
	return 0
}

func (l *Line) draw(b *strings.Builder, x, y *axis, colour int) {
	var d strings.Builder
	for i, pt := range l.Points {
		if !finite(pt.X) || !finite(pt.Y) {
			continue
		}
		px, py := x.at(pt.X), y.at(pt.Y)
		switch {
		case l.Dots:
			fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="2"/>`, class("d", colour), px, py)
		case d.Len() == 0:
			fmt.Fprintf(&d, "M%.1f %.1f", px, py)
		case l.Steps:
			fmt.Fprintf(&d, "H%.1fV%.1f", px, py)
		default:
			fmt.Fprintf(&d, "L%.1f %.1f", px, py)
		}
		if l.Marked {
			half := l.half(i)
			if half > 0 {
				fmt.Fprintf(b, `<path class="%s" d="M%.1f %.1fV%.1f"/>`, class("s", colour), px, y.at(pt.Y-half), y.at(pt.Y+half))
			}
			fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="3"><title>%s: %s</title></circle>`, class("d", colour), px, py,
				html.EscapeString(l.Name), html.EscapeString(y.format(pt.Y)))
		}
	}
	if d.Len() > 0 {
		fmt.Fprintf(b, `<path class="%s" d="%s"><title>%s</title></path>`, class("s", colour), d.String(), html.EscapeString(l.Name))
	}
}
