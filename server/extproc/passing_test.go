package extproc

import (
	"strings"
	"testing"
)

// A body in which nothing is read goes back piece by piece: the client may wait for an answer before it sends more.
func TestBodyThatIsNotReadPasses(t *testing.T) {
	headers := []string{":method", "POST", ":path", "/inference.Service/Stream", "content-type", "application/grpc"}
	t.Run("to the end", func(t *testing.T) {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, headers...)
		first := strings.Repeat("a", 100)
		c.requestBody(first, false)
		pick := c.pickOf(c.recv())
		if !strings.HasSuffix(pick, ":8000") {
			t.Errorf("picked %q", pick)
		}
		b.settles(t, 1, 25) // by the first piece
		for _, piece := range []struct {
			body string
			end  bool
		}{{first, false}, {strings.Repeat("b", maxChunk+1), false}, {"", false}, {"c", false}, {"", true}} {
			if piece.body != first {
				c.requestBody(piece.body, piece.end)
			}
			if got := c.piece(); got != piece.body[:min(len(piece.body), maxChunk)] {
				t.Errorf("%d bytes came back, want %d", len(got), len(piece.body))
			}
			if len(piece.body) > maxChunk {
				if got := c.piece(); got != piece.body[maxChunk:] {
					t.Errorf("the rest came back as %d bytes", len(got))
				}
			}
		}
		c.noAnswer()
		b.settles(t, 0, 0)
	})
	t.Run("to trailers", func(t *testing.T) {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, headers...)
		c.requestBody("message", false)
		c.pickOf(c.recv())
		if got := c.piece(); got != "message" {
			t.Errorf("%q came back", got)
		}
		c.requestTrailers()
		if c.recv().GetRequestTrailers() == nil {
			t.Error("the trailers were not answered")
		}
		c.noAnswer()
		b.settles(t, 0, 0)
	})
	t.Run("to the limit, until an answer begins", func(t *testing.T) {
		for _, answered := range []bool{false, true} {
			b := newBench(t, options{configure: func(c *Config) { c.MaxRequestBodyBytes = 10 }})
			c := b.call(t, modeFullDuplex, modeFullDuplex)
			c.requestHeaders(false, headers...)
			c.requestBody("0123456789", false)
			c.pickOf(c.recv())
			c.piece()
			if answered {
				c.responseHeaders(false, ":status", "200")
				c.recv()
			}
			c.requestBody("x", false)
			m := c.recv()
			if refused := m.GetImmediateResponse() != nil; refused == answered {
				t.Errorf("answered %t: %v", answered, m)
			}
			c.noAnswer()
			b.settles(t, 0, 0)
		}
	})
	t.Run("its declared length tells the load", func(t *testing.T) {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/audio/transcriptions", "content-length", "4000")
		c.requestBody("RIFF", false)
		c.pickOf(c.recv())
		b.settles(t, 1, 1000)
	})
}

// An upgrade has no body to wait for: what follows begins only after the engine has agreed.
func TestUpgradeIsPickedAtItsHeaders(t *testing.T) {
	for _, headers := range [][]string{
		{":method", "GET", ":path", "/v1/realtime", "connection", "Upgrade", "upgrade", "websocket"},
		{":method", "CONNECT", ":path", "/v1/realtime", ":protocol", "websocket"},
	} {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, headers...)
		c.pickOf(c.recv())
		c.responseHeaders(false, ":status", "101")
		c.recv()
		c.requestBody("frame", false)
		if got := c.piece(); got != "frame" {
			t.Errorf("%q came back", got)
		}
	}
	b := newBench(t, options{})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "upgrade", "h2c")
	c.requestBody(chat(400), true)
	c.pickOf(c.recv())
	b.settles(t, 1, 101) // by its prompt
}

// piece receives one piece of the request's body that comes back.
func (c *call) piece() string {
	c.t.Helper()
	return string(c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
}
