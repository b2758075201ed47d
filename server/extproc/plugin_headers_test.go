package extproc

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// marker is a plugin that adds a header to answers: who served.
type marker struct{ name func() string }

func (marker) Produce(context.Context, *scheduling.Cycle) error { return nil }

func (m marker) AnswerHeader(f *scheduling.Flight) (name, value string) {
	return m.name(), f.Endpoint.Address
}

// marking are options with a marker under each of the names; a name of "!" panics.
func marking(names ...string) options {
	o := options{}
	for _, n := range names {
		o.types = append(o.types, scheduling.PluginType{
			Type: "marker-" + n,
			New: func(*scheduling.Builder) (any, error) {
				return marker{func() string {
					if n == "!" {
						panic("no name")
					}
					return n
				}}, nil
			},
		})
		o.specs = append(o.specs, scheduling.Spec{Name: "marker-" + n, Type: "marker-" + n})
	}
	return o
}

// added are the headers that an answer to response headers sets.
func added(c *call) map[string]string {
	c.t.Helper()
	set := map[string]string{}
	answer := c.recv().GetResponseHeaders()
	if answer == nil {
		c.t.Fatal("the headers were not answered")
	}
	for _, h := range answer.GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetValue() != "" {
			c.t.Errorf("header %v fills value", h)
		}
		set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	return set
}

func TestPluginsAddHeadersToAnswers(t *testing.T) {
	for _, mode := range []bodyMode{modeFullDuplex, modeStreamed, modeBuffered, modeNone} {
		b := newBench(t, marking("x-one", "", "x-two"))
		c, pick := b.picked(t, mode, 400)
		c.responseHeaders(true, ":status", "200")
		if got := added(c); len(got) != 2 || got["x-one"] != pick || got["x-two"] != pick {
			t.Errorf("%v: headers %v, want x-one and x-two with %s", mode, got, pick)
		}
		b.settles(t, 0, 0)
		if n := b.notes.count(NoteUnanswered); n != 0 {
			t.Errorf("%v: %d answers count as unseen", mode, n)
		}
	}
}

// The header is of who served, not of who was picked.
func TestPluginHeadersKnowWhoServed(t *testing.T) {
	o := marking("x-one")
	o.maxPicks = 2
	b := newBench(t, o)
	c, picks := b.picked(t, modeFullDuplex, 400)
	second := strings.Split(picks, ",")[1]
	c.metadata(MetadataNamespace, ServedKey, second)
	c.responseHeaders(true, ":status", "200")
	if got := added(c); got["x-one"] != second {
		t.Errorf("headers %v, want %s", got, second)
	}
}

func TestErrorsGetNoPluginHeaders(t *testing.T) {
	for _, status := range []string{"400", "429", "503"} {
		b := newBench(t, marking("x-one"))
		c, _ := b.picked(t, modeFullDuplex, 400)
		c.responseHeaders(true, ":status", status)
		if got := added(c); len(got) != 0 {
			t.Errorf("%s: headers %v", status, got)
		}
	}
}

// A plugin that fails costs its header; the answer goes on, its end releases the charge.
func TestPluginHeaderThatPanics(t *testing.T) {
	b := newBench(t, marking("x-one", "!", "x-two"))
	c, pick := b.picked(t, modeFullDuplex, 400)
	c.responseHeaders(false, ":status", "200")
	if got := added(c); got["x-one"] != pick {
		t.Errorf("headers %v, want x-one with %s", got, pick)
	}
	c.echo("x", true)
	b.settles(t, 0, 0)
	if n := b.notes.count(NotePanic); n != 1 {
		t.Errorf("%d panics were counted, want 1", n)
	}
}

// Where the proxy does not show the headers of answers, that is counted each time and said once.
func TestPluginHeadersThatCannotBeSet(t *testing.T) {
	for name, end := range map[string]struct {
		response  bodyMode
		endStream EndStream
		do        func(c *call)
	}{
		"the proxy ends the call after the pick": {modeNone, EndAfterResponse, func(c *call) { c.cancel() }},
		"Sluice ends the call after the pick":    {modeStreamed, EndAfterPick, func(*call) {}},
		"the body comes without the headers":     {modeStreamed, EndAfterResponse, func(c *call) { c.responseBody("{}", true); c.recv() }},
	} {
		t.Run(name, func(t *testing.T) {
			log := &lines{}
			o := marking("x-one")
			o.configure = func(c *Config) { c.Logger, c.EndStream = slog.New(slog.NewTextHandler(log, nil)), end.endStream }
			b := newBench(t, o)
			for range 2 {
				c := b.call(t, modeBuffered, end.response)
				c.requestHeaders(true)
				c.pickOf(c.recv())
				end.do(c)
			}
			b.settlesNotes(t, NoteUnanswered, 2)
			if n := strings.Count(log.String(), "response_header_mode"); n != 1 {
				t.Errorf("said %d times, want once:\n%s", n, log)
			}
		})
	}
	b := newBench(t, options{})
	c := b.call(t, modeBuffered, modeNone)
	c.requestHeaders(true)
	c.pickOf(c.recv())
	c.cancel()
	b.settlesNotes(t, NoteHeld, 1)
	if n := b.notes.count(NoteUnanswered); n != 0 {
		t.Errorf("without a plugin that adds headers, %d answers count as unseen", n)
	}
}

// lines is a log that several goroutines write to.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// settlesNotes waits until so many of a kind were counted; streams end on the server a moment after the client.
func (b *bench) settlesNotes(t *testing.T, kind string, n int) {
	t.Helper()
	for range 500 {
		if b.notes.count(kind) >= n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := b.notes.count(kind); got != n {
		t.Errorf("%d of %s were counted, want %d", got, kind, n)
	}
}
