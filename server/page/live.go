package page

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fragment is a piece of HTML that can be replaced alone: one element.
type fragment struct {
	key  string
	html string
}

// list is an element of the page whose children are fragments.
type list struct {
	name  string // the element's id
	items []fragment
}

// state is the page at one time. It does not change once it is published.
type state struct {
	seq   uint64
	at    time.Time
	lists []list
	view  *view

	mu       sync.Mutex
	searched map[string]*state // what a search shows instead
	steps    map[uint64][]byte // what makes this state of an earlier one, by its seq
	whole    []byte            // the page
}

const (
	keptStates   = 8  // for readers that come back
	keptSearches = 32 // of one state
)

// live is the sequence of states. A state is made when somebody asks and the last one is a period old.
type live struct {
	name   string // of this sequence: another process has another one
	render func(before *state) *state

	mu     sync.Mutex
	states []*state // the newest last
}

func instance() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// now is the newest state.
func (l *live) now() *state {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last *state
	if n := len(l.states); n > 0 {
		last = l.states[n-1]
		if time.Since(last.at) < period {
			return last
		}
	}
	s := l.render(last)
	s.seq = 1
	if last != nil {
		s.seq = last.seq + 1
	}
	s.steps = make(map[uint64][]byte)
	s.searched = make(map[string]*state)
	if len(l.states) == keptStates {
		copy(l.states, l.states[1:])
		l.states = l.states[:keptStates-1]
	}
	l.states = append(l.states, s)
	return s
}

// id names a state for a reader that comes back.
func (l *live) id(s *state) string { return l.name + "-" + strconv.FormatUint(s.seq, 10) }

// find is the state with an id; nil where it is not kept.
func (l *live) find(id string) *state {
	name, number, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || name != l.name {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.states {
		if s.seq == seq {
			return s
		}
	}
	return nil
}

// search is the state as somebody sees it who searches the endpoints. The same state for the same words, as a rule.
func (s *state) search(words string) (*state, error) {
	if words == "" {
		return s, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.searched[words]; found != nil {
		return found, nil
	}
	found := &state{seq: s.seq, at: s.at, view: s.view, steps: make(map[uint64][]byte)}
	for _, l := range s.lists {
		switch l.name {
		case listEndpoints, listEndpointsNote:
		default:
			found.lists = append(found.lists, l)
		}
	}
	lists, err := renderEndpoints(s.view, words, nil)
	if err != nil {
		return nil, err
	}
	found.lists = append(found.lists, lists...)
	if len(s.searched) < keptSearches {
		s.searched[words] = found
	}
	return found, nil
}

// html are the fragments of a list, one after another.
func (s *state) html(name string) string {
	var b strings.Builder
	for _, l := range s.lists {
		if l.name == name {
			for _, f := range l.items {
				b.WriteString(f.html)
			}
		}
	}
	return b.String()
}

// change is what becomes of a list.
type change struct {
	// Order are the keys of its fragments; null where they stay as they are.
	Order []string `json:"order"`
	// HTML are the fragments that are new or different.
	HTML map[string]string `json:"html,omitempty"`
}

// step is what makes s of an earlier state, or of nothing; nil where nothing changed.
func (s *state) step(before *state) ([]byte, error) {
	if before == s {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from := uint64(0)
	if before != nil {
		from = before.seq
	}
	if b, ok := s.steps[from]; ok {
		return b, nil
	}
	b, err := oneLine(changes(before, s))
	if err != nil {
		return nil, err
	}
	if len(s.steps) < keptStates {
		s.steps[from] = b
	}
	return b, nil
}

func changes(before, after *state) map[string]change {
	all := make(map[string]change)
	for _, l := range after.lists {
		var old []fragment
		for i := range before.listsOrNone() {
			if before.lists[i].name == l.name {
				old = before.lists[i].items
			}
		}
		if c, changed := l.since(old); changed {
			all[l.name] = c
		}
	}
	return all
}

func (s *state) listsOrNone() []list {
	if s == nil {
		return nil
	}
	return s.lists
}

func (l list) since(old []fragment) (c change, changed bool) {
	known := make(map[string]string, len(old))
	for _, f := range old {
		known[f.key] = f.html
	}
	moved := len(old) != len(l.items)
	order := make([]string, len(l.items))
	c.HTML = make(map[string]string)
	for i, f := range l.items {
		order[i] = f.key
		moved = moved || old[i].key != f.key
		if html, ok := known[f.key]; !ok || html != f.html {
			c.HTML[f.key] = f.html
		}
	}
	if moved {
		c.Order = order
	}
	return c, moved || len(c.HTML) > 0
}

// oneLine writes JSON on one line, nil for nothing. HTML is left as it is: it stands in no HTML page.
func oneLine(all map[string]change) ([]byte, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(all); err != nil {
		return nil, fmt.Errorf("writing an update: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
