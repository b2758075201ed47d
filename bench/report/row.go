package report

import (
	"fmt"
	"strings"
)

// Round is what one setup did in one round. What does not apply to a setup is zero.
type Round struct {
	// CPUMicros is CPU time per request in µs, of the picker or of the router.
	CPUMicros float64
	// EnvoyMicros is the CPU time per request of the Envoy in front of it, in µs.
	EnvoyMicros float64
	// ChunkMicros is the CPU time per further chunk of the answer, in µs, as CPUMicros.
	ChunkMicros float64
	// P50Micros and P99Micros are quantiles of how long requests waited, in µs: on the stream for the picker's answer, over
	// HTTP for the response's headers.
	P50Micros, P99Micros float64
	// Allocations and AllocatedBytes are per request.
	Allocations, AllocatedBytes float64
	// PerSecond is how many requests were served in a second of wall time.
	PerSecond float64
}

// The ways on which requests reach a setup.
const (
	// ViaStream is the ext_proc stream itself.
	ViaStream = "stream"
	// ViaEnvoy is HTTP through an Envoy that asks the picker.
	ViaEnvoy = "envoy"
	// ViaRouter is HTTP through a router that is proxy and picker in one.
	ViaRouter = "router"
)

// UsualConcurrency is how many requests at once tables take for granted: rows of another number have a column for it.
const UsualConcurrency = 16

// Row is a setup under one load. Round i of all rows of a load were measured right after one another.
type Row struct {
	// Setup and Via name what was measured and on which way.
	Setup, Via string
	// BodyBytes is the size of the request bodies, Endpoints the number of endpoints to pick from, Chunks that of the chunks
	// of an answer, Concurrency how many requests there are at once.
	BodyBytes, Endpoints, Chunks, Concurrency int
	// Rounds are the setup's own.
	Rounds []Round
	// Null are the rounds of the null server, where one was measured beside it: of the same way, or for a router via Envoy.
	Null []Round
	// None are the rounds of the same way with nothing on it that decides: Envoy without a picker, or no proxy at all.
	None []Round
	// NullNone are those that None is to Null.
	NullNone []Round
	// PeakRSS is the largest resident set of the picker or router in bytes.
	PeakRSS int64
}

// decides reports whether there is a process that picks.
func (r Row) decides() bool { return len(r.Rounds) > 0 && r.Rounds[0].CPUMicros > 0 }

// per is a number of each round; ok says of which rounds there is one.
type per func(i int) (v float64, ok bool)

// spread is the spread of a number over the rounds.
func (r Row) spread(f per) (Spread, bool) {
	var values []float64
	for i := range r.Rounds {
		if v, ok := f(i); ok {
			values = append(values, v)
		}
	}
	return Summarize(values), len(values) > 0
}

// plain is a field of the rounds, where it applies.
func (r Row) plain(field func(Round) float64) (Spread, bool) {
	return r.spread(func(i int) (float64, bool) { v := field(r.Rounds[i]); return v, v > 0 })
}

// ratio is how a number compares with the null server's, round by round: what slows the machine for a while slows both.
func (r Row) ratio(own, null per) (Spread, bool) {
	return r.spread(func(i int) (float64, bool) {
		if i >= len(r.Null) {
			return 0, false
		}
		v, ok := own(i)
		n, has := null(i)
		if !ok || !has || n <= 0 {
			return 0, false
		}
		return v / n, true
	})
}

// plainRatio is that of a field, for what goes the null server's way.
func (r Row) plainRatio(field func(Round) float64) (Spread, bool) {
	if r.Via == ViaRouter {
		return Spread{}, false
	}
	of := func(rounds []Round) per {
		return func(i int) (float64, bool) { v := field(rounds[i]); return v, v > 0 }
	}
	return r.ratio(of(r.Rounds), of(r.Null))
}

// added is by how much a quantile of the waiting is above the median without anything that decides.
func added(via string, rounds, none []Round, field func(Round) float64) per {
	return func(i int) (float64, bool) {
		if via == ViaStream {
			return field(rounds[i]), true
		}
		if i >= len(none) {
			return 0, false
		}
		return field(rounds[i]) - none[i].P50Micros, true
	}
}

func (r Row) added(field func(Round) float64) (Spread, bool) {
	if !r.decides() {
		return Spread{}, false
	}
	return r.spread(added(r.Via, r.Rounds, r.None, field))
}

func (r Row) addedRatio(field func(Round) float64) (Spread, bool) {
	if !r.decides() || r.Via == ViaRouter {
		return Spread{}, false
	}
	return r.ratio(added(r.Via, r.Rounds, r.None, field), added(r.Via, r.Null, r.NullNone, field))
}

func total(rounds []Round) per {
	return func(i int) (float64, bool) {
		v := rounds[i].CPUMicros + rounds[i].EnvoyMicros
		return v, v > 0
	}
}

