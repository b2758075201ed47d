package extproc

import (
	"strconv"

	"github.com/sluice-epp/sluice/scheduling"
)

// describe is a decision in a few words, for DecisionHeader: the pick, what the gate said, how much of the prompt the
// pick's prefix cache holds and how many endpoints there were to choose from.
func describe(c *scheduling.Cycle, f *scheduling.Flight) string {
	b := append(make([]byte, 0, 96), f.Endpoint.Address...)
	if n := len(c.Gates); n > 0 {
		b = append(append(b, " gate="...), c.Gates[n-1].Verdict.String()...)
	}
	if info, ok := scheduling.ColumnOf[scheduling.PrefixCacheMatchInfo](c).Get(f.Endpoint.Ordinal); ok {
		b = strconv.AppendInt(append(b, " cached="...), int64(info.CachedBlockCount*info.BlockSizeTokens), 10)
		b = strconv.AppendInt(append(b, '/'), int64(info.TotalBlocks*info.BlockSizeTokens), 10)
	}
	b = strconv.AppendInt(append(b, " candidates="...), int64(c.Considered.Len()), 10)
	return string(b)
}
