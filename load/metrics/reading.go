package metrics

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Reading is what one page of an engine said. It is immutable.
type Reading struct {
	// Load is what EngineMetrics carries, but for the age.
	Load scheduling.EngineMetrics
	// At is when the page had been read, on the process's monotonic clock.
	At time.Duration
	// BlockSizeTokens is the size of a KV block in tokens, and NumBlocks the number of KV blocks that the endpoint's
	// engines have together. 0 is unknown. They change with a restart only, so where a page lacks them they are those
	// of the page before.
	BlockSizeTokens, NumBlocks int
	// StartTime is when the engine's process was started, in Unix seconds by the engine's clock; 0 is unknown.
	StartTime float64
	// Sleep says whether the engine has put its KV cache away.
	Sleep Sleep
	// PrefixQueries and PrefixHits count the prompt tokens that were looked up and found in the prefix cache since the
	// engine was started; -1 is unknown.
	PrefixQueries, PrefixHits float64
	// Adapters are the LoRA adapters in use.
	Adapters Adapters

	queriesSamples int
}

// Sleep is what an engine says of its sleep mode.
type Sleep uint8

// The states of sleep. An endpoint with several engines sleeps as soon as one of them does.
const (
	SleepUnknown Sleep = iota
	Awake
	Asleep
)

// Adapters are the LoRA adapters that an engine uses.
type Adapters struct {
	// Known says that the engine named its adapters; without it the rest means nothing.
	Known bool
	// Running are the adapters of requests that are computed, Waiting those of requests in the queue; each at most
	// MaxAdapters names.
	Running, Waiting []string
	// InUse is how many different ones both lists name.
	InUse int
	// Max is how many adapters the engine computes with at once; 0 is unknown.
	Max int
	// Dropped is how many names were left out: those beyond MaxAdapters, and those longer than maxAdapterName.
	Dropped int

	rawRunning, rawWaiting string // as on the page
}

// MaxAdapters bounds the adapters kept of each of the two lists of an endpoint.
const MaxAdapters = 256

// maxAdapterName is the length, in bytes, of the longest adapter's name that is kept.
const maxAdapterName = 256

// UseOf says what the engine does with an adapter.
func (a *Adapters) UseOf(name string) scheduling.AdapterUse {
	switch {
	case !a.Known:
		return scheduling.AdapterUnknown
	case slices.Contains(a.Running, name):
		return scheduling.AdapterRunning
	case slices.Contains(a.Waiting, name):
		return scheduling.AdapterWaiting
	}
	return scheduling.AdapterUnused
}

// maxShare is the largest value that a share of 1 is taken for; beyond it the number means something else.
const maxShare = 1.01

// reading makes what was scanned a reading. previous is the endpoint's reading before, or nil; names that did not change
// are taken from there.
func (s *scanner) reading(at time.Duration, previous *Reading) *Reading {
	r := &Reading{At: at, PrefixQueries: -1, PrefixHits: -1}
	s.load(&r.Load)
	s.cache(r)
	r.StartTime, _ = s.totals[startTime].largest()
	r.Sleep = s.sleepState()
	if v, ok := s.either(prefixQueries, prefixQueriesOld).whole(); ok {
		r.PrefixQueries, r.queriesSamples = v, s.either(prefixQueries, prefixQueriesOld).n
	}
	if v, ok := s.either(prefixHits, prefixHitsOld).whole(); ok {
		r.PrefixHits = v
	}
	if s.loraSamples > 0 && !s.loraSpoilt {
		r.Load.Known |= scheduling.MetricsAdapters
		r.Adapters = s.adapters(previous)
		r.Load.Adapters, r.Load.MaxAdapters = r.Adapters.InUse, r.Adapters.Max
	}
	return r
}

// whole is the sum of all samples; ok is false where there are none or not all could be used.
func (t *total) whole() (v float64, ok bool) {
	return t.sum, t.n > 0 && !t.spoilt && scheduling.Finite(t.sum)
}

