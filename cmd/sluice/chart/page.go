package chart

import (
	"html/template"
	"io"
)

// Page is a page of HTML.
type Page struct {
	// Title is its heading, Lead the paragraph below it.
	Title, Lead string
	// Sections follow.
	Sections []Section
	// Wide gives tables and plots the width of a large window.
	Wide bool
}

// Section is a part of a page. What is empty is left out.
type Section struct {
	// Title is its heading.
	Title string
	// Text are its paragraphs.
	Text []string
	// Legend says what the colours of small plots stand for.
	Legend []Key
	// Plots are below them, small ones beside each other with Figures, and then Table.
	Plots   []Plot
	Figures []template.HTML
	Table   *Table
	// More is a table that is shown where somebody asks for it, by the title that MoreTitle is.
	More      *Table
	MoreTitle string
	// Code is what may be copied.
	Code string
}

// Table is a table of text. All columns but the first are aligned to the right.
type Table struct {
	Head []string
	Rows [][]string
	// Classes may say by row and column that a cell is the "best" or "near" it.
	Classes [][]string
}

// Cell is one of a table.
type Cell struct{ Text, Class string }

// Cells are a table's by rows.
func (t *Table) Cells() [][]Cell {
	all := make([][]Cell, len(t.Rows))
	for i, row := range t.Rows {
		all[i] = make([]Cell, len(row))
		for j, text := range row {
			all[i][j].Text = text
			if i < len(t.Classes) && j < len(t.Classes[i]) {
				all[i][j].Class = t.Classes[i][j]
			}
		}
	}
	return all
}

// Wide are the plots that take the whole width.
func (s *Section) Wide() []Plot { return s.sized(false) }

// Small are the plots that stand beside each other.
func (s *Section) Small() []Plot { return s.sized(true) }

func (s *Section) sized(small bool) []Plot {
	var all []Plot
	for _, p := range s.Plots {
		if p.Small == small {
			all = append(all, p)
		}
	}
	return all
}

// Keys is the legend.
func (s *Section) Keys() template.HTML { return Legend(s.Legend) }

// Write writes the page.
func (p *Page) Write(w io.Writer) error { return pageTemplate.Execute(w, p) }

var pageTemplate = template.Must(template.New("page").Parse(`{{define "table"}}<div class="wide"><table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Cells}}<tr>{{range .}}<td{{with .Class}} class="{{.}}"{{end}}>{{.Text}}</td>{{end}}</tr>
{{end}}</tbody></table></div>{{end}}<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2024; --faint: #6a737d; --grid: #e3e6ea; --paper: #fff;
  --c0: #0b66c3; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; --c4: #a16207; --c5: #be185d; --c6: #0f766e; --c7: #475569; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #9aa4af; --grid: #30363d; --paper: #15181c;
  --c0: #58a6ff; --c1: #fb923c; --c2: #4ade80; --c3: #c084fc; --c4: #facc15; --c5: #f472b6; --c6: #2dd4bf; --c7: #94a3b8; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
figure { margin: 1.2rem 0 } figcaption { font-weight: 600 } svg { width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--grid) }
th:first-child, td:first-child { text-align: left; padding-left: 0 } th { color: var(--faint); font-weight: 500 } .wide { overflow-x: auto }
pre { padding: .8rem; border: 1px solid var(--grid); overflow-x: auto }
text { stroke: none; font: 11px system-ui, sans-serif; fill: var(--faint) } .name { fill: var(--ink) } .grid { stroke: var(--grid) } .mark { stroke: var(--faint); stroke-dasharray: 4 3 }
path[class^=s] { fill: none; stroke-width: 2 } .legend span { margin-right: 1rem } .legend span::before { content: "— "; font-weight: 700 } .legend .dots::before { content: "● " }
.s0 { stroke: var(--c0) } .s1 { stroke: var(--c1) } .s2 { stroke: var(--c2) } .s3 { stroke: var(--c3) } .s4 { stroke: var(--c4) } .s5 { stroke: var(--c5) } .s6 { stroke: var(--c6) } .s7 { stroke: var(--c7) }
.d0 { fill: var(--c0) } .d1 { fill: var(--c1) } .d2 { fill: var(--c2) } .d3 { fill: var(--c3) } .d4 { fill: var(--c4) } .d5 { fill: var(--c5) } .d6 { fill: var(--c6) } .d7 { fill: var(--c7) }
.l0 { color: var(--c0) } .l1 { color: var(--c1) } .l2 { color: var(--c2) } .l3 { color: var(--c3) } .l4 { color: var(--c4) } .l5 { color: var(--c5) } .l6 { color: var(--c6) } .l7 { color: var(--c7) }
.dashed { stroke-dasharray: 5 3 } .rail { fill: var(--grid) } .interval { stroke: var(--ink); fill: none; stroke-width: 1.5 } .bar.dashed { opacity: .6 }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 0 1.5rem } .plots figure { margin: .6rem 0 }
th, td { white-space: nowrap } details { margin: .6rem 0 } summary { cursor: pointer; color: var(--faint) } .legend span { display: inline-block }
.best { font-weight: 700 } .near { text-decoration: underline dotted; text-underline-offset: 3px } .across { max-width: 90rem } .across table { font-size: 13px } .across th, .across td { padding: .2rem .45rem } .across p { max-width: 60rem }
.across .wide :is(th, td):first-child { position: sticky; left: 0; background: var(--paper); white-space: normal; min-width: 10rem; overflow-wrap: anywhere }
section, .plots figure { min-width: 0 }
</style></head><body{{if .Wide}} class="across"{{end}}>
<h1>{{.Title}}</h1>{{with .Lead}}<p>{{.}}</p>{{end}}
{{range .Sections}}<section>{{with .Title}}<h2>{{.}}</h2>{{end}}
{{range .Text}}<p>{{.}}</p>{{end}}
{{range .Wide}}{{.SVG}}{{end}}
{{if .Legend}}{{.Keys}}{{end}}{{if or .Small .Figures}}<div class="plots">{{range .Small}}{{.SVG}}{{end}}{{range .Figures}}{{.}}{{end}}</div>{{end}}
{{with .Table}}{{template "table" .}}{{end}}
{{if .More}}<details><summary>{{.MoreTitle}}</summary>{{template "table" .More}}</details>{{end}}
{{with .Code}}<pre>{{.}}</pre>{{end}}</section>
{{end}}</body></html>
`))
