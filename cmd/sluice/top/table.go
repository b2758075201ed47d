package top

import (
	"slices"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// column is one of a table that leaves columns out where there is no room.
type column[T any] struct {
	head  string
	right bool
	// min is how wide it is at least, where it would change in width with every view.
	min int
	// max is how wide it may be; 0 does not bound it. One that may grow is given what the others leave.
	max  int
	grow bool
	// words are clipped at their end, anything else in its middle.
	words bool
	// optional leaves it out where nothing of it is known.
	optional bool
	// rank says in which order columns go: the highest first, that of rank 0 stays.
	rank int
	cell func(T, *table) string
}

// table is how tables are written.
type table struct {
	now    time.Time
	cells  int
	ascii  bool
	styles display.Styles
}

const gap = 2

// lay writes rows in so many columns as there is room for.
func lay[T any](t *table, columns []column[T], rows []T, style func(T) display.Style) []string {
	texts := make([][]string, len(columns)) // by column
	widths, full := make([]int, len(columns)), make([]int, len(columns))
	for i, c := range columns {
		full[i] = max(c.min, display.Width(c.head))
		for _, r := range rows {
			text := display.Plain(c.cell(r, t))
			texts[i] = append(texts[i], text)
			full[i] = max(full[i], display.Width(text))
		}
		if widths[i] = full[i]; c.max > 0 {
			widths[i] = min(full[i], c.max)
		}
	}
	there := fit(columns, widths, full, t.cells, func(i int) bool {
		return columns[i].optional && !slices.ContainsFunc(texts[i], func(text string) bool { return text != display.Unknown })
	})
	var shownColumns []display.Column
	for _, i := range there {
		shownColumns = append(shownColumns, display.Column{Head: columns[i].head, Right: columns[i].right, Min: widths[i], Max: widths[i]})
	}
	shownRows := make([]display.Row, len(rows))
	for r, row := range rows {
		shownRows[r].Style = style(row)
		for _, i := range there {
			if columns[i].words {
				texts[i][r] = display.ClipEnd(texts[i][r], widths[i])
			}
			shownRows[r].Cells = append(shownRows[r].Cells, texts[i][r])
		}
	}
	return display.Table(shownColumns, shownRows, t.cells, t.styles)
}

// fit leaves columns out, those that are empty and others until the rest has room, gives those that may grow what is left, and returns which are there.
func fit[T any](columns []column[T], widths, full []int, cells int, empty func(i int) bool) []int {
	var there []int
	for i := range columns {
		if !empty(i) {
			there = append(there, i)
		}
	}
	room := func() int {
		left := cells + gap
		for _, i := range there {
			left -= widths[i] + gap
		}
		return left
	}
	for room() < 0 && len(there) > 1 {
		last := 0
		for at, i := range there {
			if columns[i].rank > columns[there[last]].rank {
				last = at
			}
		}
		there = append(there[:last], there[last+1:]...)
	}
	for grown := true; grown && room() > 0; {
		grown = false
		for _, i := range there {
			if columns[i].grow && widths[i] < full[i] && room() > 0 {
				widths[i]++
				grown = true
			}
		}
	}
	if len(there) == 1 {
		widths[there[0]] = min(widths[there[0]], cells)
	}
	return there
}
