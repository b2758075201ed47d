package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Options are what a view needs.
type Options struct {
	// Source is asked, at Address.
	Source  Source
	Address string
	// Words says what an error of Source means.
	Words func(error) error
	// Interval is the time between two views.
	Interval time.Duration
	// Order is the order of the endpoints.
	Order Order
	// Out is written to.
	Out io.Writer
	// ASCII keeps to characters that every terminal has; Styles says whether styles are written.
	ASCII  bool
	Styles display.Styles

	// Once ends after one view, written as plain text. Newest then tells the id of the newest decision that is kept, 0 where
	// there is none: the view has it.
	Once   bool
	Newest func(context.Context) (id uint64, err error)
	// Endpoints bounds how many endpoints a view in plain text has; 0 does not.
	Endpoints int

	// Keys are the keys that were pressed; with it the view is a live one on a terminal, else plain text. Closed, it presses
	// none.
	Keys <-chan byte
	// Size is the size of the terminal, in cells; nil where Out is none.
	Size func() (width, height int)
}

// ErrInterrupted says that Ctrl-C ended a live view.
var ErrInterrupted = errors.New("interrupted")

// What a terminal is told.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, without a cursor and without wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearScreen = "\x1b[2J"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

const (
	ctrlC = 3
	ctrlL = 12
)

// Run shows a view after the other until the context ends, or q is pressed. A source that answers nothing at the start is an
// error; one that goes away later is waited for.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	v := &viewer{Options: o, state: newState(time.Now())}
	v.feed = &feed{source: o.Source, state: v.state, words: o.Words}
	if err := v.feed.ask(ctx); err != nil {
		cancel()
		return err
	}
	failed := make(chan error, 1)
	var tasks sync.WaitGroup
	tasks.Go(func() { guarded(failed, func() { v.feed.poll(ctx, o.Interval) }) })
	tasks.Go(func() { guarded(failed, func() { v.feed.follow(ctx) }) })
	defer tasks.Wait()
	defer cancel()
	switch {
	case o.Once:
		return v.once(ctx, failed)
	case o.Keys != nil:
		return v.live(ctx, failed)
	}
	return v.plain(ctx, failed)
}

// viewer shows a state.
type viewer struct {
	Options
	state *state
	feed  *feed
	held  *view  // what is shown while it is paused
	told  uint64 // how many decisions a plain view has written
}

const (
	// plainWidth is how wide plain text is.
	plainWidth = 120
	// plainDecisions is how many decisions a plain view has at most.
	plainDecisions = 20
	// arrival is how often it is looked whether the decisions that are kept have come.
	arrival = 20 * time.Millisecond
	// resizeCheck is how often the terminal's size is looked at.
	resizeCheck = 200 * time.Millisecond
)

// once waits for the decisions that are kept, though not for ever, and writes one view.
func (v *viewer) once(ctx context.Context, failed <-chan error) error {
	newest, err := v.Newest(ctx)
	if err != nil {
		return v.Words(err)
	}
	tick, patience := time.NewTicker(arrival), time.NewTimer(askPatience)
	defer tick.Stop()
	defer patience.Stop()
	for !v.state.has(newest) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-patience.C:
			newest = 0
		case <-tick.C:
		}
	}
	return v.write(time.Now())
}

// plain writes one view at every interval.
func (v *viewer) plain(ctx context.Context, failed <-chan error) error {
	tick := time.NewTicker(v.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case now := <-tick.C:
			if err := v.write(now); err != nil {
				return err
			}
		}
	}
}

// write writes a view in plain text, with the decisions since the one before.
func (v *viewer) write(now time.Time) error {
	what := v.state.view(now)
	fresh := int(min(what.seen-v.told, uint64(len(what.decisions))))
	more := int(what.seen-v.told) - fresh
	decisions := what.decisions[len(what.decisions)-fresh:]
	if n := len(decisions) - plainDecisions; n > 0 {
		decisions, more = decisions[n:], more+n
	}
	v.told = what.seen
	width := plainWidth
	if v.Size != nil {
		width, _ = v.Size()
	}
	l := look{address: v.Address, order: v.Order, width: width, ascii: v.ASCII, styles: v.Styles}
	_, err := io.WriteString(v.Out, strings.Join(l.block(what, v.Endpoints, decisions, more), "\n")+"\n")
	return err
}

// live shows views on a terminal, which is as before in the end, however that comes.
func (v *viewer) live(ctx context.Context, failed <-chan error) (err error) {
	if _, err := io.WriteString(v.Out, enterScreen+clearScreen); err != nil {
		return err
	}
	defer func() {
		if _, leaving := io.WriteString(v.Out, leaveScreen); err == nil {
			err = leaving
		}
	}()
	tick, resize := time.NewTicker(v.Interval), time.NewTicker(resizeCheck)
	defer tick.Stop()
	defer resize.Stop()
	pressed := v.Keys
	width, height := v.Size()
	for {
		if err := v.draw(width, height); err != nil {
			return err
		}
		same := true
		for same {
			same = false
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-failed:
				return err
			case <-tick.C:
			case <-resize.C:
				w, h := v.Size()
				same = w == width && h == height
				width, height = w, h
			case key, open := <-pressed:
				if !open {
					pressed, same = nil, true // the terminal's end
					continue
				}
				if over, err := v.press(key); over {
					return err
				}
			}
		}
	}
}

// press does what a key is for; over ends the view.
func (v *viewer) press(key byte) (over bool, err error) {
	switch key {
	case 'q', 'Q':
		return true, nil
	case ctrlC:
		return true, ErrInterrupted
	case 's', 'S':
		v.Order = v.Order.next()
	case 'p', 'P', ' ':
		if v.held == nil {
			v.held = v.state.view(time.Now())
		} else {
			v.held = nil
		}
	case ctrlL:
		_, err = io.WriteString(v.Out, clearScreen)
		return err != nil, err
	}
	return false, nil
}

// draw shows what there is now, or what is held, in one write.
func (v *viewer) draw(width, height int) error {
	what := v.held
	if what == nil {
		what = v.state.view(time.Now())
	}
	l := look{
		address: v.Address, order: v.Order, width: width, height: height, ascii: v.ASCII, styles: v.Styles, paused: v.held != nil,
	}
	_, err := io.WriteString(v.Out, painted(l.frame(what), height))
	return err
}

// painted is a frame as a terminal is told. A line is cleared before it is written: after a line that fills the terminal the
// cursor stands on its last cell.
func painted(lines []string, height int) string {
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clearLine + line)
	}
	if len(lines) < height {
		b.WriteString("\r\n" + clearBelow)
	}
	return b.String()
}
