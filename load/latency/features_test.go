package latency

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
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
