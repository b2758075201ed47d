package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/admin"
	"github.com/sluice-epp/sluice/cmd/sluice/top"
)

// TopCommand is a live view of a running Sluice.
type TopCommand struct {
	Interval  time.Duration `help:"Time between two views, from 100ms to 1h." default:"1s" placeholder:"DURATION"`
	Sort      string        `help:"Order of the endpoints: load (the most tokens in flight first), kv (the fullest cache first), picks or name." default:"load" enum:"load,kv,picks,name" placeholder:"ORDER"`
	Once      bool          `help:"Print one view as plain text, and end."`
	Plain     bool          `help:"Print plain text, one view after the other, even on a terminal."`
	Endpoints int           `help:"How many endpoints a view in plain text has at most; 0 shows all." default:"20" placeholder:"N"`

	Admin admin.Flags `embed:"" group:"The server:"`
}

// Help is shown below the usage.
func (*TopCommand) Help() string {
	return `Shows every endpoint with its state, what is in flight on it, what its engine says, what is known of its cache, and how many picks it
gets; below, the decisions as they are made, with the reason in short. On a terminal: q quits, s changes the order, p pauses. Elsewhere
it prints plain text, one view for each interval. A server that goes away is waited for. 'sluice explain REQUEST_ID' tells more of a
decision; docs/explain.md says what the columns mean. Examples:

  sluice top
  sluice top --once --endpoints 0 --sort kv
  sluice top --admin sluice.example:9090 --ca ca.pem | tee top.log`
}

// Validate checks the numbers.
func (c *TopCommand) Validate() error {
	switch {
	case c.Interval < 100*time.Millisecond || c.Interval > time.Hour:
		return fmt.Errorf("--interval: must be from 100ms to 1h, got %s", c.Interval)
	case c.Endpoints < 0:
		return fmt.Errorf("--endpoints: must be >= 0, got %d", c.Endpoints)
	}
	return c.Admin.Check()
}

// Run shows the view until it is ended.
func (c *TopCommand) Run(i *interrupts) error {
	i.hangUpEnds()
	client, closeIt, err := c.Admin.Dial()
	if err != nil {
		return err
	}
	defer closeIt()
	o := top.Options{
		Source: client, Address: c.Admin.Address, Words: c.Admin.Error, Interval: c.Interval, Order: top.Order(c.Sort), Out: os.Stdout,
		ASCII: !unicodeLocale(), Once: c.Once, Endpoints: c.Endpoints,
		Newest: func(ctx context.Context) (uint64, error) { return newest(ctx, client) },
	}
	onTerminal := term.IsTerminal(int(os.Stdout.Fd()))
	if onTerminal {
		o.Styles, o.Size = colours(), terminalSize
	}
	if c.Once || c.Plain || !onTerminal || !term.IsTerminal(int(os.Stdin.Fd())) || os.Getenv("TERM") == "dumb" {
		return top.Run(i, o)
	}
	return c.live(i, o)
}

// newest is the id of the newest decision that is kept; 0 where there is none.
func newest(ctx context.Context, client schedulerv1.SchedulerServiceClient) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := client.Explain(ctx, &schedulerv1.ExplainRequest{Limit: 1, MaxCandidates: 1})
	if status.Code(err) == codes.NotFound {
		return 0, nil
	}
	for _, x := range a.GetExplanations() {
		return x.GetDecision().GetId(), err
	}
	return 0, err
}

// live shows the view on the terminal, which is restored in the end.
func (c *TopCommand) live(i *interrupts, o top.Options) (err error) {
	stdin := int(os.Stdin.Fd())
	before, err := term.MakeRaw(stdin) // keys come at once, Ctrl-C as one of them
	if err != nil {
		return fmt.Errorf("the terminal: %w; --plain does without", err)
	}
	defer func() {
		if restoring := term.Restore(stdin, before); err == nil && restoring != nil {
			err = fmt.Errorf("the terminal: %w", restoring)
		}
	}()
	o.Keys = pressed(os.Stdin)
	err = top.Run(i, o)
	if errors.Is(err, top.ErrInterrupted) { // as the signal that the key would have been
		i.signals <- syscall.SIGINT
		<-i.Done()
		return context.Canceled
	}
	return err
}

// terminalSize is the size of the terminal that is written to, in cells.
func terminalSize() (width, height int) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return usualWidth, usualHeight
	}
	return width, height
}

// pressed are the keys that are pressed until the process ends.
func pressed(terminal *os.File) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var b [64]byte
		for {
			n, err := terminal.Read(b[:])
			if err != nil {
				return
			}
			for _, key := range b[:n] {
				if b[0] == 0x1b { // an arrow or the like, which begins with an escape
					break
				}
				keys <- key
			}
		}
	}()
	return keys
}

// unicodeLocale reports whether the terminal is said to show more than ASCII.
func unicodeLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
