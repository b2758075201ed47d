package precise

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// routeOf are some block hashes, others for each number.
func routeOf(number uint64, blocks int) []uint64 {
	hashes := make([]uint64, blocks)
	for i := range hashes {
		hashes[i] = scheduling.Mix64(number<<16 + uint64(i))
	}
	return hashes
}

// What a pick recorded before everything was forgotten is gone: neither its end nor its failure takes anything from the
// picks that came since.
func TestRoutedRecordsFromBeforeForgetting(t *testing.T) {
	for name, until := range map[string]time.Duration{"without an end": 0, "speculative": 5} {
		t.Run(name, func(t *testing.T) {
			r := &newTestHub().newSource().routed
			r.setLive(until > 0)
			hashes := routeOf(1, 50)
			for range 3 {
				before := r.add(hashes, 0, 16, until)
				r.forget()
				now := r.add(hashes, 0, 16, until)
				r.undo(before)
				if blocks, _ := r.size(); blocks != 50 {
					t.Errorf("%d blocks are left of 50", blocks)
				}
				r.undo(now)
				if blocks, _ := r.size(); blocks != 0 || r.hashes != 0 || r.any.Load() {
					t.Errorf("%d blocks and %d hashes are left", blocks, r.hashes)
				}
			}
		})
	}
}

// A record that has ended is another pick's by and by, on another engine perhaps: its first flight leaves it alone.
func TestRoutedRecordsUsedAgain(t *testing.T) {
	h := newTestHub()
	engines := []*routed{&h.newSource().routed, &h.newSource().routed}
	var work sync.WaitGroup
	for _, r := range engines {
		r.setLive(true)
	}
	for i := range uint64(4) {
		work.Go(func() {
			r := engines[i%2]
			for n := range uint64(2000) {
				s := r.add(routeOf(i<<32+n, 8), 0, 16, 1)
				h.queue.push(s.record)
				h.queue.expire(time.Duration(n%2), math.MaxInt)
				r.undo(s)
			}
		})
	}
	work.Wait()
	h.queue.expire(1, math.MaxInt)
	for _, r := range engines {
		if blocks, _ := r.size(); blocks != 0 {
			t.Errorf("%d blocks are left", blocks)
		}
	}
	checkStore(t, h)
}

// TestExpiryIsShared: the first request after a pause does not pay for all that was speculated before it.
func TestExpiryIsShared(t *testing.T) {
	hub := newTestHub()
	r := &hub.newSource().routed
	r.setLive(true)
	for i := range uint64(10) {
		hub.queue.push(r.add(routeOf(i, 100), 0, 16, time.Second).record)
	}
	for _, step := range []struct {
		now    time.Duration
		blocks int
		left   int
	}{{0, 1000, 1000}, {time.Second, 250, 700}, {time.Second, 1, 600}, {time.Second, math.MaxInt, 0}, {time.Second, 1, 0}} {
		hub.queue.expire(step.now, step.blocks)
		if left, _ := r.size(); left != step.left {
			t.Errorf("at %v, %d at once: %d blocks are left, want %d", step.now, step.blocks, left, step.left)
		}
	}
}
