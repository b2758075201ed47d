package engine

import (
	"fmt"
	"net/http"
	"strconv"
)

// query reads a query parameter as FastAPI does, which answers 422 to what it cannot read.
func query[T any](c *call, name string, def T, parse func(string) (T, error)) (T, error) {
	values := c.req.URL.Query()
	if !values.Has(name) {
		return def, nil
	}
	v, err := parse(values.Get(name))
	if err != nil {
		return def, apiError{status: http.StatusUnprocessableEntity, kind: "Bad Request", param: "query." + name,
			message: fmt.Sprintf("query.%s: %v", name, err)}
	}
	return v, nil
}

// onLoop runs f on the model's goroutine.
func (c *call) onLoop(f func()) error {
	if err := c.life.loop.do(f); err != nil {
		return apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: err.Error()}
	}
	return nil
}

// resetCache is POST /reset_prefix_cache. Like vLLM it answers 200 whether it could or not, which
// it cannot while a request runs; reset_running_requests sends those back to the queue first, and
// reset_external empties the offload tier too. The event leaves with the next step.
func (s *Server) resetCache(c *call) error {
	running, err := query(c, "reset_running_requests", false, strconv.ParseBool)
	if err != nil {
		return err
	}
	external, err := query(c, "reset_external", false, strconv.ParseBool)
	if err != nil {
		return err
	}
	var done bool
	if err := c.onLoop(func() {
		model := c.life.loop.model
		if running {
			model.PreemptAll()
		}
		if done = model.ResetCache(); done && external {
			model.ResetOffloaded()
		}
	}); err != nil {
		return err
	}
	return c.json(map[string]bool{"success": done})
}

// sleep is POST /sleep: no step begins until /wake_up. What runs is aborted, or ends first (mode
// wait), or goes on afterwards (keep); what comes meanwhile waits. From level 1 on the cache is
// lost. No event says so before the first step after waking.
func (s *Server) sleep(c *call) error {
	level, err := query(c, "level", 1, func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err == nil && (n < 0 || n > 2) {
			err = fmt.Errorf("must be from 0 to 2, got %d", n)
		}
		return n, err
	})
	if err != nil {
		return err
	}
	mode, err := query(c, "mode", "abort", func(v string) (string, error) {
		if v != "abort" && v != "wait" && v != "keep" {
			return "", fmt.Errorf("must be abort, wait or keep, got %q", v)
		}
		return v, nil
	})
	if err != nil {
		return err
	}
	l := c.life.loop
	if mode == "wait" {
		if err := c.drain(); err != nil {
			return err
		}
	}
	slept := make(chan struct{})
	if err := c.onLoop(func() {
		l.paused = true
		if mode == "abort" {
			l.abortAll()
		}
		l.whenIdle(func() {
			defer close(slept)
			if !l.paused { // woken meanwhile
				return
			}
			if level > 0 {
				l.model.PreemptAll()
				l.model.ResetCache()
			}
			l.asleep = level
		})
	}); err != nil {
		return err
	}
	select {
	case <-slept:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// drain waits until nothing runs, admitting nothing more. A client that does not wait for it lets
// admission go on.
func (c *call) drain() error {
	l := c.life.loop
	drained, gone := make(chan struct{}), false
	var check func()
	check = func() {
		switch {
		case gone:
		case l.model.Stats().Running > 0:
			l.afterStep(check)
		default:
			close(drained)
		}
	}
	if err := c.onLoop(func() { l.model.Hold(true); check() }); err != nil {
		return err
	}
	select {
	case <-drained:
		return nil
	case <-c.ctx.Done():
		_ = l.do(func() { gone = true; l.model.Hold(false) }) // a loop that has ended admits nothing
		return c.ctx.Err()
	}
}

// wakeUp is POST /wake_up.
func (s *Server) wakeUp(c *call) error {
	return c.onLoop(func() {
		l := c.life.loop
		l.paused, l.asleep = false, 0
		l.model.Hold(false)
	})
}

// isSleeping is GET /is_sleeping.
func (s *Server) isSleeping(c *call) error {
	var asleep bool
	if err := c.onLoop(func() { asleep = c.life.loop.paused }); err != nil {
		return err
	}
	return c.json(map[string]bool{"is_sleeping": asleep})
}
