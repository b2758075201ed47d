package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/sluice-epp/sluice/cmd/sluice/calibrate"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// CalibrateCommand measures prefill throughput and break-even.
type CalibrateCommand struct {
	Log []string `arg:"" name:"log" optional:"" help:"A decision log: files of JSON lines, gzipped or not, or of Parquet, and folders of them. - is standard input (JSON lines)."`

	Endpoint string `help:"Ask a live engine instead of reading a log." placeholder:"URL"`
	Config   string `help:"Say what changes in this configuration file; without it, in the built-in one." placeholder:"FILE"`
	JSON     string `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
	HTML     string `name:"html" help:"Write a page with plots." placeholder:"FILE"`

	By            string  `help:"What tells deployments apart: model, endpoint, or label:KEY of endpoints." default:"model" group:"From a log:"`
	Threshold     float64 `help:"The gate's affinityThreshold." default:"0.8" group:"From a log:"`
	Alpha         float64 `help:"What recomputing takes from requests to come, in units of its own time." default:"1"`
	Kappa         float64 `help:"What it takes from each request that decodes there, in the same units." default:"0.1" group:"From a log:"`
	MatchProducer string  `help:"Where several producers fill in the prefix match: the one to read." placeholder:"NAME" group:"From a log:"`
	LoadProducer  string  `help:"Where several fill in the load: the one to read." placeholder:"NAME" group:"From a log:"`

	Model         string        `help:"The model to ask for; without it, the first that the engine serves." placeholder:"NAME" group:"From a live engine:"`
	API           string        `name:"api" help:"What the engine speaks: completions or chat." default:"completions" group:"From a live engine:"`
	Header        []string      `help:"A header to send; may be repeated." placeholder:"NAME:VALUE" sep:"none" group:"From a live engine:"`
	MaxRequests   int           `help:"Requests at most." default:"100" group:"From a live engine:"`
	MaxTokens     int           `help:"Prompt tokens at most, over all requests." default:"300000" group:"From a live engine:"`
	Timeout       time.Duration `help:"Time at most." default:"5m" group:"From a live engine:"`
	LongestPrompt int           `help:"The longest prompt, in tokens." default:"8192" group:"From a live engine:"`
	TypicalPrefix int           `help:"The prefix for which to say the break-even, in tokens." default:"4096" group:"From a live engine:"`
	Yes           bool          `short:"y" help:"Do not ask before sending requests." group:"From a live engine:"`
}

// Help is shown below the usage.
func (*CalibrateCommand) Help() string {
	return `Measures how many prompt tokens a deployment prefills per second, and its break-even: how long waiting for the engine that holds a
prefix may take before computing the prefix elsewhere is as quick. Prints both with intervals (95 %), and the configuration to
paste. A log tells what your traffic meets; a probe of an idle engine what it can do. The probe says what it will send and asks first:
new prompts of several lengths one at a time, each sent again, and then several at once, one token of answer each. docs/gate.md
says what to make of the figures. Examples:

  sluice calibrate /var/log/sluice/decisions
  sluice calibrate --by endpoint --config sluice.yaml /var/log/sluice/decisions
  sluice calibrate --endpoint http://10.0.0.5:8000
  sluice calibrate --endpoint http://10.0.0.5:8000 --yes --max-tokens 50000 --json calibration.json`
}

// Validate checks what belongs together.
func (c *CalibrateCommand) Validate() error {
	switch {
	case c.Endpoint == "" && len(c.Log) == 0:
		return errors.New("give the files or folders of a decision log, or --endpoint URL")
	case c.Endpoint != "" && len(c.Log) > 0:
		return errors.New("--endpoint: give it or a log, not both")
	case c.HTML != "" && c.HTML == c.JSON:
		return fmt.Errorf("--html, --json: both are %s", c.HTML)
	}
	_, err := c.headers()
	return err
}

