package latency

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
)

// refined is for how many candidates the forest is asked, of those that are fastest without it. The others get the (geometric) mean of
// what it says of those of their class: none becomes the fastest by that, since it is slower than each of these without the forest, and
// one of these has no more than the mean. Of a class that has none among them the fastest is asked about, and the one whose cache has
// most of the prompt, since gates weigh it.
const refined = 16

// Fill predicts for every candidate.
func (p *Plugin) Fill(c *scheduling.Cycle) {
	k := p.known
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock = max(k.clock, c.Now)
	k.cycle++
	objective, _ := p.objective.In(c).Get()
	objective.TTFTMs *= p.params.SLOBufferFactor
	objective.TPOTMs *= p.params.SLOBufferFactor
	q := question{plugin: p, cycle: c, in: p.inputs(c), out: p.predictions.In(c)}
	best := q.linear()
	for _, b := range best.of[:best.n] {
		if kind, said, ok := q.refine(b.ordinal); ok {
			kind.asked.take(k.cycle, said)
		}
	}
	q.askOthers()
	q.finish(&objective)
}

// question is what a cycle asks. It is used under knowledge.mu.
type question struct {
	plugin *Plugin
	cycle  *scheduling.Cycle
	in     inputs
	out    *scheduling.Column[scheduling.LatencyPrediction]
	x, y   terms
	kinds  [classes.Max + 1]*class
	n      int // of these: the classes with a forest
}

// lead is the fastest candidate of a class in a cycle, by the linear model.
type lead struct {
	cycle   uint64
	ordinal int
	ms      float64
}

// lead notes a candidate of a class that has a forest.
func (q *question) lead(kind *class, ordinal int, ms float64) {
	l := &kind.lead
	switch {
	case l.cycle != q.plugin.known.cycle:
		if q.n < len(q.kinds) {
			q.kinds[q.n] = kind
			q.n++
		}
	case ms >= l.ms:
		return
	}
	*l = lead{q.plugin.known.cycle, ordinal, ms}
}

// askOthers asks the forests of classes that have nobody among the fastest: what another's says is none of theirs.
func (q *question) askOthers() {
	cycle := q.plugin.known.cycle
	for _, kind := range q.kinds[:q.n] {
		if kind.asked.cycle == cycle {
			continue
		}
		if _, said, ok := q.refine(kind.lead.ordinal); ok {
			kind.asked.take(cycle, said)
		}
	}
}

// asked is what forests said in a cycle, as logarithms.
type asked struct {
	cycle uint64
	sum   float64
	n     float64
}

func (a *asked) take(cycle uint64, l float64) {
	if a.cycle != cycle {
		*a = asked{cycle: cycle}
	}
	a.sum += l
	a.n++
}

func (a *asked) mean() float64 { return math.Exp(a.sum / a.n) }

// linear asks the linear model about all, and returns those that are the fastest by it. It asks the forest about the one whose cache
// has most.
func (q *question) linear() (best fastest) {
	k, c := q.plugin.known, q.cycle
	closest, most := -1, 0.0
	for i := range c.Candidates.All() {
		e, in := k.at(q.in.endpoints, c.Snapshot.Endpoints[i]), q.in.of(i)
		m := e.class.known.Load()
		guess := q.out.Put(i)
		*guess = scheduling.LatencyPrediction{WholeResponse: !q.plugin.params.StreamingMode}
		e.linear(guess, m, &q.x, &q.y, c.Now, in)
		if m.forest == nil {
			continue
		}
		best.offer(i, guess.TTFTMs)
		q.lead(e.class, i, guess.TTFTMs)
		if in.score > most {
			closest, most = i, in.score
		}
	}
	if closest >= 0 {
		q.refine(closest)
	}
	return best
}

// refine asks the forest about a candidate. What it said is the logarithm of the residual; ok is false where there is none any more.
func (q *question) refine(ordinal int) (kind *class, said float64, ok bool) {
	e := q.plugin.known.at(q.in.endpoints, q.cycle.Snapshot.Endpoints[ordinal])
	m, in := e.class.known.Load(), q.in.of(ordinal)
	if m.forest == nil { // an answer has just come
		return nil, 0, false
	}
	guess := q.out.At(ordinal)
	e.linear(guess, m, &q.x, &q.y, q.cycle.Now, in)
	var z sight
	e.work.fillSight(&z, in, &q.x, guess)
	said = bounded(m.forest.at(&z))
	guess.Residual = math.Exp(said)
	return e.class, said, true
}

// finish gives those that no forest was asked about the mean of their class, and finishes the predictions.
func (q *question) finish(objective *scheduling.LatencyObjective) {
	k, c := q.plugin.known, q.cycle
	for i := range c.Candidates.All() {
		kind := k.at(q.in.endpoints, c.Snapshot.Endpoints[i]).class
		m, guess := kind.known.Load(), q.out.At(i)
		switch {
		case guess.Residual != 0:
		case m.forest != nil && kind.asked.cycle == k.cycle:
			guess.Residual = kind.asked.mean()
		default:
			guess.Residual = 1
		}
		m.finish(guess, objective)
	}
}

// linear is what the linear model says. The residual stays open.
func (e *endpoint) linear(guess *scheduling.LatencyPrediction, m *model, x, y *terms, now time.Duration, in *input) {
	slow := e.slow.at(now)
	e.work.settle(now, m.tokenMs*slow)
	e.work.fillTTFT(x, now, in, m.tokenMs*slow)
	e.work.fillTPOT(y, now, in)
	own := m.ttft[ttftBase]*x[ttftBase] + m.ttft[ttftOwn]*x[ttftOwn] + m.ttft[ttftOwnPairs]*x[ttftOwnPairs] +
		m.ttft[ttftAnswer]*x[ttftAnswer] + m.ttft[ttftAnswerSeqs]*x[ttftAnswerSeqs]
	wait := m.ttft[ttftAhead]*x[ttftAhead] + m.ttft[ttftAheadPairs]*x[ttftAheadPairs] + m.ttft[ttftSteps]*x[ttftSteps] +
		m.ttft[ttftStepSeqs]*x[ttftStepSeqs] + m.ttft[ttftStepContext]*x[ttftStepContext] + m.ttft[ttftStepLeft]*x[ttftStepLeft] +
		m.ttft[ttftOverdue]*x[ttftOverdue]
	guess.PrefillMs, guess.WaitMs = max(leastMs, own*slow), wait*slow
	guess.TTFTMs = guess.PrefillMs + guess.WaitMs
	guess.TPOTMs = m.tpot.dot(y, tpotTerms) * slow
	guess.Confidence = e.confidence(m, now)
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
	s.class, s.slow, s.input, s.limit = e.class, e.slow.at(now), in.tokens, in.limit
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

// at is what is known of an endpoint, valid until the next call; all is what endpoints.All returned. Of one that is not in force (no
// snapshot has told of it yet, or it has gone) only its class is known, and nothing is kept for it. The caller holds mu.
func (k *knowledge) at(all []*scheduling.Instance[endpoint], e *scheduling.Endpoint) *endpoint {
	if in := scheduling.FindInstance(all, e.Ordinal, e.Generation); in != nil && in.Value.class != nil {
		return &in.Value
	}
	k.stranger = endpoint{class: k.classes.Of(e)}
	return &k.stranger
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
