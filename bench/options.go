package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/scheduling"
)

// options are the command's flags.
type options struct {
	sluice, null   string
	envoy, routers string
	setups, ways   []string
	dimensions     // without any the default loads
	rounds         int
	requests       int
	idleEndpoints  int
	idleTime       time.Duration
	profiles       string
	profileTime    time.Duration
	record         string
	given          string // the flags that were given, but for paths of this machine
}

// list is a flag of values separated by commas.
type list[T any] struct {
	values *[]T
	parse  func(string) (T, error)
	show   func(T) string
}

// String lists the values as they are written on the command line.
func (l list[T]) String() string {
	if l.values == nil {
		return ""
	}
	words := make([]string, len(*l.values))
	for i, v := range *l.values {
		words[i] = l.show(v)
	}
	return strings.Join(words, ",")
}

// Set reads the values.
func (l list[T]) Set(text string) error {
	var values []T
	for word := range strings.SplitSeq(text, ",") {
		v, err := l.parse(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	*l.values = values
	return nil
}

func parseBody(text string) (int, error) {
	n, err := report.ParseSize(text)
	if err == nil && n < chat.MinSize {
		err = fmt.Errorf("size %q: must be at least %s", text, report.Size(chat.MinSize))
	}
	return n, err
}

// The most endpoints, which keeps the engines' sockets within usual limits of open files, the most chunks and the most
// requests at once.
const (
	maxEndpoints   = 4096
	maxChunks      = 10_000
	maxConcurrency = 10_000
)

// between parses a whole number; what names it in errors.
func between(what string, least, most int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("must be %d to %d %s, got %q", least, most, what, text)
		}
		return n, nil
	}
}

// oneOf parses a name.
func oneOf(names []string) func(string) (string, error) {
	return func(text string) (string, error) {
		if slices.Contains(names, text) {
			return text, nil
		}
		err := fmt.Errorf("unknown %q: must be one of %s", text, strings.Join(names, ", "))
		if near := scheduling.Nearest(text, names); near != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
		}
		return "", err
	}
}

// teaching is shown above the flags.
const teaching = `bench measures Sluice beside a null ext_proc server and whole routers, prints a line a row and, in the end, tables.

  bench                                                     the default loads: docs/performance.md lists them
  bench -via stream -bodies 16KiB                           one load: what is not given is 16KiB, 64 endpoints, 3 chunks
                                                            and 16 requests at once
  bench -via stream -bodies 1KiB,1MiB -endpoints 8,512      every combination
  bench -via stream -bodies 220KB -concurrency 20,60,150    long prompts, more and more of them at once
  bench -via envoy -setups none,null,sluice-approx          some setups
  bench -via stream -bodies 16KiB -cpuprofile profiles      and go tool pprof -top profiles/*sluice-approx*

`

// pathFlags name files and folders of the machine: they say nothing of what was measured.
var pathFlags = []string{"sluice", "null", "envoy", "routers", "cpuprofile", "record"}

// parseOptions reads the command line. Help and faults are written to stderr.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{setups: slices.Clone(allSetups), ways: slices.Clone(allWays)}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		_, _ = io.WriteString(stderr, teaching) // nobody may be reading
		f.PrintDefaults()
	}
	word := func(s string) string { return s }
	f.StringVar(&o.sluice, "sluice", "", "the sluice `binary` to measure; without it one is built")
	f.StringVar(&o.null, "null", "", "the null server's `binary`; without it one is built")
	f.StringVar(&o.envoy, "envoy", "", "the Envoy `binary`; without it nothing is measured via envoy")
	f.StringVar(&o.routers, "routers", "", "the `folder` of scripts/routers.sh; without it no router is measured")
	f.Var(list[string]{&o.setups, oneOf(allSetups), word}, "setups", "`names` of what is measured")
	f.Var(list[string]{&o.ways, oneOf(allWays), word}, "via", "`ways` on which it is measured; idle is without requests")
	f.Var(list[int]{&o.bodies, parseBody, report.Size}, "bodies", "request body `sizes`, such as 16KiB or 220KB")
	f.Var(list[int]{&o.endpoints, between("endpoints", 1, maxEndpoints), strconv.Itoa}, "endpoints", "`numbers` of endpoints")
	f.Var(list[int]{&o.chunks, between("chunks", 1, maxChunks), strconv.Itoa}, "chunks",
		"`numbers` of chunks of a streamed answer, the one with its usage included")
	f.Var(list[int]{&o.concurrency, between("requests at once", 1, maxConcurrency), strconv.Itoa}, "concurrency",
		"`numbers` of requests at once")
	f.IntVar(&o.rounds, "rounds", 5, "how often each setup is measured, in turn with the others")
	f.IntVar(&o.requests, "requests", 2000, "requests a round; fewer where they are large, and no fewer than there are at once")
	f.IntVar(&o.idleEndpoints, "idle-endpoints", 512, "endpoints while idle")
	f.DurationVar(&o.idleTime, "idle-time", 20*time.Second, "how long to watch what is idle")
	f.StringVar(&o.profiles, "cpuprofile", "", "`folder` for a CPU profile of each picker under each load, taken after the rounds")
	f.DurationVar(&o.profileTime, "profile-time", 5*time.Second, "how long to profile, in whole seconds")
	f.StringVar(&o.record, "record", "", "`file` to write the rows and the table to, with the machine's description")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	f.Visit(func(g *flag.Flag) {
		if !slices.Contains(pathFlags, g.Name) {
			o.given += " -" + g.Name + " " + g.Value.String()
		}
	})
	return o, o.check()
}

func (o options) check() error {
	var errs []error
	for _, at := range []struct {
		flag        string
		value, most int
	}{
		{"rounds", o.rounds, 1000}, {"requests", o.requests, 10_000_000},
		{"idle-endpoints", o.idleEndpoints, maxEndpoints},
	} {
		if at.value < 1 || at.value > at.most {
			errs = append(errs, fmt.Errorf("-%s: must be 1 to %d, got %d", at.flag, at.most, at.value))
		}
	}
	for _, at := range []struct {
		flag  string
		value time.Duration
	}{{"profile-time", o.profileTime}, {"idle-time", o.idleTime}} {
		if at.value < time.Second {
			errs = append(errs, fmt.Errorf("-%s: must be at least 1s, got %v", at.flag, at.value))
		}
	}
	return errors.Join(errs...)
}
