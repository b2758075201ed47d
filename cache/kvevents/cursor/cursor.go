package cursor

import "time"

// Cursor follows one source. It is not for use by several goroutines at once; times must not run backwards.
type Cursor struct {
	config Config
	state  State
	reason Reason

	// The source as such.
	canReplay bool
	settled   bool
	zeroBased bool // the publisher begins at 0: one that is first heard at 1 has lost something

	// The generation, the life of one process.
	since     time.Time // when it began
	silent    bool      // it had time to say something, and did not
	some      bool      // something was applied, up to
	last      uint64    // this number
	prints    prints
	holes     bool   // something before last is missing, for the reason
	why       Reason // of this name,
	noRebuild bool   // and the engine does not have it any more
	unended   bool   // a replay failed behind last: more may have been published

	// The connection.
	connected bool
	unproven  bool      // nothing has shown yet that the process is the one of the connection before
	young     bool      // nothing of it was applied yet
	seen      bool      // a live message was judged, the last one being
	live      Message   // this
	newest    uint64    // one more than the largest live number that came, judged or held
	tried     uint64    // live numbers below this were out when a replay was asked that has ended
	keepUntil time.Time // how long what is applied is kept as well

	// The replay.
	mode     mode
	replied  bool // this attempt brought a reply
	progress bool // this replay, or an attempt before, moved last
	overflow bool // held messages were dropped since it was asked
	asked    uint64
	attempts int       // that failed at a stretch
	retries  int       // stretches that failed
	retryAt  time.Time // when to ask again; while idle, replay counts as broken until then
	turns    int       // generations that began one soon after the other
	turned   time.Time // when the last one began
}

// mode is what a replay is for.
type mode uint8

const (
	idle    mode = iota // there is none
	fresh               // the whole history; nothing is known
	check               // from last, whose bytes have to be the same
	fill                // from what follows on last
	rebuild             // the whole history in place of one with holes, if the engine has it all
)

// New returns the Cursor of a source of which nothing is known.
func New(c Config, now time.Time) *Cursor {
	return &Cursor{config: c.withDefaults(), canReplay: c.CanReplay, since: now}
}

// State is how far what was applied can be trusted, and Reason is why that is so.
func (c *Cursor) State() State { return c.state }

// Reason is the reason of the last change of the state.
func (c *Cursor) Reason() Reason { return c.reason }

// Last is the largest sequence number of this generation that was applied; false: none was.
func (c *Cursor) Last() (seq uint64, ok bool) { return c.last, c.some }

// Settled reports whether the source was replayed, has nothing to replay, or has given that up: from then on waiting
// for it brings nothing.
func (c *Cursor) Settled() bool { return c.settled }

// Connected tells of a new connection to the publisher.
func (c *Cursor) Connected(now time.Time) (s Step) {
	if c.connected {
		s = c.Disconnected(now)
	}
	c.connected, c.unproven = true, c.some
	c.young, c.seen, c.newest, c.tried = true, false, 0, 0
	switch {
	case !c.canReplay:
		c.settled = true
		c.enter(ReasonReconnected)
	case c.some:
		c.ask(&s, check)
		c.enter(ReasonReconnected)
	default:
		c.ask(&s, fresh)
		c.enter(ReasonConnected)
	}
	return s
}

// Disconnected tells that the connection is gone. What is held came from it, and so may a replay that runs: both go.
func (c *Cursor) Disconnected(time.Time) (s Step) {
	c.connected = false
	c.stop(&s, HeldDrop)
	c.attempts, c.retryAt, c.keepUntil = 0, time.Time{}, time.Time{}
	c.enter(ReasonDisconnected)
	return s
}

// Live passes a message of the connection, or one that was held.
func (c *Cursor) Live(now time.Time, m Message) (s Step) {
	c.newest = max(c.newest, m.Seq+1)
	if c.mode != idle {
		return Step{Verdict: Hold}
	}
	switch {
	case !c.some:
		return c.begin(now, m)
	case c.unproven:
		return c.prove(now, m)
	case c.seen && m.Seq <= c.live.Seq:
		if m.Seq == c.live.Seq && m.Print == c.live.Print {
			return Step{Verdict: Ignore}
		}
		return c.renew(now, CauseBackwards, m)
	case m.Seq <= c.last: // a replay brought it before the connection did
		if c.prints.differ(m) {
			return c.renew(now, CauseBackwards, m)
		}
		c.seen, c.live = true, m
		return Step{Verdict: Ignore}
	case m.Seq > c.last+1:
		if c.mayAsk() && m.Seq >= c.tried {
			s.Verdict, s.Gap = Hold, true
			c.ask(&s, fill)
			c.enter(ReasonGap)
			return s
		}
		s.Gap = true
		c.lose(ReasonGapLost, c.mayAsk())
	}
	c.accept(now, m, &s)
	if m.Clears {
		c.enter(ReasonCleared)
	}
	c.enter(ReasonContinued)
	return s
}

// begin takes the first message of a generation.
func (c *Cursor) begin(now time.Time, m Message) (s Step) {
	s.Gap = !c.first(m.Seq)
	if m.Seq > 0 && m.Seq >= c.tried && c.mayAsk() {
		s.Verdict = Hold
		c.ask(&s, fresh)
		c.enter(ReasonGap)
		return s
	}
	c.open(now, m, &s)
	c.enter(ReasonFirst)
	return s
}

// prove takes the first message of a new connection that no replay has vouched for.
func (c *Cursor) prove(now time.Time, m Message) (s Step) {
	switch {
	case m.Seq == c.last+1:
		c.unproven = false
		c.accept(now, m, &s)
	case m.Seq == c.last && c.prints.same(m):
		c.unproven, c.seen, c.live = false, true, m
		s.Verdict = Ignore
	default:
		return c.renew(now, CauseReconnect, m)
	}
	c.enter(ReasonContinued)
	return s
}

