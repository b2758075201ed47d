package extproc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// picked opens a full duplex call with a chat of about n bytes and returns it with its pick.
func (b *bench) picked(t *testing.T, response bodyMode, n int) (*call, string) {
	t.Helper()
	c := b.call(t, modeFullDuplex, response)
	c.requestHeaders(false)
	c.requestBody(chat(n), true)
	pick := c.pickOf(c.recv())
	c.echoed(false)
	return c, pick
}

// chatTokens is what chat(4000) counts for at 4 bytes a token: its text, and the role.
const chatTokens = 1001

const (
	roleChunk  = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	tokenChunk = `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\n"
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":960}}}` + "\n\n"
)

// echo sends a piece of the response and checks that the same bytes come back.
func (c *call) echo(body string, end bool) {
	c.t.Helper()
	c.responseBody(body, end)
	chunk := c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
	if string(chunk.GetBody()) != body || chunk.GetEndOfStream() != end {
		c.t.Errorf("echo of %q (end %v): got %q (end %v)", body, end, chunk.GetBody(), chunk.GetEndOfStream())
	}
}

func TestStreamedAnswerReleasesInTwoSteps(t *testing.T) {
	b := newBench(t, options{})
	c, _ := b.picked(t, modeFullDuplex, 4000)
	b.settles(t, 1, chatTokens)
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream; charset=utf-8")
	c.recv()
	c.echo(roleChunk, false)
	b.settles(t, 1, chatTokens) // a role is no token
	c.echo(tokenChunk[:9], false)
	c.echo(tokenChunk[9:], false)
	b.settles(t, 1, 0)
	c.echo(usageChunk, false)
	c.echo("data: [DONE]\n\n", true)
	b.settles(t, 0, 0)
	got := b.notes.ended()
	want := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 1000, CompletionTokens: 7, CachedTokens: 960}}
	if diff := cmp.Diff([]scheduling.Outcome{want}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestResponseModes(t *testing.T) {
	for _, mode := range []bodyMode{modeStreamed, modeBuffered, modeBufferedPartial} {
		b := newBench(t, options{})
		c, _ := b.picked(t, mode, 400)
		c.responseHeaders(false, ":status", "200", "content-type", "application/json")
		c.recv()
		c.responseBody(`{"usage":{"prompt_tokens":5}}`, true)
		if m := c.recv(); m.GetResponseBody() == nil || m.GetResponseBody().GetResponse().GetBodyMutation() != nil {
			t.Errorf("%v: got %v, want an empty body answer", mode, m)
		}
		b.settles(t, 0, 0)
	}
}

func TestC19_ResponseEnds(t *testing.T) {
	for name, end := range map[string]func(c *call){
		"trailers":     func(c *call) { c.echo("x", false); c.responseTrailers(); c.recv() },
		"headers only": nil,
	} {
		b := newBench(t, options{})
		c, _ := b.picked(t, modeFullDuplex, 400)
		c.responseHeaders(end == nil, ":status", "204")
		c.recv()
		if end != nil {
			end(c)
		}
		b.settles(t, 0, 0)
		if got := b.notes.ended(); len(got) != 1 || got[0].Reason != scheduling.EndComplete {
			t.Errorf("%s: outcomes %+v", name, got)
		}
	}
}

func TestLocalReplyWithoutPick(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false)
	c.requestBody(`{"model":`, false) // Envoy answers 413 itself
	c.responseHeaders(false, ":status", "413")
	if m := c.recv(); m.GetResponseHeaders() == nil {
		t.Fatalf("got %v", m)
	}
	c.echo("too large", true)
	b.settles(t, 0, 0)
}

