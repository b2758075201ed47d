package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// table prints a line a request, as they finish.
type table struct {
	w       io.Writer
	started time.Time
	rows    int
}

const rowFormat = "%7s  %-5s %-5s %-10s %15s %10s  %-12s %9s\n"

func (t *table) head() {
	_, _ = fmt.Fprintf(t.w, rowFormat, "time", "conv", "turn", "endpoint", "cached/prompt", "predicted", "gate", "TTFT")
}

func (t *table) row(r result) {
	t.rows++
	_, _ = fmt.Fprintf(t.w, rowFormat,
		fmt.Sprintf("%.1fs", time.Since(t.started).Seconds()),
		fmt.Sprint(r.conversation+1), fmt.Sprint(r.turn+1), r.endpoint,
		fmt.Sprintf("%d/%d", r.cached, r.prompt), r.predictedCell(), gateOf(r.decision), fmt.Sprintf("%d ms", r.ttft.Milliseconds()))
}

// gateOf is the gate's verdict in a decision header; a dash where no gate decided.
func gateOf(decision string) string {
	for field := range strings.FieldsSeq(decision) {
		if v, ok := strings.CutPrefix(field, "gate="); ok {
			return v
		}
	}
	return "-"
}

// blockSize is the size of the engines' KV blocks in tokens.
const blockSize = 16

// predicted is how many tokens of the prompt Sluice expected to be cached, -1 where it did not say. A decision header says
// how many it takes the engine to hold; an engine computes a prompt's last token even so, and with it the block around it.
func (r *result) predicted() int {
	for field := range strings.FieldsSeq(r.decision) {
		if v, ok := strings.CutPrefix(field, "cached="); ok {
			var held, total int
			if _, err := fmt.Sscanf(v, "%d/%d", &held, &total); err == nil {
				return min(held, (r.prompt-1)/blockSize*blockSize)
			}
		}
	}
	return -1
}

func (r *result) predictedCell() string {
	if n := r.predicted(); n >= 0 {
		return fmt.Sprint(n)
	}
	return "-"
}

// summary is what one half of the demo came to.
type summary struct {
	requests       int
	exact          int     // requests of which Sluice predicted the cached tokens to the token
	hitRate        float64 // cached tokens / prompt tokens
	mean, p50, p90 time.Duration
	byEndpoint     map[string]int
}

func summarise(results []result) summary {
	s := summary{requests: len(results), byEndpoint: map[string]int{}}
	if len(results) == 0 {
		return s
	}
	var prompt, cached int
	var total time.Duration
	times := make([]time.Duration, 0, len(results))
	for _, r := range results {
		prompt += r.prompt
		cached += r.cached
		total += r.ttft
		times = append(times, r.ttft)
		s.byEndpoint[r.endpoint]++
		if r.predicted() == r.cached {
			s.exact++
		}
	}
	slices.Sort(times)
	s.hitRate = float64(cached) / float64(max(1, prompt))
	s.mean = total / time.Duration(len(results))
	s.p50, s.p90 = times[len(times)/2], times[len(times)*9/10]
	return s
}

// exactly is the share of requests of which Sluice predicted the cached tokens to the token.
func (s summary) exactly() float64 { return float64(s.exact) / float64(max(1, s.requests)) }

// bar draws a share of one.
func bar(share float64) string {
	const width = 40
	n := min(width, max(0, int(share*width+0.5)))
	return strings.Repeat("█", n) + strings.Repeat("·", width-n)
}

func printSummary(w io.Writer, sluice, roundRobin summary) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("")
	line("prefix hit rate   Sluice       %s %5.1f %%", bar(sluice.hitRate), sluice.hitRate*100)
	line("                  round robin  %s %5.1f %%", bar(roundRobin.hitRate), roundRobin.hitRate*100)
	line("predicted exactly Sluice       %s %5.1f %%  (%d of %d requests)", bar(sluice.exactly()), sluice.exactly()*100, sluice.exact, sluice.requests)
	slowest := max(sluice.mean, roundRobin.mean, 1)
	share := func(d time.Duration) float64 { return float64(d) / float64(slowest) }
	line("mean TTFT         Sluice       %s %5d ms  (p50 %d, p90 %d)", bar(share(sluice.mean)), ms(sluice.mean), ms(sluice.p50), ms(sluice.p90))
	line("                  round robin  %s %5d ms  (p50 %d, p90 %d)", bar(share(roundRobin.mean)), ms(roundRobin.mean), ms(roundRobin.p50), ms(roundRobin.p90))
	line("requests          Sluice       %s", spread(sluice.byEndpoint))
	line("                  round robin  %s", spread(roundRobin.byEndpoint))
	line("")
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

func spread(byEndpoint map[string]int) string {
	names := make([]string, 0, len(byEndpoint))
	for name := range byEndpoint {
		names = append(names, name)
	}
	slices.Sort(names)
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%s %d", name, byEndpoint[name])
	}
	return strings.Join(parts, ", ")
}
