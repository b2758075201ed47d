package latency

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/load/steps"
	"github.com/sluice-epp/sluice/scheduling"
)

// work is what an endpoint has before it.
func (w *world) work(endpoint int) *work { return &w.plugin.known.endpoints.All()[endpoint].Value.work }

// TestFirstTokenIsNotSeen where an answer does not come in pieces, whatever is predicted.
func TestFirstTokenIsNotSeen(t *testing.T) {
	for _, test := range []struct {
		parameters     string
		stream, unseen bool
	}{
		{"", true, false}, {"", false, true}, {"streamingMode: false", true, false}, {"streamingMode: false", false, true},
	} {
		w := newWorld(t, test.parameters, 1)
		w.request.Stream = test.stream
		f := w.pick(0)
		if got := w.work(0).queue[0].unseen; got != test.unseen {
			t.Errorf("%q, streamed %v: unseen %v, want %v", test.parameters, test.stream, got, test.unseen)
		}
		f.Done(good(1000, 0, 10), w.now)
	}
}

func TestTPOT(t *testing.T) {
	const first, now = time.Second, 3 * time.Second
	for _, test := range []struct {
		name       string
		completion int
		choices    float64
		pieces     steps.Pieces
		want       float64
	}{
		{"by the count, less the first token", 101, 1, steps.Pieces{}, 20},
		{"by the count and not by the pieces", 101, 1, steps.Pieces{Count: 50, Last: now}, 20},
		{"of four answers at a time", 404, 4, steps.Pieces{}, 20},
		{"a single token", 1, 1, steps.Pieces{Count: 50, Last: now}, 0},
		{"a single token each", 4, 4, steps.Pieces{}, 0},
		{"two tokens", 2, 1, steps.Pieces{}, 2000},
		{"no token", 0, 1, steps.Pieces{Count: 50, Last: now}, 0},
		{"by the pieces where nobody counts, to the last one", -1, 1, steps.Pieces{Count: 50, Last: 2 * time.Second}, 20},
		{"hardly any pieces", -1, 1, steps.Pieces{Count: steps.Least - 1, Last: now}, 0},
	} {
		s := flight{firstAt: first, choices: test.choices, pieces: test.pieces}
		if got := s.tpot(scheduling.Usage{CompletionTokens: test.completion}, now); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestAnswersAreCountedEach: of a request that asks for several the tokens are all of them together.
func TestAnswersAreCountedEach(t *testing.T) {
	for _, test := range []struct {
		choices int
		want    float64
	}{{0, 400}, {1, 400}, {4, 100}} {
		w := newWorld(t, "", 1)
		w.request.Choices = test.choices
		w.serve(0, 1, time.Second, good(1000, 0, 400))
		near(t, "length of an answer", w.work(0).answer, test.want, 1e-12)
		near(t, "tokens of answers", w.work(0).length.tokens, test.want, 1e-12)
		w.request.MaxOutputTokens = int(test.want)
		ended := w.work(0).length.ended
		w.serve(0, 1, time.Second, good(1000, 0, 400))
		near(t, "answers that ended by themselves before one was cut off", w.work(0).length.ended, ended*lengthFade, 1e-12)
	}
}

// TestCutAnswersDidNotEnd by themselves: where the client goes an engine may have counted its tokens so far.
func TestCutAnswersDidNotEnd(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 1, time.Second, good(1000, 0, 400))
	cut := good(1000, 0, 50)
	cut.Reason = scheduling.EndDisconnect
	w.serve(0, 1, time.Second, cut)
	if got := w.work(0).length; got != (length{tokens: 400*lengthFade + 50, ended: lengthFade}) {
		t.Errorf("%+v, want 450 tokens of one that ended", got)
	}
}

// TestImpossibleCountsHaveNoLength: what a faulty engine says that it has generated.
func TestImpossibleCountsHaveNoLength(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 1, time.Second, good(1000, 0, 100))
	w.serve(0, 1, time.Second, good(1000, 0, 1<<40))
	w.serve(0, 1, time.Second, good(1000, 0, 2*1000*mostPerMs+1)) // it takes two seconds in all
	if e := w.work(0); e.answer != 100 || e.length.tokens != 100 {
		t.Errorf("%v tokens on average, %v of all; want 100", e.answer, e.length.tokens)
	}
	w.serve(0, 1, time.Second, good(1000, 0, 2*1000*mostPerMs))
	if e := w.work(0); e.answer <= 100 {
		t.Error("a long answer that is possible counts for nothing")
	}
}