func TestC01_EveryEndReleases(t *testing.T) {
	slow := func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	ends := []struct {
		name    string
		produce func(context.Context)
		end     func(t *testing.T, b *bench)
	}{
		{"1 cancel before the pick", slow, func(t *testing.T, b *bench) {
			c := b.call(t, modeFullDuplex, modeFullDuplex)
			c.requestHeaders(false)
			c.requestBody(chat(4000), true)
			time.Sleep(20 * time.Millisecond)
			c.cancel()
		}},
		{"2 cancel after the pick", nil, func(t *testing.T, b *bench) {
			c, _ := b.picked(t, modeFullDuplex, 4000)
			c.cancel()
		}},
		{"3 cancel amid the response", nil, func(t *testing.T, b *bench) {
			c, _ := b.picked(t, modeFullDuplex, 4000)
			c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
			c.recv()
			c.echo(tokenChunk, false)
			c.cancel()
		}},
		{"4 half-close amid the response", nil, func(t *testing.T, b *bench) {
			c, _ := b.picked(t, modeFullDuplex, 4000)
			c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
			c.recv()
			c.echo(tokenChunk, false)
			c.noAnswer()
		}},
		{"5 error without a body", nil, func(t *testing.T, b *bench) {
			c, _ := b.picked(t, modeFullDuplex, 4000)
			c.responseHeaders(true, ":status", "503")
			c.recv()
		}},
		{"6 end of response, stream left open", nil, func(t *testing.T, b *bench) {
			c, _ := b.picked(t, modeFullDuplex, 4000)
			c.responseHeaders(false, ":status", "200", "content-type", "application/json")
			c.recv()
			c.echo("{}", true)
			b.settles(t, 0, 0) // at the end of the response, not of the stream
		}},
		{"7 nothing after the pick", nil, func(t *testing.T, b *bench) {
			b.picked(t, modeFullDuplex, 4000)
			b.settles(t, 0, 0) // by the idle timeout
		}},
	}
	for _, end := range ends {
		t.Run(end.name, func(t *testing.T) {
			b := newBench(t, options{produce: end.produce, configure: func(c *Config) {
				c.PickTimeout, c.IdleTimeout = 300*time.Millisecond, 50*time.Millisecond
				if end.name[0] != '7' {
					c.PickTimeout, c.IdleTimeout = 0, 0
				}
			}})
			for range 5 {
				end.end(t, b)
			}
			b.settles(t, 0, 0)
			if n := b.notes.picks(); n != len(b.notes.ended()) {
				t.Errorf("%d picks but %d ends", n, len(b.notes.ended()))
			}
		})
	}
}

func TestC05_EndpointReturnsAsAnotherInstance(t *testing.T) {
	b := newBench(t, options{addresses: []string{"10.0.0.1:8000"}})
	load := func() int64 {
		e := b.pool.Snapshot().ByAddress("10.0.0.1:8000")
		l, _ := b.ledger.Load(e.Ordinal, e.Generation)
		return l.Requests
	}
	end := func(c *call) {
		before := len(b.notes.ended())
		c.responseHeaders(true, ":status", "204")
		c.recv()
		waitFor(t, func() bool { return len(b.notes.ended()) > before }) // the answer comes before the release
		b.settles(t, int64(1-before), int64(1-before)*chatTokens)
	}
	r1, _ := b.picked(t, modeFullDuplex, 4000)
	b.pool.Update(nil)
	b.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000", UID: "another"}})
	r2, _ := b.picked(t, modeFullDuplex, 4000)
	end(r1)
	if got := load(); got != 1 {
		t.Errorf("after R1: %d, want 1", got)
	}
	end(r2)
	if got := load(); got != 0 {
		t.Errorf("after R2: %d, want 0", got)
	}
}

