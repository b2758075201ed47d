package cursor

// printsKept is how many fingerprints of applied messages are kept; a source's take 4 KiB. What a new connection or a
// replay repeats lies close to the end.
const printsKept = 256

// prints are the fingerprints of the last messages applied, by sequence number.
type prints struct {
	ring [printsKept]struct{ seq, print uint64 }
	used [printsKept]bool
}

func (p *prints) put(seq, print uint64) {
	i := seq % printsKept
	p.ring[i].seq, p.ring[i].print, p.used[i] = seq, print, true
}

func (p *prints) get(seq uint64) (print uint64, ok bool) {
	i := seq % printsKept
	return p.ring[i].print, p.used[i] && p.ring[i].seq == seq
}

// differ reports whether a message is known to have other bytes than the one that was applied under its number.
func (p *prints) differ(m Message) bool {
	print, ok := p.get(m.Seq)
	return ok && print != m.Print
}

// same reports whether a message is known to have the bytes that were applied under its number.
func (p *prints) same(m Message) bool {
	print, ok := p.get(m.Seq)
	return ok && print == m.Print
}

func (p *prints) clear() { p.used = [printsKept]bool{} }
