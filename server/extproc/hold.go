package extproc

import (
	"sync"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// holds keeps the charges of requests whose end will not be seen for as long as the engine is predicted to work on
// them. Releasing them with the stream would make a busy engine look idle.
type holds struct {
	mu     sync.Mutex
	held   map[*scheduling.Flight]heldCharge
	closed bool
}

type heldCharge struct {
	timer *time.Timer
	done  func()
}

func (h *holds) init() { h.held = make(map[*scheduling.Flight]heldCharge) }

func (h *holds) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

// add calls done after d, or at once when the server is closed.
func (h *holds) add(f *scheduling.Flight, d time.Duration, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		done()
		return
	}
	timer := time.AfterFunc(d, func() { h.end(f) })
	h.held[f] = heldCharge{timer: timer, done: done}
}

// end ends one flight, unless close already did.
func (h *holds) end(f *scheduling.Flight) {
	h.mu.Lock()
	charge, ok := h.held[f]
	delete(h.held, f)
	h.mu.Unlock()
	if ok {
		charge.done()
	}
}

func (h *holds) close() {
	h.mu.Lock()
	h.closed = true
	held := h.held
	h.held = make(map[*scheduling.Flight]heldCharge)
	h.mu.Unlock()
	for _, charge := range held {
		charge.timer.Stop()
		charge.done()
	}
}

// hold gives the stream's flight to holds.
func (st *stream) hold() {
	f, s := st.flight, st.server
	st.flight = nil
	outcome := scheduling.Outcome{Reason: scheduling.EndUnseen, Status: st.response.status, Usage: scheduling.UnknownUsage}
	s.cfg.Observer.Noted(NoteHeld)
	s.sayHeld.Do(func() {
		s.cfg.Logger.Warn("the proxy ends its calls before the end of responses: charges are released by estimate, "+
			"and usage is not seen; send the response body (response_body_mode STREAMED or FULL_DUPLEX_STREAMED) for exact accounts",
			"request_body_mode", st.requestMode.String(), "response_body_mode", st.responseMode.String())
	})
	d := time.Duration(0)
	if s.cfg.Hold != nil {
		d = s.cfg.Hold(f)
	}
	s.holds.add(f, d, func() {
		now := s.cfg.Now()
		s.cfg.Observer.Ended(f, outcome, -1, now-f.PickedAt)
		f.Done(outcome, now)
	})
}
