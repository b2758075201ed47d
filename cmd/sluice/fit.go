package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluice-epp/sluice/cmd/sluice/fit"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/sim"
	simfit "github.com/sluice-epp/sluice/sim/fit"
)

// FitCommand finds the costs of an engine's steps from measured times.
type FitCommand struct {
	Samples []string `arg:"" optional:"" name:"samples" help:"Tables of measured requests, CSV or JSON lines; - is standard input."`

	Log       []string `help:"Decision logs, files or folders; of them the requests count that came to an idle endpoint. May be repeated." placeholder:"PATH"`
	Endpoint  string   `help:"With --log: the only endpoint that counts, by address or name." placeholder:"NAME"`
	Model     string   `help:"With --log: the only model that counts." placeholder:"NAME"`
	Budget    int      `name:"max-batched-tokens" help:"How many tokens the engine computes in one step, at most: vLLM's flag of the same name." default:"8192"`
	Profile   string   `help:"Costs to keep where the samples do not tell them (default: the model's)." type:"existingfile" placeholder:"FILE"`
	Resamples int      `help:"How many times the samples are drawn anew for the intervals." default:"500"`
	Out       string   `help:"Write the profile to a file; - is the standard output, with nothing else." placeholder:"FILE"`
	HTML      string   `name:"html" help:"Write a page with plots of measured against fitted." placeholder:"FILE"`
	JSON      string   `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
}

// Help is shown below the usage.
func (*FitCommand) Help() string {
	return `Samples are rows of prompt_tokens, cached_tokens and ttft_ms; with tpot_ms and output_tokens the costs of decoding are fitted too.
decoding and context_tokens say how many sequences the engine decoded when the request came, and their tokens of context together.
in_flight are all requests that it had: rows with more of them than of decoding ones are left out, since theirs waited.

Measure an idle engine, one request at a time: streamed, prompts of 100 to 30,000 tokens that nothing is cached of, some twice. For
the costs of decoding, measure beside 0 to 100 requests that decode, now with short, now with long contexts. A hundred rows do. What
they do not tell keeps its default, and the report says why. Requests that waited for others have no say while they are fewer than
half. Examples:

  sluice fit measured.csv --out engine.yaml --html fit.html
  sluice fit --log /var/log/sluice/decisions --endpoint 10.0.0.5:8000 --max-batched-tokens 16384
  sluice simulate --trace b2b --profile engine.yaml`
}

// maxResamples bounds what the intervals cost.
const maxResamples = 10_000

// Validate checks what can be checked without files.
func (c *FitCommand) Validate() error {
	switch {
	case len(c.Samples) == 0 && len(c.Log) == 0:
		return errors.New("name a table of samples, or a decision log with --log")
	case c.Budget < 1 || c.Budget > sim.MaxModelTokens:
		return fmt.Errorf("--max-batched-tokens: must be from 1 to %d, got %d", sim.MaxModelTokens, c.Budget)
	case c.Resamples < 10 || c.Resamples > maxResamples:
		return fmt.Errorf("--resamples: must be from 10 to %d, got %d", maxResamples, c.Resamples)
	case len(c.Log) == 0 && (c.Endpoint != "" || c.Model != ""):
		return errors.New("--endpoint, --model: mean something with --log only")
	}
	return nil
}

// Run reads, fits and reports.
func (c *FitCommand) Run(i *interrupts) error {
	var samples fit.Samples
	for _, path := range c.Samples {
		if err := readTable(&samples, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if len(c.Log) > 0 {
		reader, err := decisionlog.NewReader(c.Log...)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		stop := progress(i, "read", reader.Progress)
		err = samples.Log(i, told(reader.Decisions(i), os.Stderr), fit.Log{Endpoint: c.Endpoint, Model: c.Model})
		stop()
		if err == nil && c.Endpoint != "" {
			err = flagged("--endpoint", samples.CheckEndpoint(c.Endpoint))
		}
		if err != nil {
			return err
		}
	}
	o := simfit.Options{Budget: c.Budget, Default: sim.DefaultParams().Cost, Resamples: c.Resamples, Seed: 1}
	if c.Profile != "" {
		p, err := openProfile(c.Profile)
		if err != nil {
			return err
		}
		params := sim.DefaultParams()
		p.Apply(&params)
		o.Default = params.Cost
	}
	result, err := simfit.Fit(samples.Kept, o)
	if err != nil {
		return fmt.Errorf("%w%s", err, skippedRows(&samples))
	}
	return c.report(&fit.Report{Samples: &samples, Result: result, Budget: c.Budget})
}

func (c *FitCommand) report(r *fit.Report) error {
	profile := func(w io.Writer) error {
		_, err := io.WriteString(w, r.Profile())
		return err
	}
	toStdout := false
	for _, out := range []struct {
		flag, path string
		write      func(io.Writer) error
	}{{"out", c.Out, profile}, {"html", c.HTML, r.WriteHTML}, {"json", c.JSON, r.WriteJSON}} {
		if out.path == "" {
			continue
		}
		if err := writeTo(out.path, out.write); err != nil {
			return fmt.Errorf("--%s: %w", out.flag, err)
		}
		toStdout = toStdout || out.path == decisionlog.Stdin
	}
	if toStdout {
		return nil
	}
	width, _ := paper(os.Stdout)
	return r.WriteText(os.Stdout, max(width, 100))
}

func readTable(to *fit.Samples, path string) error {
	if path == decisionlog.Stdin {
		return to.Table(os.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return to.Table(f)
}

// skippedRows says what was left out, behind an error.
func skippedRows(s *fit.Samples) string {
	words := map[string]uint64{}
	for why, n := range s.Skipped {
		words[why] = uint64(n)
	}
	return skippedWords(words)
}
