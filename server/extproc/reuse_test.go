package extproc

import (
	"runtime"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
)

// Streams use each other's messages again. Nothing of one may be in another's answers: what a rewritten body added, a
// pick, an end of stream.
func TestMessagesOfStreamsAreApart(t *testing.T) {
	b := newBench(t, options{addresses: []string{"10.0.0.1:8000", "10.0.0.22:8000", "[fd00::3]:80"}})
	post := []string{":method", "POST", ":path", "/v1/chat/completions"}
	picks := map[string]bool{}
	for i := range 30 {
		rewritten := b.call(t, modeFullDuplex, modeNone)
		rewritten.requestHeaders(false, append(post, "content-length", "3", "x-gateway-model-name-rewrite", "another")...)
		rewritten.requestBody(chat(50), true)
		answer := rewritten.recv()
		picks[rewritten.pickOf(answer)] = true
		if diff := cmp.Diff([]string{DestinationHeader, "content-length"}, headerNames(answer)); diff != "" {
			t.Errorf("rewritten %d: %s", i, diff)
		}
		rewritten.echoed(false)
		if i%3 == 0 {
			rewritten.noAnswer() // its charge goes, and the next pick can be the same
		}

		plain := b.call(t, modeFullDuplex, modeNone)
		plain.requestHeaders(false, post...)
		plain.requestBody(chat(50), false)
		plain.requestTrailers()
		answer = plain.recv()
		picks[plain.pickOf(answer)] = true
		if diff := cmp.Diff([]string{DestinationHeader}, headerNames(answer)); diff != "" {
			t.Errorf("plain %d: %s", i, diff)
		}
		if got := plain.echoed(true); got != chat(50) {
			t.Errorf("plain %d: upstream gets %q", i, got)
		}

		early := b.call(t, modeNone, modeNone)
		early.requestHeaders(true, ":method", "GET", ":path", "/")
		picks[early.pickOf(early.recv())] = true
		early.noAnswer()
		plain.noAnswer()
	}
	if len(picks) != 3 {
		t.Errorf("picked %v, want all three endpoints", picks)
	}
}

func headerNames(m *extprocv3.ProcessingResponse) []string {
	var names []string
	for _, h := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		names = append(names, h.GetHeader().GetKey())
	}
	return names
}

// The wait for a pick is bounded for every stream, also for one whose memory had another's timer.
func TestPickTimeoutOfLaterStreams(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.PickTimeout = 200 * time.Millisecond }})
	for i := range 5 {
		whole := b.call(t, modeFullDuplex, modeNone)
		whole.requestHeaders(false)
		whole.requestBody(chat(10), true)
		whole.pickOf(whole.recv())
		whole.echoed(false)
		whole.noAnswer()

		cut := b.call(t, modeFullDuplex, modeNone)
		begin := time.Now()
		cut.requestHeaders(false)
		cut.requestBody(`{"model":`, false)
		if status, reason, _ := cut.refused(cut.recv()); status != 408 || reason != ReasonPickTimeout {
			t.Errorf("stream %d: got %d %s", i, status, reason)
		}
		if took := time.Since(begin); took < 150*time.Millisecond {
			t.Errorf("stream %d: cut off after %v", i, took)
		}
		cut.noAnswer()
	}
	b.settles(t, 0, 0)
}

// A body is kept until it was sent on, and not for as long as its answer takes.
func TestBodiesAreNotKeptForTheirAnswers(t *testing.T) {
	const streams, size = 30, 1 << 20
	b := newBench(t, options{})
	body := chat(size)
	heap := func() int64 {
		var m runtime.MemStats
		for range 3 { // pools take two collections to give up what they hold
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range streams {
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
		c.requestBody(body[:size/2], false)
		c.requestBody(body[size/2:], true)
		c.pickOf(c.recv())
		if got := c.echoed(false); got != body {
			t.Fatalf("%d bytes come back otherwise", len(got))
		}
		c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
		c.recv()
	}
	if requests, _ := b.load(); requests != streams {
		t.Fatalf("%d requests in flight, want %d", requests, streams)
	}
	if grown := heap() - before; grown > streams*size/4 {
		t.Errorf("%d streams that wait for answers to bodies of %d KiB hold %d KiB", streams, size>>10, grown>>10)
	}
}
