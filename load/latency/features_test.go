package latency

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/sim"
)

// TestPairs: each uncached token attends to those before it, the cached ones too.
func TestPairs(t *testing.T) {
	for _, test := range []struct{ input, uncached, want float64 }{
		{1000, 1000, 500_000}, {1000, 400, 400*600 + 400*200}, {1000, 0, 0}, {100, 400, 400 * 200},
	} {
		if got := pairsOf(test.input, test.uncached); got != test.want {
			t.Errorf("%v pairs of %v uncached tokens of %v, want %v", got, test.uncached, test.input, test.want)
		}
	}
}

func TestInputs(t *testing.T) {
	tokens := func(n int) *scheduling.UncachedRequestTokens {
		return schedtest.Ref(scheduling.UncachedRequestTokens(n))
	}
	metrics := &scheduling.EngineMetrics{Waiting: 7}
	for _, test := range []struct {
		name   string
		prompt *scheduling.TokenizedPrompt
		e      schedtest.Endpoint
		want   input
	}{
		{"nothing is known", nil, schedtest.Endpoint{}, input{}},
		{"nothing but the prompt", &scheduling.TokenizedPrompt{Count: 900}, schedtest.Endpoint{}, input{tokens: 900, uncached: 900}},
		{"a part is cached", &scheduling.TokenizedPrompt{Count: 900}, schedtest.Endpoint{Uncached: tokens(300)}, input{tokens: 900, uncached: 300}},
		{"all is cached", &scheduling.TokenizedPrompt{Count: 900}, schedtest.Endpoint{Uncached: tokens(0)}, input{tokens: 900}},
		{"more is uncached than there are", &scheduling.TokenizedPrompt{Count: 900}, schedtest.Endpoint{Uncached: tokens(1200)},
			input{tokens: 1200, uncached: 1200}},
		{"no prompt", nil, schedtest.Endpoint{Uncached: tokens(300)}, input{tokens: 300, uncached: 300}},
		{"impossible", &scheduling.TokenizedPrompt{Count: -5},
			schedtest.Endpoint{Uncached: tokens(-5), Load: &scheduling.InFlightLoad{Requests: -5, Tokens: -5}}, input{}},
		{"all else", &scheduling.TokenizedPrompt{Count: 900}, schedtest.Endpoint{
			Match: schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(3, 4, 16)), Load: &scheduling.InFlightLoad{Requests: 5, Tokens: 6}, Metrics: metrics,
		}, input{tokens: 900, uncached: 900, score: 0.75, requests: 5, inFlight: 6, metrics: metrics}},
	} {
		w := newWorld(t, "", 1)
		w.table.Prompt, w.table.Endpoints[0] = test.prompt, test.e
		c := w.begin(0)
		w.scheduler.Preview(c)
		all := w.plugin.inputs(c)
		got := *all.of(0)
		if got.metrics != nil && test.want.metrics != nil {
			got.metrics = metrics // a copy
		}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		w.scheduler.End(c)
	}
}

// TestInputsOfARequest are the same of every endpoint.
func TestInputsOfARequest(t *testing.T) {
	for parameters, whole := range map[string]bool{"": false, "streamingMode: false": true} {
		for limit, want := range map[int]float64{0: 0, 50: 50, -1: 0} {
			w := newWorld(t, parameters, 2)
			w.request.MaxOutputTokens = limit
			c := w.begin(0)
			all := w.plugin.inputs(c)
			for i := range 2 {
				if in := all.of(i); in.whole != whole || in.limit != want {
					t.Errorf("%q, limit %d: whole %v, %v", parameters, limit, in.whole, in.limit)
				}
			}
			w.scheduler.End(c)
		}
	}
}

// TestCachedPromptIsLessWork, for the request and for those behind it; it is held all the same.
func TestCachedPromptIsLessWork(t *testing.T) {
	w := newWorld(t, "", 1)
	w.table.Prompt.Count, w.table.Endpoints[0].Uncached = 1000, schedtest.Ref(scheduling.UncachedRequestTokens(400))
	f, behind := w.pick(0), w.pick(0)
	s, e := w.plugin.flights.Of(behind), &w.plugin.known.endpoints.All()[0].Value.work
	if s.x[ttftOwn] != 400 || s.x[ttftOwnPairs] != 320_000 || s.x[ttftAhead] != 400 || s.x[ttftAheadPairs] != 320_000 {
		t.Errorf("terms %v, want 400 tokens and 320,000 pairs of its own, and as much ahead", s.x)
	}
	if s.z[seesTokens] != 1000 || s.z[seesUncached] != 400 || s.z[seesHeld] != 1000 || s.input != 1000 {
		t.Errorf("sight %v, want 400 of 1,000 tokens, and 1,000 held", s.z)
	}
	if e.tokens != 800 || e.pairs != 640_000 || e.held != 2000 || e.unseen != 0 {
		t.Errorf("%+v, want 800 tokens, 640,000 pairs and 2,000 held", e)
	}
	f.FirstToken(w.now)
	if e.tokens != 400 || e.held != 1000 || e.context != 1000 || e.decoding != 1 {
		t.Errorf("%+v after the first token, want 400 tokens, 1,000 held and a context of 1,000", e)
	}
	for _, f := range []*scheduling.Flight{f, behind} {
		f.Done(good(1000, 600, 10), w.now+time.Second)
	}
}

