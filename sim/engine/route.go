package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// call is one request: its body is read and the x-sim headers are set when a handler gets it.
type call struct {
	http.ResponseWriter
	life   *life
	ctx    context.Context // ends with the client's connection or with the life
	req    *http.Request
	body   []byte
	errors func(apiError) any // shape of an error body

	begun      time.Time // when it was received
	task       task
	generation *generation // what the model was asked for; nil for nothing
}

// route is what a path serves.
type route struct {
	method string            // "" for any
	handle func(*call) error // an error is answered as JSON, unless the answer has begun
	kind   routeKind
	errors func(apiError) any
}

// routeKind says which faults a route is subject to.
type routeKind uint8

const (
	plainRoute     routeKind = iota
	inferenceRoute           // Faults.FailCount
	tokenizerRoute           // Faults.RenderStatus and RenderDelayMs
)

func (s *Server) routeTable(l *life) map[string]route {
	get := func(h func(*call) error) route { return route{http.MethodGet, h, plainRoute, openAIError} }
	post := func(h func(*call) error) route { return route{http.MethodPost, h, plainRoute, openAIError} }
	infer := func(h func(*call) error) route { return route{http.MethodPost, h, inferenceRoute, openAIError} }
	tokens := func(h func(*call) error) route { return route{http.MethodPost, h, tokenizerRoute, openAIError} }
	ok := func(*call) error { return nil }
	table := map[string]route{
		"/v1/chat/completions":      infer(s.chat),
		"/v1/completions":           infer(s.completions),
		"/v1/responses":             infer(s.responses),
		"/v1/embeddings":            infer(s.embeddings),
		"/v1/messages":              {http.MethodPost, s.messages, inferenceRoute, anthropicError},
		"/v1/messages/count_tokens": {http.MethodPost, s.countTokens, plainRoute, anthropicError},
		"/v1/models":                get(s.models),
		"/tokenize":                 tokens(s.tokenize),
		"/detokenize":               tokens(s.detokenize),
		"/kv_event_sources":         get(func(c *call) error { return c.json(c.life.events.sources()) }),
		"/reset_prefix_cache":       post(s.resetCache),
		"/sleep":                    post(s.sleep),
		"/wake_up":                  post(s.wakeUp),
		"/is_sleeping":              get(s.isSleeping),
		"/health":                   get(ok),
		"/ping":                     get(ok),
		"/version":                  get(func(c *call) error { return c.json(map[string]string{"version": Version}) }),
		"/metrics":                  get(s.metrics(l)),
		"/sim/fault":                {"", s.fault, plainRoute, openAIError},
	}
	if !s.cfg.NoRender {
		table["/v1/chat/completions/render"] = tokens(s.renderChat)
		table["/v1/completions/render"] = tokens(s.renderCompletions)
		table["/v1/responses/render"] = tokens(s.renderResponses)
		table["/v1/messages/render"] = route{http.MethodPost, s.renderMessages, tokenizerRoute, anthropicError}
	}
	return table
}

// metrics is GET /metrics.
func (s *Server) metrics(l *life) func(*call) error {
	page := promhttp.HandlerFor(l.registry, promhttp.HandlerOpts{})
	return func(c *call) error {
		if html, err := s.faults.metrics(c.ctx); err != nil {
			return err
		} else if html {
			c.Header().Set("Content-Type", "text/html")
			_, err := io.WriteString(c, "<!DOCTYPE html><html><body><h1>It works!</h1></body></html>\n")
			return err
		}
		page.ServeHTTP(c, c.req)
		return nil
	}
}

// Version is what GET /version answers.
const Version = "0.32.0+sim"

func (l *life) serve(w http.ResponseWriter, r *http.Request) {
	s := l.server
	if !s.enter() {
		return
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()

	c := &call{ResponseWriter: w, life: l, ctx: ctx, req: r, errors: openAIError, begun: time.Now()}
	defer c.served()
	if err := s.receive(c); err != nil {
		c.fail(err)
		return
	}
	if r.URL.Path != "/sim/fault" {
		if s.faults.thawed(ctx) != nil {
			return
		}
	}
	rt, ok := l.routes[r.URL.Path]
	if !ok {
		if trimmed := strings.TrimSuffix(r.URL.Path, "/"); l.routes[trimmed].handle != nil {
			u := *r.URL
			u.Path = trimmed
			http.Redirect(w, r, u.RequestURI(), http.StatusTemporaryRedirect)
			return
		}
		c.detail(http.StatusNotFound)
		return
	}
	if rt.method != "" && r.Method != rt.method {
		w.Header().Set("Allow", rt.method)
		c.detail(http.StatusMethodNotAllowed)
		return
	}
	c.errors = rt.errors
	err := s.faults.before(ctx, rt.kind)
	if err == nil {
		err = rt.handle(c)
	}
	if err != nil {
		c.fail(err)
	}
}

// receive reads the body and reports in headers what arrived.
func (s *Server) receive(c *call) error {
	s.mu.Lock()
	name := s.name
	s.mu.Unlock()
	h := c.Header()
	h.Set("X-Sim-Endpoint", name)
	h.Set("X-Sim-Method", c.req.Method)
	var err error
	c.body, err = io.ReadAll(http.MaxBytesReader(c, c.req.Body, s.cfg.MaxBodyBytes))
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError",
			message: fmt.Sprintf("request body exceeds %d bytes", long.Limit)}
	} else if err != nil {
		return badRequest("", "request body: %v", err)
	}
	sum := sha256.Sum256(c.body)
	h.Set("X-Sim-Body-Sha256", hex.EncodeToString(sum[:]))
	h.Set("X-Sim-Body-Bytes", strconv.Itoa(len(c.body)))
	var trailers []string
	for k, vs := range c.req.Trailer {
		for _, v := range vs {
			trailers = append(trailers, strings.ToLower(k)+"="+v)
		}
	}
	if len(trailers) > 0 {
		slices.Sort(trailers)
		h.Set("X-Sim-Trailers", strings.Join(trailers, ", "))
	}
	return nil
}

// loopback reports whether the request comes from this machine.
func (c *call) loopback() bool {
	host, _, err := net.SplitHostPort(c.req.RemoteAddr)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

var marshalOptions = json.JoinOptions(jsontext.AllowInvalidUTF8(true))

func (c *call) json(v any) error { return c.status(http.StatusOK, v) }

func (c *call) status(status int, v any) error {
	b, err := json.Marshal(v, marshalOptions)
	if err != nil {
		return err
	}
	c.Header().Set("Content-Type", "application/json")
	c.Header().Set("Content-Length", strconv.Itoa(len(b)))
	c.WriteHeader(status)
	_, err = c.Write(b)
	return err
}

func (c *call) detail(status int) {
	// The client learns of a failed write by itself.
	_ = c.status(status, map[string]string{"detail": http.StatusText(status)})
}

// fail answers with an error. Once an answer has begun nothing can be said any more, and an error
// of the connection itself reaches nobody: both only end the handler.
func (c *call) fail(err error) {
	var e apiError
	switch {
	case errors.As(err, &e):
	case c.ctx.Err() != nil:
		return
	default:
		e = apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()}
	}
	if c.Header().Get("Content-Type") != "" {
		return
	}
	_ = c.status(e.status, c.errors(e))
}
