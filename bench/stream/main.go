// Command stream measures what Sluice costs on its ext_proc stream: CPU time, waiting and allocations per request, beside
// a null server that does nothing but speak the protocol.
//
// Each server is a process of its own on loopback; both are driven in turn, round by round, with the same requests. See
// docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

const module = "github.com/sluice-epp/sluice"

func main() {
	// All that ends a command is caught, a reader of its output that goes away included: it leaves nothing behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "stream: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "stream: %v\n", err)
		os.Exit(1)
	}
}

// run measures every row, writes each to stdout as it is done and all of them as a table in the end. Progress goes to
// stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	b := bench{options: o, progress: stderr}
	if err := b.build(ctx, folder); err != nil {
		return err
	}
	most := 0
	for _, n := range o.endpoints {
		most = max(most, n)
	}
	pool, err := engines.Start(most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	rows, err := b.rows(ctx, pool.Addresses(), stdout)
	if len(rows) > 0 {
		err = errors.Join(err, b.table(stdout, rows))
	}
	return err
}

// bench is one run of the command.
type bench struct {
	options
	progress io.Writer
}

// build compiles what is measured, as far as it is not given.
func (b *bench) build(ctx context.Context, folder string) (err error) {
	for _, binary := range []struct {
		path *string
		from string
	}{{&b.null, module + "/bench/nullserver"}, {&b.sluice, module + "/cmd/sluice"}} {
		if *binary.path != "" {
			continue
		}
		b.say("building %s", binary.from)
		if *binary.path, err = subject.Build(ctx, folder, binary.from); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...) // nobody may be reading
}

// rows measures each size of body with each number of endpoints. With an error it returns the rows that are done.
func (b *bench) rows(ctx context.Context, addresses []string, stdout io.Writer) (done []report.Row, err error) {
	total := len(b.bodies) * len(b.endpoints)
	for _, size := range b.bodies {
		load, err := b.load(size)
		if err != nil {
			return done, err
		}
		for _, n := range b.endpoints {
			b.say("row %d of %d: %s bodies, %d endpoints", len(done)+1, total, report.Size(size), n)
			row, err := b.row(ctx, load, addresses[:n])
			if err != nil {
				return done, fmt.Errorf("%s bodies, %d endpoints: %w", report.Size(size), n, err)
			}
			done = append(done, row)
			if _, err := fmt.Fprintln(stdout, row.Line()); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

func (b *bench) table(w io.Writer, rows []report.Row) error {
	_, err := fmt.Fprintf(w, "\nmedian [range] of %d rounds of %d requests, %d at once, answers of %d chunks%s\n",
		b.rounds, b.requests, b.concurrency, b.chunks, loadAverage())
	return errors.Join(err, report.Table(w, rows))
}

// loadAverage says how busy the machine is, where the kernel tells.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	minute, _, _ := strings.Cut(string(content), " ")
	return "; load average " + minute + " at " + time.Now().UTC().Format(time.RFC3339)
}
