package extproc

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// duplicates checks how many messages after an end were counted, once the stream is over.
func (b *bench) duplicates(t *testing.T, want int) {
	t.Helper()
	b.settles(t, 0, 0)
	if n := b.notes.count(NoteDuplicateEnd); n != want {
		t.Errorf("%d messages after the end were counted, want %d", n, want)
	}
}

func TestC04_EndOfStreamToldTwice(t *testing.T) {
	body := chat(1_200_000)
	for _, second := range []string{body[len(body)-65536:], ""} {
		b := newBench(t, options{produce: func(context.Context) { time.Sleep(20 * time.Millisecond) }})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false)
		for i := 0; i < len(body); i += 65536 {
			end := min(i+65536, len(body))
			c.requestBody(body[i:end], end == len(body))
		}
		c.requestBody(second, true) // while the pick still runs
		c.pickOf(c.recv())
		if got := c.echoed(false); got != body {
			t.Fatalf("%d bytes came back, want %d", len(got), len(body))
		}
		c.requestBody(second, true)
		c.noAnswer()
		b.duplicates(t, 2)
		if picks := b.notes.picks(); picks != 1 {
			t.Errorf("%d picks, want 1", picks)
		}
	}
}

// A body in which nothing is read goes back while it comes: its end is known from what went back.
func TestC04_EndOfAPassingBodyToldTwice(t *testing.T) {
	for _, second := range []string{"last", ""} {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/audio/transcriptions")
		c.requestBody("first", false)
		c.pickOf(c.recv())
		c.requestBody("last", true)
		if got := c.echoed(false); got != "firstlast" {
			t.Errorf("%q came back", got)
		}
		c.requestBody(second, true)
		c.noAnswer()
		b.duplicates(t, 1)
		if picks := b.notes.picks(); picks != 1 {
			t.Errorf("%d picks, want 1", picks)
		}
	}
}

func TestC04_EndOfAnAnswerToldTwice(t *testing.T) {
	answer := `{"usage":{"prompt_tokens":5,"completion_tokens":2},"text":"` + strings.Repeat("x", maxChunk) + `"}`
	for name, first := range map[string]func(c *call){
		"its last piece": func(c *call) {
			c.responseBody(answer, true)
			if got := c.answer(); got != answer {
				c.t.Errorf("%d bytes came back, want %d", len(got), len(answer))
			}
		},
		"trailers": func(c *call) { c.echo("x", false); c.responseTrailers(); c.recv() },
	} {
		for _, second := range []string{answer[len(answer)-100:], ""} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, options{})
				c, _ := b.picked(t, modeFullDuplex, 400)
				c.responseHeaders(false, ":status", "200", "content-type", "application/json")
				c.recv()
				first(c)
				c.responseBody(second, true)
				c.responseBody(second, true)
				c.noAnswer()
				b.duplicates(t, 2)
				if got := b.notes.ended(); len(got) != 1 || got[0].Reason != scheduling.EndComplete {
					t.Errorf("ended as %+v, want once and complete", got)
				}
			})
		}
	}
}

// A stream of which nothing is learnt any more keeps its messages going, and knows their end.
func TestC04_EndToldTwiceAfterAFault(t *testing.T) {
	b := newBench(t, options{produce: func(context.Context) { panic("producer") }})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.responseHeaders(false, ":status", "413") // the proxy's own answer comes before anything was picked
	c.recv()
	c.requestHeaders(true, ":method", "GET", ":path", "/v1/models")
	c.echo("too", false)
	c.echo("large", true)
	c.responseBody("large", true)
	c.noAnswer()
	if panics := b.notes.count(NotePanic); panics != 1 {
		t.Fatalf("%d panics, want 1", panics)
	}
	b.duplicates(t, 1)
}

// Where no bytes go back, the proxy waits for an answer to each message, to one too many as well.
func TestC04_EndToldTwiceInOtherModes(t *testing.T) {
	for _, mode := range []bodyMode{modeStreamed, modeBuffered, modeBufferedPartial} {
		b := newBench(t, options{})
		c := b.call(t, modeStreamed, mode)
		c.requestHeaders(false)
		c.pickOf(c.recv())
		for range 2 {
			c.requestBody(chat(100), true)
			if m := c.recv(); m.GetRequestBody() == nil || m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
				t.Errorf("request: got %v, want an empty body answer", m)
			}
		}
		c.responseHeaders(false, ":status", "200", "content-type", "application/json")
		c.recv()
		for range 2 {
			c.responseBody(`{"usage":{"prompt_tokens":5}}`, true)
			if m := c.recv(); m.GetResponseBody() == nil || m.GetResponseBody().GetResponse().GetBodyMutation() != nil {
				t.Errorf("%v: got %v, want an empty body answer", mode, m)
			}
		}
		c.noAnswer()
		b.duplicates(t, 2)
	}
	b := newBench(t, options{})
	c := b.call(t, modeGRPC, modeGRPC)
	c.requestHeaders(false, ":method", "POST", ":path", "/inference.Service/Stream", "content-type", "application/grpc")
	c.pickOf(c.recv())
	c.requestBody("question", true)
	if got := c.echoed(false); got != "question" {
		t.Errorf("%q came back", got)
	}
	c.requestBody("question", true)
	c.responseHeaders(false, ":status", "200", "content-type", "application/grpc")
	c.recv()
	c.echo("answer", true)
	c.responseBody("answer", true)
	c.noAnswer()
	b.duplicates(t, 2)
}

// answer collects the pieces of the response's body that come back, up to its end.
func (c *call) answer() string {
	c.t.Helper()
	var all strings.Builder
	for {
		m := c.recv()
		chunk := m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if chunk == nil {
			c.t.Fatalf("got %v, want a streamed body answer", m)
		}
		if len(chunk.GetBody()) > messageLimit {
			c.t.Errorf("a piece of %d bytes", len(chunk.GetBody()))
		}
		all.Write(chunk.GetBody())
		if chunk.GetEndOfStream() {
			return all.String()
		}
	}
}
