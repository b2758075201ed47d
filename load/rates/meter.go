package rates

import (
	"math"
	"sync"
	"time"
)

// meter integrates what an endpoint is busy with.
type meter struct {
	mu       sync.Mutex
	at       time.Duration
	pending  int           // requests before their first token
	decoding int           // requests after it
	busy     time.Duration // in which any request was pending
	company  time.Duration // of all decoding requests, added up
	gone     bool          // the endpoint is no longer one of the pool: whether it is busy does not count
}

// reading is what a meter shows.
type reading struct{ busy, company time.Duration }

// move brings the meter to a moment and changes what the endpoint has. It returns the reading, and by how much the number
// of busy endpoints changes: -1, 0 or 1. A moment before the latest one, which streams served by several goroutines
// can come with, counts as the latest one.
func (m *meter) move(now time.Duration, pending, decoding int) (r reading, busier int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if dt := now - m.at; dt > 0 {
		m.at = now
		if m.pending > 0 {
			m.busy += dt
		}
		m.company += dt * time.Duration(m.decoding)
	}
	before := m.pending > 0 && !m.gone
	m.pending += pending
	m.decoding += decoding
	switch after := m.pending > 0 && !m.gone; {
	case after && !before:
		busier = 1
	case before && !after:
		busier = -1
	}
	return reading{m.busy, m.company}, busier
}

// leave takes the endpoint out of those that count, and returns by how much the number of busy endpoints changes.
func (m *meter) leave() (busier int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending > 0 && !m.gone {
		busier = -1
	}
	m.gone = true
	return busier
}

// utilisation is the share of the endpoints that have prompts to compute, in the recent past.
type utilisation struct {
	mu        sync.Mutex
	at        time.Duration
	busy      int // endpoints
	endpoints int
	share     float64
	weight    float64 // of what has been seen: from 0 at the beginning to 1
}

const (
	// utilisationForget is the time after which a moment's weight has fallen to 1/e.
	utilisationForget = time.Minute
	// halfBusy is where the share begins: α is 1 there.
	halfBusy = 0.5
)

// move brings the share to a moment, changes the number of busy endpoints, and returns the share.
func (u *utilisation) move(now time.Duration, busier int) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if dt := now - u.at; dt > 0 {
		u.at = now
		if u.endpoints > 0 {
			keep := math.Exp(-float64(dt) / float64(utilisationForget))
			u.share = u.share*keep + min(1, float64(max(0, u.busy))/float64(u.endpoints))*(1-keep)
			u.weight = u.weight*keep + 1 - keep
		}
	}
	u.busy += busier
	return u.value()
}

func (u *utilisation) value() float64 { return u.share + (1-u.weight)*halfBusy }

// latest is the share as of the last decision or end of a request.
func (u *utilisation) latest() float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.value()
}

// resize says how many endpoints there are.
func (u *utilisation) resize(endpoints int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endpoints = endpoints
}
