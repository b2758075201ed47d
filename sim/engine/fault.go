package engine

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// Faults are ways to misbehave. Setting them replaces those in force.
type Faults struct {
	// Freeze accepts requests, reads them, and neither answers nor goes on with streams until it is
	// lifted: the process hangs. Only /sim/fault still works.
	Freeze bool `json:"freeze"`
	// FailStatus is what the next FailCount inference requests are answered with (400 to 599).
	FailStatus int `json:"fail_status"`
	FailCount  int `json:"fail_count"`
	// MetricsDelayMs holds each answer of /metrics back, in milliseconds of wall time.
	MetricsDelayMs int `json:"metrics_delay_ms"`
	// MetricsHTML answers /metrics with a page that is no metrics.
	MetricsHTML bool `json:"metrics_html"`
	// RefuseMs closes the listener and idle connections, once, for so many milliseconds of wall
	// time; the same port opens again by itself. Requests in progress go on.
	RefuseMs int `json:"refuse_ms"`
	// Restart ends the process, once, as if it were killed, and starts it again on the same ports,
	// after RefuseMs if that is set: connections are cut, the cache is empty, counters, sequence
	// numbers and the start time begin anew. Over HTTP it takes place after the answer.
	Restart bool `json:"restart"`
	// DropBatches is how many of the next batches of KV events are not sent, as if a queue had
	// overflowed; a replay has them. LoseBatches is how many, before those, are not kept either, as
	// if publishing had failed: their sequence numbers never come.
	DropBatches int `json:"drop_batches"`
	LoseBatches int `json:"lose_batches"`
	// SilenceEvents publishes no KV events at all, and takes no sequence numbers.
	SilenceEvents bool `json:"silence_events"`
	// WrongHashes names blocks differently in every batch of KV events, so that neither parents nor
	// removals name what was stored before.
	WrongHashes bool `json:"wrong_hashes"`
	// RenderStatus is what the render and tokenize routes answer (400 to 599), if it is not zero;
	// RenderDelayMs holds their answers back, in milliseconds of wall time.
	RenderStatus  int `json:"render_status"`
	RenderDelayMs int `json:"render_delay_ms"`
}

func (f Faults) validate() error {
	if min(f.FailCount, f.MetricsDelayMs, f.RefuseMs, f.DropBatches, f.LoseBatches, f.RenderDelayMs) < 0 {
		return fmt.Errorf("faults: numbers must be >= 0, got %+v", f)
	}
	if f.FailCount > 0 && !isErrorStatus(f.FailStatus) {
		return fmt.Errorf("fail_status: must be 400 to 599, got %d", f.FailStatus)
	}
	if f.RenderStatus != 0 && !isErrorStatus(f.RenderStatus) {
		return fmt.Errorf("render_status: must be 0 or 400 to 599, got %d", f.RenderStatus)
	}
	return nil
}

func isErrorStatus(status int) bool { return status >= 400 && status <= 599 }

// SetFaults puts faults in force instead of the present ones; the zero value lifts all. What takes
// place once has begun when it returns; a restart without RefuseMs is over.
func (s *Server) SetFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	s.faults.set(f)
	return s.strike(f)
}

// strike does what takes place once.
func (s *Server) strike(f Faults) error {
	down := time.Duration(f.RefuseMs) * time.Millisecond
	switch l := s.present(); {
	case f.Restart:
		return s.restart(down)
	case down > 0 && l != nil:
		l.refuse(down)
	}
	return nil
}

// Faults returns those in force; counts are what is left of them, and what takes place once is not
// among them.
func (s *Server) Faults() Faults {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.now
}

// faults is the state behind [Faults].
type faults struct {
	mu     sync.Mutex
	now    Faults
	frozen chan struct{} // closed when the freeze is lifted; nil when there is none
}

func (f *faults) set(n Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case n.Freeze && f.frozen == nil:
		f.frozen = make(chan struct{})
	case !n.Freeze && f.frozen != nil:
		close(f.frozen)
		f.frozen = nil
	}
	n.RefuseMs, n.Restart = 0, false
	f.now = n
}

// thawed waits until the server is not frozen.
func (f *faults) thawed(ctx context.Context) error {
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// before is what befalls a request before it is handled.
func (f *faults) before(ctx context.Context, k routeKind) error {
	f.mu.Lock()
	now := f.now
	if k == inferenceRoute && now.FailCount > 0 {
		f.now.FailCount--
	}
	f.mu.Unlock()
	status := 0
	switch {
	case k == inferenceRoute && now.FailCount > 0:
		status = now.FailStatus
	case k == tokenizerRoute:
		status = now.RenderStatus
		if err := hold(ctx, now.RenderDelayMs); err != nil {
			return err
		}
	}
	if status == 0 {
		return nil
	}
	return apiError{status: status, kind: "InternalServerError", message: "injected fault"}
}

// hold waits for so many milliseconds, or until the context ends.
func hold(ctx context.Context, ms int) error {
	if ms > 0 && !sleep(ctx, time.Duration(ms)*time.Millisecond) {
		return ctx.Err()
	}
	return nil
}

// metrics waits as long as /metrics is to be held back and says whether to answer nonsense.
func (f *faults) metrics(ctx context.Context) (html bool, err error) {
	f.mu.Lock()
	now := f.now
	f.mu.Unlock()
	return now.MetricsHTML, hold(ctx, now.MetricsDelayMs)
}

// batchFate is what becomes of a batch of KV events.
type batchFate struct {
	silent  bool // it is not published
	lost    bool // it takes a sequence number and is gone
	dropped bool // it can be replayed only
	wrong   bool // its hashes are wrong
}

// batch takes the fate of the next batch.
func (f *faults) batch() batchFate {
	f.mu.Lock()
	defer f.mu.Unlock()
	fate := batchFate{silent: f.now.SilenceEvents, wrong: f.now.WrongHashes}
	switch {
	case fate.silent:
	case f.now.LoseBatches > 0:
		f.now.LoseBatches--
		fate.lost = true
	case f.now.DropBatches > 0:
		f.now.DropBatches--
		fate.dropped = true
	}
	return fate
}

// fault is GET and POST /sim/fault.
func (s *Server) fault(c *call) error {
	if !c.loopback() {
		return apiError{status: http.StatusForbidden, kind: "ForbiddenError", message: "faults are set from loopback only"}
	}
	switch c.req.Method {
	case http.MethodGet:
	case http.MethodPost:
		var f Faults
		if err := json.Unmarshal(c.body, &f, json.RejectUnknownMembers(true)); err != nil {
			return badRequest("", "faults: %v", err)
		}
		if err := f.validate(); err != nil {
			return badRequest("", "%v", err)
		}
		s.faults.set(f)
		if f.Restart {
			return s.restartAfter(c, f)
		}
		_ = s.strike(f) // it does not fail without a restart
	default:
		c.Header().Set("Allow", "GET, POST")
		c.detail(http.StatusMethodNotAllowed)
		return nil
	}
	return c.json(s.Faults())
}

// restartAfter answers and then restarts, which cuts the connection that asked for it. New
// connections are refused already.
func (s *Server) restartAfter(c *call, f Faults) error {
	c.life.shut(false)
	_ = c.json(s.Faults()) // the client may have gone
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	if s.enter() {
		go func() {
			defer s.wg.Done()
			_ = s.strike(f) // it fails only when the server closes
		}()
	}
	return nil
}
