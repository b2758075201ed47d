package fleet

import (
	"sync/atomic"
	"time"
)

// clock runs what is due in the order of its times, and of equal times in the order in which it was asked for.
type clock struct {
	now   time.Duration
	shown atomic.Int64 // now, for those who look from other goroutines
	queue alarms
	asked uint64
}

type alarm struct {
	at    time.Duration
	asked uint64
	do    func()
}

func (a *alarm) before(b *alarm) bool { return a.at < b.at || a.at == b.at && a.asked < b.asked }

// at asks for do to be called at a time, at once where that is past.
func (c *clock) at(when time.Duration, do func()) {
	c.asked++
	c.queue.push(alarm{max(when, c.now), c.asked, do})
}

// step runs what is due next, and reports whether there was anything.
func (c *clock) step() bool {
	if len(c.queue) == 0 {
		return false
	}
	a := c.queue.pop()
	c.now = a.at
	c.shown.Store(int64(a.at))
	a.do()
	return true
}

// alarms is a binary heap: container/heap's would box every alarm.
type alarms []alarm

func (h *alarms) push(a alarm) {
	*h = append(*h, a)
	q := *h
	i := len(q) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !a.before(&q[parent]) {
			break
		}
		q[i] = q[parent]
		i = parent
	}
	q[i] = a
}

// pop takes the first one out, of which there must be one.
func (h *alarms) pop() alarm {
	q := *h
	first, last := q[0], q[len(q)-1]
	q[len(q)-1] = alarm{}
	q = q[:len(q)-1]
	*h = q
	if len(q) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(&q[child]) {
			child++
		}
		if !q[child].before(&last) {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = last
	return first
}