// totals are the CPU time of all that is between client and engine.
func (r Row) totals() (Spread, bool) {
	if r.Via == ViaStream {
		return Spread{}, false
	}
	return r.spread(total(r.Rounds))
}

func (r Row) totalRatio() (Spread, bool) {
	if r.Via == ViaStream {
		return Spread{}, false
	}
	return r.ratio(total(r.Rounds), total(r.Null))
}

// headers is a quantile of how long a response's headers took.
func (r Row) headers(field func(Round) float64) (Spread, bool) {
	if r.Via == ViaStream {
		return Spread{}, false
	}
	return r.plain(field)
}

func (r Row) rss() (Spread, bool) {
	v := float64(r.PeakRSS) / (1 << 20)
	return Spread{v, v, v}, r.PeakRSS > 0
}

// A measure is a number of a row: a key of its line and a column of the table.
type measure struct {
	key, title string // without a title it is no column
	digits     int
	ranged     bool // in the table
	of         func(Row) (Spread, bool)
}

var measures = []measure{
	{"cpu_us", "CPU µs/request", 1, true, func(r Row) (Spread, bool) { return r.plain(cpu) }},
	{"cpu_ratio", "ratio", 2, true, func(r Row) (Spread, bool) { return r.plainRatio(cpu) }},
	{"p50_us", "wait p50 µs", 0, false, func(r Row) (Spread, bool) { return r.added(p50) }},
	{"p50_ratio", "", 2, false, func(r Row) (Spread, bool) { return r.addedRatio(p50) }},
	{"p99_us", "wait p99 µs", 0, true, func(r Row) (Spread, bool) { return r.added(p99) }},
	{"p99_ratio", "ratio", 2, true, func(r Row) (Spread, bool) { return r.addedRatio(p99) }},
	{"allocs", "allocs", 1, false, func(r Row) (Spread, bool) { return r.plain(allocations) }},
	{"bytes", "bytes", 0, false, func(r Row) (Spread, bool) { return r.plain(allocated) }},
	{"rss_mib", "peak MiB", 0, false, Row.rss},
	{"chunk_cpu_us", "CPU µs/chunk", 2, true, func(r Row) (Spread, bool) { return r.plain(chunk) }},
	{"chunk_cpu_ratio", "ratio", 2, true, func(r Row) (Spread, bool) { return r.plainRatio(chunk) }},
	{"cpu_envoy_us", "Envoy µs", 1, false, func(r Row) (Spread, bool) { return r.plain(envoy) }},
	{"total_cpu_us", "", 1, false, Row.totals},
	{"total_cpu_ratio", "total ratio", 2, true, Row.totalRatio},
	{"headers_p50_us", "headers p50 µs", 0, false, func(r Row) (Spread, bool) { return r.headers(p50) }},
	{"headers_p99_us", "headers p99 µs", 0, false, func(r Row) (Spread, bool) { return r.headers(p99) }},
	{"per_s", "requests/s", 0, false, func(r Row) (Spread, bool) { return r.plain(rate) }},
}

func cpu(r Round) float64         { return r.CPUMicros }
func envoy(r Round) float64       { return r.EnvoyMicros }
func chunk(r Round) float64       { return r.ChunkMicros }
func p50(r Round) float64         { return r.P50Micros }
func p99(r Round) float64         { return r.P99Micros }
func allocations(r Round) float64 { return r.Allocations }
func allocated(r Round) float64   { return r.AllocatedBytes }
func rate(r Round) float64        { return r.PerSecond }

// Line is the row for scripts: medians over the rounds, those of ratios over the rounds' own ratios. A number that the row
// does not have is left out.
func (r Row) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bench setup=%s via=%s body=%s endpoints=%d chunks=%d concurrency=%d",
		r.Setup, r.Via, Size(r.BodyBytes), r.Endpoints, r.Chunks, r.Concurrency)
	for _, m := range measures {
		if s, ok := m.of(r); ok {
			fmt.Fprintf(&b, " %s=%.*f", m.key, m.digits, s.Median)
		}
	}
	return b.String()
}

// Idle is what a setup uses while nobody asks it anything.
type Idle struct {
	// Setup names what was measured.
	Setup string
	// Endpoints is their number, PageBytes the size of each one's metrics page.
	Endpoints, PageBytes int
	// CPUPercent is CPU time in percent of one core.
	CPUPercent float64
	// PagesPerSecond is how many metrics pages were read.
	PagesPerSecond float64
	// Seconds is how long was measured.
	Seconds float64
	// PeakRSS is the largest resident set in bytes.
	PeakRSS int64
}

// Line is the row for scripts.
func (i Idle) Line() string {
	return fmt.Sprintf("bench setup=%s op=idle endpoints=%d page=%dKB cpu_percent=%.2f rss_mib=%.0f pages_per_s=%.1f seconds=%.0f",
		i.Setup, i.Endpoints, (i.PageBytes+500)/1000, i.CPUPercent, float64(i.PeakRSS)/(1<<20), i.PagesPerSecond, i.Seconds)
}
