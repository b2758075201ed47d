package display

import "strings"

// Column is one of a table.
type Column struct {
	// Head is its heading.
	Head string
	// Right aligns it to the right, as numbers are.
	Right bool
	// Min is how wide it is at least, in cells.
	Min int
	// Max is how wide it may be, in cells; 0 does not bound it. What is wider is clipped in its middle.
	Max int
	// Flexible gives it the room that the others leave, where it needs that much, down to narrowest.
	Flexible bool
}

// narrowest is how far a flexible column shrinks, in cells.
const narrowest = 8

// Row is one row of a table.
type Row struct {
	// Cells are plain text, one for each column.
	Cells []string
	// Style is how the row is written.
	Style Style
}

// Table lays rows out below their headings, columns two spaces apart, in so many cells where there is a flexible column.
func Table(columns []Column, rows []Row, cells int, styles Styles) []string {
	widths := widths(columns, rows, cells)
	line := func(style Style, cell func(i int) string) string {
		var b strings.Builder
		for i, c := range columns {
			if i > 0 {
				b.WriteString(gap)
			}
			b.WriteString(Pad(Clip(cell(i), widths[i]), widths[i], c.Right))
		}
		return styles.In(style, strings.TrimRight(b.String(), " "))
	}
	lines := []string{line(Faint, func(i int) string { return columns[i].Head })}
	for _, r := range rows {
		lines = append(lines, line(r.Style, func(i int) string { return r.Cells[i] }))
	}
	return lines
}

// gap is between two columns.
const gap = "  "

// widths are as wide as what is in the columns, within their bounds.
func widths(columns []Column, rows []Row, cells int) []int {
	widths := make([]int, len(columns))
	all, flexible := -len(gap), -1
	for i, c := range columns {
		widths[i] = max(c.Min, Width(c.Head))
		for _, r := range rows {
			widths[i] = max(widths[i], Width(r.Cells[i]))
		}
		if c.Max > 0 {
			widths[i] = min(widths[i], c.Max)
		}
		if c.Flexible {
			flexible = i
		}
		all += widths[i] + len(gap)
	}
	if flexible >= 0 && all > cells {
		widths[flexible] = max(min(narrowest, widths[flexible]), widths[flexible]-(all-cells))
	}
	return widths
}
