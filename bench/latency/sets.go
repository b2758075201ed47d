package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/bench/latency/capture"
	"github.com/sluice-epp/sluice/bench/latency/sample"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/trace"
)

// The files of the public traces; bench/grids says where they are from.
const (
	conversation = "mooncake_conversation_trace.jsonl.gz"
	synthetic    = "mooncake_synthetic_trace.jsonl"
	toolagent    = "mooncake_toolagent_trace.jsonl"
	azureCode    = "azure2023_code.csv"
	azureConv    = "azure2023_conv.csv"
)

// plan is a data set.
type plan struct {
	name  string
	file  string     // of a public trace; empty: b2b
	b2b   *trace.B2B // what is made where file is empty
	every int        // samples between two trainings of XGBoost
	plan  capture.Plan
	path  string // of a file of samples, in place of all the above
}

const (
	usualEvery = 500
	shiftEvery = 100
	// stepNoise is the noise of the engines' steps.
	stepNoise = 0.05
	large     = 2_400_000
	small     = 307_200
)

func ofTrace(name, file string, speed float64, jitter time.Duration, kvTokens int) plan {
	return plan{name: name, file: file, every: usualEvery, plan: capture.Plan{Speed: speed, Jitter: jitter, KVTokens: kvTokens}}
}

func ofB2B(name string, perSecond float64, fresh bool) plan {
	b := trace.DefaultB2B()
	b.PerSecond, b.FreshQuestions = perSecond, fresh
	return plan{name: name, b2b: &b, every: usualEvery, plan: capture.Plan{Speed: 1, KVTokens: small}}
}

// drifting is the set with one of the endpoints three times slower from the middle on.
func (p plan) drifting() plan {
	p.plan.Slower, p.plan.SlowEngine, p.plan.SlowAt, p.every = 3, 3, 0.5, shiftEvery
	return p
}

// all are the data sets: eight endpoints each.
func all() []plan {
	sets := []plan{
		ofTrace("conversation-x1.5", conversation, 1.5, 3*time.Second, large),
		ofTrace("conversation-x1.8", conversation, 1.8, 3*time.Second, large),
		ofTrace("conversation-x1.3-small", conversation, 1.3, 3*time.Second, small),
		ofTrace("synthetic", synthetic, 0.9, time.Second, small),
		ofTrace("toolagent", toolagent, 1, time.Second, small),
		ofTrace("azure-code", azureCode, 10, time.Second, small),
		ofTrace("azure-conversation", azureConv, 8, time.Second, small),
		ofB2B("b2b", 12, false),
		ofB2B("b2b-fresh", 10, true),
		ofTrace("conversation-drift", conversation, 1.3, 3*time.Second, large).drifting(),
		ofB2B("b2b-drift", 8, false).drifting(),
	}
	for i := range sets {
		sets[i].plan.Engines, sets[i].plan.Noise = 8, stepNoise
	}
	return sets
}

// plansOf are the data sets that were asked for and can be had.
func plansOf(o options, stderr io.Writer) ([]plan, error) {
	if o.traces != "" {
		if info, err := os.Stat(o.traces); err != nil {
			return nil, fmt.Errorf("-traces: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("-traces: %s is no folder", o.traces)
		}
	}
	sets := all()
	if o.sockets != "" {
		sets = append(sets, plan{name: "sockets", path: o.sockets, every: shiftEvery})
	}
	var names []string
	for i := range sets {
		names = append(names, sets[i].name)
	}
	for _, name := range o.sets {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("-sets: there is no %q%s", name, scheduling.Hint(name, names))
		}
	}
	var missing []string
	sets = slices.DeleteFunc(sets, func(p plan) bool {
		wanted := slices.Contains(o.sets, p.name)
		if len(o.sets) > 0 && !wanted {
			return true
		}
		if p.file == "" || p.there(o.traces) {
			return false
		}
		missing = append(missing, p.name)
		return true
	})
	if len(missing) > 0 {
		fmt.Fprintf(stderr, "latency: left out, since their traces are not there: %s\n", strings.Join(missing, ", "))
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("-traces: %q has none of the traces of the sets", o.traces)
	}
	for i := range sets {
		if sets[i].file != "" {
			sets[i].file = filepath.Join(o.traces, sets[i].file)
		}
	}
	return sets, nil
}

func (p *plan) there(folder string) bool {
	if folder == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(folder, p.file))
	return err == nil
}

// samples are the set's rows. shiftMs is when one endpoint became slow, in ms since the beginning; negative: none did.
func (p *plan) samples(seed uint64) (rows []sample.Row, shiftMs float64, err error) {
	if p.path != "" {
		rows, err = sample.Open(p.path)
		return rows, -1, err
	}
	run := p.plan
	run.Seed = seed
	if p.file != "" {
		run.Trace, err = trace.Open(p.file)
	} else {
		run.Trace, err = p.b2b.Trace(rand.New(rand.NewPCG(seed, 0xb2b)))
	}
	if err != nil {
		return nil, -1, err
	}
	return capture.Run(run)
}
