package decisionlog

import (
	"sync"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// shardCount is how many locks the decisions are spread over. A decision takes the lock of its own id only.
const shardCount = 64

// entry is a decision on its way to the writer.
type entry struct {
	id        uint64
	cycle     *scheduling.Cycle
	requestID []byte
	prompt    prompt
	at        time.Time
	bytes     int64 // what it counts for
	ended     bool
	ending    record.Ending
	next      *entry // of a queue
}

// shard holds the decisions of some ids: those that wait for their ends, and a queue of those that wait for the writer.
type shard struct {
	mu    sync.Mutex
	slots []*entry // by id, with linear probing; a power of two, at most half full
	used  int
	first *entry
	last  *entry
	_     [64]byte // another shard's lock is in another cache line
}

func (s *shard) home(id uint64) int { return int(scheduling.Mix64(id)) & (len(s.slots) - 1) }

// add keeps an entry until its end; false where there is no room.
func (s *shard) add(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if 2*s.used >= len(s.slots) {
		return false
	}
	i := s.home(e.id)
	for s.slots[i] != nil {
		i = (i + 1) & (len(s.slots) - 1)
	}
	s.slots[i] = e
	s.used++
	return true
}

// end moves the entry with an id to the queue, with its ending; false where there is none.
func (s *shard) end(id uint64, ending *record.Ending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.home(id)
	for ; s.slots[i] != nil; i = (i + 1) & (len(s.slots) - 1) {
		if s.slots[i].id == id {
			break
		}
	}
	e := s.slots[i]
	if e == nil {
		return false
	}
	s.remove(i)
	e.ended, e.ending = true, *ending
	s.append(e)
	return true
}

// remove empties a slot and moves up what was put behind it because of it.
func (s *shard) remove(i int) {
	mask := len(s.slots) - 1
	for j := i; ; {
		j = (j + 1) & mask
		if s.slots[j] == nil {
			break
		}
		if home := s.home(s.slots[j].id); (j-home)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = nil
	s.used--
}

// queue hands an entry to the writer.
func (s *shard) queue(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(e)
}

func (s *shard) append(e *entry) {
	e.next = nil
	if s.first == nil {
		s.first = e
	} else {
		s.last.next = e
	}
	s.last = e
}

// take empties the queue.
func (s *shard) take() *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.first
	s.first, s.last = nil, nil
	return e
}

// giveUp moves all that waits for its end to the queue, and returns how many that were.
func (s *shard) giveUp() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.used
	for i, e := range s.slots {
		if e != nil {
			s.append(e)
			s.slots[i] = nil
		}
	}
	s.used = 0
	return n
}
