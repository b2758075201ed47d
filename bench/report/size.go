package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	suffix string
	shift  int
}{{"MiB", 20}, {"KiB", 10}, {"B", 0}}

// Size writes a number of bytes in the largest unit that divides it: 16KiB.
func Size(bytes int) string {
	for _, u := range units {
		if bytes >= 1<<u.shift && bytes%(1<<u.shift) == 0 {
			return strconv.Itoa(bytes>>u.shift) + u.suffix
		}
	}
	return strconv.Itoa(bytes) + "B"
}

// ParseSize reads what Size writes.
func ParseSize(text string) (int, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > math.MaxInt32>>u.shift {
			break
		}
		return n << u.shift, nil
	}
	return 0, fmt.Errorf("size %q: must be a positive number of bytes such as 16KiB, 1MiB or 700B", text)
}
