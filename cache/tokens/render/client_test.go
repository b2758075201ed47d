package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const answerText = `{"token_ids":[1,2,3],"features":null}`

// roundTripper is an engine in memory.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answered(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, ContentLength: int64(len(body)), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

func newTestClient(f roundTripper) *Client {
	return NewClient(Options{Transport: f, Concurrency: 4, MaxBodyBytes: 1 << 20})
}

func only(t *testing.T, url string) *Server {
	t.Helper()
	s, err := NewFleet(url).Pick(&scheduling.Rand{}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pieces(text ...string) (p [][]byte) {
	for _, s := range text {
		p = append(p, []byte(s))
	}
	return p
}

func chatQuery() *Query {
	return &Query{Operation: scheduling.OperationChat, Render: pieces(`{"a":1,`, `"mm_payload":"none"`, `}`), Tokenize: pieces(`{"messages":[]}`)}
}

// The captured exchanges over a real connection: the body arrives to the byte, with its length.
func TestCapturedExchanges(t *testing.T) {
	for op, name := range map[scheduling.Operation]string{
		scheduling.OperationChat: "render_chat", scheduling.OperationCompletions: "render_completion_list",
		scheduling.OperationMessages: "render_messages", scheduling.OperationResponses: "render_responses",
	} {
		t.Run(name, func(t *testing.T) {
			e := captured(t, name)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || string(body) != e.Request.Body || r.ContentLength != int64(len(body)) || len(r.TransferEncoding) > 0 {
					t.Errorf("got %q of length %d, %v", body, r.ContentLength, err)
				}
				if r.Method != e.Request.Method || r.URL.Path != "/base"+e.Request.Path {
					t.Errorf("%s %s, want %s %s", r.Method, r.URL.Path, e.Request.Method, e.Request.Path)
				}
				if _, ok := r.Header["Idempotency-Key"]; ok || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer k" {
					t.Errorf("headers %v", r.Header)
				}
				io.WriteString(w, e.Response.Body)
			}))
			defer server.Close()
			c := NewClient(Options{Concurrency: 1, MaxBodyBytes: 1 << 20, Authorization: "Bearer k"})
			defer c.Close()
			half := len(e.Request.Body) / 2
			a, err := c.NewCall().Do(t.Context(), only(t, server.URL+"/base"), &Query{Operation: op, Render: pieces(e.Request.Body[:half], "", e.Request.Body[half:])})
			want, _ := ReadRendered(strings.NewReader(e.Response.Body))
			if err != nil || a.Count != want.Count || len(a.Tokens) != len(want.Tokens) {
				t.Errorf("%+v, %v; want %+v", a, err, want)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(*http.Request) (*http.Response, error)
		want   Reason
		blames bool // the server
	}{
		{"500", func(*http.Request) (*http.Response, error) { return answered(500, "oops"), nil }, ReasonStatus, true},
		{"503", func(*http.Request) (*http.Response, error) { return answered(503, ""), nil }, ReasonStatus, true},
		{"429", func(*http.Request) (*http.Response, error) { return answered(429, ""), nil }, ReasonStatus, true},
		{"401", func(*http.Request) (*http.Response, error) { return answered(401, `{"error":"Unauthorized"}`), nil }, ReasonStatus, true},
		{"a redirect is not followed", func(*http.Request) (*http.Response, error) { return answered(302, ""), nil }, ReasonStatus, true},
		{"400 is the request's fault", func(*http.Request) (*http.Response, error) { return answered(400, `{"error":{}}`), nil }, ReasonStatus, false},
		{"an unknown model is no missing route", func(*http.Request) (*http.Response, error) {
			return answered(404, captured(t, "err_chat_bad_model").Response.Body), nil
		}, ReasonStatus, false},
		{"refused connection", func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, ReasonConnect, true},
		{"time-out of the transport", func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
		}, ReasonTimeout, true},
		{"HTML", func(*http.Request) (*http.Response, error) { return answered(200, "<html>"), nil }, ReasonBadAnswer, true},
		{"cut short", func(*http.Request) (*http.Response, error) { return answered(200, answerText[:10]), nil }, ReasonBadAnswer, true},
		{"compressed", func(*http.Request) (*http.Response, error) {
			r := answered(200, "\x1f\x8b")
			r.Header.Set("Content-Encoding", "gzip")
			return r, nil
		}, ReasonBadAnswer, true},
		{"announced too long", func(*http.Request) (*http.Response, error) {
			r := answered(200, answerText)
			r.ContentLength = MaxAnswerBytes + 1
			return r, nil
		}, ReasonTooLarge, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, s := newTestClient(tc.answer), only(t, "http://x")
			for range failuresToOpen {
				if _, err := c.NewCall().Do(t.Context(), s, chatQuery()); ReasonOf(err) != tc.want {
					t.Fatalf("%v, want %v", err, tc.want)
				}
			}
			if blamed := s.breaker.state(time.Now()) == Open; blamed != tc.blames {
				t.Errorf("the breaker opens: %v, want %v", blamed, tc.blames)
			}
			if n := s.calls.Load(); n != 0 {
				t.Errorf("%d calls are left", n)
			}
		})
	}
}

