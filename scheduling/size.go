package scheduling

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes in a configuration; as text it may carry a unit: KiB, MiB, GiB.
type Size int64

var sizeUnits = []struct {
	suffix string
	shift  uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}}

// UnmarshalText reads "1024", "64MiB" or "1 GiB".
func (s *Size) UnmarshalText(text []byte) error {
	number, shift := string(text), uint(0)
	for _, u := range sizeUnits {
		if before, ok := strings.CutSuffix(number, u.suffix); ok {
			number, shift = strings.TrimRight(before, " "), u.shift
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < math.MinInt64>>shift {
		return errors.New("must be a number of bytes such as 67108864 or 64MiB")
	}
	*s = Size(n << shift)
	return nil
}

// MarshalText writes the size as String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is the size in the largest unit that divides it.
func (s Size) String() string {
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		if u := sizeUnits[i]; s != 0 && s%(1<<u.shift) == 0 {
			return strconv.FormatInt(int64(s>>u.shift), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
