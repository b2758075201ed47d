package extproc

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// listShards is how many lists the open streams are spread over, so that they seldom wait for each other.
const listShards = 16

// list is a part of the open streams, oldest first. While mu is held none of them ends.
type list struct {
	mu          sync.Mutex
	first, last *stream
	_           [64]byte // a cache line: neighbours are locked by others
}

// listed is a stream's place in a list.
type listed struct {
	in         *list
	prev, next *stream
	since      time.Duration // when it began, on the clock of Config.Now
}

func (l *list) add(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st.place.in, st.place.prev, st.place.next = l, l.last, nil
	if l.last == nil {
		l.first = st
	} else {
		l.last.place.next = st
	}
	l.last = st
}

func (l *list) remove(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if prev := st.place.prev; prev == nil {
		l.first = st.place.next
	} else {
		prev.place.next = st.place.next
	}
	if next := st.place.next; next == nil {
		l.last = st.place.prev
	} else {
		next.place.prev = st.place.prev
	}
	st.place = listed{}
}

// Phase says what an open stream waits for.
type Phase string

// The phases of a stream.
const (
	// PhaseRequest waits for the rest of the request.
	PhaseRequest Phase = "request"
	// PhaseWorking has a message that is being worked on at this moment, and tells nothing else.
	PhaseWorking Phase = "working"
	// PhaseFirstToken has its pick and waits for the first token.
	PhaseFirstToken Phase = "first_token"
	// PhaseEnd waits for the end of the response.
	PhaseEnd Phase = "end"
)

// OpenStream describes a stream that is being served.
type OpenStream struct {
	// ID is the request's id; 0 before its headers.
	ID uint64
	// RequestID is its x-request-id, shortened.
	RequestID string
	// Phase is what it waits for.
	Phase Phase
	// Model is the model or adapter that it asks for; empty before the body was read.
	Model string
	// Endpoint is the address of the one that carries its charge; empty without one.
	Endpoint string
	// Age is the time since it began.
	Age time.Duration
	// HeldBytes is what of the request is held in memory.
	HeldBytes int
}

// ListStreams describes the open streams, oldest first, at most limit of them; left is how many more there are. It waits
// for no stream.
func (s *Server) ListStreams(limit int) (open []OpenStream, left int) {
	var begun []time.Duration
	s.eachStream(func(st *stream) { begun = append(begun, st.place.since) })
	if limit = min(limit, len(begun)); limit <= 0 {
		return nil, len(begun)
	}
	slices.Sort(begun)
	now := s.cfg.Now()
	s.eachStream(func(st *stream) {
		if st.place.since <= begun[limit-1] {
			open = append(open, st.describe(now))
		}
	})
	slices.SortFunc(open, func(a, b OpenStream) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID))
	})
	open = open[:min(limit, len(open))]
	return open, len(begun) - limit
}

// eachStream calls f for every open stream, which cannot end meanwhile. f must not wait for a stream's lock.
func (s *Server) eachStream(f func(*stream)) {
	for i := range s.lists {
		l := &s.lists[i]
		l.mu.Lock()
		for st := l.first; st != nil; st = st.place.next {
			f(st)
		}
		l.mu.Unlock()
	}
}

// maxListedText is the length to which what a client says is shortened, in bytes.
const maxListedText = 256

func (st *stream) describe(now time.Duration) OpenStream {
	o := OpenStream{Phase: PhaseWorking, Age: now - st.place.since}
	if !st.mu.TryLock() {
		return o
	}
	defer st.mu.Unlock()
	r := &st.request
	o.ID, o.RequestID, o.Model = r.ID, shortened(stringHeader(&r.Request, "x-request-id")), shortened(r.Model)
	o.HeldBytes = st.bodyBytes + st.ownBytes
	if st.flight != nil {
		o.Endpoint = st.flight.Endpoint.Address
	}
	switch {
	case !r.replied && !st.response.begun:
		o.Phase = PhaseRequest
	case st.response.firstTokenAt == 0 && st.flight != nil:
		o.Phase = PhaseFirstToken
	default:
		o.Phase = PhaseEnd
	}
	return o
}

// shortened is a copy of a text of a client's, in UTF-8.
func shortened(s string) string {
	return strings.Clone(strings.ToValidUTF8(s[:min(len(s), maxListedText)], "\uFFFD"))
}
