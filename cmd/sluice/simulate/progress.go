package simulate

import (
	"fmt"
	"io"
	"time"
)

// Progress is how far a plan is.
type Progress struct {
	// Done of the Missing runs are finished. Kept are those that were done before.
	Done, Missing, Kept int
	// Elapsed is since the beginning.
	Elapsed time.Duration
}

// Left is how long the rest takes, as far as what is done tells; 0: that is not known.
func (p Progress) Left() time.Duration {
	if p.Done == 0 {
		return 0
	}
	return time.Duration(float64(p.Elapsed) / float64(p.Done) * float64(p.Missing-p.Done))
}

// teller tells of progress from one goroutine.
type teller struct{ finished, reported chan struct{} }

func newTeller(missing, kept int, progress func(Progress)) teller {
	t, began := teller{make(chan struct{}), make(chan struct{})}, time.Now()
	go func() {
		defer close(t.reported)
		state := Progress{Missing: missing, Kept: kept}
		progress(state)
		for range t.finished {
			state.Done++
			state.Elapsed = time.Since(began)
			progress(state)
		}
	}()
	return t
}

// done tells that one more is.
func (t teller) done() { t.finished <- struct{}{} }

// end returns when all has been told.
func (t teller) end() {
	close(t.finished)
	<-t.reported
}

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
	line := fmt.Sprintf("%d of %d runs", p.Kept+p.Done, p.Kept+p.Missing)
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
