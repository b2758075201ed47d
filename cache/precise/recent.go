package precise

import "github.com/sluice-epp/sluice/cache/precise/chain"

// recent are the blocks that a source stored last: an array in which later ones overwrite earlier ones.
type recent [recentSlots]stored

type stored struct {
	hash uint64 // the index's
	name uint64 // the engine's
	tick uint32
	// earlier is the tick of what was noted in the slot before, of this block or another.
	earlier uint32
}

const (
	recentSlots = 4096
	recentBytes = recentSlots * 24
)

func (s *source) watchRecent() {
	if s.recent == nil {
		s.recent, s.watchedFrom = new(recent), s.tick
	}
}

func (s *source) noteRecent(hash, name uint64) {
	if s.recent != nil {
		slot := &s.recent[hash%recentSlots]
		*slot = stored{hash, name, s.tick, slot.tick}
	}
}

// now is the tick of the last batch that was taken in, for contradict. A pick asks for it, and does not wait for a batch
// that is under way: to the pick, what that one stores is stored later.
func (s *source) now() uint32 { return s.taken.Load() }

// contradict takes in that the engine did not have the blocks of a prompt from number first on when it looked, some time
// after tick. Those that it stored since are there, in one copy unless they may have been stored several times since, as
// requests for one prompt that run at once do; the others are not believed any more until it stores them again. A block
// whose slot went to another one since may have been stored or not: it is spared, and the next contradiction, with other
// blocks stored since, decides. Where it is not known what was stored since tick, which is so for picks from before the
// first contradiction of a live source, nothing is concluded: the block may have gone and come between the pick and the
// end of the request.
func (s *source) contradict(hashes []uint64, blockSize, first int, tick uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.stats.contradictions.Add(1)
	if s.recent == nil {
		s.watchRecent()
		return
	}
	if int32(tick-s.watchedFrom) < 0 {
		return
	}
	var holders []chain.Holder
	for _, t := range s.held {
		if t.size == blockSize {
			holders = append(holders, t.holder)
		}
	}
	n := s.store.Demote(hashes, first, holders, s.shadow, func(hash uint64) bool {
		r := s.recent[hash%recentSlots]
		if int32(r.tick-tick) <= 0 {
			return false // nothing that shares the slot was stored since, so this block was not
		}
		if r.hash == hash && int32(r.earlier-tick) <= 0 {
			s.settle(r.name)
		}
		return true
	})
	if n > 0 { // which of several names of a place is doubted is not known: all are
		for _, h := range holders {
			s.aliases.drop(h)
		}
	}
	s.doubted += n
	s.stats.doubted.Add(int64(n))
}

// settle makes the counts of a block one.
func (s *source) settle(name uint64) {
	for _, t := range s.held {
		for i := range t.groups {
			if slot, ok := t.groups[i].table.Find(name); ok {
				t.groups[i].table.Settle(slot)
			}
		}
	}
}