// largest is the largest sample, on the same terms.
func (t *total) largest() (v float64, ok bool) {
	if t.n == 0 || t.spoilt {
		return 0, false
	}
	return t.max, true
}

// either is the total of the first field that the page has.
func (s *scanner) either(first, second field) *total {
	if t := &s.totals[first]; t.n > 0 || t.spoilt {
		return t
	}
	return &s.totals[second]
}

// load fills in what waits, what runs and how full the cache is: the sums over the page's engines, of the share the mean.
func (s *scanner) load(m *scheduling.EngineMetrics) {
	if v, ok := s.totals[waiting].whole(); ok {
		m.Waiting, m.Known = v, m.Known|scheduling.MetricsWaiting
	}
	if v, ok := s.totals[running].whole(); ok {
		m.Running, m.Known = v, m.Known|scheduling.MetricsRunning
	}
	if v, ok := s.share(); ok {
		m.KVUsage, m.Known = v, m.Known|scheduling.MetricsKVUsage
	}
}

// share is the used share of the KV cache.
func (s *scanner) share() (float64, bool) {
	t := s.either(kvUsage, kvUsageOld)
	v, ok := t.whole()
	if ok {
		v /= float64(t.n)
	} else if !t.spoilt {
		used, usedOK := s.totals[kvUsed].whole()
		all, allOK := s.totals[numBlocks].whole()
		v, ok = used/all, usedOK && allOK && all > 0
	}
	return min(v, 1), ok && v <= maxShare
}

// maxCount bounds numbers of tokens and blocks: what is larger is no number of blocks.
const maxCount = 1 << 40

// cache fills in the shape of the KV cache. Engines of one page have blocks of one size; where they say otherwise it is
// unknown.
func (s *scanner) cache(r *Reading) {
	block, blocks := &s.block, &s.blocks
	if block.n == 0 && !block.spoilt {
		block, blocks = &s.totals[blockSize], &s.totals[numBlocks]
	}
	size, ok := block.largest()
	if !ok || size < 1 || size > maxCount || size*float64(block.n) != block.sum {
		return
	}
	r.BlockSizeTokens = int(size)
	n, ok := blocks.largest()
	if s.dialect.sumBlocks {
		n, ok = blocks.whole()
	}
	if ok && n >= 1 && n <= maxCount {
		r.NumBlocks = int(n)
	}
}

func (s *scanner) sleepState() Sleep {
	switch {
	case s.asleep > 0 || s.awake < s.awakeSamples:
		return Asleep
	case s.sleepSpoilt || s.awakeSamples == 0:
		return SleepUnknown
	}
	return Awake
}

func (s *scanner) adapters(previous *Reading) Adapters {
	a := Adapters{Known: true, Max: s.loraMax}
	var before Adapters
	if previous != nil {
		before = previous.Adapters
	}
	if string(s.loraRunning) == before.rawRunning && string(s.loraWaiting) == before.rawWaiting {
		a.Running, a.Waiting, a.InUse, a.Dropped = before.Running, before.Waiting, before.InUse, before.Dropped
		a.rawRunning, a.rawWaiting = before.rawRunning, before.rawWaiting
		return a
	}
	a.rawRunning, a.rawWaiting = string(s.loraRunning), string(s.loraWaiting)
	a.Running = a.names(a.rawRunning)
	a.Waiting = a.names(a.rawWaiting)
	a.InUse = len(a.Running)
	for _, name := range a.Waiting {
		if !slices.Contains(a.Running, name) {
			a.InUse++
		}
	}
	return a
}

// names splits a list of adapters at its commas, each name once.
func (a *Adapters) names(raw string) []string {
	var names []string
	for name := range strings.SplitSeq(unescaped(raw), ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "" || slices.Contains(names, name):
		case len(names) == MaxAdapters, len(name) > maxAdapterName:
			a.Dropped++
		default:
			names = append(names, name)
		}
	}
	return names
}