// renew takes a live message as the first of a new generation; where the engine can be asked, what it said before comes
// first.
func (c *Cursor) renew(now time.Time, cause Cause, m Message) (s Step) {
	c.reset(now)
	s = Step{Forget: cause, Held: HeldDrop}
	c.newest = m.Seq + 1
	c.turn(now)
	if c.mayAsk() {
		s.Verdict = Hold
		c.ask(&s, fresh)
	} else {
		c.open(now, m, &s)
	}
	c.enter(ReasonNewGeneration)
	return s
}

// open takes a live message as a generation's first, whatever came before it.
func (c *Cursor) open(now time.Time, m Message, s *Step) {
	asking := c.canReplay && !c.retryAt.IsZero() // which will show whether 1 is the first number
	if !c.first(m.Seq) || m.Seq > 0 && asking {
		c.lose(ReasonLateStart, c.mayAsk())
	}
	c.accept(now, m, s)
}

// accept takes a live message as the next one.
func (c *Cursor) accept(now time.Time, m Message, s *Step) {
	if !c.canReplay {
		if c.young {
			c.keepUntil = now.Add(c.config.KeepFor)
		}
		s.Keep = now.Before(c.keepUntil)
	}
	s.Verdict = Apply
	c.young, c.seen, c.live = false, true, m
	c.advance(m)
}

// advance moves last to a message that is applied, live or replayed.
func (c *Cursor) advance(m Message) {
	c.some, c.last, c.silent, c.unended = true, m.Seq, false, false
	c.prints.put(m.Seq, m.Print)
	c.zeroBased = c.zeroBased || m.Seq == 0
	c.attempts, c.progress = 0, true
	switch {
	case m.Unreadable:
		c.lose(ReasonUnreadable, true)
	case m.Clears:
		c.holes, c.noRebuild, c.retryAt = false, false, time.Time{}
	}
}

// Restarted takes a sign from elsewhere that the engine was started anew. Where there is no replay, what was kept of the
// connection is the new process's: the old one's connection ended with it.
func (c *Cursor) Restarted(now time.Time) (s Step) {
	if c.some {
		s.Forget = CauseRestart
	}
	c.reset(now)
	c.retries, c.retryAt = 0, time.Time{}
	if c.connected && c.canReplay {
		c.ask(&s, fresh)
	} else {
		s.Held = HeldRelease
	}
	c.enter(ReasonRestart)
	return s
}

// Overflowed tells that the message at hand, and all that were held before it, are dropped since there are too many.
func (c *Cursor) Overflowed() Step {
	c.overflow = c.mode != idle
	c.keepUntil = time.Time{}
	return Step{Held: HeldDrop}
}

// Tick lets time pass.
func (c *Cursor) Tick(now time.Time) (s Step) {
	if at := c.silentAt(); !at.IsZero() && !now.Before(at) {
		c.silent = true
		c.enter(ReasonSilence)
	}
	if !c.keepUntil.IsZero() && !now.Before(c.keepUntil) {
		c.keepUntil = time.Time{}
		s.Held = HeldDrop
	}
	if !c.retryAt.IsZero() && !now.Before(c.retryAt) {
		c.retryAt = time.Time{}
		c.again(&s)
	}
	return s
}

// Next is when Tick has something to do, the zero time where it has not.
func (c *Cursor) Next() time.Time {
	next := c.silentAt()
	for _, at := range [...]time.Time{c.keepUntil, c.retryAt} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (c *Cursor) silentAt() time.Time {
	if c.some || c.silent || c.mode != idle {
		return time.Time{}
	}
	return c.since.Add(c.config.SilentAfter)
}

// first reports whether a number is the first that the publisher gives out.
func (c *Cursor) first(seq uint64) bool { return seq == 0 || seq == 1 && !c.zeroBased }

// mayAsk reports whether a replay could bring anything now.
func (c *Cursor) mayAsk() bool { return c.canReplay && c.connected && c.retryAt.IsZero() }

// lose notes that something before the message at hand is missing; final says that the engine does not have it any more.
func (c *Cursor) lose(why Reason, final bool) {
	if !c.holes {
		c.holes, c.why = true, why
	}
	c.noRebuild = c.noRebuild || final
}

// turn counts a generation that messages have shown. What turns at a stretch is no engine that restarts: the replay socket is
// another process's than the publisher, say. Then replay counts as broken for a while, so that the two do not chase each
// other.
func (c *Cursor) turn(now time.Time) {
	if now.Sub(c.turned) >= c.config.RetryDelay {
		c.turns = 0
	}
	c.turned = now
	if c.turns++; c.turns > c.config.MaxAttempts && c.canReplay {
		c.retryAt = now.Add(c.config.Jitter(c.pause()))
		c.retries++
	}
}

// reset begins a generation.
func (c *Cursor) reset(now time.Time) {
	c.since, c.silent, c.some, c.last = now, false, false, 0
	c.prints.clear()
	c.holes, c.noRebuild, c.unended = false, false, false
	c.unproven, c.young, c.seen, c.tried = false, true, false, 0
}

// enter brings the state into line with what is known.
func (c *Cursor) enter(reason Reason) {
	next := c.derive()
	if next == c.state {
		return
	}
	if next == Degraded && c.connected && c.holes {
		reason = c.why
	}
	c.state, c.reason = next, reason
}

func (c *Cursor) derive() State {
	switch {
	case c.mode != idle && c.mode != rebuild:
		return Replaying
	case !c.some && c.silent:
		return Silent
	case !c.some:
		return Initial
	case !c.connected, c.unproven, c.unended, c.holes:
		return Degraded
	}
	return Live
}
