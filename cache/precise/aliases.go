package precise

import "github.com/sluice-epp/sluice/cache/precise/chain"

// aliases count the blocks of a source that are one and the same to the index: engines may tell blocks apart by more than
// they publish (the token that follows a block, where they guess tokens ahead), and one that was started anew unnoticed
// names everything otherwise. They are rare, so both maps are nearly always empty.
type aliases struct {
	names map[chain.Ref]int // by place: names that the source has for it, beyond one
	held  map[heldPlace]int // by tier's holder and place: names by which the tier has it, beyond one
}

type heldPlace struct {
	holder chain.Holder
	place  chain.Ref
}

// name counts one more name of a place.
func (a *aliases) name(at chain.Ref) {
	if a.names == nil {
		a.names = make(map[chain.Ref]int)
	}
	a.names[at.Place()]++
}

// unname counts one name less; it reports whether there is another one.
func (a *aliases) unname(at chain.Ref) (more bool) {
	n, more := a.names[at.Place()]
	switch {
	case n > 1:
		a.names[at.Place()] = n - 1
	case more:
		delete(a.names, at.Place())
	}
	return more
}

// hold counts one more name by which a holder has a place.
func (a *aliases) hold(h chain.Holder, at chain.Ref) {
	if a.held == nil {
		a.held = make(map[heldPlace]int)
	}
	a.held[heldPlace{h, at.Place()}]++
}

// leave counts one less; it reports whether the holder has the place by another one.
func (a *aliases) leave(h chain.Holder, at chain.Ref) (more bool) {
	key := heldPlace{h, at.Place()}
	n, more := a.held[key]
	switch {
	case n > 1:
		a.held[key] = n - 1
	case more:
		delete(a.held, key)
	}
	return more
}

// drop forgets by which names a holder has what it has.
func (a *aliases) drop(h chain.Holder) {
	for key := range a.held {
		if key.holder == h {
			delete(a.held, key)
		}
	}
}

func (a *aliases) clear() { *a = aliases{} }

// aliasBytes is the memory of an entry of either map, at most.
const aliasBytes = 48

func (a *aliases) bytes() int { return aliasBytes * (len(a.names) + len(a.held)) }
