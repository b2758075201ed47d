package render

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Options configure a Client.
type Options struct {
	// Transport carries the calls; nil means one of the client's own.
	Transport http.RoundTripper
	// Authorization is the value of the header of that name; empty means none.
	Authorization string
	// Concurrency is the number of calls under way that one server gets at most; at least 1.
	Concurrency int
	// MaxBodyBytes is the length of the largest body that is sent.
	MaxBodyBytes int
	// Observe, where not nil, is told of every answer with tokens: the route ("render", "tokenize") and the time it took.
	Observe func(route string, took time.Duration)
	// Logger may be nil.
	Logger *slog.Logger
}

// Client asks servers what requests render to. It is safe for concurrent use.
type Client struct {
	options Options
	own     *http.Transport // nil where the transport is somebody else's
}

// NewClient returns a client.
func NewClient(o Options) *Client {
	c := &Client{options: o}
	if o.Transport == nil {
		c.own = newTransport(o.Concurrency)
		c.options.Transport = c.own
	}
	if o.Logger == nil {
		c.options.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// newTransport is made for short calls to few hosts. Idle connections go before the 5 s after which uvicorn, which serves
// vLLM, closes them: a call that meets a closing connection fails.
func newTransport(concurrency int) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		DisableCompression:     true,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    concurrency,
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         32 << 10,
		Protocols:              &protocols,
	}
}

// Close closes idle connections. Calls under way end by their contexts.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Query is a request to render.
type Query struct {
	// Operation is the API that the request calls.
	Operation scheduling.Operation
	// Render is the body for the render route, in pieces.
	Render [][]byte
	// Tokenize is the body for the tokenize route, in pieces; nil where that route would not give the same tokens.
	Tokenize [][]byte
}

// Call is the asking for one prompt's tokens: one or several calls of Do, and a waiter who may give up on them. The pieces
// of the queries belong to the waiter, and are not touched once Expire has returned.
type Call struct {
	client *Client
	lease  lease

	mu      sync.Mutex
	expired bool
	visits  []*visit // under way
}

// NewCall returns a call.
func (c *Client) NewCall() *Call { return &Call{client: c} }

// visit is a server being asked.
type visit struct {
	server *Server
	trial  bool
	judged bool // its breaker was told
}

// Expire ends the waiter's part. From then on the queries' pieces are not read; the servers that are being asked count a
// failure each where blame is set. goesOn says that everything was sent already, so that the answer, if it still comes,
// is whole; otherwise the caller should cancel Do's context.
func (c *Call) Expire(blame bool) (goesOn bool) {
	goesOn = c.lease.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = true
	for _, v := range c.visits {
		if blame {
			c.judge(v, failed, errSlow)
		} else {
			c.judge(v, noVerdict, nil)
		}
	}
	return goesOn
}

// errSlow is the failure of a server that was waited for in vain.
var errSlow = &Failure{Reason: ReasonTimeout, Err: errors.New("no answer within the request's budget")}

// judge tells a visit's server how it went, once; c.mu is held. A breaker that opens or closes is told to the operator.
func (c *Call) judge(v *visit, how verdict, cause error) {
	if v.judged {
		return
	}
	v.judged = true
	logger := c.client.options.Logger
	switch v.server.breaker.leave(v.trial, how, time.Now()) {
	case opened:
		logger.Warn("a server that renders prompts keeps failing; it is asked again from time to time",
			"server", v.server.url, "failures", failuresToOpen, "last", cause)
	case closed:
		logger.Info("a server that renders prompts answers again", "server", v.server.url)
	}
}

