package latency

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// refined is for how many candidates the forest is asked, of those that are fastest without it; the others get the mean of what
// it says of these.
const refined = 16

// Fill predicts for every candidate.
func (p *Plugin) Fill(c *scheduling.Cycle) {
	k := p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	in := p.inputs(c)
	out := p.predictions.In(c)
	var best fastest
	var x, y terms
	for i := range c.Candidates.All() {
		e := k.at(in.endpoints, c.Snapshot.Endpoints[i])
		m := e.class.known.Load()
		guess := out.Put(i)
		*guess = scheduling.LatencyPrediction{WholeResponse: !p.params.StreamingMode}
		e.linear(guess, m, &x, &y, c.Now, in.of(i))
		if m.forest != nil {
			best.offer(i, guess.TTFTMs)
		}
	}
	mean := p.refine(c, &in, out, &best)
	objective, _ := p.objective.In(c).Get()
	objective.TTFTMs *= p.params.SLOBufferFactor
	objective.TPOTMs *= p.params.SLOBufferFactor
	for i := range c.Candidates.All() {
		m := k.at(in.endpoints, c.Snapshot.Endpoints[i]).class.known.Load()
		guess := out.At(i)
		if guess.Residual == 0 {
			guess.Residual = 1
			if m.forest != nil {
				guess.Residual = mean
			}
		}
		m.finish(guess, &objective)
	}
}

// refine asks the forest about the fastest candidates, and returns the mean of what it says.
func (p *Plugin) refine(c *scheduling.Cycle, in *inputs, out *scheduling.Column[scheduling.LatencyPrediction], best *fastest) (mean float64) {
	if best.n == 0 {
		return 1
	}
	sum, asked := 0.0, 0.0
	var x, y terms
	var z sight
	for _, b := range best.of[:best.n] {
		e := p.known.at(in.endpoints, c.Snapshot.Endpoints[b.ordinal])
		m, r := e.class.known.Load(), in.of(b.ordinal)
		if m.forest == nil { // no longer: an answer has just come
			continue
		}
		guess := out.At(b.ordinal)
		e.linear(guess, m, &x, &y, c.Now, r)
		e.work.fillSight(&z, r, &x, guess)
		l := bounded(m.forest.at(&z))
		guess.Residual = math.Exp(l)
		sum += l
		asked++
	}
	return math.Exp(sum / max(1, asked))
}

// linear is what the linear model says. The residual stays open.
func (e *endpoint) linear(guess *scheduling.LatencyPrediction, m *model, x, y *terms, now time.Duration, in *input) {
	slow := e.slow.at(now)
	e.work.settle(now, m.tokenMs*slow)
	e.work.fillTTFT(x, now, in, m.tokenMs*slow)
	e.work.fillTPOT(y, now, in)
	own := m.ttft[ttftBase]*x[ttftBase] + m.ttft[ttftOwn]*x[ttftOwn] + m.ttft[ttftOwnPairs]*x[ttftOwnPairs]
	wait := m.ttft[ttftAhead]*x[ttftAhead] + m.ttft[ttftAheadPairs]*x[ttftAheadPairs] + m.ttft[ttftSteps]*x[ttftSteps] +
		m.ttft[ttftStepSeqs]*x[ttftStepSeqs] + m.ttft[ttftStepContext]*x[ttftStepContext] + m.ttft[ttftStepLeft]*x[ttftStepLeft] +
		m.ttft[ttftOverdue]*x[ttftOverdue]
	guess.PrefillMs, guess.WaitMs = max(leastMs, own*slow), wait*slow
	guess.TTFTMs = guess.PrefillMs + guess.WaitMs
	guess.TPOTMs = m.tpot.dot(y, tpotTerms) * slow
	guess.Confidence = m.confidence
}

// leastMs is what the request's own part takes at least: no prediction is 0.
const leastMs = 0.1

// finish turns a linear guess and its residual into the prediction.
func (m *model) finish(guess *scheduling.LatencyPrediction, objective *scheduling.LatencyObjective) {
	guess.TTFTP90Ms = guess.TTFTMs * guess.Residual * m.above[regimeOf(guess.WaitMs/guess.TTFTMs)]
	guess.TTFTMs *= guess.Residual
	if guess.WholeResponse {
		guess.TPOTMs = 0
	}
	guess.TPOTP90Ms = guess.TPOTMs * m.tpotAbove
	if objective.TTFTMs > 0 {
		guess.TTFTHeadroomMs = objective.TTFTMs - guess.TTFTP90Ms
	}
	if objective.TPOTMs > 0 && guess.TPOTMs > 0 {
		guess.TPOTHeadroomMs = objective.TPOTMs - guess.TPOTP90Ms
	}
}

// note keeps what was known of a request at its pick.
func (e *endpoint) note(s *flight, now time.Duration, in *input, guess *scheduling.LatencyPrediction) {
	m := e.class.known.Load()
	var linear scheduling.LatencyPrediction
	e.linear(&linear, m, &s.x, &s.y, now, in)
	s.class, s.slow, s.input = e.class, e.slow.at(now), in.tokens
	s.linearMs, s.wait = linear.TTFTMs, linear.WaitMs/linear.TTFTMs
	s.ttftMs, s.tpotMs = linear.TTFTMs, linear.TPOTMs
	if guess != nil {
		s.ttftMs = guess.TTFTMs
	}
	e.work.fillSight(&s.z, in, &s.x, &linear)
	if m.trial != nil {
		s.judged, s.residual = true, bounded(m.trial.at(&s.z))
	}
}

// at is what is known of an endpoint; all is what endpoints.All returned. The caller holds mu.
func (k *knowledge) at(all []*scheduling.Instance[endpoint], e *scheduling.Endpoint) *endpoint {
	if in := scheduling.FindInstance(all, e.Ordinal, e.Generation); in != nil && in.Value.class != nil {
		return &in.Value
	}
	return k.of(e) // one that no snapshot has told of yet
}

// fastest are the candidates with the least time, at most refined of them.
type fastest struct {
	n  int
	of [refined]struct {
		ordinal int
		ms      float64
	}
}

// offer takes a candidate in if it is one of them.
func (f *fastest) offer(ordinal int, ms float64) {
	if f.n == refined && ms >= f.of[refined-1].ms {
		return
	}
	at := f.n
	if f.n < refined {
		f.n++
	} else {
		at--
	}
	for ; at > 0 && f.of[at-1].ms > ms; at-- {
		f.of[at] = f.of[at-1]
	}
	f.of[at].ordinal, f.of[at].ms = ordinal, ms
}
