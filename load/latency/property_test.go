package latency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// storm is traffic of any kind: absurd sizes, clocks that go back, reloads and endpoints that come, go and change their class while
// requests are on their way.
type storm struct {
	*world
	random *rand.Rand
	live   []*scheduling.Flight
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// stormEndpoints are how many there are at most.
const stormEndpoints = 6

func (s *storm) step() {
	r := s.random
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		s.begin()
	case 4:
		s.some(func(f *scheduling.Flight) { f.FirstToken(s.now) })
	case 5:
		s.some(func(f *scheduling.Flight) { f.Chunk(s.now) })
	case 6, 7:
		s.end()
	case 8:
		s.some(func(f *scheduling.Flight) { f.Served(oneOf(r, s.pool.Snapshot().Endpoints...), s.now) })
	case 9:
		s.now += oneOf(r, time.Microsecond, time.Millisecond, time.Second, time.Hour, -time.Second)
	case 10:
		if r.IntN(5) == 0 {
			s.configure(oneOf(r, "", "streamingMode: false", "classLabel: gpu", "peakPrefillThroughput: 100", "sloBufferFactor: 2"))
		}
	case 11:
		if r.IntN(5) == 0 {
			s.update()
		}
	}
}

func (s *storm) begin() {
	r := s.random
	i := r.IntN(len(s.table.Endpoints))
	s.table.Endpoints[i].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(oneOf[int64](r, 0, 1, 100, 1e6, 1e9, math.MaxInt64, -5)))
	s.table.Prompt.Count = oneOf[int](r, 0, 1, 1000, 1e9)
	s.request.Stream, s.request.MaxOutputTokens = r.IntN(2) == 0, oneOf[int](r, 0, 1, 100, 1e9, -3)
	if len(s.live) < 200 && s.pool.Snapshot().Endpoints[i] != nil {
		s.live = append(s.live, s.pick(i))
	}
}

func (s *storm) some(f func(*scheduling.Flight)) {
	if len(s.live) > 0 {
		f(oneOf(s.random, s.live...))
	}
}

func (s *storm) end() {
	if len(s.live) == 0 {
		return
	}
	i := s.random.IntN(len(s.live))
	f := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	o := good(100, 0, oneOf[int](s.random, 0, 1, 5, 1e9, -1))
	o.Status = oneOf(s.random, 200, 429, 0)
	f.Done(o, s.now)
}

func (s *storm) update() {
	r := s.random
	specs := []scheduling.EndpointSpec{{Address: address(0)}}
	for i := 1; i < stormEndpoints; i++ {
		if r.IntN(6) > 0 {
			specs = append(specs, scheduling.EndpointSpec{Address: address(i), UID: oneOf(r, "a", "b"), Labels: map[string]string{"gpu": oneOf(r, "a", "b", "c")}})
		}
	}
	n := len(s.pool.Update(specs).Endpoints)
	for len(s.table.Endpoints) < n {
		s.table.Endpoints = append(s.table.Endpoints, s.table.Endpoints[0])
	}
	s.table.Endpoints = s.table.Endpoints[:n]
}

// sound reports whether a prediction is a number in every part, and its parts make the whole.
func sound(p scheduling.LatencyPrediction) bool {
	for _, v := range []float64{p.TTFTP90Ms, p.TPOTMs, p.TPOTP90Ms, p.WaitMs, p.PrefillMs, p.Residual} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return false
		}
	}
	const rounding = 1e-9
	return p.Usable() && p.Confidence >= 0 && p.Confidence <= 1 && p.TTFTP90Ms >= p.TTFTMs*(1-rounding) && p.TPOTP90Ms >= p.TPOTMs*(1-rounding) &&
		math.Abs((p.WaitMs+p.PrefillMs)*p.Residual-p.TTFTMs) <= rounding*p.TTFTMs
}

// TestAnyTraffic: whatever happens predictions are sound, and no work is left once all requests have ended.
func TestAnyTraffic(t *testing.T) {
	for seed := range uint64(8) {
		s := &storm{world: newWorld(t, "", stormEndpoints), random: rand.New(rand.NewPCG(seed, 1))}
		for range 3000 {
			s.step()
			for i, guess := range s.all() {
				if s.pool.Snapshot().Endpoints[i] != nil && !sound(guess) {
					t.Fatalf("seed %d: %+v of endpoint %d", seed, guess, i)
				}
			}
		}
		for len(s.live) > 0 {
			s.end()
		}
		for i, in := range s.plugin.known.endpoints.All() {
			if in == nil {
				continue
			}
			if e := &in.Value.work; len(e.queue)+e.decoding+e.unseen != 0 || e.context+e.tokens+e.held+e.pairs != 0 {
				t.Errorf("seed %d: %d in the queue, %d decode, %d unseen, %v tokens are left of endpoint %d", seed, len(e.queue), e.decoding, e.unseen, e.context+e.tokens, i)
			}
		}
	}
}

// TestFirstErrorsDoNotWidenTheTail: where the start is far off, the 90th percentile comes near the median as soon as that is right.
func TestFirstErrorsDoNotWidenTheTail(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 60, 400*time.Millisecond, good(1000, 0, 100))
	if guess := w.predict(0); guess.TTFTP90Ms > 1.6*guess.TTFTMs || guess.TPOTP90Ms > 1.6*guess.TPOTMs {
		t.Errorf("90th percentiles %v and %v of %v and %v ms that are always the same", guess.TTFTP90Ms, guess.TPOTP90Ms, guess.TTFTMs, guess.TPOTMs)
	}
}