// TestUncountedAnswersHaveNoLength.
func TestUncountedAnswersHaveNoLength(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 1, time.Second, good(1000, 0, 400))
	w.serve(0, 1, time.Second, scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage})
	w.serve(0, 1, time.Second, good(1000, 0, 0))
	near(t, "length of an answer", w.work(0).answer, 400, 0)
}

// TestWhatTeaches: requests that ended well where they were sent to, whose first token was seen.
func TestWhatTeaches(t *testing.T) {
	ended := func(status int) scheduling.Outcome {
		return scheduling.Outcome{Status: status, Usage: scheduling.UnknownUsage}
	}
	for _, test := range []struct {
		name    string
		outcome scheduling.Outcome
		ttft    time.Duration // below 0: not seen
		skip    int           // below 0: it teaches
	}{
		{"200", ended(200), time.Second, -1},
		{"299", ended(299), time.Second, -1},
		{"199", ended(199), time.Second, skipFailed},
		{"300", ended(300), time.Second, skipFailed},
		{"cut", scheduling.Outcome{Reason: scheduling.EndDisconnect, Status: 200}, time.Second, skipFailed},
		{"unseen", ended(200), -1, skipUnstream},
		{"in no time", ended(200), 0, skipUnstream},
		{"in hardly any", ended(200), 1, -1},
		{"cut before its first token", scheduling.Outcome{Reason: scheduling.EndDisconnect, Status: 200}, -1, skipFailed},
	} {
		w := newWorld(t, "", 1)
		w.serve(0, warming, time.Second, good(1000, 0, 100))
		f := w.pick(0)
		if test.ttft >= 0 {
			f.FirstToken(w.now + test.ttft)
		}
		f.Done(test.outcome, w.now+time.Minute)
		var want [skips]uint64
		want[skipFresh] = warming
		taught := uint64(1)
		if test.skip >= 0 {
			want[test.skip]++
			taught = 0
		}
		k := w.plugin.known
		for i, name := range skipNames {
			if got := k.skipped[i].Load(); got != want[i] {
				t.Errorf("%s: %d were skipped as %s, want %d", test.name, got, name, want[i])
			}
		}
		e := &k.endpoints.All()[0].Value
		if w.samples() != taught || e.error.n != int(taught) || e.class.seen != int(taught) || (e.slow.n > 0) != (taught > 0) {
			t.Errorf("%s: %d taught, %d of the endpoint and %d of its class, want %d", test.name, w.samples(), e.error.n, e.class.seen, taught)
		}
	}
}

// TestFailedRequestsWarmNothing: those that do not end well are not of the first answers of a process.
func TestFailedRequestsWarmNothing(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 5, time.Second, scheduling.Outcome{Status: 500, Usage: scheduling.UnknownUsage})
	w.serve(0, warming+1, time.Second, good(1000, 0, 100))
	if n := w.samples(); n != 1 {
		t.Errorf("%d taught, want the one after the first %d", n, warming)
	}
}

// TestTimesAreFromThePick to the first token, and per token from there.
func TestTimesAreFromThePick(t *testing.T) {
	for parameters, want := range map[string]time.Duration{"": 2 * time.Second, "streamingMode: false": 5 * time.Second} {
		w := newWorld(t, parameters, 1)
		w.serve(0, warming, 2*time.Second, good(1000, 0, 100))
		f := w.pick(0)
		predicted := w.plugin.flights.Of(f).ttftMs
		f.FirstToken(w.now + 2*time.Second)
		f.Done(good(1000, 0, 101), w.now+5*time.Second)
		var expected accuracy
		expected.add(ms(want), predicted)
		e := &w.plugin.known.endpoints.All()[0].Value
		near(t, parameters+": error", e.error.share, expected.share, 1e-9)
		tokens := uint64(1)
		if parameters != "" {
			tokens = 0
		}
		if n := w.plugin.known.tpotSamples.Load(); n != tokens {
			t.Errorf("%q: %d taught what a token takes, want %d", parameters, n, tokens)
		}
		if w.plugin.WholeResponses() != (parameters != "") {
			t.Errorf("%q: whole responses %v", parameters, w.plugin.WholeResponses())
		}
	}
}

