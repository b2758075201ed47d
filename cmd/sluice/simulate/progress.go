package simulate

import (
	"fmt"
	"io"
	"time"
)

// Reporter tells how far a plan is: on a terminal in a line that is written over, elsewhere a line from time to time.
type Reporter struct {
	to       io.Writer
	terminal bool
	last     time.Duration
	wrote    bool
}

// reportEvery is the time between two lines where there is no terminal.
const reportEvery = 10 * time.Second

// NewReporter writes to a writer.
func NewReporter(to io.Writer, terminal bool) *Reporter { return &Reporter{to: to, terminal: terminal} }

// Tell tells.
func (r *Reporter) Tell(p Progress) {
	if p.Missing == 0 {
		return
	}
	line := fmt.Sprintf("%d of %d runs", p.Done, p.Missing)
	if p.Kept > 0 {
		line += fmt.Sprintf(" (%d were done before)", p.Kept)
	}
	line += ", " + p.Elapsed.Round(time.Second).String()
	if left := p.Left(); left > 0 {
		line += ", about " + left.Round(time.Second).String() + " left"
	}
	switch {
	case r.terminal:
		_, _ = fmt.Fprintf(r.to, "\r%s\033[K", line) // progress that cannot be shown is no fault of the runs
		r.wrote = true
	case p.Done > 0 && (p.Elapsed-r.last >= reportEvery || p.Done == p.Missing && p.Elapsed >= reportEvery):
		r.last = p.Elapsed
		_, _ = fmt.Fprintln(r.to, line)
	}
}

// End leaves the terminal's line empty.
func (r *Reporter) End() {
	if r.wrote {
		_, _ = fmt.Fprint(r.to, "\r\033[K")
	}
}
