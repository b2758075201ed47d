// Package steps counts the steps in which an engine's streamed answers come.
package steps

import "time"

// Same is how far apart pieces of one step's answer may come.
const Same = time.Millisecond

// Least is how many pieces say what a step takes.
const Least = 4

// Pieces counts the pieces of an answer that came in steps of their own after its first token. They are its further tokens, where
// the engine does not count those.
type Pieces struct {
	// Count is how many there were.
	Count int
	// Last is when the latest of them came; before it, when the first token did.
	Last time.Duration
}

// Add takes a piece in.
func (p *Pieces) Add(now time.Duration) {
	if now-p.Last >= Same {
		p.Count++
		p.Last = now
	}
}

// Known reports whether there were enough of them.
func (p *Pieces) Known() bool { return p.Count >= Least }
