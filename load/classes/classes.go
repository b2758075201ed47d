// Package classes tells classes of endpoints apart: those that are taken to be alike, and of which something is learnt together.
package classes

import (
	"maps"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
)

// Max is how many classes are told apart at a time; the endpoints of further ones are one class together, beside these.
const Max = 32

// together is the name of that class.
const together = ""

// Set are the classes, with what is learnt of each. Endpoints are alike that have the same engine and the same value of a label.
// It is safe for concurrent use. New makes one.
type Set[C any] struct {
	label string
	fresh func() *C

	mu  sync.Mutex
	all map[string]*C
}

// New returns a set without classes. label is empty where all endpoints of an engine are alike, and fresh makes what is known of a
// class at its beginning.
func New[C any](label string, fresh func() *C) *Set[C] {
	return &Set[C]{label: label, fresh: fresh, all: map[string]*C{}}
}

// Of is an endpoint's class. It may be another one than before once the label or the snapshot has changed.
func (s *Set[C]) Of(e *scheduling.Endpoint) *C {
	name := s.nameOf(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[name]
	if c == nil && len(s.all) >= Max {
		name = together // until there is room
		c = s.all[name]
	}
	if c == nil {
		c = s.fresh()
		s.all[name] = c
	}
	return c
}

func (s *Set[C]) nameOf(e *scheduling.Endpoint) string {
	return e.Engine + "\x00" + e.Labels[s.label]
}

// Follow makes room where endpoints of other classes came and went: with a class for each rollout, say.
func (s *Set[C]) Follow(snapshot *scheduling.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < Max {
		return
	}
	used := map[string]bool{}
	for _, e := range snapshot.Endpoints {
		if e != nil {
			used[s.nameOf(e)] = true
		}
	}
	used[together] = len(used) > Max
	maps.DeleteFunc(s.all, func(name string, _ *C) bool { return !used[name] })
}

// Len is how many classes there are, the one of the rest included.
func (s *Set[C]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Count is how many classes are as f says.
func (s *Set[C]) Count(f func(*C) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		if f(c) {
			n++
		}
	}
	return n
}

// Full reports whether there are endpoints of several classes that are learnt together.
func (s *Set[C]) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[together] != nil
}
