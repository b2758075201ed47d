package precise

import (
	"slices"

	"github.com/sluice-epp/sluice/cache/precise/chain"
)

// naive is one engine's cache as its events tell it, in maps of sets: what the index must agree with.
type naive struct {
	tiers    map[string]*naiveTier
	paths    map[uint64]string // name → all that leads to the block, for every block that has or had a place
	ghosts   map[uint64]bool   // removed from the GPU, still placed
	parked   []naiveRun
	watching bool // what was stored when is noted, after the tick since
	since    uint32
	notes    map[uint64]naiveNote
	tick     uint32
	slotOf   func(path string) uint64 // where the note of a block goes, in place of another one's
}

// naiveTier is a kind of memory: copies by group and name.
type naiveTier struct {
	groups  map[int]map[uint64]int
	doubted map[uint64]bool
	sized   bool
}

type naiveNote struct {
	path string
	name uint64
	tick uint32

	earlier uint32 // the tick of the note in its place before
}

type naiveRun struct {
	medium string
	group  int
	names  []uint64
	parent uint64
	steps  []string // of each block
}

func newNaive(slotOf func(string) uint64) *naive {
	return &naive{
		tiers: map[string]*naiveTier{}, paths: map[uint64]string{}, ghosts: map[uint64]bool{}, notes: map[uint64]naiveNote{},
		slotOf: slotOf,
	}
}

// forget is what a restart or a clear leaves: nothing but what was noted of the past.
func (n *naive) forget() {
	next := newNaive(n.slotOf)
	next.watching, next.since, next.notes, next.tick = n.watching, n.since, n.notes, n.tick
	*n = *next
}

func (n *naive) tier(medium string) *naiveTier {
	if n.tiers[medium] == nil {
		n.tiers[medium] = &naiveTier{groups: map[int]map[uint64]int{}, doubted: map[uint64]bool{}}
	}
	return n.tiers[medium]
}

func (n *naive) inTables(name uint64) bool {
	for _, t := range n.tiers {
		for _, names := range t.groups {
			if names[name] > 0 {
				return true
			}
		}
	}
	return false
}

func (n *naive) placed(name uint64) bool { return n.ghosts[name] || n.inTables(name) }

// complete reports whether every group of a tier has a block.
func (t *naiveTier) complete(name uint64) bool {
	for _, names := range t.groups {
		if names[name] == 0 {
			return false
		}
	}
	return len(t.groups) > 0
}

func (n *naive) store(r naiveRun, root string, hasParent bool) {
	n.tier(r.medium).sized = true
	at := root
	if hasParent {
		if !n.placed(r.parent) {
			n.park(r)
			return
		}
		at = n.paths[r.parent]
	}
	for i := 0; i < len(r.names); {
		if n.placed(r.names[i]) {
			n.hold(r.medium, r.group, r.names[i])
			at = n.paths[r.names[i]]
			i++
			continue
		}
		end := i + 1
		for end < len(r.names) && !n.placed(r.names[end]) {
			end++
		}
		for ; i < end; i++ {
			at += r.steps[i]
			if !n.placed(r.names[i]) { // not the second of one name in this event
				n.paths[r.names[i]] = at
				n.hold(r.medium, r.group, r.names[i])
			} else {
				n.tier(r.medium).groups[r.group][r.names[i]]++
			}
			n.note(at, r.names[i])
		}
	}
	for _, name := range r.names {
		n.unpark(name, root)
	}
}

// park keeps a run until its parent is known, unless one of its names is there already or stands twice in it.
func (n *naive) park(r naiveRun) {
	for i, name := range r.names {
		if slices.Contains(r.names[:i], name) {
			return
		}
	}
	for _, p := range n.parked {
		if slices.ContainsFunc(r.names, func(name uint64) bool { return slices.Contains(p.names, name) }) {
			return
		}
	}
	n.parked = append(n.parked, r)
}

func (n *naive) unpark(name uint64, root string) {
	for {
		i := slices.IndexFunc(n.parked, func(p naiveRun) bool { return p.parent == name && len(p.names) > 0 })
		if i < 0 {
			return
		}
		p := n.parked[i]
		n.parked = slices.Delete(n.parked, i, i+1)
		n.store(p, root, true)
	}
}

// hold counts one more copy of a placed block.
func (n *naive) hold(medium string, group int, name uint64) {
	t := n.tier(medium)
	if t.groups[group] == nil { // what was complete is not any more
		t.groups[group] = map[uint64]int{}
		clear(t.doubted)
	}
	t.groups[group][name]++
	delete(n.ghosts, name)
	if t.complete(name) {
		if t.doubted[name] { // all copies before had gone
			t.groups[group][name] = 1
		}
		delete(t.doubted, name)
	}
	n.note(n.paths[name], name)
}

func (n *naive) note(path string, name uint64) {
	if n.watching {
		slot := n.slotOf(path)
		n.notes[slot] = naiveNote{path, name, n.tick, n.notes[slot].tick}
	}
}

func (n *naive) join(medium string, group int, name uint64) {
	if n.placed(name) {
		n.tier(medium).sized = true
		n.hold(medium, group, name)
	}
}

func (n *naive) remove(medium string, group int, name uint64) {
	if t := n.tiers[medium]; t != nil && t.groups[group][name] > 0 {
		if t.groups[group][name]--; t.groups[group][name] == 0 {
			delete(t.doubted, name)
		}
		if !n.placed(name) && medium == "gpu" {
			n.ghosts[name] = true
		}
		return
	}
	for i := range n.parked {
		p := &n.parked[i]
		if k := slices.Index(p.names, name); k >= 0 && p.medium == medium && p.group == group {
			p.names, p.steps = p.names[:k], p.steps[:k]
		}
	}
}

// contradict takes in that of a prompt's blocks, given by their paths, those from first on were missing some time after
// tick.
func (n *naive) contradict(paths []string, first int, tick uint32) {
	if !n.watching {
		n.watch()
		return
	}
	if tick < n.since {
		return
	}
	for _, path := range paths[first:] {
		kept := false
		if note := n.notes[n.slotOf(path)]; note.tick > tick {
			kept = true // maybe it was stored since, maybe another block that shares the slot
			if note.path == path && note.earlier <= tick {
				n.settle(note.name)
			}
		}
		for name, at := range n.paths {
			if at != path || kept {
				continue
			}
			for _, t := range n.tiers {
				if t.sized && t.complete(name) {
					t.doubted[name] = true
				}
			}
		}
	}
}

func (n *naive) watch() {
	if !n.watching {
		n.watching, n.since = true, n.tick
	}
}

// settle makes the counts of a block one.
func (n *naive) settle(name uint64) {
	for _, t := range n.tiers {
		for _, names := range t.groups {
			if names[name] > 0 {
				names[name] = 1
			}
		}
	}
}

// match is how much of a prompt's path the engine has, and what that is worth.
func (n *naive) match(root string, steps []string, weights map[string]int) chain.Match {
	best := map[string]int{}
	for medium, t := range n.tiers {
		for _, names := range t.groups {
			for name := range names {
				if t.complete(name) && !t.doubted[name] {
					best[n.paths[name]] = max(best[n.paths[name]], weights[medium])
				}
			}
		}
	}
	var m chain.Match
	at := root
	for _, s := range steps {
		at += s
		w, ok := best[at]
		if !ok {
			break
		}
		m.Blocks++
		m.Weight += int32(w)
	}
	return m
}