// A server without render routes is asked to tokenize, and not asked to render again for a while; where that would not
// give the engine's tokens it is not asked at all.
func TestFallsBackToTokenize(t *testing.T) {
	for name, status := range map[string]int{"not_found": 404, "method_not_allowed": 405} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				routeIsThere := false
				c := newTestClient(func(r *http.Request) (*http.Response, error) {
					body, _ := io.ReadAll(r.Body)
					asked = append(asked, r.URL.Path+" "+string(body))
					switch {
					case r.URL.Path == tokenizePath:
						return answered(200, `{"count":2,"tokens":[8,9]}`), nil
					case routeIsThere:
						return answered(200, answerText), nil
					}
					return answered(status, captured(t, name).Response.Body), nil
				})
				s := only(t, "http://x")
				do := func(q *Query, wantCount int, wantReason Reason) {
					t.Helper()
					a, err := c.NewCall().Do(t.Context(), s, q)
					if a.Count != wantCount || ReasonOf(err) != wantReason {
						t.Errorf("%+v, %v; want %d tokens, %v", a, err, wantCount, wantReason)
					}
				}
				unfaithful := chatQuery()
				unfaithful.Tokenize = nil
				do(unfaithful, 0, ReasonUnfaithful)
				do(chatQuery(), 2, ReasonNone)
				do(unfaithful, 0, ReasonUnfaithful)
				want := []string{`/v1/chat/completions/render {"a":1,"mm_payload":"none"}`, `/tokenize {"messages":[]}`}
				if fmt.Sprint(asked) != fmt.Sprint(want) {
					t.Errorf("asked %v, want %v", asked, want)
				}
				if s.breaker.state(time.Now()) != Closed {
					t.Error("a missing route counts as a failure")
				}
				time.Sleep(missingFor + time.Second)
				routeIsThere = true
				do(chatQuery(), 3, ReasonNone)
			})
		})
	}
}