func TestTermsOfTTFT(t *testing.T) {
	queue := func(tokens ...float64) *work {
		w := &work{}
		for i, v := range tokens {
			w.begin(0, prompt{id: uint64(i), tokens: v, input: v, pairs: 3 * v})
		}
		return w
	}
	decoding := func(requests int) *work {
		return &work{decoding: requests, context: float64(100 * requests), answer: 20}
	}
	both := decoding(3)
	both.queue, both.tokens, both.pairs = queue(4, 6).queue, 10, 30
	for _, test := range []struct {
		name string
		w    *work
		in   input
		want terms
	}{
		{"idle", &work{}, input{tokens: 200, uncached: 100}, terms{ttftOwn: 100, ttftOwnPairs: 100 * 150}},
		{"all is cached", &work{}, input{tokens: 200}, terms{}},
		{"a full step", &work{}, input{tokens: stepTokens, uncached: stepTokens}, terms{ttftOwn: stepTokens, ttftOwnPairs: stepTokens * stepTokens / 2}},
		{"a step more for one token more", &work{}, input{uncached: stepTokens + 1},
			terms{ttftOwn: stepTokens + 1, ttftOwnPairs: (stepTokens + 1) * (stepTokens + 1) / 2., ttftSteps: 1}},
		{"those that decode take their part of a step", decoding(1), input{uncached: stepTokens},
			terms{ttftOwn: stepTokens, ttftOwnPairs: stepTokens * stepTokens / 2, ttftSteps: 1, ttftStepSeqs: 2, ttftStepContext: 2 * 110}},
		{"all of a step is taken", decoding(stepTokens), input{uncached: 3}, terms{
			ttftOwn: 3, ttftOwnPairs: 4.5, ttftSteps: 2, ttftStepSeqs: 3 * stepTokens, ttftStepContext: 3 * 110 * stepTokens,
		}},
		{"a cached prompt takes a step all the same", decoding(2), input{}, terms{ttftStepSeqs: 2, ttftStepContext: 220}},
		{"steps are of those ahead too", queue(stepTokens, 500), input{}, terms{ttftAhead: stepTokens + 500, ttftAheadPairs: 3 * (stepTokens + 500), ttftSteps: 1}},
		{"a whole response of which nobody knows how long it gets", &work{}, input{whole: true}, terms{ttftAnswer: usualAnswer}},
		{"beside those that decode and those that will", both, input{whole: true, limit: 1e-9},
			terms{ttftAhead: 10, ttftAheadPairs: 30, ttftStepSeqs: 3, ttftStepContext: 330, ttftAnswer: 1e-9, ttftAnswerSeqs: 5e-9}},
		{"a limit says nothing of a first token", &work{}, input{limit: 50}, terms{}},
	} {
		test.want[ttftBase] = 1
		var got terms
		got[ttftAnswer], got[ttftAnswerSeqs] = 99, 99 // of another request
		test.w.fillTTFT(&got, 0, &test.in, 1)
		for i := range got {
			near(t, fmt.Sprintf("%s: term %d", test.name, i), got[i], test.want[i], 1e-9)
		}
	}
}

// TestStepLeftAhead: what is left of a step counts once. Behind a queue it is waited for by the first of it, and by the others
// through that one.
func TestStepLeftAhead(t *testing.T) {
	const now = 105 * time.Millisecond
	for _, test := range []struct {
		name             string
		decoding, queued int
		since            time.Duration
		left, overdue    float64
	}{
		{"idle", 0, 0, now + time.Second, 0, 0},
		{"decoding", 1, 0, now + time.Second, 15, 0},
		{"the first one waits for the step", 1, 1, now + 4*time.Millisecond, 4, 0},
		{"the first one is computed", 1, 1, now - 10*time.Millisecond, 0, 0},
		{"the first one is overdue", 0, 1, now - 60*time.Millisecond, 0, 10},
	} {
		w := work{decoding: test.decoding, since: test.since}
		w.steps.tick(80 * time.Millisecond)
		w.steps.tick(100 * time.Millisecond)
		for range test.queued {
			w.queue, w.tokens = append(w.queue, prompt{tokens: 50}), w.tokens+50
		}
		var x terms
		x[ttftStepLeft], x[ttftOverdue] = 99, 99 // of another endpoint
		w.fillTTFT(&x, now, &input{}, 1)
		if x[ttftStepLeft] != test.left || x[ttftOverdue] != test.overdue {
			t.Errorf("%s: %v ms of a step, %v ms overdue; want %v and %v", test.name, x[ttftStepLeft], x[ttftOverdue], test.left, test.overdue)
		}
	}
}

