package sim

import (
	"fmt"
	"maps"
)

// ledger is an observer that keeps what is cached, as a reader of events would: the number of
// copies of each hash on each medium. It knows of blocks by their hashes only, and checks that each
// hash stands for one text.
type ledger struct {
	size   int
	counts [2]map[uint64]int
	texts  map[uint64]string // by hash, all tokens up to and with the block, adapter and salt before them
	tier   bool              // the step has told of the offload tier
	fail   func(string, ...any)
}

func newLedger(blockSize int, fail func(string, ...any)) *ledger {
	return &ledger{
		size: blockSize, counts: [2]map[uint64]int{{}, {}}, texts: map[uint64]string{}, fail: fail,
	}
}

func (l *ledger) BlocksStored(s Stored) {
	l.inOrder(s.Medium)
	if len(s.Hashes) == 0 || len(s.Tokens) != len(s.Hashes)*l.size {
		l.fail("stored %d hashes with %d tokens", len(s.Hashes), len(s.Tokens))
	}
	parent := l.texts[s.Parent]
	if s.First == 0 {
		parent = s.Job.Adapter + "/" + s.Job.Salt
	} else if parent == "" {
		l.fail("stored block %d has the unknown parent %x", s.First, s.Parent)
	}
	for i, h := range s.Hashes {
		parent += fmt.Sprint(s.Tokens[i*l.size : (i+1)*l.size])
		if old, ok := l.texts[h]; ok && old != parent {
			l.fail("hash %x stands for %q and %q", h, old, parent)
		}
		l.texts[h] = parent
		if s.Reused {
			if l.counts[GPU][h] == 0 || !s.Job.Report || s.Medium != GPU {
				l.fail("hash %x is announced again, of which %d are cached", h, l.counts[GPU][h])
			}
			continue
		}
		l.counts[s.Medium][h]++
	}
	if s.Medium == CPU && (len(s.Hashes) != 1 || l.counts[CPU][s.Hashes[0]] != 1) {
		l.fail("the offload tier stores %d blocks, the first %d times", len(s.Hashes), l.counts[CPU][s.Hashes[0]])
	}
}

func (l *ledger) BlocksRemoved(r Removed) {
	l.inOrder(r.Medium)
	if r.Medium == GPU && len(r.Hashes) != 1 {
		l.fail("%d blocks removed at once", len(r.Hashes))
	}
	for _, h := range r.Hashes {
		l.counts[r.Medium][h]--
		switch n := l.counts[r.Medium][h]; {
		case n < 0:
			l.fail("%s: hash %x removed more often than stored", r.Medium, h)
		case n == 0:
			delete(l.counts[r.Medium], h)
		}
	}
}

// inOrder checks that a step tells of the GPU first.
func (l *ledger) inOrder(m Medium) {
	if l.tier && m == GPU {
		l.fail("a step tells of the GPU after the offload tier")
	}
	l.tier = m == CPU
}

func (l *ledger) CacheCleared() { clear(l.counts[GPU]) }

// equals checks that the events so far tell exactly what the engine has cached.
func (l *ledger) equals(e *Engine) {
	for m := range Medium(2) {
		cached := map[uint64]int{}
		for h := range e.Cached(m) {
			cached[h]++
		}
		if !maps.Equal(cached, l.counts[m]) {
			l.fail("%s: cached are %v, events say %v", m, cached, l.counts[m])
		}
	}
	if s := e.Stats(); s.OffloadedBlocks != len(l.counts[CPU]) || s.OffloadedBlocks > e.params.OffloadBlocks {
		l.fail("%d blocks offloaded, events say %d, room is for %d", s.OffloadedBlocks, len(l.counts[CPU]), e.params.OffloadBlocks)
	}
}

// predict says from the events alone how many leading tokens of a prompt are cached.
func (l *ledger) predict(j *Job) int {
	cached := [2]map[string]bool{{}, {}}
	for m := range Medium(2) {
		for h := range l.counts[m] {
			cached[m][l.texts[h]] = true
		}
	}
	text, n, m := j.Adapter+"/"+j.Salt, 0, GPU
	for ; (n+1)*l.size < len(j.Prompt); n++ {
		text += fmt.Sprint(j.Prompt[n*l.size : (n+1)*l.size])
		if m == GPU && !cached[GPU][text] {
			m = CPU // what the GPU lacks is loaded, and what comes after it too
		}
		if !cached[m][text] {
			break
		}
	}
	return n * l.size
}
