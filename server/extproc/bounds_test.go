package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// headers are a chat request's headers with more that take so many bytes together.
func headers(more, bytes int) []string {
	kv := []string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}
	for _, s := range kv {
		bytes -= len(s)
	}
	for i := range more {
		name := fmt.Sprintf("x-%06d", i)
		share := bytes / (more - i)
		bytes -= share
		kv = append(kv, name, strings.Repeat("v", share-len(name)))
	}
	return kv
}

func TestHeadersAreBounded(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxRequestHeaders, c.MaxRequestHeaderBytes = 20, 10_000 }})
	for name, tt := range map[string]struct {
		kv      []string
		refused bool
	}{
		"as many as may be":    {headers(17, 5000), false},
		"one more":             {headers(18, 5000), true},
		"as large as may be":   {headers(10, 10_000), false},
		"one byte more":        {headers(10, 10_001), true},
		"one that is too long": {headers(1, 10_001), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := b.call(t, modeFullDuplex, modeNone)
			c.requestHeaders(false, tt.kv...)
			if tt.refused {
				status, reason, message := c.refused(c.recv())
				if status != 431 || reason != ReasonHeadersTooLarge || !strings.Contains(message, "maxRequestHeaders (20)") {
					t.Errorf("got %d %s: %s", status, reason, message)
				}
				c.noAnswer()
				return
			}
			c.requestBody(chat(100), true)
			c.pickOf(c.recv())
			c.echoed(false)
			c.cancel()
		})
	}
	if n := b.notes.count(ReasonHeadersTooLarge); n != 3 {
		t.Errorf("%d refusals counted, want 3", n)
	}
	// A gRPC client is told in its own way.
	c := b.call(t, modeFullDuplex, modeNone)
	c.requestHeaders(false, append(headers(18, 5000), "content-type", "application/grpc")...)
	if im := c.recv().GetImmediateResponse(); im.GetGrpcStatus().GetStatus() != 8 {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED", im)
	}
	b.holds(t, 0)
}

