package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"

	"github.com/sluice-epp/sluice/server/transport"
)

func TestShedsAtTheLimitOfOpenStreams(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxOpenStreams = 2 }})
	first, _ := b.picked(t, modeFullDuplex, 400)
	b.picked(t, modeFullDuplex, 400)
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false)
	m := c.recv()
	if status, reason, _ := c.refused(m); status != 429 || reason != ReasonShed {
		t.Errorf("got %d %s", status, reason)
	}
	if !strings.Contains(fmt.Sprint(m), "retry-after") {
		t.Error("no retry-after")
	}
	c.noAnswer()
	first.cancel()
	waitFor(t, func() bool { return b.server.OpenStreams() == 1 })
	b.picked(t, modeFullDuplex, 400)
}

// Streams that ask for nothing yet, and those that were refused, take nobody's place.
func TestOnlyServedStreamsCount(t *testing.T) {
	const limit = 4
	b := newBench(t, options{configure: func(c *Config) { c.MaxOpenStreams = limit }})
	calls := make([]*call, 2*limit)
	for i := range calls {
		calls[i] = b.call(t, modeFullDuplex, modeNone)
	}
	waitFor(t, func() bool { return b.server.OpenStreams() == 2*limit })
	for i, c := range calls {
		c.requestHeaders(true)
		if m := c.recv(); (m.GetImmediateResponse() == nil) != (i < limit) {
			t.Errorf("request %d: %v", i, m)
		}
	}
	for _, c := range calls[:limit] {
		c.noAnswer()
	}
	waitFor(t, func() bool { return b.server.OpenStreams() == limit }) // the refused ones
	for range limit {
		c := b.call(t, modeFullDuplex, modeNone)
		c.requestHeaders(true)
		c.pickOf(c.recv())
	}
}

func TestBodyInCrumbs(t *testing.T) {
	body := chat(40_000)
	b := newBench(t, options{})
	c := b.call(t, modeFullDuplex, modeNone)
	c.requestHeaders(false)
	for i := 0; i < len(body); i += 7 {
		c.requestBody(body[i:min(i+7, len(body))], false)
	}
	c.requestBody("", true)
	c.pickOf(c.recv())
	if got := c.echoed(false); got != body {
		t.Errorf("%d bytes came back, want %d, the same", len(got), len(body))
	}
	c.noAnswer()
	var r requestSide
	for range 1 << 20 {
		r.add(transport.NewPiece([]byte{'x'}))
	}
	if n := len(r.chunks); r.size != 1<<20 || n > manyChunks+1<<20/gathered {
		t.Errorf("a MiB in crumbs is kept in %d chunks", n)
	}
}

func TestLimitIsExact(t *testing.T) {
	body := chat(3000)
	for limit, picked := range map[int]bool{len(body): true, len(body) - 1: false} {
		b := newBench(t, options{configure: func(c *Config) { c.MaxRequestBodyBytes = limit }})
		c := b.call(t, modeFullDuplex, modeNone)
		c.requestHeaders(false)
		c.requestBody(body, true)
		if m := c.recv(); (m.GetImmediateResponse() == nil) != picked {
			t.Errorf("limit %d for %d bytes: got %v", limit, len(body), m)
		}
	}
}

func TestC18_LargeBuffered(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeBuffered, modeFullDuplex)
	c.requestHeaders(false)
	c.recv()
	c.requestBody(chat(6<<20), true)
	c.pickOf(c.recv())
	c.responseHeaders(false, ":status", "200", "content-type", "application/json")
	c.recv()
	answer := `{"data":[` + strings.Repeat("1,", 22<<20) + `1]}`
	c.responseBody(answer, true)
	if c.answer() != answer {
		t.Error("other bytes came back")
	}
	c.noAnswer()
	b.settles(t, 0, 0)
}

// TestC18_PiecesSentBack: proxies other than Envoy refuse a message of more than 64 KiB.
func TestC18_PiecesSentBack(t *testing.T) {
	if maxChunk > messageLimit {
		t.Errorf("pieces of %d bytes are sent back, at most %d are allowed", maxChunk, messageLimit)
	}
	body := chat(6 << 20)
	for _, piece := range []int{64 << 10, len(body)} { // as most proxies send it, and all at once
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false)
		for i := 0; i < len(body); i += piece {
			c.requestBody(body[i:min(i+piece, len(body))], i+piece >= len(body))
		}
		c.pickOf(c.recv())
		if c.echoed(false) != body {
			t.Errorf("in pieces of %d: other bytes came back", piece)
		}
		c.noAnswer()
		b.settles(t, 0, 0)
	}
}

// choicesSeen records how many answers each decision was about.
type choicesSeen struct {
	nobody
	seen chan int
}

func (c choicesSeen) Picked(cycle *scheduling.Cycle, _ *scheduling.Flight, _ time.Duration) {
	c.seen <- cycle.Request.Choices
}

func TestC17_EveryPromptOfABatchIsAnswered(t *testing.T) {
	for body, want := range map[string]int{
		`{"prompt":[[1,2],[3]],"max_tokens":1}`: 2, `{"prompt":["a","b","c"],"n":2}`: 6, `{"prompt":"a","n":4}`: 4, `{"prompt":[1,2,3]}`: 1,
	} {
		seen := choicesSeen{seen: make(chan int, 1)}
		b := newBench(t, options{configure: func(c *Config) { c.Observer = seen }})
		c := b.call(t, modeFullDuplex, modeNone)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/completions")
		c.requestBody(body, true)
		c.pickOf(c.recv())
		if got := <-seen.seen; got != want {
			t.Errorf("%s: %d answers, want %d", body, got, want)
		}
	}
}
