package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// The ways in which a rough engine answers, named in the request header x-behave.
const (
	hang        = "hang"         // never
	streamOn    = "stream on"    // with events without end
	refuseEmpty = "refuse empty" // 503 without a body
	complete    = "complete"     // a whole stream
	resetEarly  = "reset early"  // with a reset instead of headers
	breakOff    = "break off"    // with a stream that ends after the first event, without its end
)

// rough is an engine that does as each request says, and tells when a request has come.
type rough struct {
	address string
	mu      sync.Mutex
	arrived map[string]chan struct{}
}

func startRough(t *testing.T) *rough {
	t.Helper()
	r := &rough{arrived: map[string]chan struct{}{}}
	r.address = lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", r)
	return r
}

// has is closed once the request with an id has come.
func (r *rough) has(id string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.arrived[id]
	if c == nil {
		c = make(chan struct{})
		r.arrived[id] = c
	}
	return c
}

// ServeHTTP implements http.Handler.
func (r *rough) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method == http.MethodGet { // the scrape of metrics
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if _, err := io.Copy(io.Discard, q.Body); err != nil {
		return
	}
	close(r.has(q.Header.Get("x-id")))
	switch behave := q.Header.Get("x-behave"); behave {
	case hang:
		<-q.Context().Done()
	case refuseEmpty:
		w.Header().Set("content-length", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	case resetEarly:
		reset(w)
	default:
		r.stream(w, q, behave)
	}
}

func (r *rough) stream(w http.ResponseWriter, q *http.Request, behave string) {
	w.Header().Set("content-type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for i := 0; behave == streamOn || i < 3; i++ {
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":"word %d"}}]}`+"\n\n", i)
		if flush() != nil {
			return
		}
		if behave == breakOff {
			panic(http.ErrAbortHandler) // closes the connection within the body
		}
		select {
		case <-tick.C:
		case <-q.Context().Done():
			return
		}
	}
	fmt.Fprint(w, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}`+"\n\ndata: [DONE]\n\n")
}

// reset ends a connection with RST.
func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the reset is what is wanted; a plain close would do in its place
	}
	_ = c.Close()
}
