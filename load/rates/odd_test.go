package rates

import (
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// A request whose first token will not be seen is not busy with its prompt until it ends.
func TestWhatIsNotStreamedDecodes(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.whole = true
	for range 600 {
		f := w.pick(0)
		w.now += time.Second
		f.Done(good(1000, 0, 50), w.now)
	}
	if u := w.plugin.Pressure().Utilisation; u > 0.01 {
		t.Errorf("utilisation %v by requests that are not streamed", u)
	}
	if n := w.plugin.known.skipped[skipUnstream].Load(); n != 600 {
		t.Errorf("%d skipped as not streamed, want 600", n)
	}
}

// A request whose body nobody looked at does not seem to be streamed, but its first token teaches all the same.
func TestStreamsThatDidNotSeemToBe(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.whole = true
	w.serve(0, 100, 200*time.Millisecond, good(1000, 0, 20))
	if first, decodes := w.plugin.Samples(); first != 100 || decodes != 100 {
		t.Errorf("%d and %d samples, want 100", first, decodes)
	}
	if l := w.rates(0); !about(l.PrefillMsPerToken, 0.18, 0.25) {
		t.Errorf("%+v", l)
	}
	m := &w.plugin.known.endpoints.Find(0, w.pool.Snapshot().Endpoints[0].Generation).Value.meter
	if m.pending != 0 || m.decoding != 0 {
		t.Errorf("%d pending and %d decoding stay behind", m.pending, m.decoding)
	}
}

// Endpoints whose times differ by no more than chance does cost the same to the bit.
func TestChanceMakesNoDifference(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	for range 60 {
		w.serve(0, 1, 100*time.Millisecond, good(1000, 0, 2))
		w.serve(1, 1, 120*time.Millisecond, good(1000, 0, 2))
	}
	if a, b := w.rates(0), w.rates(1); a.PrefillMsPerToken != b.PrefillMsPerToken {
		t.Errorf("%v and %v ms a token, want the same", a.PrefillMsPerToken, b.PrefillMsPerToken)
	}
}

// Answers side by side are each as long as their share.
func TestChoicesShareTheTokens(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.choices = 4
	w.serve(0, 300, 100*time.Millisecond, good(1000, 0, 400))
	w.plugin.known.decode.mu.Lock()
	defer w.plugin.known.decode.mu.Unlock()
	if got := w.plugin.known.decode.output; !about(got, 100, 0.1) {
		t.Errorf("an answer has %v tokens, want 100", got)
	}
}

// An endpoint that goes while it is busy does not keep the pool busy.
func TestEndpointsThatGoAreNotBusy(t *testing.T) {
	w := newWorld(t, "", endpoints(2)...)
	open := w.pick(1)
	w.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}})
	w.table.Endpoints = w.table.Endpoints[:1]
	if n := w.plugin.known.busy.busy; n != 0 {
		t.Errorf("%d endpoints are busy, want 0", n)
	}
	open.FirstToken(w.now + time.Second)
	open.Done(good(1000, 0, 2), w.now+2*time.Second)
	if n := w.plugin.known.busy.busy; n != 0 {
		t.Errorf("%d endpoints are busy at the end, want 0", n)
	}
}

// A label that comes late or changes makes an endpoint one of another class.
func TestLabelsMayChange(t *testing.T) {
	spec := func(gpu string) []scheduling.EndpointSpec {
		return []scheduling.EndpointSpec{
			{Address: "10.0.0.1:8000", Labels: map[string]string{"gpu": "l4"}}, {Address: "10.0.0.2:8000", Labels: map[string]string{"gpu": gpu}},
		}
	}
	w := newWorld(t, "classLabel: gpu", spec("")...)
	w.serve(0, 100, 2*time.Second, good(1000, 0, 2))
	before := w.rates(1).PrefillMsPerToken
	w.pool.Update(spec("l4"))
	if after := w.rates(1).PrefillMsPerToken; before != 1000./15928 || !about(after, w.rates(0).PrefillMsPerToken, 0.2) {
		t.Errorf("%v ms a token before, %v with the label of one at %v", before, after, w.rates(0).PrefillMsPerToken)
	}
}

// What is ahead when a request is picked is what its time is held against.
func TestWhatIsAheadCounts(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	for i := range 300 {
		ahead := int64(i % 4 * 3000)
		w.table.Endpoints[0].Load = &scheduling.InFlightLoad{Tokens: ahead}
		w.serve(0, 1, time.Duration(20+float64(ahead)*0.05+1000*0.0628)*time.Millisecond, good(1000, 0, 2))
	}
	if l := w.rates(0); !about(l.WaitMsPerToken, 0.05, 0.15) {
		t.Errorf("wait %v ms a token, want 0.05", l.WaitMsPerToken)
	}
}

// More cached tokens than the prompt has are all of them.
func TestMoreCachedThanThereIs(t *testing.T) {
	w := newWorld(t, "", endpoints(1)...)
	w.serve(0, 50, 30*time.Millisecond, good(1000, 5000, 2))
	if l := w.rates(0); !(l.PrefillMsPerToken > 0) || l.PrefillMsPerToken > 0.2 {
		t.Errorf("%+v", l)
	}
}
