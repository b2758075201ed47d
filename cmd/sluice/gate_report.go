package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"golang.org/x/term"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// GateReportCommand says what load gates saw and what others would have done.
type GateReportCommand struct {
	Log []string `arg:"" name:"log" optional:"" help:"A decision log: files of JSON lines, gzipped or not, or of Parquet, and folders of them. - is standard input (JSON lines)."`

	Behind        time.Duration   `help:"From which gap on an endpoint counts as far behind; by default what three of four gaps in the log stay below." placeholder:"TIME"`
	Bar           []time.Duration `help:"Static bars to try: maxTTFTPenaltyMs. May be repeated. By default around the gaps in the log." placeholder:"TIME"`
	Times         []int           `help:"Multiples of matchedTokens to try. May be repeated." default:"1,3" placeholder:"N"`
	Threshold     float64         `help:"The gate's affinityThreshold where a record does not hold it." default:"0.8"`
	Peak          float64         `help:"The throughput that makes ms of tokens, in tokens per second; 0 takes what each record says, or the prefill rate that the log holds, or 15928." default:"0"`
	MatchProducer string          `help:"Where several producers fill in the prefix match: the one that the gate reads." placeholder:"NAME"`
	LoadProducer  string          `help:"Where several fill in the load: the one that the gate reads." placeholder:"NAME"`
	JSON          string          `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
	HTML          string          `name:"html" help:"Write a page with plots." placeholder:"FILE"`
}

// Help is shown below the usage.
func (*GateReportCommand) Help() string {
	return `Reads what the decision log holds of the affinity gate (prefix-cache-affinity-filter): how much later the sticky endpoint was than the
best other one (the gate's input), how often it let go, how often it held on to an endpoint that was far behind, by model and by
hour. Then it decides every decision again with other bars, with matchedTokens and with breakEven, by the gate's own code, from the
recorded matches, loads and learnt rates. Where a profile has no gate, it says what one would have compared. docs/gate.md reads an answer. Examples:

  sluice gate-report /var/log/sluice/decisions
  sluice gate-report --behind 2s --bar 500ms --bar 2500ms decisions-*.jsonl
  sluice gate-report --html gate.html --json gate.json /var/log/sluice/decisions
  zcat old.jsonl.gz | sluice gate-report -`
}

// Validate checks that there is something to read.
func (g *GateReportCommand) Validate() error {
	if len(g.Log) == 0 {
		return errNoLog
	}
	return nil
}

// errNoLog is what commands say that read a log and were given none.
var errNoLog = errors.New("give the files or folders of a decision log (telemetry.decisionLog.path), or - for standard input")

// maxRules bounds the gates that are tried at once.
const maxRules = 64

func (g *GateReportCommand) options() (gatereport.Options, error) {
	o := gatereport.Options{
		Threshold: g.Threshold, Peak: g.Peak, Behind: milliseconds(g.Behind), MatchProducer: g.MatchProducer, LoadProducer: g.LoadProducer,
	}
	if len(g.Bar)+len(g.Times) > maxRules {
		return o, fmt.Errorf("--bar, --times: %d rules are more than %d", len(g.Bar)+len(g.Times), maxRules)
	}
	for _, b := range g.Bar {
		if b <= 0 {
			return o, fmt.Errorf("--bar: must be above 0, got %v", b)
		}
		o.Rules = append(o.Rules, gatereport.StaticRule(milliseconds(b)))
	}
	for _, n := range g.Times {
		if n < 1 || n > 1000 {
			return o, fmt.Errorf("--times: must be from 1 to 1000, got %d", n)
		}
		o.Rules = append(o.Rules, gatereport.MatchedRule(n))
	}
	o.Rules = append(o.Rules, gatereport.BreakEvenRule())
	check := o
	if g.Behind == 0 {
		check.Behind = 1 // the log will say
	}
	err := check.Validate()
	return o, err
}

// surveyed is how many decisions are read ahead of what cannot be read twice.
const surveyed = 2000

// suggest fills in what was not given by what the log holds, and returns the decisions, none of them lost.
func (g *GateReportCommand) suggest(i *interrupts, reader *decisionlog.Reader, o *gatereport.Options) (iter.Seq2[*decisionv1.Decision, error], error) {
	all := reader.Decisions(i)
	if g.Behind != 0 && len(g.Bar) > 0 && g.Peak != 0 {
		return all, nil
	}
	survey := all
	if !readTwice(reader.Files()) {
		survey, all = ahead(all, surveyed)
	}
	s, err := gatereport.Suggest(i, survey, *o)
	if err != nil {
		return nil, err
	}
	o.Learnt = s.Peak
	if g.Behind == 0 {
		o.Behind = s.BehindMs
	}
	if len(g.Bar) == 0 {
		var bars []gatereport.Rule
		for _, ms := range s.BarsMs {
			bars = append(bars, gatereport.StaticRule(ms))
		}
		o.Rules = append(bars, o.Rules...)
	}
	return all, nil
}

func readTwice(files []string) bool {
	for _, path := range files {
		info, err := os.Stat(path)
		if path == decisionlog.Stdin || err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// ahead reads the first n, and returns them and all of them; what is behind them is read once.
func ahead(all iter.Seq2[*decisionv1.Decision, error], n int) (first, whole iter.Seq2[*decisionv1.Decision, error]) {
	type row struct {
		decision *decisionv1.Decision
		err      error
	}
	var kept []row
	next, stop := iter.Pull2(all)
	for len(kept) < n {
		d, err, ok := next()
		if !ok {
			break
		}
		kept = append(kept, row{d, err})
	}
	first = func(yield func(*decisionv1.Decision, error) bool) {
		for _, r := range kept {
			if !yield(r.decision, r.err) {
				return
			}
		}
	}
	return first, func(yield func(*decisionv1.Decision, error) bool) {
		defer stop()
		for _, r := range kept {
			if !yield(r.decision, r.err) {
				return
			}
		}
		kept = nil
		for {
			d, err, ok := next()
			if !ok || !yield(d, err) {
				return
			}
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Run reads and reports.
func (g *GateReportCommand) Run(i *interrupts) error {
	o, err := g.options()
	if err != nil {
		return err
	}
	if g.HTML != "" && g.HTML == g.JSON {
		return fmt.Errorf("--html, --json: both are %s", g.HTML)
	}
	reader, err := decisionlog.NewReader(g.Log...)
	if err != nil {
		return err
	}
	stop := progress(i, "read", reader.Progress)
	decisions, err := g.suggest(i, reader, &o)
	if err != nil {
		stop()
		return err
	}
	report, err := gatereport.Run(i, told(decisions, os.Stderr), o)
	stop()
	if err != nil {
		return err
	}
	if report.Decisions == 0 {
		return fmt.Errorf("%s: no decision could be read%s", g.Log[0], skippedWords(report.Skipped))
	}
	if g.HTML != "" {
		if err := writeTo(g.HTML, report.WriteHTML); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if g.JSON != "" {
		if err := writeTo(g.JSON, report.WriteJSON); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if g.JSON == "-" || g.HTML == "-" {
		return nil
	}
	width, styles := paper(os.Stdout)
	return report.WriteText(os.Stdout, gatereport.Paper{Cells: max(width, 100), Styles: styles})
}

func skippedWords(skipped map[string]uint64) string {
	words := ""
	for reason, n := range skipped {
		words += fmt.Sprintf("; %d: %s", n, reason)
	}
	return words
}

// progress tells a terminal how far something is, until stop is called.
func progress(ctx context.Context, done string, how func() (read, size int64)) (stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(os.Stderr, "\r\033[K")
				return
			case <-tick.C:
				if read, size := how(); size > 0 {
					fmt.Fprintf(os.Stderr, "\r\033[K%s of %s bytes %s", display.Percent(float64(read)/float64(size)), display.Count(float64(size)), done)
				}
			}
		}
	}()
	return func() { cancel(); <-ended }
}
