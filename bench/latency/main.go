// Command latency measures how well latency is predicted: by the embedded model as it served, by XGBoost that is trained on the same
// samples, by tokens in flight over a constant, and by the mean. It prints a line a data set; see docs/latency.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/bench/latency/sample"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "latency: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	traces, out, python, sockets string
	sets                         []string
	seed                         uint64
	every                        int
	rounds                       int
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("latency", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.traces, "traces", "", "folder of the public traces; without it synthetic workloads alone")
	flags.StringVar(&o.out, "out", "bin/latency", "folder for samples, predictions and results.json")
	flags.StringVar(&o.python, "python", "", "Python with XGBoost, as scripts/xgboost.sh prints it; without it nothing is trained beside")
	flags.StringVar(&o.sockets, "sockets", "", "file of samples that were taken over sockets")
	names := flags.String("sets", "", "the data sets to do, comma-separated; without it all")
	flags.Uint64Var(&o.seed, "seed", 1, "source of all chance")
	flags.IntVar(&o.every, "every", 0, "samples between two trainings of XGBoost; 0: 500, and 100 where something shifts")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds of the benchmark of a prediction; 0: it is left out")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.every < 0 || o.rounds < 0 {
		return o, fmt.Errorf("-every and -rounds: must be >= 0, got %d and %d", o.every, o.rounds)
	}
	if *names != "" {
		o.sets = strings.Split(*names, ",")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	plans, err := plansOf(o, stderr)
	if err != nil {
		return err
	}
	nanos, err := predictionNanos(ctx, o.rounds, stderr)
	if err != nil {
		return err
	}
	var results []result
	for _, p := range plans {
		fmt.Fprintf(stderr, "latency: %s: taking samples\n", p.name)
		some, err := measure(ctx, p, o, stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		for i := range some {
			some[i].PredictNanos = nanos
			if _, err := fmt.Fprintln(stdout, some[i].line()); err != nil {
				return err
			}
		}
		results = append(results, some...)
		if err := save(filepath.Join(o.out, "results.json"), results); err != nil {
			return err
		}
	}
	return table(stderr, results)
}

// save writes what is done so far.
func save(path string, results []result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// measure takes a set's samples, has XGBoost predict them, and compares.
func measure(ctx context.Context, p plan, o options, stderr io.Writer) ([]result, error) {
	rows, shiftMs, err := p.samples(o.seed)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(o.out, p.name+".ndjson")
	if err := sample.Write(path, rows); err != nil {
		return nil, err
	}
	said := predictions(rows)
	if !slices.Contains(said.names("", embedded), embedded) {
		return nil, fmt.Errorf("%d samples, and no prediction of any", len(rows))
	}
	if o.python != "" {
		every := o.every
		if every == 0 {
			every = p.every
		}
		if err := boosted(ctx, o.python, path, every, len(rows), said, stderr); err != nil {
			return nil, err
		}
	}
	return judged(p.name, rows, said, shiftMs, p.plan.SlowEngine)
}
