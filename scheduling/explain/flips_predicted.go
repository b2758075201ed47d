package explain

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// predictions tries longer predicted times to the first token on the pick, and shorter ones on its rivals, in steps of a µs. What is
// predicted of a request does not follow its other inputs here: those are tried by themselves.
func (x *search) predictions() {
	columns := x.Columns(scheduling.DataTypeOf[scheduling.LatencyPrediction]())
	if len(columns) == 0 {
		return
	}
	for _, e := range x.contenders() {
		if len(e.GetLatencyPredictions()) == 0 {
			continue
		}
		ordinal, predicted := int(e.GetOrdinal()), record.PredictionFrom(e.GetLatencyPredictions()[0])
		if !predicted.Usable() || predicted.TTFTMs > ms(maxTTFT) {
			continue
		}
		to := maxTTFT.Microseconds()
		if ordinal != x.pick {
			to = 1
		}
		before := len(x.found)
		x.add(PredictedTTFT, ordinal, int64(math.Ceil(predicted.TTFTMs*1000)), to, func(us int64) int {
			return x.try(func(c *scheduling.Cycle) {
				for _, info := range columns {
					column := scheduling.ColumnAt[scheduling.LatencyPrediction](c, info)
					if p, ok := column.Get(ordinal); ok {
						column.Set(ordinal, withTTFT(p, float64(us)/1000))
					}
				}
			})
		})
		for i := range x.found[before:] {
			f := &x.found[before+i]
			f.From, f.To = predicted.TTFTMs, f.To/1000
		}
	}
}

// withTTFT is a prediction of another time to the first token: its 90th percentile is as much further, and its headroom as much less.
func withTTFT(p scheduling.LatencyPrediction, ttftMs float64) scheduling.LatencyPrediction {
	p90 := p.TTFTP90Ms * ttftMs / p.TTFTMs
	p.TTFTHeadroomMs -= p90 - p.TTFTP90Ms // not looked at where nothing is asked
	p.TTFTMs, p.TTFTP90Ms = ttftMs, p90
	return p
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
