// Package memo keeps the tokens of prompts that were rendered before, and joins those of a conversation's beginning with
// those of its new messages.
package memo

import (
	"encoding/binary"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/scheduling"
)

// Key names a prompt by everything that its tokens depend on: a 128-bit hash, seeded, so that clients cannot make two
// prompts collide.
type Key struct{ hi, lo uint64 }

// With is the key of what k names followed by data (XXH3-128).
func (k Key) With(seed uint64, data []byte) Key { return k.with(seed, xxh3.Hash128Seed(data, seed)) }

// WithString is With for a string.
func (k Key) WithString(seed uint64, data string) Key {
	return k.with(seed, xxh3.HashString128Seed(data, seed))
}

func (k Key) with(seed uint64, h xxh3.Uint128) Key {
	var both [32]byte
	binary.LittleEndian.PutUint64(both[0:], k.hi)
	binary.LittleEndian.PutUint64(both[8:], k.lo)
	binary.LittleEndian.PutUint64(both[16:], h.Hi)
	binary.LittleEndian.PutUint64(both[24:], h.Lo)
	h = xxh3.Hash128Seed(both[:], seed)
	return Key{hi: h.Hi, lo: h.Lo}
}

// Sum is 64 bits of the key.
func (k Key) Sum() uint64 { return k.lo }

// Prompt is a prompt's tokens. It is immutable, whoever holds it.
type Prompt struct {
	// Tokens are the first prompt's token ids.
	Tokens []uint32
	// Features are the images, recordings and the like in it, by offset.
	Features []scheduling.PromptFeature
	// Count is the number of tokens over all prompts of the request, and Prompts their number.
	Count, Prompts int
	// Epoch is the quarter of an hour that it was rendered in (see EpochOf); 0 where that is not certain.
	Epoch int64
	// Plain says that it is a conversation of which every message is plain.
	Plain bool
	// Joined says that no engine rendered it as a whole.
	Joined bool
}

// What a prompt takes beside its tokens, in bytes: its own fields, the entry, its place in the map.
const (
	promptBytes  = 288
	featureBytes = 128
	tokenBytes   = 4
)

// size is what a prompt takes, in bytes.
func (p *Prompt) size() int {
	return promptBytes + tokenBytes*cap(p.Tokens) + featureBytes*len(p.Features)
}

// Store holds prompts, the least recently used ones going first, within a bound in bytes. It is safe for concurrent use.
type Store struct {
	limit int

	mu      sync.Mutex
	entries map[Key]*entry
	recent  entry // the ring's anchor: next is the most recently used
	bytes   int
	evicted int64
}

type entry struct {
	key        Key
	prompt     *Prompt
	prev, next *entry
}

// NewStore returns an empty store of at most so many bytes.
func NewStore(bytes int) *Store {
	s := &Store{limit: bytes, entries: map[Key]*entry{}}
	s.recent.prev, s.recent.next = &s.recent, &s.recent
	return s
}

// Get is the prompt of a key, or nil.
func (s *Store) Get(k Key) *Prompt {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	if e == nil {
		return nil
	}
	e.unlink()
	s.link(e)
	return e.prompt
}

// Peek is Get, but uses the prompt no more recently.
func (s *Store) Peek(k Key) *Prompt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[k]; e != nil {
		return e.prompt
	}
	return nil
}

// Put keeps a prompt, in the place of the one that its key had. One that takes more than an eighth of the store is not
// kept.
func (s *Store) Put(k Key, p *Prompt) {
	size := p.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
	if size > s.limit/8 {
		return
	}
	e := &entry{key: k, prompt: p}
	s.entries[k] = e
	s.link(e)
	s.bytes += size
	for s.bytes > s.limit {
		s.evicted++
		s.remove(s.recent.prev.key)
	}
}

// Remove forgets a key.
func (s *Store) Remove(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
}

// Purge forgets everything.
func (s *Store) Purge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.entries)
	s.recent.prev, s.recent.next, s.bytes = &s.recent, &s.recent, 0
}

// Size is the number of prompts held, what they take in bytes, and how many had to go for others.
func (s *Store) Size() (prompts, bytes int, evicted int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries), s.bytes, s.evicted
}

// Limit is the bound in bytes.
func (s *Store) Limit() int { return s.limit }

func (s *Store) remove(k Key) {
	e := s.entries[k]
	if e == nil {
		return
	}
	delete(s.entries, k)
	e.unlink()
	s.bytes -= e.prompt.size()
}

func (s *Store) link(e *entry) {
	e.prev, e.next = &s.recent, s.recent.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }
