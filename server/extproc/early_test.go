package extproc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// endsAt configures when streams end, and how long a charge is then held.
func endsAt(when EndStream, prefill, total time.Duration) options {
	return options{configure: func(c *Config) {
		c.EndStream = when
		c.Hold = func(*scheduling.Flight) (time.Duration, time.Duration) { return prefill, total }
	}}
}

// A stream that ends after the pick ends when everything went back, in every mode; the charge stays for its time.
func TestEndAfterPick(t *testing.T) {
	for name, mode := range map[string]bodyMode{
		"none": modeNone, "streamed": modeStreamed, "buffered": modeBuffered, "full duplex": modeFullDuplex,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, endsAt(EndAfterPick, time.Hour, time.Hour))
			c := b.call(t, mode, modeStreamed)
			c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
			body := chat(150_000)
			switch mode {
			case modeFullDuplex:
				c.requestBody(body, true)
				c.pickOf(c.recv())
				if got := c.echoed(false); got != body {
					t.Errorf("%d bytes came back", len(got))
				}
			case modeBuffered:
				c.recv()
				c.requestBody(body, true)
				if c.recv().GetRequestBody() == nil {
					t.Error("no answer to the body")
				}
			default:
				c.pickOf(c.recv())
			}
			c.noAnswer()
			if n := b.server.HeldCharges(); n != 1 {
				t.Errorf("%d charges are held", n)
			}
			b.server.Close()
			b.settles(t, 0, 0)
		})
	}
	t.Run("an answer in full duplex", func(t *testing.T) { // a piece of it may be on its way
		b := newBench(t, endsAt(EndAfterPick, time.Hour, time.Hour))
		c, _ := b.picked(t, modeFullDuplex, 4000)
		c.responseHeaders(true, ":status", "200")
		c.recv()
		b.settles(t, 0, 0)
		if n := b.server.HeldCharges(); n != 0 || b.notes.ended()[0].Reason != scheduling.EndComplete {
			t.Errorf("%d held, ended %v", n, b.notes.ended())
		}
	})
	t.Run("refused", func(t *testing.T) {
		b := newBench(t, endsAt(EndAfterPick, time.Hour, time.Hour))
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
		c.requestBody("no JSON", true)
		if status, _, _ := c.refused(c.recv()); status != 400 || b.server.HeldCharges() != 0 {
			t.Errorf("status %d, %d held", status, b.server.HeldCharges())
		}
	})
}

// A stream that ends after the first token does so where the proxy keeps what it sends, and only there.
func TestEndAfterFirstToken(t *testing.T) {
	const token = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	begin := func(t *testing.T, mode bodyMode) (*bench, *call) {
		t.Helper()
		b := newBench(t, endsAt(EndAfterFirstToken, time.Hour, 2*time.Hour))
		c, _ := b.picked(t, mode, 4000)
		c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
		c.recv()
		c.responseBody(": nothing yet\n\n", false)
		c.recv()
		c.responseBody(token, false)
		c.recv()
		return b, c
	}
	t.Run("streamed", func(t *testing.T) {
		b, c := begin(t, modeStreamed)
		c.noAnswer()
		b.settles(t, 1, 0) // the prompt's tokens went with the first one
		b.server.Close()
		b.settles(t, 0, 0)
		var reasons []scheduling.EndReason
		for _, o := range b.notes.ended() {
			reasons = append(reasons, o.Reason)
		}
		if diff := cmp.Diff([]scheduling.EndReason{scheduling.EndUnseen}, reasons); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("full duplex", func(t *testing.T) {
		b, c := begin(t, modeFullDuplex)
		c.responseBody(token, true)
		c.recv()
		b.settles(t, 0, 0)
		if n := b.server.HeldCharges(); n != 0 || b.notes.ended()[0].Reason != scheduling.EndComplete {
			t.Errorf("%d held, ended %v", n, b.notes.ended())
		}
	})
}
