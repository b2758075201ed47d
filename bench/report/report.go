// Package report turns measured rounds into what is printed: a table for people and a line a row for scripts.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Round is what one server did in one round.
type Round struct {
	// CPUMicros is CPU time per request in µs.
	CPUMicros float64
	// P50Micros and P99Micros are quantiles of how long requests waited, in µs.
	P50Micros, P99Micros float64
	// Allocations and AllocatedBytes are per request.
	Allocations, AllocatedBytes float64
	// PerSecond is how many requests were served in a second of wall time.
	PerSecond float64
}

// Row is a server beside the null server under one load. Round i of one was measured right after round i of the other.
type Row struct {
	// BodyBytes is the size of the request bodies.
	BodyBytes int
	// Endpoints is the number of endpoints to pick from.
	Endpoints int
	// Rounds and Null are the rounds of the server and of the null server.
	Rounds, Null []Round
	// PeakRSS and PeakRSSNull are the largest resident sets of the two processes, in bytes.
	PeakRSS, PeakRSSNull int64
}

// Spread is the middle and the range of a number over the rounds.
type Spread struct{ Min, Median, Max float64 }

// Summarize returns the spread of some numbers; of none it is zero.
func Summarize(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return Spread{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}

// Quantile returns the smallest value that at least the fraction q of the values do not exceed; of none it is zero. It
// sorts the values.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	slices.Sort(values)
	i := int(q*float64(len(values))+0.999999999) - 1
	return values[min(max(i, 0), len(values)-1)]
}

// Micros is a duration in µs.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func over(rounds []Round, field func(Round) float64) Spread {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = field(r)
	}
	return Summarize(values)
}

func cpu(r Round) float64         { return r.CPUMicros }
func p50(r Round) float64         { return r.P50Micros }
func p99(r Round) float64         { return r.P99Micros }
func allocations(r Round) float64 { return r.Allocations }
func allocated(r Round) float64   { return r.AllocatedBytes }
func rate(r Round) float64        { return r.PerSecond }

// ratio is how a number compares with the null server's, round by round: what slows the machine for a while slows both.
func (r Row) ratio(field func(Round) float64) Spread {
	var values []float64
	for i := range min(len(r.Rounds), len(r.Null)) {
		if n := field(r.Null[i]); n > 0 {
			values = append(values, field(r.Rounds[i])/n)
		}
	}
	return Summarize(values)
}

// CPURatio is CPU time per request as a multiple of the null server's.
func (r Row) CPURatio() Spread { return r.ratio(cpu) }

// Line is the row for scripts: medians over the rounds, cpu_ratio that of the rounds' own ratios.
func (r Row) Line() string {
	return fmt.Sprintf("stream body=%s endpoints=%d cpu_us=%.1f cpu_us_null=%.1f cpu_ratio=%.2f p99_us=%.0f p99_us_null=%.0f allocs=%.1f",
		Size(r.BodyBytes), r.Endpoints, over(r.Rounds, cpu).Median, over(r.Null, cpu).Median, r.CPURatio().Median,
		over(r.Rounds, p99).Median, over(r.Null, p99).Median, over(r.Rounds, allocations).Median)
}

// Table writes the rows for people: medians, and where there is room, the range in brackets.
func Table(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...string) {
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") // faults show at Flush
	}
	line("body", "endpoints", "server", "CPU µs/request", "ratio", "wait p50 µs", "ratio", "wait p99 µs", "ratio",
		"allocs", "KiB allocated", "requests/s", "peak MiB")
	for _, r := range rows {
		for _, s := range []struct {
			name   string
			rounds []Round
			rss    int64
			ratios [3]string
		}{
			{"null", r.Null, r.PeakRSSNull, [3]string{}},
			{"sluice", r.Rounds, r.PeakRSS, [3]string{ranged(r.ratio(cpu), 2), short(r.ratio(p50).Median, 2), short(r.ratio(p99).Median, 2)}},
		} {
			line(Size(r.BodyBytes), fmt.Sprint(r.Endpoints), s.name,
				ranged(over(s.rounds, cpu), 1), s.ratios[0],
				short(over(s.rounds, p50).Median, 0), s.ratios[1],
				ranged(over(s.rounds, p99), 0), s.ratios[2],
				short(over(s.rounds, allocations).Median, 1), short(over(s.rounds, allocated).Median/1024, 1),
				short(over(s.rounds, rate).Median, 0), short(float64(s.rss)/(1<<20), 0))
		}
	}
	return t.Flush()
}

func short(v float64, digits int) string { return fmt.Sprintf("%.*f", digits, v) }

func ranged(s Spread, digits int) string {
	return fmt.Sprintf("%.*f [%.*f–%.*f]", digits, s.Median, digits, s.Min, digits, s.Max)
}
