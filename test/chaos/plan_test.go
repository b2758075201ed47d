//go:build linux

package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fault is one thing that goes wrong, from a time of the run on, for a while.
type fault struct {
	kind   kind
	at     time.Duration // from the start of the faults
	lasts  time.Duration
	engine int // index; -1 where it is no single engine's
	n      int // how much, for kinds that ask
}

func (f fault) String() string {
	s := fmt.Sprintf("%7.2fs %s", f.at.Seconds(), f.kind)
	if f.engine >= 0 {
		s += fmt.Sprintf(" engine-%d", f.engine)
	}
	return fmt.Sprintf("%s for %s (%d)", s, f.lasts.Round(10*time.Millisecond), f.n)
}

// kind is a kind of fault.
type kind string

// The kinds. Those of an engine that make it unable to serve are in unable.
const (
	kill            kind = "kill"             // and start again
	freeze          kind = "freeze"           // SIGSTOP, then SIGCONT
	stutter         kind = "stutter"          // stopped and continued, again and again
	slow            kind = "slow"             // each piece of an answer is late
	refuse          kind = "refuse"           // the port is closed
	fail            kind = "fail"             // inference is answered 503
	restart         kind = "restart"          // in place, with the same process
	dropEvents      kind = "drop-events"      // a gap in KV events that the replay fills
	loseEvents      kind = "lose-events"      // a gap that nothing fills, and a reset of the cache
	silentEvents    kind = "silent-events"    // no KV events, and a reset of the cache
	hangMetrics     kind = "hang-metrics"     // the page does not come
	htmlMetrics     kind = "html-metrics"     // the page is another
	lyingMetrics    kind = "lying-metrics"    // the page has numbers of another world
	noTokenizer     kind = "no-tokenizer"     // every engine's render routes fail
	lateTokenizer   kind = "late-tokenizer"   // every engine's render routes hang
	otherConfig     kind = "other-config"     // the configuration file has other parameters
	badConfig       kind = "bad-config"       // it does not parse
	fewerEndpoints  kind = "fewer-endpoints"  // an engine is not listed
	badEndpoints    kind = "bad-endpoints"    // the endpoints file is cut off, empty or gone
	nextCertificate kind = "next-certificate" // another certificate and key
	badCertificate  kind = "bad-certificate"  // a key that does not fit, and then one that does
	takeOver        kind = "take-over"        // a second Sluice starts, the first one is told to go
)

// unable are the faults that keep an engine from serving; no more than maxUnable engines have one at a time.
var unable = []kind{kill, freeze, stutter, refuse, fail, restart, fewerEndpoints}

// ofEngines are further faults of one engine.
var ofEngines = []kind{slow, dropEvents, loseEvents, silentEvents, hangMetrics, htmlMetrics, lyingMetrics}

// ofAll are faults of what there is once, or of every engine.
var ofAll = []kind{
	noTokenizer, lateTokenizer, otherConfig, badConfig, badEndpoints, nextCertificate, badCertificate, takeOver,
}

const (
	maxUnable = 2
	// longest is how long a fault may last: shorter than anything that waits.
	longest = 3 * time.Second
	// takeOverTakes is how long the change from one Sluice to the next may be under way.
	takeOverTakes = 12 * time.Second
)

// newPlan draws the faults of a run. Each kind comes about once in a round, in an order of its own; rounds last about 20
// seconds. An engine has one fault at a time.
func newPlan(seed uint64, lasts time.Duration, engines int) []fault {
	random := rand.New(rand.NewPCG(seed, 0x5eed))
	kinds := slices.Concat(unable, ofEngines, ofAll)
	rounds := max(1, int(lasts/(20*time.Second)))
	each := lasts / time.Duration(rounds)
	var all []fault
	for round := range rounds {
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for i, k := range kinds {
			f := fault{
				kind: k, engine: -1, n: random.IntN(1 << 20), at: time.Duration(round)*each + each*time.Duration(i)/time.Duration(len(kinds)),
				lasts: longest/4 + time.Duration(random.Int64N(int64(longest*3/4))),
			}
			if k == takeOver {
				// The first of a round: its end is waited for.
				f.at, f.lasts = time.Duration(round)*each, takeOverTakes
			} else if !slices.Contains(ofAll, k) {
				f.engine = random.IntN(engines)
			}
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	settle(all, engines)
	return all
}

// settle moves what would be too much at a time: to another engine, or to a later time.
func settle(all []fault, engines int) {
	busy := make([]time.Duration, engines) // until when an engine has a fault
	down := make([]time.Duration, engines) // until when it is unable
	single := map[kind]time.Duration{}     // until when a kind that is there once is in force
	const gap = 200 * time.Millisecond
	for i := range all {
		f := &all[i]
		if f.engine < 0 {
			f.at = max(f.at, single[group(f.kind)])
			single[group(f.kind)] = f.at + f.lasts + gap
			continue
		}
		if busy[f.engine] > f.at { // the one that is free first
			for e := range busy {
				if busy[e] < busy[f.engine] {
					f.engine = e
				}
			}
		}
		f.at = max(f.at, busy[f.engine])
		if slices.Contains(unable, f.kind) {
			others := slices.Delete(slices.Clone(down), f.engine, f.engine+1)
			slices.Sort(others)
			f.at = max(f.at, others[len(others)-maxUnable]) // then fewer than maxUnable others are down
			down[f.engine] = f.at + f.lasts + recovery(f.kind)
		}
		busy[f.engine] = f.at + f.lasts + recovery(f.kind)
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
}

// group names what cannot be twice at a time: a file, or all tokenizers.
func group(k kind) kind {
	switch k {
	case badConfig:
		return otherConfig
	case badCertificate:
		return nextCertificate
	case lateTokenizer:
		return noTokenizer
	}
	return k
}

// recovery is how long an engine may take to be as before when the fault is lifted: to start again, to be sent requests
// again, to have its cache reset.
func recovery(k kind) time.Duration {
	switch k {
	case kill:
		return 3 * time.Second
	case loseEvents, silentEvents:
		return 2 * time.Second
	}
	return 500 * time.Millisecond
}

// A plan depends on its seed alone, has every kind in every round, and leaves three of five engines able at any time.
func TestPlan(t *testing.T) {
	const engines = 5
	for seed := range uint64(300) {
		lasts := time.Duration(20+seed%100) * time.Second
		all := newPlan(seed, lasts, engines)
		if again := newPlan(seed, lasts, engines); !slices.Equal(all, again) {
			t.Fatalf("seed %d: two plans", seed)
		}
		count := map[kind]int{}
		for i, f := range all {
			count[f.kind]++
			out := map[int]bool{}
			for _, g := range all[:i] {
				over := g.at + g.lasts + recovery(g.kind)
				if g.engine >= 0 && g.engine == f.engine && over > f.at {
					t.Fatalf("seed %d: %v during %v", seed, f, g)
				}
				if slices.Contains(unable, g.kind) && over > f.at {
					out[g.engine] = true
				}
			}
			if slices.Contains(unable, f.kind) && len(out) >= maxUnable {
				t.Fatalf("seed %d: %v when %v are unable", seed, f, out)
			}
			if f.at > lasts+30*time.Second {
				t.Fatalf("seed %d: %v in a run of %s", seed, f, lasts)
			}
		}
		for _, k := range slices.Concat(unable, ofEngines, ofAll) {
			if want := max(1, int(lasts/(20*time.Second))); count[k] != want {
				t.Fatalf("seed %d: %s comes %d times, want %d", seed, k, count[k], want)
			}
		}
	}
}
