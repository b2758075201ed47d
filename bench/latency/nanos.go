package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/sluice-epp/sluice/bench/latency/judge"
)

// What measures a prediction for 512 endpoints.
const (
	benchmarked = "./load/latency"
	benchmark   = "BenchmarkPredict512"
)

// predictionNanos is the median of some rounds of the benchmark, in ns.
func predictionNanos(ctx context.Context, rounds int, stderr io.Writer) (float64, error) {
	if rounds == 0 {
		return 0, nil
	}
	fmt.Fprintf(stderr, "latency: %d rounds of %s\n", rounds, benchmark)
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+benchmark+"$", "-count", strconv.Itoa(rounds), benchmarked)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", benchmark, err, out)
	}
	return readNanos(string(out), rounds)
}

var nanosPerOp = regexp.MustCompile(`(?m)^` + benchmark + `(?:-\d+)?\s+\d+\s+([\d.]+) ns/op`)

func readNanos(out string, rounds int) (float64, error) {
	var nanos []float64
	for _, match := range nanosPerOp.FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return 0, err
		}
		nanos = append(nanos, v)
	}
	if len(nanos) != rounds {
		return 0, errors.New(benchmark + ": want " + strconv.Itoa(rounds) + " rounds, got:\n" + out)
	}
	return judge.Median(nanos), nil
}
