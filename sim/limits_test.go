package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// arrival is a job that comes at a time.
type arrival struct {
	at  time.Duration
	job *Job
}

// play runs an engine through arrivals in the order of their times. busy is the time that its steps took, area the integral of
// the number of jobs in it over time, end when the last job had ended.
func play(t *testing.T, e *Engine, all []arrival) (busy, end time.Duration, area float64) {
	t.Helper()
	now, inside := time.Duration(0), 0
	pass := func(to time.Duration) {
		area += float64(inside) * (to - now).Seconds()
		now = to
	}
	for {
		until, running := e.Begin(now)
		if len(all) > 0 && (!running || all[0].at < until) {
			pass(max(now, all[0].at))
			submit(t, e, now, all[0].job)
			inside++
			all = all[1:]
			continue
		}
		if !running {
			return busy, now, area
		}
		pass(until)
		r := e.Complete()
		busy += r.End - r.Start
		for _, ev := range r.Events {
			if ev.Kind == Finished {
				inside--
			}
		}
	}
}

// served makes Poisson arrivals of prompts of some lengths, all different, one token answered.
func served(n int, rate float64, lengths ...int) []arrival {
	random := rand.New(rand.NewPCG(5, 6))
	all := make([]arrival, n)
	at := 0.0
	for i := range all {
		at += random.ExpFloat64() / rate
		prompt := make([]uint32, lengths[random.IntN(len(lengths))])
		prompt[0] = uint32(i)
		all[i] = arrival{time.Duration(at * float64(time.Second)), &Job{Prompt: prompt, Output: []uint32{1}}}
	}
	return all
}

// oneAtATime is an engine that serves one request after the other, each at once, at a rate of 1,000 tokens a second.
func oneAtATime() Params {
	p := DefaultParams()
	p.MaxSeqs, p.MaxWaiting, p.MaxBatchedTokens = 1, 1<<20, 1<<14
	p.Cost = StepCost{PrefillToken: 1e-3}
	return p
}

// With one request at a time, at random times and of two lengths, an engine is an M/G/1 queue: requests wait
// λE[S²]/(2(1−ρ)) on average, whatever their own length (Pollaczek and Khinchine). Besides, whatever the order of service, the
// engine is busy for a share λE[S] of the time (utilisation law), and has λT requests in it (Little).
func TestTwoLengthsQueueAsTheyMust(t *testing.T) {
	const short, long = 10, 70 // ms each
	for _, load := range []float64{0.3, 0.6, 0.8} {
		mean, square := (short+long)/2e3, (short*short+long*long)/2e6
		rate := load / mean
		all := served(60_000, rate, short, long)
		last := all[len(all)-1].at
		busy, end, area := play(t, newEngine(t, oneAtATime(), nil), all)

		wait, inside := map[int]float64{}, 0.0
		count := map[int]float64{}
		for _, a := range all {
			p, n := a.job.Progress(), len(a.job.Prompt)
			wait[n] += (p.Scheduled - p.Submitted).Seconds()
			count[n]++
			inside += (p.Finished - p.Submitted).Seconds()
		}
		want := rate * square / (2 * (1 - load))
		for _, n := range []int{short, long} {
			if got := wait[n] / count[n]; math.Abs(got/want-1) > 0.07 {
				t.Errorf("load %v: prompts of %d tokens wait %.4f s, want %.4f", load, n, got, want)
			}
		}
		if got := busy.Seconds() / last.Seconds(); math.Abs(got/load-1) > 0.02 {
			t.Errorf("load %v: busy for %.4f of the time", load, got)
		}
		if l, lt := area/end.Seconds(), inside/end.Seconds(); math.Abs(l/lt-1) > 1e-6 {
			t.Errorf("load %v: %.5f requests inside on average, Little's law says %.5f", load, l, lt)
		}
	}
}

// Little's law holds of what is batched, chunked, cached and preempted too.
func TestLittlesLawOfABatchingEngine(t *testing.T) {
	p := DefaultParams()
	p.NumBlocks, p.MaxModelLen, p.MaxBatchedTokens, p.MaxSeqs, p.MaxWaiting = 150, 2400, 512, 16, 1<<20
	random := rand.New(rand.NewPCG(8, 9))
	var all []arrival
	at := 0.0
	for range 3000 {
		at += random.ExpFloat64() / 8
		prompt := tokens(uint32(random.IntN(5))*10_000, 100+random.IntN(900))
		all = append(all, arrival{time.Duration(at * float64(time.Second)), &Job{Prompt: prompt, Output: make([]uint32, 1+random.IntN(100))}})
	}
	e := newEngine(t, p, nil)
	_, end, area := play(t, e, all)
	inside, cached := 0.0, 0
	for _, a := range all {
		pr := a.job.Progress()
		inside += (pr.Finished - pr.Submitted).Seconds()
		cached += pr.Cached
	}
	if math.Abs(area/inside-1) > 1e-6 {
		t.Errorf("%.5f requests inside on average, Little's law says %.5f", area/end.Seconds(), inside/end.Seconds())
	}
	if s := e.Stats(); s.Preemptions == 0 || cached == 0 || s.Finished != len(all) {
		t.Errorf("%d preemptions, %d cached tokens: the run shows too little", s.Preemptions, cached)
	}
}

// A full engine decodes n/(t0 + c·n + d·Σctx) tokens a second, and computes B/(t0 + a·B + b·attention) tokens of long prompts.
func TestThroughputOfAFullEngine(t *testing.T) {
	p := DefaultParams()
	p.MaxSeqs, p.MaxWaiting = 64, 1<<16
	e := newEngine(t, p, nil)
	const prompt, output = 1000, 400
	for i := range p.MaxSeqs {
		submit(t, e, 0, &Job{Prompt: tokens(uint32(i)*10_000, prompt), Output: make([]uint32, output)})
	}
	var took, made float64
	for _, r := range drain(t, e, 0) {
		if r.Decodes == p.MaxSeqs && r.PrefillTokens == 0 {
			took += (r.End - r.Start).Seconds()
			made += float64(r.Decodes)
		}
	}
	c, n := p.Cost, float64(p.MaxSeqs)
	want := n / (c.Base + c.DecodeSeq*n + c.DecodeContext*n*(prompt+output/2))
	if got := made / took; math.Abs(got/want-1) > 0.01 || made < n*output/2 {
		t.Errorf("%.0f tokens a second in decode (%.0f of them), want %.0f", got, made, want)
	}

	e = newEngine(t, p, nil)
	for i := range 40 {
		submit(t, e, 0, &Job{Prompt: tokens(uint32(i)*100_000, 8192), Output: make([]uint32, 1)})
	}
	steps := drain(t, e, 0)
	b := float64(p.MaxBatchedTokens)
	want = b / (c.Base + c.PrefillToken*b + c.Attention*b*b/2)
	if got := 40 * 8192 / steps[len(steps)-1].End.Seconds(); math.Abs(got/want-1) > 0.001 {
		t.Errorf("%.1f prompt tokens a second, want %.1f", got, want)
	}
}
