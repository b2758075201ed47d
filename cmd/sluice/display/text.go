package display

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain is text from elsewhere, which may have been chosen by a client, without what a terminal would obey or could not
// show in one cell: control and format characters, combining marks, wide characters, and bytes that are no UTF-8. Each is
// replaced by a ?.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r > 0x2fff || r >= 0x1100 && r < 0x1200 || !unicode.IsPrint(r) || unicode.IsMark(r) {
			return '?'
		}
		return r
	}, s)
}

// Width is the number of cells that plain text takes.
func Width(s string) int { return utf8.RuneCountInString(s) }

// Clip shortens plain text to so many cells. It takes from the middle, since names differ at their ends.
func Clip(s string, cells int) string {
	n := Width(s)
	if n <= cells {
		return s
	}
	if cells <= 1 {
		return strings.Repeat("…", max(0, cells))
	}
	r := []rune(s)
	head := (cells - 1) / 3
	return string(r[:head]) + "…" + string(r[n-(cells-1-head):])
}

// ClipEnd shortens plain text to so many cells at its end, as sentences are.
func ClipEnd(s string, cells int) string {
	if Width(s) <= cells {
		return s
	}
	if cells <= 0 {
		return ""
	}
	return strings.TrimRight(string([]rune(s)[:cells-1]), " ") + "…"
}

// Wrap breaks plain text into lines of so many cells at most, each after an indent. Words that are longer are not broken.
func Wrap(s, indent string, cells int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = indent + word
		case Width(line)+1+Width(word) <= cells:
			line += " " + word
		default:
			lines = append(lines, line)
			line = indent + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Pad fills plain text up with spaces; to the left of it where right is set.
func Pad(s string, cells int, right bool) string {
	fill := strings.Repeat(" ", max(0, cells-Width(s)))
	if right {
		return fill + s
	}
	return s + fill
}

// Style is a way to write that a terminal knows.
type Style string

// The styles.
const (
	Bold   Style = "1"
	Faint  Style = "2"
	Invert Style = "7"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// Styles says whether styles are written at all.
type Styles bool

// In writes plain text in a style.
func (s Styles) In(style Style, text string) string {
	if !s || style == "" || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}
