package latency

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// busyEndpoint is one that is twice as slow as its class, with a prompt before it and requests that decode.
func busyEndpoint() *endpoint {
	c := newClass(1, true)
	m := *c.known.Load()
	for i := range ttftTerms {
		m.ttft[i] = float64(1 + i)
	}
	for i := range tpotTerms {
		m.tpot[i] = float64(1 + i)
	}
	c.known.Store(&m)
	e := &endpoint{class: c, slow: slowness{factor: 2}}
	e.work.decoding, e.work.context, e.work.answer = 3, 1000, 20
	e.work.begin(0, prompt{id: 1, input: 300, tokens: 200, pairs: 500})
	return e
}

// TestParts: what is the request's own is its prefill, all else the wait, each as much longer as the endpoint is slower.
func TestParts(t *testing.T) {
	for _, now := range []time.Duration{0, 100 * time.Millisecond, time.Minute} {
		e := busyEndpoint()
		m := e.class.known.Load()
		var guess scheduling.LatencyPrediction
		var x, y terms
		e.linear(&guess, m, &x, &y, now, &input{tokens: 70, uncached: 40, limit: 30, whole: true})
		prefill, wait := 0.0, 0.0
		for i := range ttftTerms {
			switch i {
			case ttftBase, ttftOwn, ttftOwnPairs, ttftAnswer, ttftAnswerSeqs:
				prefill += 2 * float64(1+i) * x[i]
			default:
				wait += 2 * float64(1+i) * x[i]
			}
		}
		tpot := 0.0
		for i := range tpotTerms {
			tpot += 2 * float64(1+i) * y[i]
		}
		near(t, "prefill", guess.PrefillMs, prefill, 1e-12)
		near(t, "wait", guess.WaitMs, wait, 1e-12)
		near(t, "TTFT", guess.TTFTMs, prefill+wait, 1e-12)
		near(t, "TPOT", guess.TPOTMs, tpot, 1e-12)
		if guess.Residual != 0 {
			t.Errorf("residual %v, want it open", guess.Residual)
		}
	}
}

// TestSlowEndpointIsNotDoneSooner: what it has done of a prompt is told from how long a token takes on it.
func TestSlowEndpointIsNotDoneSooner(t *testing.T) {
	e := busyEndpoint()
	var guess scheduling.LatencyPrediction
	var x, y terms
	m := e.class.known.Load()
	e.linear(&guess, m, &x, &y, 50*time.Millisecond, &input{})
	near(t, "tokens ahead", x[ttftAhead], 200-50/(2*m.tokenMs), 1e-12)
	e = busyEndpoint()
	e.work.queue[0].unseen, e.work.unseen = true, 1
	due := time.Duration(200 * 2 * m.tokenMs * float64(time.Millisecond))
	if e.linear(&guess, m, &x, &y, due-1, &input{}); len(e.work.queue) != 1 {
		t.Error("a prompt is taken to be computed early")
	}
	if e.linear(&guess, m, &x, &y, due, &input{}); len(e.work.queue) != 0 {
		t.Error("a prompt is not taken to be computed when it should be")
	}
}

// TestEveryRequestTakesSomeTime, on an endpoint of whatever class.
func TestEveryRequestTakesSomeTime(t *testing.T) {
	e := &endpoint{class: newClass(1, false)}
	var guess scheduling.LatencyPrediction
	var x, y terms
	if e.linear(&guess, &model{}, &x, &y, 0, &input{}); guess.TTFTMs != leastMs || guess.PrefillMs != leastMs || guess.WaitMs != 0 {
		t.Errorf("%+v, want %v ms", guess, leastMs)
	}
}

// TestNote keeps what was predicted with what it was predicted from.
func TestNote(t *testing.T) {
	e := busyEndpoint()
	e.slow = times(1000, 2)
	e.slow.compute()
	in := input{tokens: 70, uncached: 40}
	var s flight
	e.note(&s, 0, &in, nil)
	slow := e.slow.latest()
	want := e.class.known.Load().ttft.dot(&s.x, ttftTerms) * slow
	if s.class != e.class || s.slow != slow || s.input != 70 || s.judged || s.ttftMs != s.linearMs || s.tpotMs <= 0 {
		t.Errorf("%+v", s)
	}
	near(t, "linear", s.linearMs, want, 1e-12)
	wait := want - slow*(s.x[ttftBase]+2*s.x[ttftOwn]+3*s.x[ttftOwnPairs])
	near(t, "part that is the endpoint's", s.wait, wait/want, 1e-12)
	near(t, "linear, as trees see it", float64(s.z[seesLinear]), want, 1e-6)

	m := *e.class.known.Load()
	m.trial = &forest{}
	m.trial[0].leaf[0] = 5
	for i := range m.trial {
		for q := range m.trial[i].above {
			m.trial[i].above[q] = float32(math.Inf(1))
		}
	}
	e.class.known.Store(&m)
	e.note(&s, 0, &in, &scheduling.LatencyPrediction{TTFTMs: 77, TPOTMs: 78})
	if s.ttftMs != 77 || !s.judged || s.residual != mostResidual {
		t.Errorf("predicted %v, residual %v, want those of the prediction that was used and of the forest on trial", s.ttftMs, s.residual)
	}
	near(t, "linear", s.linearMs, want, 1e-12)
}