func TestNoRouteAtAll(t *testing.T) {
	var calls atomic.Int32
	c := newTestClient(func(*http.Request) (*http.Response, error) {
		calls.Add(1)
		return answered(404, `{"detail":"Not Found"}`), nil
	})
	s := only(t, "http://x")
	for range 3 {
		if _, err := c.NewCall().Do(t.Context(), s, chatQuery()); ReasonOf(err) != ReasonNoRoute {
			t.Errorf("%v", err)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("asked %d times, want once a route", n)
	}
}

// A call whose waiter gives up goes on where its body is sent; its server counts one failure, whatever comes later.
func TestExpire(t *testing.T) {
	for name, tc := range map[string]struct {
		readsBody, blame, goesOn bool
		state                    State
	}{
		"sent":              {true, true, true, Open},
		"not sent":          {false, true, false, Open},
		"sent, called off":  {true, false, true, Closed},
		"calling off early": {false, false, false, Closed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestClient(func(r *http.Request) (*http.Response, error) {
					if tc.readsBody {
						_, _ = io.ReadAll(r.Body)
					}
					select {
					case <-time.After(time.Second):
						if _, err := io.ReadAll(r.Body); err != nil {
							return nil, err
						}
						return answered(200, answerText), nil
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				})
				s := only(t, "http://x")
				for range failuresToOpen - 1 {
					s.breaker.leave(false, failed, time.Now())
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				call, q, done := c.NewCall(), chatQuery(), make(chan error)
				var a Answer
				go func() {
					var err error
					a, err = call.Do(ctx, s, q)
					done <- err
				}()
				time.Sleep(100 * time.Millisecond)
				if goesOn := call.Expire(tc.blame); goesOn != tc.goesOn {
					t.Errorf("goes on: %v, want %v", goesOn, tc.goesOn)
				}
				clear(q.Render[0]) // the waiter's memory is somebody else's now
				err := <-done
				switch {
				case tc.goesOn && (err != nil || a.Count != 3):
					t.Errorf("%+v, %v; want the late answer", a, err)
				case !tc.goesOn && ReasonOf(err) != ReasonCanceled:
					t.Errorf("%v, want it called off", err)
				}
				if state := s.breaker.state(time.Now()); tc.state == Open && state == Closed || tc.state == Closed && state != Closed {
					t.Errorf("the breaker is %v, want %v", state, tc.state)
				}
				if _, err := call.Do(ctx, only(t, "http://y"), q); ReasonOf(err) != ReasonCanceled {
					t.Errorf("%v: a call begins after its waiter is gone", err)
				}
			})
		})
	}
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.NewCall().Do(ctx, only(t, "http://x"), chatQuery()); ReasonOf(err) != ReasonTimeout {
			t.Errorf("%v, want a timeout", err)
		}
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newTestClient(func(*http.Request) (*http.Response, error) {
			<-release
			return answered(200, answerText), nil
		})
		s := only(t, "http://x")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := c.NewCall().Do(t.Context(), s, chatQuery()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := c.NewCall().Do(t.Context(), s, chatQuery()); ReasonOf(err) != ReasonBusy {
			t.Errorf("the fifth call: %v, want busy", err)
		}
		if n := s.calls.Load(); n != 4 {
			t.Errorf("%d calls under way, want 4", n)
		}
		close(release)
		all.Wait()
		big := &Query{Operation: scheduling.OperationChat, Render: [][]byte{make([]byte, 1<<20), {'x'}}}
		if _, err := c.NewCall().Do(t.Context(), s, big); ReasonOf(err) != ReasonTooLarge {
			t.Errorf("a body past the bound: %v", err)
		}
		big.Render = big.Render[:1]
		if _, err := c.NewCall().Do(t.Context(), s, big); err != nil {
			t.Errorf("a body at the bound: %v", err)
		}
	})
}

// A connection that was closed while idle costs nothing: the call goes over another.
func TestClosedIdleConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{}, 1)
	var accepted atomic.Int32
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			first := accepted.Add(1) == 1
			buf := make([]byte, 4096)
			for got := []byte(nil); !bytes.HasSuffix(got, []byte("}")); {
				n, err := conn.Read(buf)
				if err != nil {
					break
				}
				got = append(got, buf[:n]...)
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answerText), answerText)
			conn.Close() // without having said so
			if first {
				closed <- struct{}{}
			}
		}
	})
	c, s := NewClient(Options{Concurrency: 1, MaxBodyBytes: 1 << 20}), only(t, "http://"+listener.Addr().String())
	for i := range 20 {
		if _, err := c.NewCall().Do(t.Context(), s, chatQuery()); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if i == 0 {
			<-closed
		}
	}
	c.Close()
	listener.Close()
	serving.Wait()
}

