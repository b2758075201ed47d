package zmtp

import (
	"bytes"
	"sync"
)

// batchBytes bounds what is written to a subscriber at once, under one write timeout; a larger message goes alone.
const batchBytes = 256 << 10

// maxTopicBytes bounds what one subscriber's topics hold together.
const maxTopicBytes = 256 << 10

// subscriber is a Publisher's peer: what it asks for, and what waits for it.
type subscriber struct {
	conn    *Conn
	options PublisherOptions

	topics struct {
		sync.RWMutex
		list  []topic
		bytes int
	}

	mu      sync.Mutex
	filled  sync.Cond // waiting got a message, or stopped
	waiting [][]byte  // encoded messages, oldest first
	bytes   int       // of waiting
	stopped bool
}

// topic is subscribed to as many times as it was asked for less than it was cancelled.
type topic struct {
	prefix []byte
	count  int
}

func newSubscriber(c *Conn, o PublisherOptions) *subscriber {
	s := &subscriber{conn: c, options: o}
	s.filled.L = &s.mu
	return s
}

// read follows the peer's subscriptions until the connection ends.
func (s *subscriber) read() {
	for {
		frames, err := s.conn.Receive()
		if err != nil {
			return
		}
		if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1 {
			continue // what an XSUB says beyond subscriptions
		}
		if frames[0][0] == 0 {
			s.cancel(frames[0][1:])
		} else if !s.subscribe(frames[0][1:]) {
			return
		}
	}
}

func (s *subscriber) find(prefix []byte) int {
	for i, t := range s.topics.list {
		if bytes.Equal(t.prefix, prefix) {
			return i
		}
	}
	return -1
}

func (s *subscriber) subscribe(prefix []byte) bool {
	s.topics.Lock()
	defer s.topics.Unlock()
	if i := s.find(prefix); i >= 0 {
		s.topics.list[i].count++
		return true
	}
	if len(s.topics.list) >= s.options.MaxTopics || s.topics.bytes+len(prefix) > maxTopicBytes {
		return false
	}
	s.topics.bytes += len(prefix)
	s.topics.list = append(s.topics.list, topic{bytes.Clone(prefix), 1})
	return true
}

func (s *subscriber) cancel(prefix []byte) {
	s.topics.Lock()
	defer s.topics.Unlock()
	i := s.find(prefix)
	if i < 0 {
		return
	}
	list := s.topics.list
	if list[i].count--; list[i].count == 0 {
		s.topics.bytes -= len(prefix)
		last := len(list) - 1
		list[i], list[last] = list[last], topic{}
		s.topics.list = list[:last]
	}
}

func (s *subscriber) wants(first []byte) bool {
	s.topics.RLock()
	defer s.topics.RUnlock()
	for _, t := range s.topics.list {
		if bytes.HasPrefix(first, t.prefix) {
			return true
		}
	}
	return false
}

func (s *subscriber) topicCount() int {
	s.topics.RLock()
	defer s.topics.RUnlock()
	return len(s.topics.list)
}

// offer queues an encoded message; false says that it was dropped.
func (s *subscriber) offer(encoded []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := len(s.waiting) >= s.options.Queue || len(s.waiting) > 0 && s.bytes+len(encoded) > s.options.QueueBytes
	if full || s.stopped {
		return s.stopped // one that goes has no queue to overflow
	}
	s.waiting = append(s.waiting, encoded)
	s.bytes += len(encoded)
	s.filled.Signal()
	return true
}

// take moves the oldest messages into batch, waiting for one; none is the end.
func (s *subscriber) take(batch [][]byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) == 0 && !s.stopped {
		s.filled.Wait()
	}
	if s.stopped {
		return nil
	}
	n, size := 0, 0
	for n < len(s.waiting) && n < cap(batch) && (n == 0 || size+len(s.waiting[n]) <= batchBytes) {
		size += len(s.waiting[n])
		n++
	}
	batch = append(batch, s.waiting[:n]...)
	clear(s.waiting[:n])
	s.waiting = s.waiting[n:]
	s.bytes -= size
	return batch
}

// write sends what is queued until the connection fails or stop is called.
func (s *subscriber) write() {
	batch := make([][]byte, 0, 64)
	for {
		taken := s.take(batch[:0])
		if len(taken) == 0 {
			return
		}
		if err := s.conn.writeBatch(taken); err != nil {
			return // the connection is closed, which ends read
		}
		clear(taken)
	}
}

func (s *subscriber) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.waiting, s.bytes = nil, 0
	s.filled.Broadcast()
}
