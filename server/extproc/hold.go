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

// add calls firstToken after its time and done after its own, or done at once when the server is closed.
func (h *holds) add(f *scheduling.Flight, prefill, total time.Duration, firstToken, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		done()
		return
	}
	charge := heldCharge{done: done}
	charge.timer = time.AfterFunc(prefill, func() { h.prefilled(f, total-prefill, firstToken) })
	h.held[f] = charge
}

// prefilled tells of the first token, while mu keeps close from ending the flight, and waits on for the end.
func (h *holds) prefilled(f *scheduling.Flight, decode time.Duration, firstToken func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	charge, ok := h.held[f]
	if !ok {
		return
	}
	firstToken()
	charge.timer = time.AfterFunc(decode, func() { h.end(f) })
	h.held[f] = charge
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
	if !st.response.headers {
		st.unanswered()
	}
	st.flight = nil
	outcome := scheduling.Outcome{Reason: scheduling.EndUnseen, Status: st.response.status, Usage: scheduling.UnknownUsage}
	s.cfg.Observer.Noted(NoteHeld)
	first := st.response.firstTokenSince(f.PickedAt)
	st.spans.ended(f, outcome, first, s.cfg.Now()-f.PickedAt, st.request.Choices)
	s.sayHeld.Do(func() {
		if s.cfg.EndStream != EndAfterResponse {
			return // it was asked for
		}
		s.cfg.Logger.Warn("the proxy ends its calls before the end of responses: charges are released by estimate, "+
			"and usage is not seen; send the response body (response_body_mode STREAMED or FULL_DUPLEX_STREAMED) for exact accounts",
			"request_body_mode", st.requestMode.String(), "response_body_mode", st.responseMode.String())
	})
	var prefill, total time.Duration
	if s.cfg.Hold != nil {
		prefill, total = s.cfg.Hold(f)
	}
	if first >= 0 {
		prefill, total = 0, total-prefill
	}
	s.holds.add(f, prefill, total, func() { f.FirstToken(s.cfg.Now()) }, func() {
		now := s.cfg.Now()
		s.cfg.Observer.Ended(f, outcome, first, now-f.PickedAt)
		f.Done(outcome, now)
	})
}