func (c *CalibrateCommand) headers() (http.Header, error) {
	all := http.Header{}
	for _, h := range c.Header {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, errors.New("--header: must be \"name:value\"") // what it is may be a secret
		}
		all.Add(name, strings.TrimSpace(value))
	}
	return all, nil
}

// Run measures and reports.
func (c *CalibrateCommand) Run(i *interrupts) error {
	configured, effective, err := c.effective()
	if err != nil {
		return err
	}
	measure := c.fromLog
	if c.Endpoint != "" {
		measure = c.fromEngine
	}
	report, err := measure(i)
	if err != nil {
		return err
	}
	if err := report.Configure(effective); err != nil {
		return err
	}
	if c.HTML != "" {
		if err := writeTo(c.HTML, func(w io.Writer) error { return report.WriteHTML(w, configured) }); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if c.JSON != "" {
		if err := writeTo(c.JSON, report.WriteJSON); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if c.JSON == "-" || c.HTML == "-" {
		return nil
	}
	width, styles := paper(os.Stdout)
	return report.WriteText(os.Stdout, calibrate.Paper{Cells: max(width, 100), Styles: styles}, configured)
}

// effective is the configuration that may change, with its defaults.
func (c *CalibrateCommand) effective() (name string, text []byte, err error) {
	var report string
	if c.Config == "" {
		name = "the built-in configuration"
		report, err = config.CheckText(name, []byte(config.DefaultText), offline, server.Catalogue())
	} else {
		name = c.Config
		report, err = config.Check(name, offline, server.Catalogue())
	}
	if err != nil {
		return "", nil, fmt.Errorf("--config: %w", err)
	}
	return name, []byte(report), nil
}

func (c *CalibrateCommand) fromLog(ctx context.Context) (*calibrate.Report, error) {
	reader, err := decisionlog.NewReader(c.Log...)
	if err != nil {
		return nil, err
	}
	stop := progress(ctx, "read", reader.Progress)
	report, err := calibrate.Run(ctx, told(reader.Decisions(ctx), os.Stderr), calibrate.Options{
		By: c.By, Threshold: c.Threshold, Alpha: c.Alpha, Kappa: c.Kappa, MatchProducer: c.MatchProducer, LoadProducer: c.LoadProducer,
	})
	stop()
	if err == nil && report.Decisions == 0 {
		err = fmt.Errorf("%s: no decision could be read%s", c.Log[0], skippedWords(report.Skipped))
	}
	return report, err
}

func (c *CalibrateCommand) fromEngine(ctx context.Context) (*calibrate.Report, error) {
	header, err := c.headers()
	if err != nil {
		return nil, err
	}
	p, err := calibrate.NewProber(ctx, calibrate.ProbeOptions{
		Endpoint: c.Endpoint, Model: c.Model, API: c.API, Header: header, MaxRequests: c.MaxRequests, MaxTokens: c.MaxTokens, Timeout: c.Timeout,
		LongestPrompt: c.LongestPrompt, Typical: c.TypicalPrefix, Alpha: c.Alpha,
	})
	if err != nil {
		return nil, err
	}
	plan := p.Plan()
	fmt.Fprintf(os.Stderr, "This sends %s up to %d requests for the model %s with about %s prompt tokens, %d at once at most, one token of answer each, for %v at most.\n",
		c.Endpoint, plan.Requests(), display.Plain(plan.Model), display.Grouped(plan.Tokens()), plan.Together, c.Timeout)
	if !c.Yes {
		if err := confirmed(ctx); err != nil {
			return nil, err
		}
	}
	p.Progress = func(done string) { fmt.Fprintln(os.Stderr, done) }
	return p.Run(ctx)
}

// confirmed asks on the terminal.
func confirmed(ctx context.Context) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("nothing was sent: there is no terminal to ask on, and no --yes")
	}
	fmt.Fprint(os.Stderr, "Go on? [y/N] ")
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		said <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr)
		return ctx.Err()
	case answer := <-said:
		if answer != "y" && answer != "yes" {
			return errors.New("nothing was sent")
		}
		return nil
	}
}
