// Command bench measures what Sluice costs per request beside a null server that does nothing but speak the protocol, and
// beside whole routers: CPU time, waiting, allocations and memory, on the ext_proc stream itself and through a real Envoy.
//
// Every server is a process of its own on loopback; all that belong to a row's load are driven in turn, round by round, with
// the same requests. See docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-epp/sluice/bench/record"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

const module = "github.com/sluice-epp/sluice"

func main() {
	// All that ends a command is caught: it leaves nothing behind. A reader of its output that goes away shows as an error of
	// the write, and not as a signal, which connections that servers cut raise too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "bench: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
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
	b := bench{options: o, folder: folder, stdout: stdout, progress: stderr}
	plan := b.plan()
	if len(plan.groups) == 0 && !plan.idle {
		return errors.New("nothing to measure: no setup is left for any way")
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	b.machine = record.Here(ctx, o.envoy)
	err = b.measure(ctx, plan)
	if len(b.lines) == 0 {
		return err
	}
	return errors.Join(err, b.table(stdout), b.keep())
}

// bench is one run of the command.
type bench struct {
	options
	folder   string
	stdout   io.Writer
	progress io.Writer
	machine  record.Machine

	// What is done.
	lines []string
	rows  []report.Row
	idle  []report.Idle
}

// build compiles what is measured, as far as it is not given.
func (b *bench) build(ctx context.Context) (err error) {
	for _, binary := range []struct {
		path *string
		from string
	}{{&b.null, module + "/bench/nullserver"}, {&b.sluice, module + "/cmd/sluice"}} {
		if *binary.path != "" {
			continue
		}
		b.say("building %s", binary.from)
		if *binary.path, err = subject.Build(ctx, b.folder, binary.from); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...) // nobody may be reading
}

// measure goes through the plan. What fails is left out, and told in the end; only the end of ctx, or of who reads the rows,
// ends the run.
func (b *bench) measure(ctx context.Context, p plan) (failed error) {
	for i, g := range p.groups {
		b.say("%d of %d: %s", i+1, p.steps(), g)
		rows, err := b.group(ctx, g)
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), failed)
		}
		if err != nil {
			failed = errors.Join(failed, b.failure(g.String(), err))
		}
		for _, r := range rows {
			b.rows = append(b.rows, r)
			if err := b.print(r.Line()); err != nil {
				return errors.Join(err, failed)
			}
		}
	}
	if !p.idle {
		return failed
	}
	for i, setup := range idleSetups {
		b.say("%d of %d: idle, %s with %d endpoints", len(p.groups)+i+1, p.steps(), setup.name, b.idleEndpoints)
		row, err := b.measureIdle(ctx, setup)
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), failed)
		}
		if err != nil {
			failed = errors.Join(failed, b.failure("idle, "+setup.name, err))
			continue
		}
		b.idle = append(b.idle, row)
		if err := b.print(row.Line()); err != nil {
			return errors.Join(err, failed)
		}
	}
	return failed
}

// failure says at once what is left out.
func (b *bench) failure(what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	b.say("left out: %v", err)
	return err
}

// print writes a row for scripts.
func (b *bench) print(line string) error {
	b.lines = append(b.lines, line)
	_, err := fmt.Fprintln(b.stdout, line)
	return err
}

func (b *bench) table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "\nmedian [range] of %d rounds of %d requests (fewer of large ones), %d at once where no column tells; load average %s at %s\n",
		b.rounds, b.requests, usualConcurrency, b.machine.Load, b.machine.Date.Format("2006-01-02T15:04:05Z"))
	return errors.Join(err, report.Table(w, b.rows, b.idle))
}

// keep writes the record, if one is asked for.
func (b *bench) keep() (err error) {
	if b.record == "" {
		return nil
	}
	f, err := os.Create(b.record)
	if err != nil {
		return fmt.Errorf("-record: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return record.Write(f, b.machine, "bench"+b.given, b.lines, b.table)
}
