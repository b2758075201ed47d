package fleet

import (
	"container/heap"
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

// at asks for do to be called at a time, at once where that is past.
func (c *clock) at(when time.Duration, do func()) {
	c.asked++
	heap.Push(&c.queue, alarm{max(when, c.now), c.asked, do})
}

// step runs what is due next, and reports whether there was anything.
func (c *clock) step() bool {
	if len(c.queue) == 0 {
		return false
	}
	a := heap.Pop(&c.queue).(alarm)
	c.now = a.at
	c.shown.Store(int64(a.at))
	a.do()
	return true
}

type alarms []alarm

func (a alarms) Len() int      { return len(a) }
func (a alarms) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a alarms) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].asked < a[j].asked
}
func (a *alarms) Push(x any) { *a = append(*a, x.(alarm)) }
func (a *alarms) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	(*a)[last] = alarm{}
	*a = (*a)[:last]
	return x
}
