package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/report"
)

// options are the command's flags.
type options struct {
	sluice      string
	null        string
	rounds      int
	requests    int
	concurrency int
	chunks      int
	bodies      []int // bytes
	endpoints   []int
	profiles    string
	profileTime time.Duration
}

// list is a flag of values separated by commas.
type list struct {
	values *[]int
	parse  func(string) (int, error)
	show   func(int) string
}

// String lists the values as they are written on the command line.
func (l list) String() string {
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
func (l list) Set(text string) error {
	var values []int
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

// maxEndpoints keeps the engines' listeners within usual limits of open files.
const maxEndpoints = 4096

func parseEndpoints(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxEndpoints {
		return 0, fmt.Errorf("must be 1 to %d endpoints, got %q", maxEndpoints, text)
	}
	return n, nil
}

// parseOptions reads the command line. Help and faults are written to stderr.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{bodies: []int{1 << 10, 16 << 10, 256 << 10}, endpoints: []int{8, 64, 512}}
	f := flag.NewFlagSet("stream", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.sluice, "sluice", "", "the sluice `binary` to measure; without it one is built")
	f.StringVar(&o.null, "null", "", "the null server's `binary`; without it one is built")
	f.IntVar(&o.rounds, "rounds", 5, "how often each server is measured, in turn with the other")
	f.IntVar(&o.requests, "requests", 2000, "requests a round")
	f.IntVar(&o.concurrency, "concurrency", 16, "requests at once")
	f.IntVar(&o.chunks, "chunks", 3, "chunks of a streamed answer, the one with its usage included")
	f.Var(list{&o.bodies, parseBody, report.Size}, "bodies", "request body `sizes`")
	f.Var(list{&o.endpoints, parseEndpoints, strconv.Itoa}, "endpoints", "`numbers` of endpoints")
	f.StringVar(&o.profiles, "cpuprofile", "", "`folder` for a CPU profile of each server in each row, taken after the rounds")
	f.DurationVar(&o.profileTime, "profile-time", 5*time.Second, "how long to profile, in whole seconds")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	var errs []error
	for _, at := range []struct {
		flag  string
		value int
	}{{"rounds", o.rounds}, {"requests", o.requests}, {"concurrency", o.concurrency}, {"chunks", o.chunks}} {
		if at.value < 1 {
			errs = append(errs, fmt.Errorf("-%s: must be at least 1, got %d", at.flag, at.value))
		}
	}
	if o.profileTime < time.Second {
		errs = append(errs, fmt.Errorf("-profile-time: must be at least 1s, got %v", o.profileTime))
	}
	return o, errors.Join(errs...)
}
