package display

import (
	"math"
	"strconv"
	"time"

	"github.com/sluice-epp/sluice/scheduling/explain"
)

// Unknown stands where a value is not known: never a zero.
const Unknown = "-"

// Count writes a number in at most five characters and a sign: 999, 12.3k, 4.5M.
func Count(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Unknown
	}
	unit := ""
	for _, next := range [...]string{"k", "M", "G", "T"} {
		if math.Abs(v) < 999.5 {
			break
		}
		v, unit = v/1000, next
	}
	switch {
	case unit == "" && v == math.Trunc(v), math.Abs(v) >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64) + unit
	case unit == "" && math.Abs(v) < 0.1:
		return strconv.FormatFloat(v, 'g', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + unit
}

// Grouped writes a whole number with commas between its thousands: 15,928.
func Grouped[N ~int | ~int64 | ~uint64 | ~float64](n N) string {
	digits := strconv.FormatFloat(float64(n), 'f', 0, 64)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(digits) - 3; i > first; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Score writes a number of scores' size with three digits.
func Score(v float64) string {
	if math.Abs(v) >= 1000 {
		return Count(v)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// Millis writes a time that is given in milliseconds: 63 ms, 18 s, 2.5 min.
func Millis(ms float64) string {
	switch a := math.Abs(ms); {
	case math.IsNaN(ms) || math.IsInf(ms, 0):
		return Unknown
	case a < 10 && ms != math.Trunc(ms):
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	case a < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case a < 9_950:
		return trim(ms/1000) + " s"
	case a < 119_500:
		return strconv.FormatFloat(ms/1000, 'f', 0, 64) + " s"
	case a < 7_200_000:
		return strconv.FormatFloat(ms/60_000, 'f', 0, 64) + " min"
	case a < 172_800_000:
		return strconv.FormatFloat(ms/3_600_000, 'f', 0, 64) + " h"
	}
	return strconv.FormatFloat(ms/86_400_000, 'f', 0, 64) + " d"
}

// trim writes a number with one decimal where that is not zero.
func trim(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// Since writes how long ago something was.
func Since(d time.Duration) string {
	return Millis(float64(d.Truncate(time.Millisecond)) / float64(time.Millisecond))
}

// Percent writes a share in whole percent, cut off: what is not all is never 100 %.
func Percent(share float64) string {
	if math.IsNaN(share) || math.IsInf(share, 0) {
		return Unknown
	}
	return explain.Percent(share)
}

// Bar draws a share as a bar of so many cells, in eighths of a cell, or in whole # where only ASCII is to be written.
func Bar(share float64, cells int, ascii bool) string {
	if math.IsNaN(share) {
		share = 0
	}
	share = min(1, max(0, share))
	eighths := int(math.Round(share * float64(8*cells)))
	out := make([]rune, 0, cells)
	for i := range cells {
		fill := min(8, max(0, eighths-8*i))
		switch {
		case ascii && fill >= 4:
			out = append(out, '#')
		case ascii:
			out = append(out, '.')
		case fill == 0:
			out = append(out, '·')
		default:
			out = append(out, '█'+rune(8-fill)) // U+2588 is the whole block, U+258F an eighth
		}
	}
	return string(out)
}

// Things writes a number of things: 1 token, 12.3k tokens.
func Things(n float64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return Count(n) + " " + thing
}
