package cursor

import "time"

// ask begins a replay.
func (c *Cursor) ask(s *Step, m mode) {
	if m == fill && !c.some {
		m = fresh
	}
	c.mode, c.progress, c.attempts = m, false, 0
	c.request(s)
}

// request asks for what the replay still needs.
func (c *Cursor) request(s *Step) {
	c.replied, c.overflow, c.asked, c.retryAt = false, false, c.newest, time.Time{}
	s.Ask, s.Whole = AskReplay, c.mode == fresh || c.mode == rebuild
	switch c.mode {
	case check:
		s.From = c.last
	case fill:
		s.From = c.last + 1
	default:
		s.From = 0
	}
}

// again asks once more, an attempt or a whole replay after its pause.
func (c *Cursor) again(s *Step) {
	if c.mode != idle {
		overflow := c.overflow
		c.request(s)
		c.overflow = overflow
		return
	}
	switch {
	case !c.canReplay || !c.connected:
	case !c.some:
		c.ask(s, fresh)
		c.enter(ReasonConnected)
	case c.unproven:
		c.ask(s, check)
		c.enter(ReasonReconnected)
	case c.holes && !c.noRebuild:
		c.ask(s, rebuild)
	case c.unended:
		c.ask(s, fill)
		c.enter(ReasonGap)
	}
}

// stop ends a replay, if there is one.
func (c *Cursor) stop(s *Step, held Held) {
	c.mode, c.overflow = idle, false
	s.Ask, s.Held = AskStop, held
}

// Replayed passes a reply of the replay that was asked for last.
func (c *Cursor) Replayed(now time.Time, m Message) (s Step) {
	first := !c.replied
	c.replied = true
	s.Verdict = Ignore
	switch {
	case c.mode == idle:
	case c.mode == fresh:
		if !c.first(m.Seq) {
			c.lose(ReasonLateStart, true)
		}
		c.mode = fill
		s.Verdict = Apply
		c.advance(m)
	case c.mode == rebuild:
		c.replace(now, m, &s)
	case m.Seq <= c.last:
		return c.repeated(now, m)
	case c.mode == check: // it no longer has what was applied last, or is another that never had
		return c.rewind(now, CauseReplayAbsent)
	case m.Seq == c.last+1:
		s.Verdict = Apply
		c.advance(m)
	case first || c.attempts+1 >= c.config.MaxAttempts: // asked for the missing ones, it begins behind them
		c.lose(ReasonGapLost, true)
		s.Verdict = Apply
		c.advance(m)
	default: // replies were lost on the way: publishers drop what a slow reader does not take
		c.attempts++
		c.request(&s)
	}
	return s
}

// repeated takes a reply that was applied already.
func (c *Cursor) repeated(now time.Time, m Message) Step {
	if c.prints.differ(m) || c.mode == check && m.Seq == c.last && !c.prints.same(m) {
		return c.rewind(now, CauseReplayDiffers)
	}
	if c.mode == check && m.Seq == c.last {
		c.unproven, c.mode, c.progress = false, fill, true
	}
	return Step{Verdict: Ignore}
}

// replace takes the first reply of a rebuild.
func (c *Cursor) replace(now time.Time, m Message, s *Step) {
	if !c.first(m.Seq) {
		c.noRebuild = true
		c.stop(s, HeldRelease)
		return
	}
	c.reset(now)
	c.mode = fill
	s.Forget, s.Verdict = CauseRebuild, Apply
	c.advance(m)
	c.enter(ReasonRebuild)
}

// rewind begins a new generation that a replay has shown. What is held came from the connection that it is on, and stays.
func (c *Cursor) rewind(now time.Time, cause Cause) (s Step) {
	c.reset(now)
	s.Forget, s.Verdict = cause, Ignore
	if c.turn(now); c.mayAsk() {
		c.ask(&s, fresh)
		c.enter(ReasonNewGeneration)
		return s
	}
	s.Ask = AskStop
	c.attempts = 0
	c.finish(&s, ReasonReplayFailed)
	return s
}

// ReplayEnded tells that the engine has replayed all that it has.
func (c *Cursor) ReplayEnded(now time.Time) (s Step) {
	switch c.mode {
	case idle:
		return s
	case check:
		s = c.rewind(now, CauseReplayAbsent)
		s.Verdict = 0
		return s
	case rebuild:
		c.noRebuild = true
	}
	c.tried, c.retries, c.unended = c.asked, 0, false
	if c.overflow && c.progress {
		c.ask(&s, fill)
		return s
	}
	if c.holes && !c.noRebuild { // from a time when replay did not work
		c.ask(&s, rebuild)
		c.settled = true
		c.enter(ReasonReplayed)
		return s
	}
	reason := ReasonReplayed
	if !c.some {
		c.silent, reason = true, ReasonSilence
	}
	c.finish(&s, reason)
	return s
}

// ReplayFailed tells that the replay could not be had or broke off, in the connection or by idling.
func (c *Cursor) ReplayFailed(now time.Time) (s Step) {
	if c.mode == idle {
		return s
	}
	if c.attempts++; c.attempts < c.config.MaxAttempts {
		c.retryAt = now.Add(c.config.Jitter(c.config.AttemptDelay))
		return s
	}
	c.attempts = 0
	c.retryAt = now.Add(c.config.Jitter(c.pause()))
	c.retries++
	c.unended = c.mode == fill
	c.finish(&s, ReasonReplayFailed)
	return s
}

// pause is the time until a replay that failed is tried again.
func (c *Cursor) pause() time.Duration {
	d := c.config.RetryDelay
	for range c.retries {
		if d *= 2; d >= c.config.RetryMax {
			return c.config.RetryMax
		}
	}
	return d
}

// finish ends the replay; what was held follows on it.
func (c *Cursor) finish(s *Step, reason Reason) {
	c.mode, c.overflow, c.settled = idle, false, true
	s.Held = HeldRelease
	c.enter(reason)
}

// CanReplay tells whether the engine has a replay socket, where that becomes known later or changes.
func (c *Cursor) CanReplay(can bool) (s Step) {
	if can == c.canReplay {
		return s
	}
	c.canReplay = can
	if can {
		c.keepUntil = time.Time{}
		s.Held = HeldDrop
		c.again(&s)
		return s
	}
	c.retryAt, c.attempts = time.Time{}, 0
	if c.mode != idle {
		s.Ask = AskStop
		c.unended = c.mode == fill
		c.finish(&s, ReasonReplayFailed)
	}
	return s
}

// Snapshotted tells that the engine has given a snapshot of its cache, which the owner applies between Step.Forget and
// Step.Held. Messages from next on follow on it.
func (c *Cursor) Snapshotted(now time.Time, next uint64) (s Step) {
	if c.some {
		s.Forget = CauseSnapshot
	}
	c.reset(now)
	s.Ask = AskStop
	if next > 0 {
		c.some, c.last = true, next-1
	}
	c.retries, c.attempts, c.retryAt = 0, 0, time.Time{}
	c.finish(&s, ReasonSnapshot)
	return s
}
