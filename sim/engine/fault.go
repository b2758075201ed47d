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
}

func (f Faults) validate() error {
	if f.FailCount < 0 || f.MetricsDelayMs < 0 || f.RefuseMs < 0 {
		return fmt.Errorf("faults: numbers must be >= 0, got %+v", f)
	}
	if f.FailCount > 0 && (f.FailStatus < 400 || f.FailStatus > 599) {
		return fmt.Errorf("fail_status: must be 400 to 599, got %d", f.FailStatus)
	}
	return nil
}

// SetFaults puts faults in force instead of the present ones; the zero value lifts all.
func (s *Server) SetFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	s.faults.set(f)
	if f.RefuseMs > 0 {
		s.refuse(time.Duration(f.RefuseMs) * time.Millisecond)
	}
	return nil
}

// Faults returns those in force; FailCount is what is left of it, RefuseMs is zero.
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
	n.RefuseMs = 0
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

// failure takes one of the failures that are due.
func (f *faults) failure() (status int, due bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now.FailCount == 0 {
		return 0, false
	}
	f.now.FailCount--
	return f.now.FailStatus, true
}

// metrics waits as long as /metrics is to be held back and says whether to answer nonsense.
func (f *faults) metrics(ctx context.Context) (html bool, err error) {
	f.mu.Lock()
	now := f.now
	f.mu.Unlock()
	if now.MetricsDelayMs == 0 {
		return now.MetricsHTML, nil
	}
	wait := time.NewTimer(time.Duration(now.MetricsDelayMs) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
		return now.MetricsHTML, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
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
		if err := s.SetFaults(f); err != nil {
			return badRequest("", "%v", err)
		}
	default:
		c.Header().Set("Allow", "GET, POST")
		c.detail(http.StatusMethodNotAllowed)
		return nil
	}
	return c.json(s.Faults())
}