func TestEstimatedRelease(t *testing.T) {
	hold := func(prefill, total time.Duration) func(*Config) {
		return func(c *Config) {
			c.Hold = func(*scheduling.Flight) (time.Duration, time.Duration) { return prefill, total }
		}
	}
	t.Run("cancelled right after the pick", func(t *testing.T) {
		b := newBench(t, options{configure: hold(time.Hour, time.Hour)})
		c, _ := b.picked(t, modeNone, 4000)
		c.cancel()
		waitFor(t, func() bool { return b.server.HeldCharges() == 1 })
		b.settles(t, 1, chatTokens)
		b.server.Close()
		b.settles(t, 0, 0)
	})
	t.Run("ended at the response headers", func(t *testing.T) {
		b := newBench(t, options{configure: hold(0, time.Hour)})
		c, _ := b.picked(t, modeNone, 4000)
		c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
		c.recv()
		c.noAnswer()
		b.settles(t, 1, 0) // the prompt's tokens after its predicted time, the request later
	})
	for name, tt := range map[string]struct {
		headers []string
		want    scheduling.EndReason
	}{
		"a whole JSON answer":     {[]string{":status", "200", "content-type", "application/json; charset=utf-8"}, scheduling.EndComplete},
		"an answer with a length": {[]string{":status", "200", "content-type", "audio/wav", "content-length", "77"}, scheduling.EndComplete},
		"an error":                {[]string{":status", "503", "content-type", "text/plain"}, scheduling.EndError},
	} {
		t.Run("ended at the headers of "+name, func(t *testing.T) {
			b := newBench(t, options{configure: hold(time.Hour, time.Hour)})
			c, _ := b.picked(t, modeNone, 4000)
			c.responseHeaders(false, tt.headers...)
			c.recv()
			c.cancel()
			b.settles(t, 0, 0)
			waitFor(t, func() bool { return len(b.notes.ended()) == 1 })
			if got := b.notes.ended()[0].Reason; got != tt.want {
				t.Errorf("reason %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("a client that leaves before the response", func(t *testing.T) {
		b := newBench(t, options{configure: hold(time.Hour, time.Hour)})
		c, _ := b.picked(t, modeNone, 4000)
		c.noAnswer()
		b.settles(t, 0, 0)
	})
	t.Run("counted as estimated", func(t *testing.T) {
		b := newBench(t, options{configure: hold(time.Millisecond, 2*time.Millisecond)})
		c, _ := b.picked(t, modeNone, 4000)
		c.cancel()
		b.settles(t, 0, 0)
		waitFor(t, func() bool { return len(b.notes.ended()) == 1 })
		if got := b.notes.ended()[0].Reason; got != scheduling.EndUnseen {
			t.Errorf("reason %v", got)
		}
	})
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("waited in vain")
}

func TestHoldsInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h holds
		h.init()
		var log []string
		f := &scheduling.Flight{}
		h.add(f, time.Second, 3*time.Second, func() { log = append(log, "first token") }, func() { log = append(log, "done") })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if fmt.Sprint(log) != "[first token]" || h.len() != 1 {
			t.Errorf("after 2 s: %v, %d held", log, h.len())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if fmt.Sprint(log) != "[first token done]" || h.len() != 0 {
			t.Errorf("after 4 s: %v, %d held", log, h.len())
		}
		h.close()
		h.add(f, time.Second, time.Second, nil, func() { log = append(log, "at once") })
		if len(log) != 3 {
			t.Error("a closed server held a charge")
		}
	})
}

func TestDecisionHeader(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.DecisionHeader = true }})
	c, pick := b.picked(t, modeFullDuplex, 4000)
	c.responseHeaders(true, ":status", "200")
	set := c.recv().GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
	if len(set) != 1 || set[0].GetHeader().GetKey() != DecisionHeader {
		t.Fatalf("headers %v", set)
	}
	if got, want := string(set[0].GetHeader().GetRawValue()), pick+" cached=0/0 candidates=3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConformanceAids(t *testing.T) {
	b := newBench(t, options{configure: func(c *Config) { c.ConformanceHeaders = true }})
	for range 5 {
		c := b.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(true, ":method", "GET", ":path", "/", selectionHeader, "10.0.0.2")
		if pick := c.pickOf(c.recv()); pick != "10.0.0.2:8000" {
			t.Errorf("picked %s", pick)
		}
		c.metadata(MetadataNamespace, ServedKey, "10.0.0.2:8000")
		c.responseHeaders(true, ":status", "200")
		if got := c.recv().String(); !strings.Contains(got, conformanceServedHeader) {
			t.Errorf("got %s", got)
		}
	}
	off := newBench(t, options{})
	seen := map[string]bool{}
	for range 6 {
		c := off.call(t, modeFullDuplex, modeFullDuplex)
		c.requestHeaders(true, ":method", "GET", ":path", "/", selectionHeader, "10.0.0.2")
		seen[c.pickOf(c.recv())] = true
	}
	if len(seen) != 3 {
		t.Errorf("without the flag the header must mean nothing; picked %v", seen)
	}
}

func TestC21_HerdSpreads(t *testing.T) {
	addresses := make([]string, 8)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("10.0.1.%d:8000", i+1)
	}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/other"} {
		b := newBench(t, options{addresses: addresses})
		picks := make(chan string, 48)
		for range 48 {
			go func() {
				c := b.call(t, modeFullDuplex, modeFullDuplex)
				c.requestHeaders(false, ":method", "POST", ":path", path)
				c.requestBody(chat(4000), true)
				picks <- c.pickOf(c.recv())
			}()
		}
		count := map[string]int{}
		for range 48 {
			count[<-picks]++
		}
		for _, a := range addresses {
			if n := count[a]; n != 6 {
				t.Errorf("%s: %d picks of %s, want 6", path, n, a)
			}
		}
	}
}

// faultyEnd panics when a request ends.
type faultyEnd struct{ *notes }

func (faultyEnd) Ended(*scheduling.Flight, scheduling.Outcome, time.Duration, time.Duration) {
	panic("end")
}

// A fault of ours amid a response leaves the response untouched, and the charge does not stay.
func TestPanicAmidAResponse(t *testing.T) {
	var n *notes
	b := newBench(t, options{configure: func(c *Config) {
		n, _ = c.Observer.(*notes)
		c.Observer = faultyEnd{n}
	}})
	c, _ := b.picked(t, modeFullDuplex, 4000)
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.echo(tokenChunk, false)
	c.echo(usageChunk, true) // the end, at which our own code fails
	c.responseTrailers()
	if m := c.recv(); m.GetResponseTrailers() == nil {
		t.Errorf("after the fault: got %v, want the trailers to go on", m)
	}
	c.noAnswer()
	b.settles(t, 0, 0)
	if n.count(NotePanic) != 1 {
		t.Errorf("%d panics counted, want 1", n.count(NotePanic))
	}
}
