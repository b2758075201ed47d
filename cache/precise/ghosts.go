package precise

import (
	"github.com/sluice-epp/sluice/cache/precise/chain"
	"github.com/sluice-epp/sluice/cache/precise/table"
)

// maxGhosts is how many blocks of one source stay known after the engine removed them from its GPU: an offloaded copy is
// often announced by name only, and not always before the removal.
const maxGhosts = 1024

// ghosts are the blocks that a source removed most recently. Their places are kept, and count for nothing.
type ghosts struct {
	table table.Table
	ring  []uint64 // names, oldest at next; a name that is no longer in the table was taken out before its time
	next  int
}

// push adds a block. Where another one has to go for it, or the same name for another place, lost says so, and place is
// that one's.
func (g *ghosts) push(name uint64, at chain.Ref) (place chain.Ref, lost bool) {
	if slot, ok := g.table.Find(name); ok {
		place = chain.Ref(g.table.Place(slot))
		g.table.Move(slot, uint64(at))
		return place, true
	}
	g.table.Add(name, uint64(at))
	if len(g.ring) < maxGhosts {
		g.ring = append(g.ring, name)
		return 0, false
	}
	oldest := g.ring[g.next]
	g.ring[g.next] = name
	if g.next++; g.next == maxGhosts {
		g.next = 0
	}
	if slot, ok := g.table.Find(oldest); ok && oldest != name {
		place = chain.Ref(g.table.Place(slot))
		g.table.Drop(slot)
		return place, true
	}
	return 0, false
}

// take takes a block out, where it is there, at a place.
func (g *ghosts) take(name uint64, at chain.Ref) {
	if slot, ok := g.table.Find(name); ok && chain.Ref(g.table.Place(slot)).Place() == at.Place() {
		g.table.Drop(slot)
	}
}