// TestTokensOfAnswersTeachSteps: first tokens and pieces are the ends of an endpoint's steps.
func TestTokensOfAnswersTeachSteps(t *testing.T) {
	w := newWorld(t, "", 1)
	f := w.pick(0)
	f.FirstToken(w.now)
	near(t, "the first token", float64(w.work(0).steps.last.Load()), float64(w.now), 0)
	f.Chunk(w.now + 30*time.Millisecond)
	near(t, "left of a step", w.work(0).steps.left(w.now+40*time.Millisecond), 20, 1e-12)
	if s := w.plugin.flights.Of(f); s.pieces.Count != 1 {
		t.Errorf("%d pieces, want 1", s.pieces.Count)
	}
	f.Done(good(1000, 0, 2), w.now+time.Second)
}

// TestMovedOnceTeachesNothing, though it comes back to where it was sent at first.
func TestMovedOnceTeachesNothing(t *testing.T) {
	w := newWorld(t, "", 2)
	w.serve(0, warming, time.Second, good(1000, 0, 100))
	f := w.pick(0)
	all := w.pool.Snapshot().Endpoints
	f.Served(all[1], w.now)
	f.Served(all[0], w.now)
	f.FirstToken(w.now + time.Second)
	f.Done(good(1000, 0, 100), w.now+2*time.Second)
	if n := w.plugin.known.skipped[skipMoved].Load(); n != 1 || w.samples() != 0 {
		t.Errorf("%d moved, %d taught", n, w.samples())
	}
}

// TestPickOfOneThatWent: a decision on a snapshot that has been replaced may pick an endpoint that no snapshot tells of any more.
func TestPickOfOneThatWent(t *testing.T) {
	w := newWorld(t, "", 2)
	c := w.begin(1)
	w.pool.Update([]scheduling.EndpointSpec{{Address: address(0)}, {Address: address(1), UID: "another"}})
	f, err := w.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	w.scheduler.End(c)
	f.FirstToken(w.now + time.Second)
	f.Done(good(1000, 0, 100), w.now+2*time.Second)
	if e := w.work(1); len(e.queue) != 0 || e.decoding != 0 || e.answer != 0 || w.samples() != 0 {
		t.Errorf("%+v and %d samples of the endpoint that took its place", e, w.samples())
	}
}

// TestAfterTheEnd nothing that is told of a request counts.
func TestAfterTheEnd(t *testing.T) {
	w := newWorld(t, "", 2)
	f := w.pick(0)
	p := w.plugin
	f.Outcome = scheduling.Outcome{Reason: scheduling.EndDisconnect}
	p.Done(f, w.now)
	p.FirstToken(f, w.now)
	p.Chunk(f, w.now)
	p.Moved(f, f.Endpoint, w.now)
	p.Done(f, w.now)
	if e := w.work(0); len(e.queue) != 0 || e.decoding != 0 || p.known.skipped[skipFailed].Load() != 1 {
		t.Errorf("%+v, want nothing", e)
	}
	f.Done(scheduling.Outcome{}, w.now)
}

// TestExportedConfidenceIsOfTheLatestDecision: it is not computed for another moment, and no earlier decision takes it back.
func TestExportedConfidenceIsOfTheLatestDecision(t *testing.T) {
	w := newWorld(t, "", 1)
	w.serve(0, 100, 400*time.Millisecond, good(1000, 0, 100))
	latest := func() (known Known) {
		for known = range w.plugin.All() {
		}
		return known
	}
	w.predict(0)
	now := latest()
	if now.Confidence <= 0 || now.Address != address(0) || now.Slowness != 1 || now.ErrorShare <= 0 || now.PrefillMsPerToken <= 0 {
		t.Errorf("%+v", now)
	}
	w.now += time.Hour
	guess := w.predict(0)
	near(t, "confidence an hour later", latest().Confidence, guess.Confidence, 1e-12)
	w.now -= time.Hour
	w.predict(0)
	near(t, "confidence after an earlier decision", latest().Confidence, guess.Confidence, 1e-12)
}
