package extproc

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// listedAs waits until a request is listed with a phase.
func (b *bench) listedAs(t *testing.T, requestID string, phase Phase) OpenStream {
	t.Helper()
	var found OpenStream
	waitFor(t, func() bool {
		all, _ := b.server.ListStreams(100)
		for _, o := range all {
			if o.RequestID == requestID && o.Phase == phase {
				found = o
				return true
			}
		}
		return false
	})
	return found
}

func TestStreamsAreListedInEveryPhase(t *testing.T) {
	b := newBench(t, options{})
	if open, left := b.server.ListStreams(10); len(open) != 0 || left != 0 {
		t.Fatalf("%v, %d more, before any stream", open, left)
	}
	long := strings.Repeat("i", 300)
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json", "x-request-id", long)
	body := chat(4000)
	c.requestBody(body[:2000], false)
	waitFor(t, func() bool {
		o := b.listedAs(t, long[:maxListedText], PhaseRequest)
		return o.ID == 1 && o.HeldBytes > 2000 && o.Endpoint == "" && o.Age > 0
	})
	c.requestBody(body[2000:], true)
	pick := c.pickOf(c.recv())
	c.echoed(false)
	if o := b.listedAs(t, long[:maxListedText], PhaseFirstToken); o.Model != "m" || o.Endpoint != pick {
		t.Errorf("%+v, picked was %s", o, pick)
	}
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.responseBody("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", false)
	if o := b.listedAs(t, long[:maxListedText], PhaseEnd); o.Endpoint != pick {
		t.Errorf("%+v, picked was %s", o, pick)
	}
	c.cancel()
	waitFor(t, func() bool { open, _ := b.server.ListStreams(10); return len(open) == 0 })
}

func TestOldestStreamsAreListedFirst(t *testing.T) {
	b := newBench(t, options{})
	const n = 3 * listShards
	calls := make([]*call, n)
	for i := range calls {
		calls[i] = b.call(t, modeFullDuplex, modeFullDuplex)
		calls[i].requestHeaders(false)
		waitFor(t, func() bool { open, _ := b.server.ListStreams(n); return len(open) == i+1 && open[i].ID == uint64(i)+1 })
	}
	open, left := b.server.ListStreams(10)
	if len(open) != 10 || left != n-10 {
		t.Fatalf("%d and %d more", len(open), left)
	}
	for i, o := range open {
		if o.ID != uint64(i)+1 {
			t.Errorf("number %d is stream %d", i, o.ID)
		}
	}
	// From the middle, the beginning and the end of every list.
	for i := range calls {
		calls[i*7%n].cancel()
		waitFor(t, func() bool { open, _ := b.server.ListStreams(n); return len(open) == n-i-1 })
	}
}

// A stream that is being worked on is listed and not waited for; and listing takes turns with the begin and the end of streams.
func TestListingWaitsForNoStream(t *testing.T) {
	b := newBench(t, options{})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false)
	b.listedAs(t, "", PhaseRequest)
	b.server.eachStream(func(st *stream) { st.mu.Lock() })
	open, _ := b.server.ListStreams(10)
	if len(open) != 1 || open[0].Phase != PhaseWorking || open[0].Age <= 0 {
		t.Errorf("%+v", open)
	}
	b.server.eachStream(func(st *stream) { st.mu.Unlock() })

	var listing sync.WaitGroup
	stop := make(chan struct{})
	listing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.server.ListStreams(3)
				time.Sleep(time.Millisecond)
			}
		}
	})
	for range 100 {
		other, _ := b.picked(t, modeFullDuplex, 400)
		other.cancel()
	}
	close(stop)
	listing.Wait()
	waitFor(t, func() bool { open, _ := b.server.ListStreams(10); return len(open) == 1 })
}

// Streams that begin after the last one of a list has ended are listed, and in the order in which they began.
func TestListAfterItsLastOneEnded(t *testing.T) {
	var l list
	named := map[*stream]string{}
	begin := func(name string) *stream {
		st := &stream{}
		named[st] = name
		l.add(st)
		return st
	}
	is := func(want string) {
		t.Helper()
		var got, back string
		for st := l.first; st != nil; st = st.place.next {
			got += named[st]
		}
		for st := l.last; st != nil; st = st.place.prev {
			back = named[st] + back
		}
		if got != want || back != want {
			t.Errorf("listed are %q, and from the end %q, want %q", got, back, want)
		}
	}
	a, b := begin("a"), begin("b")
	l.remove(b)
	c := begin("c")
	is("ac")
	d := begin("d")
	l.remove(c)
	is("ad")
	l.remove(a)
	is("d")
	l.remove(d)
	is("")
	begin("e")
	is("e")
}

// What a client calls itself may be no UTF-8, which no answer could hold.
func TestTextsInListsAreUTF8(t *testing.T) {
	for in, want := range map[string]string{"a\xffb": "a\uFFFDb", strings.Repeat("x", maxListedText-1) + "é": strings.Repeat("x", maxListedText-1) + "\uFFFD"} {
		if got := shortened(in); got != want {
			t.Errorf("%q became %q", in, got)
		}
	}
}