// TestErrorIsOfThePrediction that was used, residual included.
func TestErrorIsOfThePrediction(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, warming, time.Second, good(1000, 0, 100))
	w.plant(0, seesTokens, 0, 0, math.Log(3))
	guess := w.predict(0)
	near(t, "residual", guess.Residual, 3, 1e-6)
	f := w.pick(0)
	if s := w.plugin.flights.Of(f); s.ttftMs != guess.TTFTMs || math.Abs(s.linearMs*3-s.ttftMs) > 1e-3 || math.Abs(s.residual-math.Log(3)) > 1e-6 {
		t.Errorf("%v ms, %v without the forest, which says %v; want %v and a third", s.ttftMs, s.linearMs, s.residual, guess.TTFTMs)
	}
	took := 2 * guess.TTFTMs
	f.FirstToken(w.now + time.Duration(took*float64(time.Millisecond)))
	f.Done(good(1000, 0, 1), w.now+time.Minute)
	e := &w.plugin.known.endpoints.All()[0].Value
	near(t, "error of the endpoint", e.error.share, 0.5, 1e-6)
	near(t, "error of the class", e.class.error.share, 0.5, 1e-6)
	near(t, "slowness", e.slow.sum, math.Ln2, 1e-6)
}

// TestMeanIsOfThisCycle, and of the forests of a class.
func TestMeanIsOfThisCycle(t *testing.T) {
	w := newWorld(t, "classLabel: gpu", 40)
	specs := make([]scheduling.EndpointSpec, 40)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: address(i), Labels: map[string]string{"gpu": []string{"fast", "slow", "new"}[max(0, i-30)/4%3]}}
	}
	w.pool.Update(specs)
	w.spread(100)
	for _, factor := range []float64{3, 1.5} {
		w.plant(0, seesTokens, 0, 0, math.Log(factor))
		w.plant(34, seesTokens, 0, 0, math.Log(5))
		for i, guess := range w.all() {
			want := factor
			switch {
			case i >= 38:
				want = 1 // they have no forest
			case i >= 34:
				want = 5
			}
			near(t, "residual", guess.Residual, want, 1e-5)
		}
	}
}

// TestForestlessTakeNobodysPlace among those that are asked about, however fast they are.
func TestForestlessTakeNobodysPlace(t *testing.T) {
	w := newWorld(t, "classLabel: gpu", 40)
	specs := make([]scheduling.EndpointSpec, 40)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: address(i), Labels: map[string]string{"gpu": []string{"new", "old"}[i/20]}}
	}
	w.pool.Update(specs)
	w.spread(100)
	w.plant(39, seesUncached, 3250, 0, math.Log(2)) // 3 of the fastest 16 that have one are below
	for i, guess := range w.all() {
		want := math.Pow(2, 13./16)
		switch {
		case i < 23:
			want = 1
		case i < 20+refined:
			want = 2
		}
		near(t, "residual", guess.Residual, want, 1e-5)
	}
}

// TestNobodyIsAsked where no class has a forest.
func TestNobodyIsAsked(t *testing.T) {
	w := newWorld(t, "", 40)
	for i, guess := range w.all() {
		if guess.Residual != 1 {
			t.Errorf("residual %v of endpoint %d", guess.Residual, i)
		}
	}
}

// TestFastest are those that a sort by time puts first; of equal ones the first offered.
func TestFastest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type candidate struct {
			ordinal int
			ms      float64
		}
		var all []candidate
		var best fastest
		for i, ms := range rapid.SliceOfN(rapid.IntRange(0, 9), 0, 3*refined).Draw(t, "ms") {
			all = append(all, candidate{i, float64(ms)})
			best.offer(i, float64(ms))
		}
		slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.ms, b.ms) })
		all = all[:min(len(all), refined)]
		if best.n != len(all) {
			t.Fatalf("%d, want %d", best.n, len(all))
		}
		for i, want := range all {
			if got := best.of[i]; got.ordinal != want.ordinal || got.ms != want.ms {
				t.Errorf("%d: %+v, want %+v", i, got, want)
			}
		}
	})
}

// TestObjectiveIsReserved, both parts of it, and asks nothing of a request that asks nothing.
func TestObjectiveIsReserved(t *testing.T) {
	w := newWorld(t, "sloBufferFactor: 2", 1)
	w.table.Endpoints[0].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(10))
	w.request.Headers = []scheduling.Header{{Name: "x-sluice-slo-ttft-ms", Value: []byte("1000")}, {Name: "x-sluice-slo-tpot-ms", Value: []byte("40")}}
	guess := w.predict(0)
	near(t, "TTFT headroom", guess.TTFTHeadroomMs, 2000-guess.TTFTP90Ms, 1e-9)
	near(t, "TPOT headroom", guess.TPOTHeadroomMs, 80-guess.TPOTP90Ms, 1e-9)
}
