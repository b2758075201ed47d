package metrics

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// talk answers each request of a connection with some pieces, with a pause before each further one; a nil answer closes the
// connection.
func talk(t *testing.T, answer func(nth int) []string) (url string) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	ctx := t.Context() // over before the cleanup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			all.Go(func() { talkOn(conn, answer) })
		}
	})
	return "http://" + l.Addr().String()
}

func talkOn(conn net.Conn, answer func(nth int) []string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := 0; ; n++ {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		pieces := answer(n)
		for i, piece := range pieces {
			if i > 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
		if pieces == nil {
			return
		}
	}
}

// TestAnswersAsTransportReadsThem compares with net/http's client what each of four scrapes in a row makes of servers with
// habits of their own. A page is never an older one than was asked for.
func TestAnswersAsTransportReadsThem(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(page string, nth int) []string{
		"continue": func(page string, _ int) []string { return []string{"HTTP/1.1 100 Continue\r\n\r\n" + whole(page)} },
		"hints apart": func(page string, _ int) []string {
			return []string{"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", whole(page)}
		},
		"says that it timed out": func(page string, _ int) []string {
			return []string{whole(page), "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}
		},
		"answers twice": func(page string, _ int) []string { return []string{whole(page), whole(page)} },
		"1.0": func(page string, _ int) []string {
			return []string{"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\n" + page}
		},
		"trailers late": func(page string, _ int) []string {
			return []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n%x\r\n%s\r\n", len(page), page), "0\r\nX: y\r\n\r\n"}
		},
		"closes the second time": func(page string, nth int) []string {
			if nth > 0 {
				return nil
			}
			return []string{whole(page)}
		},
		"elsewhere": func(string, int) []string {
			return []string{"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			page := ""
			url := talk(t, func(nth int) []string {
				mu.Lock()
				defer mu.Unlock()
				return answer(page, nth)
			})
			own, theirs := newTestNet(t), &http.Transport{DisableCompression: true}
			t.Cleanup(theirs.CloseIdleConnections)
			for i := range 4 {
				mu.Lock()
				page = fmt.Sprintf("page %d", i)
				mu.Unlock()
				if got, want := read(t, own, url), read(t, theirs, url); got != want {
					t.Errorf("scrape %d: %s, net/http: %s", i, got, want)
				}
				time.Sleep(30 * time.Millisecond) // what comes late has come
			}
		})
	}
}

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
	url := talk(t, func(int) []string {
		return []string{"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"}
	})
	if _, err := n.get(t.Context(), url); err == nil || resultOf(err, ResultOK) != ResultBroken {
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