// TestTermsOfTPOT: a request will decode together with those that are before their first token too.
func TestTermsOfTPOT(t *testing.T) {
	w := work{decoding: 3, context: 1000, answer: 200, queue: make([]prompt, 2), tokens: 70, flow: flow{at: time.Second, perMs: 0.5}}
	var got terms
	w.fillTPOT(&got, 11*time.Second, &input{tokens: 40, uncached: 30})
	want := terms{tpotBase: 1, tpotSeqs: 6, tpotContext: 1340, tpotAhead: 100, tpotPrefill: 0.25}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSight: every value is where trees look for it.
func TestSight(t *testing.T) {
	w := work{queue: make([]prompt, 2), decoding: 3, context: 1000, answer: 200, held: 50}
	x := terms{ttftAhead: 60, ttftOverdue: 61, ttftStepLeft: 62}
	in := input{tokens: 70, uncached: 71, score: 0.5, requests: 72, inFlight: 73}
	seen := func(metrics *scheduling.EngineMetrics) (z sight) {
		in.metrics = metrics
		w.fillSight(&z, &in, &x, &scheduling.LatencyPrediction{TTFTMs: 80, WaitMs: 20, TPOTMs: 81})
		return z
	}
	want := sight{
		seesLinear: 80, seesWait: 0.25, seesTokens: 70, seesUncached: 71, seesAhead: 60, seesRequests: 72, seesInFlight: 73, seesQueue: 2,
		seesDecoding: 3, seesContext: 1300, seesHeld: 1350, seesOverdue: 61, seesStepLeft: 62, seesScore: 0.5, seesTPOT: 81,
		seesWaiting: -1, seesRunning: -1, seesKVUsage: -1, seesAge: -1,
	}
	if got := seen(nil); got != want {
		t.Errorf("without metrics %v, want %v", got, want)
	}
	in.limit = 95
	if got := seen(nil); got != want {
		t.Errorf("with a limit %v, want %v: of a first token it says nothing", got, want)
	}
	in.whole, want[seesLimit] = true, 95
	if got := seen(nil); got != want {
		t.Errorf("of a whole response with a limit %v, want %v", got, want)
	}
	fields := map[scheduling.MetricsField]int{
		scheduling.MetricsWaiting: seesWaiting, scheduling.MetricsRunning: seesRunning, scheduling.MetricsKVUsage: seesKVUsage,
	}
	want[seesAge] = 90
	for field, at := range fields {
		want := want
		want[at] = map[int]float32{seesWaiting: 91, seesRunning: 92, seesKVUsage: 0.75}[at]
		if got := seen(&scheduling.EngineMetrics{Known: field, Waiting: 91, Running: 92, KVUsage: 0.75, AgeMs: 90}); got != want {
			t.Errorf("metrics with field %d alone: %v, want %v", field, got, want)
		}
	}
}

// TestPriorIsAnEngine: that of the simulator, whose costs were measured, of which only the throughput is told.
func TestPriorIsAnEngine(t *testing.T) {
	p := sim.DefaultParams()
	const s, tokens = 1000, stepTokens // ms in a second
	step := s * (p.Cost.Base + tokens*p.Cost.PrefillToken + tokens*tokens/2*p.Cost.Attention)
	token := step / tokens
	ttft, tpot := ttftPrior(1/token), tpotPrior(1/token)
	for _, test := range []struct {
		name      string
		got, want float64
	}{
		{"a token of its own", ttft[ttftOwn].prior, s * p.Cost.PrefillToken},
		{"a token ahead", ttft[ttftAhead].prior, s * p.Cost.PrefillToken},
		{"a pair of its own", ttft[ttftOwnPairs].prior, s * p.Cost.Attention},
		{"a pair ahead", ttft[ttftAheadPairs].prior, s * p.Cost.Attention},
		{"a step", ttft[ttftSteps].prior, s * p.Cost.Base},
		{"a request in a step", ttft[ttftStepSeqs].prior, s * p.Cost.DecodeSeq},
		{"a token of context in a step", ttft[ttftStepContext].prior, s * p.Cost.DecodeContext},
		{"a token of an answer", ttft[ttftAnswer].prior, s * p.Cost.Base},
		{"the same, for each that decodes beside it", ttft[ttftAnswerSeqs].prior, s * p.Cost.DecodeSeq},
		{"a ms that is left of a step", ttft[ttftStepLeft].prior, 1},
		{"a step that only decodes", tpot[tpotBase].prior, s * p.Cost.Base},
		{"a request that decodes", tpot[tpotSeqs].prior, s * p.Cost.DecodeSeq},
		{"a token of its context", tpot[tpotContext].prior, s * p.Cost.DecodeContext},
		{"a token to compute, over an answer of 500", tpot[tpotAhead].prior, token / 500},
		{"a token a ms, by what part of each step it takes", tpot[tpotPrefill].prior, s * p.Cost.Base * token},
	} {
		near(t, test.name, test.got, test.want, 0.04)
	}
}
