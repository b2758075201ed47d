package metrics

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// talker is a server whose answers are written out.
type talker struct {
	url string

	mu   sync.Mutex
	last talk // that of the last request
}

// talk is one connection.
type talk struct {
	conn net.Conn
	over chan struct{} // closed when the other side is gone, or nothing more is answered
}

// newTalker answers each request of a connection with some pieces, with a pause before each further one, so that they mostly
// arrive one by one: nothing hangs on it. A nil answer closes the connection.
func newTalker(t *testing.T, answer func(nth int) []string) *talker {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	ctx := t.Context() // over before the cleanup
	s := &talker{url: "http://" + l.Addr().String()}
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			all.Go(func() { s.talk(talk{conn, make(chan struct{})}, answer) })
		}
	})
	return s
}

func (s *talker) talk(with talk, answer func(nth int) []string) {
	defer close(with.over)
	defer with.conn.Close()
	in := bufio.NewReader(with.conn)
	for n := 0; ; n++ {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		s.mu.Lock()
		s.last = with
		s.mu.Unlock()
		pieces := answer(n)
		for i, piece := range pieces {
			if i > 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if _, err := io.WriteString(with.conn, piece); err != nil {
				return
			}
		}
		if pieces == nil {
			return
		}
	}
}

// add says more on the connection of the last request.
func (s *talker) add(t *testing.T, more string) talk {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.last.conn, more); err != nil {
		t.Fatal(err)
	}
	return s.last
}

// TestAnswersAsTransportReadsThem compares with net/http's client what each of four scrapes in a row makes of servers with
// habits of their own. A page is never an older one than was asked for.
func TestAnswersAsTransportReadsThem(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]struct {
		answer func(page string, nth int) []string
		late   func(page string) string // said on the idle connection; nobody asked for it
	}{
		"continue": {answer: func(page string, _ int) []string { return []string{"HTTP/1.1 100 Continue\r\n\r\n" + whole(page)} }},
		"hints apart": {answer: func(page string, _ int) []string {
			return []string{"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", whole(page)}
		}},
		"says that it timed out": {answer: once, late: func(string) string {
			return "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
		}},
		"answers twice": {answer: once, late: whole},
		"1.0": {answer: func(page string, _ int) []string {
			return []string{"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\n" + page}
		}},
		"trailers late": {answer: func(page string, _ int) []string {
			return []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n%x\r\n%s\r\n", len(page), page), "0\r\nX: y\r\n\r\n"}
		}},
		"closes the second time": {answer: func(page string, nth int) []string {
			if nth > 0 {
				return nil
			}
			return once(page, nth)
		}},
		"elsewhere": {answer: func(string, int) []string {
			return []string{"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := atomic.Pointer[string]{}
			answer := func(nth int) []string { return server.answer(*page.Load(), nth) }
			own, theirs := newTestNet(t), &http.Transport{DisableCompression: true}
			t.Cleanup(theirs.CloseIdleConnections)
			asksOwn, asksTheirs := newTalker(t, answer), newTalker(t, answer)
			for i := range 4 {
				now := fmt.Sprintf("page %d", i)
				page.Store(&now)
				if got, want := read(t, own, asksOwn.url), read(t, theirs, asksTheirs.url); got != want {
					t.Errorf("scrape %d: %s, net/http: %s", i, got, want)
				}
				if server.late == nil {
					continue
				}
				// The next scrape comes once both sides have what nobody asked for. net/http's reads and closes at once.
				asksOwn.add(t, server.late(now))
				own.hears(t)
				<-asksTheirs.add(t, server.late(now)).over
			}
		})
	}
}

// hears waits until something has come on the idle connection.
func (n *testNet) hears(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.count != 1 {
		t.Fatalf("%d connections are kept", n.count)
	}
	for _, kept := range n.idle {
		for range 1000 {
			if !silent(kept[0].raw) {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Fatal("nothing is heard")
}

func once(page string, _ int) []string { return []string{whole(page)} }

func whole(page string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(page), page)
}

func read(t *testing.T, transport http.RoundTripper, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := newRequest(url)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	return fmt.Sprintf("%d %q %v", response.StatusCode, page, err)
}

func TestEndlessHints(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	s := newTalker(t, func(int) []string {
		return []string{"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"}
	})
	if _, err := n.get(t.Context(), s.url); err == nil || resultOf(err, ResultOK) != ResultBroken {
		t.Errorf("%v", err)
	}
}

func TestForgottenConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	n := newTestNet(t)
	gone, stays := n.serve(t, say("a")), n.serve(t, say("b"))
	n.want(t, gone.URL, "a")
	n.want(t, stays.URL, "b")
	r, err := newRequest(gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	n.forget(r.URL)
	if n.count != 1 || len(n.idle) != 1 {
		t.Errorf("%d connections of %d engines are kept", n.count, len(n.idle))
	}
	n.want(t, stays.URL, "b")
	if got := n.opened.Load(); got != 2 {
		t.Errorf("%d connections were opened", got)
	}
}
