//go:build linux

package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

// idHeader carries a request's name from the client to the engine and into Envoy's access log.
const idHeader = "x-chaos-id"

// tap stands before an engine. It notes what arrived and what was answered, tells what the engine holds, and makes the engine
// slow, or its metrics page lie, when it is asked to.
type tap struct {
	out    *os.File // one line a write: what was written before a kill stays
	server *engine.Server
	mode   atomic.Pointer[mode]
}

// mode is how an engine behaves beyond what it does by itself.
type mode struct {
	SlowMs int    `json:"slow_ms"` // before each write of an answer
	Page   string `json:"page"`    // what its metrics page has: "", or a name in lies
}

// holdings is what an engine says of itself.
type holdings struct {
	Blocks     int `json:"blocks"` // distinct ones, for each tier
	Running    int `json:"running"`
	Goroutines int `json:"goroutines"`
}

// lies are metrics pages that tell anything.
var lies = map[string]string{
	"numbers": "vllm:num_requests_running{model_name=\"sim\"} -7\nvllm:num_requests_waiting{model_name=\"sim\"} 1e300\n" +
		"vllm:kv_cache_usage_perc{model_name=\"sim\"} NaN\nvllm:num_requests_waiting{model_name=\"sim\"} +Inf\n",
	"life":  "process_start_time_seconds 4e9\nvllm:num_requests_running{model_name=\"sim\"} 0\n",
	"bytes": strings.Repeat("\x00\xff{{{\"", 4096),
}

// endless is the name of a page that does not end.
const endless = "endless"

// wrap makes the handler of one life of the engine.
func (p *tap) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.handle(w, r, next) })
}

func (p *tap) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	m := p.mode.Load()
	switch id := r.Header.Get(idHeader); {
	case r.URL.Path == "/chaos/state":
		p.state(w)
	case r.URL.Path == "/chaos/mode":
		next := &mode{}
		if err := json.NewDecoder(r.Body).Decode(next); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.mode.Store(next)
	case r.URL.Path == "/metrics" && m != nil && m.Page != "" && r.URL.RawQuery == "":
		lie(w, r, m.Page)
	case id != "":
		p.serve(w, r, id, m, next)
	default:
		next.ServeHTTP(w, r)
	}
}

func lie(w http.ResponseWriter, r *http.Request, page string) {
	if page != endless {
		fmt.Fprint(w, lies[page])
		return
	}
	for line := strings.Repeat("vllm:num_requests_running 1\n", 512); r.Context().Err() == nil; {
		if _, err := io.WriteString(w, line); err != nil {
			return
		}
	}
}

func (p *tap) state(w http.ResponseWriter) {
	h := holdings{Goroutines: runtime.NumGoroutine(), Running: p.server.Stats().Running}
	for _, m := range []sim.Medium{sim.GPU, sim.CPU} {
		h.Blocks += len(p.server.Cached(m))
	}
	_ = json.NewEncoder(w).Encode(h) // who asked may have gone
}

// entry is what is noted of a request: once when it has begun, and again when its handler has ended.
type entry struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Ended   bool      `json:"ended,omitempty"`
	Whole   bool      `json:"whole,omitempty"` // the body was read to its end
	Body    string    `json:"body,omitempty"`  // its SHA-256
	Status  int       `json:"status,omitempty"`
	Answer  string    `json:"answer,omitempty"` // SHA-256 of what was written
	Written int       `json:"written,omitempty"`
}

func (p *tap) note(e entry) {
	e.At = time.Now()
	b, err := json.Marshal(e)
	if err == nil {
		_, err = p.out.Write(append(b, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "panic: the record cannot be written:", err)
	}
}

func (p *tap) serve(w http.ResponseWriter, r *http.Request, id string, m *mode, next http.Handler) {
	p.note(entry{ID: id})
	body := &reading{ReadCloser: r.Body, sum: sha256.New()}
	answer := &writing{ResponseWriter: w, sum: sha256.New(), status: http.StatusOK}
	if m != nil {
		answer.slow = time.Duration(m.SlowMs) * time.Millisecond
	}
	defer func() {
		p.note(entry{
			ID: id, Ended: true, Whole: body.whole, Body: hex.EncodeToString(body.sum.Sum(nil)),
			Status: answer.status, Answer: hex.EncodeToString(answer.sum.Sum(nil)), Written: answer.n,
		})
	}()
	r.Body = body
	next.ServeHTTP(answer, r)
}

// reading hashes a request's body.
type reading struct {
	io.ReadCloser
	sum   hash.Hash
	whole bool
}

func (b *reading) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, _ = b.sum.Write(p[:n]) // it never fails
	b.whole = b.whole || err == io.EOF
	return n, err
}

// writing hashes an answer's body.
type writing struct {
	http.ResponseWriter
	sum    hash.Hash
	status int
	n      int
	slow   time.Duration
}

// Unwrap is for http.ResponseController.
func (a *writing) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *writing) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *writing) Write(p []byte) (int, error) {
	if a.slow > 0 {
		time.Sleep(a.slow)
	}
	n, err := a.ResponseWriter.Write(p)
	_, _ = a.sum.Write(p[:n]) // it never fails
	a.n += n
	return n, err
}
