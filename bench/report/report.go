// Package report turns measured rounds into what is printed: a table for people and a line a row for scripts.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

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

// Table writes the rows for people, a table for each way: medians, and where it says most, the range in brackets. A column
// that no row of a table has a number for is left out, and so is the number of requests at once where all rows of a table
// have UsualConcurrency.
func Table(w io.Writer, rows []Row, idle []Idle) error {
	for _, via := range []string{ViaStream, ViaEnvoy, ViaRouter} {
		var of []Row
		for _, r := range rows {
			if r.Via == via {
				of = append(of, r)
			}
		}
		if len(of) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "\nvia %s\n", via); err != nil {
			return err
		}
		if err := table(w, of); err != nil {
			return err
		}
	}
	for _, i := range idle {
		if _, err := fmt.Fprintf(w, "\nidle, %s, %d endpoints with pages of %d KB: %.2f %% of one core, %.1f pages/s, peak %.0f MiB\n",
			i.Setup, i.Endpoints, (i.PageBytes+500)/1000, i.CPUPercent, i.PagesPerSecond, float64(i.PeakRSS)/(1<<20)); err != nil {
			return err
		}
	}
	return nil
}

func table(w io.Writer, rows []Row) error {
	var columns []measure
	for _, m := range measures {
		if m.title != "" && slices.ContainsFunc(rows, func(r Row) bool { _, ok := m.of(r); return ok }) {
			columns = append(columns, m)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells []string) {
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") // faults show at Flush
	}
	titles := []string{"body", "endpoints", "chunks"}
	unusual := slices.ContainsFunc(rows, func(r Row) bool { return r.Concurrency != UsualConcurrency })
	if unusual {
		titles = append(titles, "at once")
	}
	titles = append(titles, "setup")
	for _, m := range columns {
		titles = append(titles, m.title)
	}
	line(titles)
	for _, r := range rows {
		cells := []string{Size(r.BodyBytes), strconv.Itoa(r.Endpoints), strconv.Itoa(r.Chunks)}
		if unusual {
			cells = append(cells, strconv.Itoa(r.Concurrency))
		}
		cells = append(cells, r.Setup)
		for _, m := range columns {
			cells = append(cells, m.cell(r))
		}
		line(cells)
	}
	return t.Flush()
}

func (m measure) cell(r Row) string {
	s, ok := m.of(r)
	switch {
	case !ok:
		return ""
	case m.ranged:
		return fmt.Sprintf("%.*f [%.*f–%.*f]", m.digits, s.Median, m.digits, s.Min, m.digits, s.Max)
	}
	return fmt.Sprintf("%.*f", m.digits, s.Median)
}