// Expire returns only when nobody reads the pieces any more: under the race detector this finds a transport that does.
func TestExpireWhileSending(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 1000)
		<-over
	}))
	defer server.Close()
	defer close(over)
	c := NewClient(Options{Concurrency: 8, MaxBodyBytes: 64 << 20})
	defer c.Close()
	s := only(t, server.URL)
	memory := bytes.Repeat([]byte("x"), 32<<20)
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		call, done := c.NewCall(), make(chan error)
		go func() {
			_, err := call.Do(ctx, s, &Query{Operation: scheduling.OperationChat, Render: [][]byte{memory}})
			done <- err
		}()
		for s.calls.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		if call.Expire(false) {
			t.Error("all of it was sent to a server that reads nothing")
		}
		memory[len(memory)-1]++ // ours again
		memory[0]++
		cancel()
		if err := <-done; ReasonOf(err) != ReasonCanceled {
			t.Error(err)
		}
	}
}

func TestFleet(t *testing.T) {
	var random scheduling.Rand
	now := time.Now()
	if _, err := NewFleet().Pick(&random, nil, now); ReasonOf(err) != ReasonNoServer {
		t.Errorf("an empty fleet: %v", err)
	}
	f := NewFleet("http://a", "http://b", "http://c", "http://a")
	spread := map[string]int{}
	for range 3000 {
		s, err := f.Pick(&random, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		spread[s.url]++
	}
	for url, n := range spread {
		if n < 800 || n > 1200 || len(spread) != 3 {
			t.Errorf("%s is picked %d times of 3000, of %d servers", url, n, len(spread))
		}
	}
	a, b := (*f.servers.Load())[0], (*f.servers.Load())[1]
	a.calls.Store(3)
	for range failuresToOpen {
		b.breaker.leave(false, failed, now)
	}
	counts := map[string]int{}
	for range 1000 {
		s, _ := f.Pick(&random, nil, now)
		counts[s.url]++
	}
	if counts["http://b"] != 0 || counts["http://c"] < 2*counts["http://a"] {
		t.Errorf("picked %v: b's breaker is open and a is busy", counts)
	}
	if states, calls := f.Census(now); states != [3]int{2, 1, 0} || calls != 3 {
		t.Errorf("states %v, %d calls", states, calls)
	}
	f.Set([]string{"http://b", "http://d"})
	if s, err := f.Pick(&random, nil, now); err != nil || s.url != "http://d" {
		t.Errorf("%v, %v: what is known of a server that stays is kept", s, err)
	}
	if _, err := f.Pick(&random, (*f.servers.Load())[1], now); ReasonOf(err) != ReasonBreaker {
		t.Errorf("%v: the only one left is open", err)
	}
	f.Set([]string{"http://d"})
	if _, err := f.Pick(&random, (*f.servers.Load())[0], now); ReasonOf(err) != ReasonNoServer {
		t.Errorf("%v: the only one is left out", err)
	}
	if n := len(*f.servers.Load()); n != 1 {
		t.Errorf("%d servers are kept, want 1", n)
	}
}

func TestObserves(t *testing.T) {
	var routes []string
	c := NewClient(Options{Concurrency: 1, MaxBodyBytes: 1 << 20, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == tokenizePath {
			return answered(200, `{"count":0,"tokens":[]}`), nil
		}
		return answered(404, ""), nil
	}), Observe: func(route string, took time.Duration) { routes = append(routes, route) }})
	if _, err := c.NewCall().Do(t.Context(), only(t, "http://x"), chatQuery()); err != nil || strings.Join(routes, " ") != "tokenize" {
		t.Errorf("%v, observed %v", err, routes)
	}
}
