package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are those of sizes, the largest first.
var units = []struct {
	suffix string
	bytes  int
}{{"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"KB", 1e3}, {"B", 1}}

// Size writes a number of bytes in the largest unit that divides it: 16KiB, 220KB.
func Size(bytes int) string {
	for _, u := range units {
		if bytes >= u.bytes && bytes%u.bytes == 0 {
			return strconv.Itoa(bytes/u.bytes) + u.suffix
		}
	}
	return strconv.Itoa(bytes) + "B"
}

// ParseSize reads what Size writes, and any whole number of its units: 128KB, which Size writes as 125KiB.
func ParseSize(text string) (int, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > math.MaxInt32/u.bytes {
			break
		}
		return n * u.bytes, nil
	}
	return 0, fmt.Errorf("size %q: must be a positive number of bytes such as 16KiB, 220KB, 1MiB or 700B", text)
}
