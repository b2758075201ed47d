// Command index measures the precise prefix index: looking prompts up, applying events, its memory, and both at once. It
// prints a line a row; see docs/performance.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "index: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	holders []int
	blocks  int
	samples int
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("index", flag.ContinueOnError)
	flags.SetOutput(stderr)
	holders := flags.String("holders", "8,64,256,512", "numbers of endpoints that hold the prompts looked up")
	flags.IntVar(&o.blocks, "blocks", 2_000_000, "resident distinct blocks beside those prompts")
	flags.IntVar(&o.samples, "samples", 400, "look-ups timed on an index that is in no cache")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for part := range strings.SplitSeq(*holders, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 4096 {
			return o, fmt.Errorf("-holders: must be numbers from 1 to 4096, got %q", part)
		}
		o.holders = append(o.holders, n)
	}
	if o.blocks < 0 || o.samples < 1 {
		return o, fmt.Errorf("-blocks and -samples: must be positive, got %d and %d", o.blocks, o.samples)
	}
	return o, nil
}

// The bounds of the prompts that all holders have: enough that no cache of a processor holds them all, as far as memory
// goes. Each prompt is 96 pairs of a block and a holder on average.
const (
	maxPrompts = 4000
	maxPairs   = 200_000
)

func run(args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "index: %s/%s, %d CPUs, %s; %d resident blocks of %d tokens\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), o.blocks, blockSize)
	for _, n := range o.holders {
		for _, holes := range []bool{false, true} {
			fmt.Fprintf(stderr, "index: %d holders, holes %v\n", n, holes)
			p := newPool(n, min(maxPrompts, maxPairs/n), o.blocks, holes)
			if err := lookupRow(stdout, p, o); err != nil {
				return err
			}
			if n == mixedHolders {
				if err := mixedRow(stdout, p); err != nil {
					return err
				}
			}
		}
	}
	for _, holes := range []bool{false, true} {
		if err := memoryRow(stdout, holes); err != nil {
			return err
		}
	}
	return applyRows(stdout)
}