// holds waits until so many bytes count as held; streams end on the server a moment after the client.
func (b *bench) holds(t *testing.T, bytes int) {
	t.Helper()
	for range 500 {
		if b.server.BufferedBytes() == int64(bytes) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%d bytes count as held, want %d", b.server.BufferedBytes(), bytes)
}

// own is what a stream with the usual headers counts for without a body.
var own = func() int {
	n := streamBytes
	for _, s := range headers(0, 0) {
		n += len(s)
	}
	return n
}()

// Bodies are counted until they are answered, to the byte, and a request that would exceed the bound is shed while the
// others go on.
func TestBufferedBytesAreBounded(t *testing.T) {
	body := chat(10_000)
	half := len(body) / 2
	limit := 2*own + len(body) + half
	b := newBench(t, options{configure: func(c *Config) { c.MaxBufferedBytes = limit }})
	first := b.call(t, modeFullDuplex, modeNone)
	first.requestHeaders(false)
	first.requestBody(body[:half], false)
	b.holds(t, own+half)
	second := b.call(t, modeFullDuplex, modeNone)
	second.requestHeaders(false)
	second.requestBody(body[:half], false)
	b.holds(t, 2*(own+half))

	// As much as the bound fits.
	second.requestBody(body[half:], false)
	b.holds(t, limit)
	// A byte more does not, and the bytes of the request that brought it are free again.
	second.requestBody(" ", false)
	status, reason, message := second.refused(second.recv())
	if status != 429 || reason != ReasonShedMemory || !strings.Contains(message, fmt.Sprintf("maxBufferedBytes (%d)", limit)) {
		t.Errorf("got %d %s: %s", status, reason, message)
	}
	b.holds(t, 2*own+half)

	// The other one goes on, and once it is answered its body is not held any longer.
	first.requestBody(body[half:], true)
	first.pickOf(first.recv())
	if got := first.echoed(false); got != body {
		t.Error("another body came back")
	}
	b.holds(t, 2*own)
	second.noAnswer()
	first.cancel()
	b.holds(t, 0)
	if n := b.notes.count(ReasonShedMemory); n != 1 {
		t.Errorf("%d requests counted as shed, want 1", n)
	}
}

// What a body's declared length says is enough to refuse it before it comes; without room for a stream there is none for
// its headers either.
func TestShedsBeforeTheBody(t *testing.T) {
	limit := 2*own + 10_000
	b := newBench(t, options{configure: func(c *Config) { c.MaxBufferedBytes = limit }})
	declare := func(mode bodyMode, path string, length int) *call {
		c := b.call(t, mode, modeNone)
		c.requestHeaders(false, ":method", "POST", ":path", path, "content-length", fmt.Sprint(length))
		return c
	}
	for _, mode := range []bodyMode{modeBuffered, modeBufferedPartial, modeFullDuplex} {
		c := declare(mode, "/v1/chat/completions", limit)
		if status, reason, _ := c.refused(c.recv()); status != 429 || reason != ReasonShedMemory {
			t.Errorf("%v: got %d %s", mode, status, reason)
		}
		c.noAnswer()
		b.holds(t, 0)
	}
	// A body that is not kept needs no room.
	for mode, path := range map[bodyMode]string{modeNone: "/v1/chat/completions", modeStreamed: "/v1/chat/completions"} {
		c := declare(mode, path, 1<<20)
		c.pickOf(c.recv())
		c.cancel()
		b.holds(t, 0)
	}
	upload := declare(modeFullDuplex, "/v1/files", 1<<20)
	for range 3 {
		upload.requestBody(strings.Repeat("x", 9000), false)
	}
	upload.pickOf(upload.recv())
	upload.cancel()
	b.holds(t, 0)

	// Streams alone fill it too.
	first, _ := b.picked(t, modeFullDuplex, 400)
	b.picked(t, modeFullDuplex, 400)
	c := b.call(t, modeFullDuplex, modeNone)
	c.requestHeaders(false)
	status, reason, _ := c.refused(c.recv())
	if status != 429 || reason != ReasonShedMemory {
		t.Errorf("got %d %s", status, reason)
	}
	c.noAnswer()
	first.cancel()
	b.holds(t, own)
	b.picked(t, modeFullDuplex, 400)
}

// However a stream ends, what it held is free.
func TestBufferedBytesAreFreed(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxRequestBodyBytes, c.PickTimeout = 20_000, 300*time.Millisecond }})
	for name, end := range map[string]func(c *call){
		"client gone":  func(c *call) { c.cancel() },
		"proxy closed": func(c *call) { c.noAnswer() },
		"too large":    func(c *call) { c.requestBody(strings.Repeat("x", 30_000), false); c.refused(c.recv()) },
		"not JSON":     func(c *call) { c.requestBody("}", true); c.refused(c.recv()) },
		"too slow":     func(c *call) { c.refused(c.recv()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := b.call(t, modeFullDuplex, modeNone)
			c.t = t
			c.requestHeaders(false)
			c.requestBody(chat(3000)[:1000], false)
			end(c)
			for range 500 {
				if b.server.BufferedBytes() <= int64(own) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			c.cancel()
			b.holds(t, 0)
		})
	}
}

func TestNestingAndEventsAreBounded(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.MaxBodyNesting, c.MaxEventBytes = 10, 1000 }})
	for i, depth := range []int{10, 11} {
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false)
		c.requestBody(`{"x":`+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`,"model":"m","messages":[]}`, true)
		c.pickOf(c.recv())
		c.echoed(false)
		if n := b.notes.count(NoteBodyTooDeep); n != i {
			t.Errorf("depth %d: %d bodies counted as too deep, want %d", depth, n, i)
		}
		c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
		c.recv()
		data := `{"choices":[{"delta":{"content":"` + strings.Repeat("x", 1000-46+i) + `"}}]}`
		if len(data) != 1000-46+i+len(`{"choices":[{"delta":{"content":""}}]}`) {
			t.Fatal("the event has another length than meant")
		}
		data += strings.Repeat(" ", 1000+i-len(data))
		c.responseBody("data: "+data+"\n\n", false)
		c.recv()
		c.responseBody("data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n", true)
		c.recv()
		waitFor(t, func() bool { return len(b.notes.ended()) == i+1 })
		if got := b.notes.ended()[i]; got.Usage.PromptTokens != 5 {
			t.Errorf("usage %+v: what follows an event that is too large is read", got.Usage)
		}
		if n := b.notes.count(NoteEventTooLarge); n != i {
			t.Errorf("%d answers counted for an event of %d bytes, want %d", n, len(data), i)
		}
		c.cancel()
	}
}
