// Package classes tells classes of endpoints apart: those that are taken to be alike, and of which something is learnt together.
package classes

import (
	"maps"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
)

// Max is how many classes are told apart at a time; the endpoints of further ones are one class together, beside these.
const Max = 32

// name is what tells a class from others. It is no string: to look a class up must not allocate.
type name struct {
	engine, value string
	together      bool // the class of the rest
}

// together is the name of that one.
var together = name{together: true}

// Set are the classes, with what is learnt of each. Endpoints are alike that have the same engine and the same value of a label.
// It is safe for concurrent use. New makes one.
type Set[C any] struct {
	label string
	fresh func() *C

	mu  sync.Mutex
	all map[name]*C
}

// New returns a set without classes. label is empty where all endpoints of an engine are alike, and fresh makes what is known of a
// class at its beginning.
func New[C any](label string, fresh func() *C) *Set[C] {
	return &Set[C]{label: label, fresh: fresh, all: map[name]*C{}}
}

// Of is an endpoint's class. It may be another one than before once the label or the snapshot has changed.
func (s *Set[C]) Of(e *scheduling.Endpoint) *C {
	n := s.nameOf(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[n]
	if c == nil && len(s.all) >= Max {
		n = together // until there is room
		c = s.all[n]
	}
	if c == nil {
		c = s.fresh()
		s.all[n] = c
	}
	return c
}

func (s *Set[C]) nameOf(e *scheduling.Endpoint) name {
	return name{engine: e.Engine, value: e.Labels[s.label]}
}

// Follow makes room where endpoints of other classes came and went: with a class for each rollout, say.
func (s *Set[C]) Follow(snapshot *scheduling.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < Max {
		return
	}
	used := map[name]bool{}
	for _, e := range snapshot.Endpoints {
		if e != nil {
			used[s.nameOf(e)] = true
		}
	}
	used[together] = len(used) > Max
	maps.DeleteFunc(s.all, func(n name, _ *C) bool { return !used[n] })
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