// enter takes one of a server's places.
func (c *Call) enter(s *Server) (*visit, error) {
	if s.calls.Add(1) > int32(c.client.options.Concurrency) {
		s.calls.Add(-1)
		return nil, &Failure{Reason: ReasonBusy}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expired {
		s.calls.Add(-1)
		return nil, &Failure{Reason: ReasonCanceled, Err: errOver}
	}
	ok, trial := s.breaker.enter(time.Now())
	if !ok {
		s.calls.Add(-1)
		return nil, &Failure{Reason: ReasonBreaker}
	}
	v := &visit{server: s, trial: trial}
	c.visits = append(c.visits, v)
	return v, nil
}

// leave gives the place back.
func (c *Call) leave(v *visit, err error) {
	how := succeeded
	if f := (*Failure)(nil); errors.As(err, &f) {
		if how = f.verdict(); f.Status == http.StatusNotFound && f.Reason == ReasonStatus && has(&v.server.stranger, time.Now()) {
			lacks(&v.server.stranger, time.Now())
			c.client.options.Logger.Warn("a server that renders prompts does not know the model; is modelName right?", "server", v.server.url, "error", err)
		}
	}
	v.server.calls.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.judge(v, how, err)
	for i := range c.visits {
		if c.visits[i] == v {
			c.visits = append(c.visits[:i], c.visits[i+1:]...)
			break
		}
	}
}

// Do asks a server. The error is a *Failure.
func (c *Call) Do(ctx context.Context, s *Server, q *Query) (a Answer, err error) {
	if size(q.Render) > c.client.options.MaxBodyBytes {
		return a, &Failure{Reason: ReasonTooLarge}
	}
	v, err := c.enter(s)
	if err != nil {
		return a, err
	}
	defer func() { c.leave(v, err) }()
	missing := &s.missing[q.Operation]
	if has(missing, time.Now()) {
		a, err = c.post(ctx, s, routes[q.Operation], q.Render, ReadRendered)
		if ReasonOf(err) != ReasonNoRoute {
			return a, err
		}
		lacks(missing, time.Now())
		if s.told.CompareAndSwap(false, true) {
			c.client.options.Logger.Info("a server has no render routes (vLLM serves them with --enable-scale-out); /tokenize is asked instead",
				"server", s.url, "path", routes[q.Operation])
		}
	}
	switch {
	case q.Tokenize == nil:
		return a, &Failure{Reason: ReasonUnfaithful}
	case !has(&s.tokenize, time.Now()):
		return a, &Failure{Reason: ReasonNoRoute}
	}
	a, err = c.post(ctx, s, tokenizePath, q.Tokenize, ReadTokenized)
	if ReasonOf(err) == ReasonNoRoute {
		lacks(&s.tokenize, time.Now())
	}
	return a, err
}

// post makes one exchange.
func (c *Call) post(ctx context.Context, s *Server, path string, pieces [][]byte, read func(io.Reader) (Answer, error)) (Answer, error) {
	begun := time.Now()
	response, err := c.send(ctx, s.url+path, pieces)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Answer{}, refused(response)
	}
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return Answer{}, &Failure{Reason: ReasonBadAnswer, Err: fmt.Errorf("content encoding %.32q was not asked for", encoding)}
	}
	if response.ContentLength > MaxAnswerBytes {
		return Answer{}, &Failure{Reason: ReasonTooLarge, Err: fmt.Errorf("an answer of %d bytes", response.ContentLength)}
	}
	a, err := read(response.Body)
	if err != nil {
		return Answer{}, broken(ctx, err)
	}
	if observe := c.client.options.Observe; observe != nil {
		route := "render"
		if path == tokenizePath {
			route = "tokenize"
		}
		observe(route, time.Since(begun))
	}
	return a, nil
}

// maxStale is the number of kept connections that a call may find closed.
const maxStale = 3

// send sends a request, and again where a kept connection turns out to be closed: the transport does so itself, but not
// where a part of the body was written by then. What fails on a new connection has failed.
func (c *Call) send(ctx context.Context, url string, pieces [][]byte) (*http.Response, error) {
	for stale := 0; ; stale++ {
		var reused atomic.Bool
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused.Store(i.Reused) }}
		request, err := c.request(httptrace.WithClientTrace(ctx, trace), url, pieces)
		if err != nil {
			return nil, &Failure{Reason: ReasonConnect, Err: err}
		}
		response, err := c.client.options.Transport.RoundTrip(request)
		if err == nil {
			return response, nil
		}
		f := broken(ctx, err)
		if f.Reason != ReasonConnect || !reused.Load() || stale == maxStale {
			return nil, f
		}
	}
}

func (c *Call) request(ctx context.Context, url string, pieces [][]byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, c.lease.body(pieces))
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(size(pieces))
	r.GetBody = func() (io.ReadCloser, error) { return c.lease.body(pieces), nil }
	r.Header = http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json"},
		// Present and empty: the transport sends the request again where a kept connection turns out to be closed, and
		// sends no such header.
		"Idempotency-Key": {},
	}
	if c.client.options.Authorization != "" {
		r.Header["Authorization"] = []string{c.client.options.Authorization}
	}
	return r, nil
}

// broken is the failure of an exchange that ended in an error.
func broken(ctx context.Context, err error) *Failure {
	reason := ReasonConnect
	switch {
	case errors.Is(err, errOver) || errors.Is(ctx.Err(), context.Canceled):
		reason = ReasonCanceled
	case ctx.Err() != nil || isTimeout(err):
		reason = ReasonTimeout
	case errors.Is(err, errLong):
		reason = ReasonTooLarge
	case errors.Is(err, errSyntax) || errors.Is(err, io.ErrUnexpectedEOF):
		reason = ReasonBadAnswer
	}
	return &Failure{Reason: reason, Err: err}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// maxErrorBytes is how much of an answer is read that is none.
const maxErrorBytes = 4 << 10

// refused is the failure of an answer with another status than 200. A server that does not know a path says so in its own
// words; one that does not know the model has an error object to say it.
func refused(response *http.Response) *Failure {
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
	f := &Failure{Reason: ReasonStatus, Status: response.StatusCode}
	switch response.StatusCode {
	case http.StatusNotFound:
		if !strings.Contains(string(text), `"error"`) {
			f.Reason = ReasonNoRoute
		}
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		f.Reason = ReasonNoRoute
	}
	f.Err = errors.New("status " + strconv.Itoa(response.StatusCode))
	if f.Reason == ReasonStatus && response.StatusCode == http.StatusNotFound { // it names the model, and never repeats the prompt
		f.Err = fmt.Errorf("status %d: %.300q", response.StatusCode, text)
	}
	return f
}
