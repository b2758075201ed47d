package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/sluice-epp/sluice/cmd/sluice/replay"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// ReplayCommand makes recorded decisions again.
type ReplayCommand struct {
	Log []string `arg:"" name:"log" optional:"" help:"A decision log: files of JSON lines (gzipped or not) or Parquet, or their folder; - is JSON lines on standard input."`

	Config string `help:"The configuration to decide with; 'default' is the built-in one. Without it every decision is made again by the configuration that made it, which is beside the log." placeholder:"FILE"`
	Show   int    `help:"Show this many flips, explained." default:"0" placeholder:"N"`
	JSON   string `name:"json" help:"Write all figures to a file, as JSON; - is the standard output." placeholder:"FILE"`
	HTML   string `name:"html" help:"Write a page with plots to a file." placeholder:"FILE"`
}

// Help is shown below the usage.
func (*ReplayCommand) Help() string {
	return `With --config: how many requests would have gone elsewhere, what made the difference, how many prompt tokens are cached there, and
how evenly requests spread. This is open-loop: what a decision rests on is what was recorded, which other decisions before it would have
changed; 'sluice simulate' closes the loop. What cannot be made again is counted and named. Without --config: every decision has to come
out the same to the byte, else the exit code is 1. docs/replay.md tells more. Examples:

  sluice replay /var/log/sluice/decisions                      are decisions what their configuration makes of them?
  sluice replay /var/log/sluice/decisions --config new.yaml    what would the new configuration do?
  sluice replay day.parquet --config new.yaml --show 5 --html flips.html
  zcat *.jsonl.gz | sluice replay - --config default --json - | jq .all`
}

// builtIn names the built-in configuration.
const builtIn = "default"

// Validate checks the numbers, and that there is something to read.
func (r *ReplayCommand) Validate() error {
	if len(r.Log) == 0 {
		return errNoLog
	}
	if r.Show < 0 || r.Show > maxShown {
		return fmt.Errorf("--show: must be from 0 to %d, got %d", maxShown, r.Show)
	}
	return nil
}

// maxShown bounds what is kept of a log.
const maxShown = 1000

// Run replays.
func (r *ReplayCommand) Run(i *interrupts) (err error) {
	reader, err := decisionlog.NewReader(r.Log...)
	if err != nil {
		return err
	}
	types := server.Catalogue()
	recorded := &replay.Configurations{Paths: reader.Configs(), Build: func(path string) (*scheduling.Scheduler, error) {
		_, s, err := config.Open(path, offline, types)
		return s, err
	}}
	defer func() { err = errors.Join(err, recorded.Close()) }()
	plan := replay.Plan{Decisions: told(reader.Decisions(i), os.Stderr), Recorded: recorded.Find, Examples: r.Show, Logger: slog.New(slog.DiscardHandler)}
	if plan.New, err = r.config(types); err != nil {
		return err
	}
	if plan.New != nil {
		defer func() { err = errors.Join(err, plan.New.Scheduler.Close()) }()
	}
	done := progress(i, "read", reader.Progress)
	result, err := plan.Run(i)
	done()
	if err != nil && (result == nil || result.Replayed == 0) {
		return err
	}
	return errors.Join(err, r.write(result), r.verdict(result))
}

// config is the configuration to decide with; nil where that is each decision's own.
func (r *ReplayCommand) config(types []scheduling.PluginType) (*replay.Configuration, error) {
	path := r.Config
	switch path {
	case "":
		return nil, nil //nolint:nilnil // the documented meaning of no flag
	case builtIn:
		path = ""
	}
	file, s, err := config.Open(path, offline, types)
	if err != nil {
		return nil, err
	}
	return &replay.Configuration{Name: file.Name, Hash: s.ConfigHash(), Scheduler: s}, nil
}

func (r *ReplayCommand) write(result *replay.Result) error {
	var errs []error
	if r.HTML != "" {
		errs = append(errs, flagged("--html", writeTo(r.HTML, result.WriteHTML)))
	}
	if r.JSON != "" {
		errs = append(errs, flagged("--json", writeTo(r.JSON, result.WriteJSON)))
	}
	if r.JSON != "-" && r.HTML != "-" {
		width, styles := paper(os.Stdout)
		if !term.IsTerminal(int(os.Stdout.Fd())) {
			width = widestPaper
		}
		errs = append(errs, result.WriteText(os.Stdout, width, styles))
	}
	return errors.Join(errs...)
}

// flagged is an error that names the flag it is about.
func flagged(flag string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// verdict is the error of a log that does not come out the same, or of which nothing could be said.
func (r *ReplayCommand) verdict(result *replay.Result) error {
	if result.First != nil {
		return fmt.Errorf("%w: %d of %d; the first is decision %d, whose %s was %s and is %s", replay.ErrDiffers,
			result.Different, result.Verified, result.First.ID, result.First.Field, result.First.Recorded, result.First.Again)
	}
	if result.Replayed == 0 {
		return errors.New("no decision could be made again" + named(result.LeftOut, result.Unread) + r.hint())
	}
	if r.Config == "" && len(result.LeftOut) > 0 {
		return errors.New("not every decision could be made again" + named(result.LeftOut) + r.hint())
	}
	return nil
}

// named lists what numbers count.
func named(all ...replay.Counts) string {
	var lines []string
	for _, counts := range all {
		for name, n := range counts {
			lines = append(lines, fmt.Sprintf("%s (%d)", name, n))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Sort(lines)
	return ": " + strings.Join(lines, "; ")
}

// hint says what to give where a configuration is not known.
func (r *ReplayCommand) hint() string {
	if r.Config != "" {
		return ""
	}
	return "; give the configuration with --config, or the folder in which decisions-config-….yaml stands beside the log"
}
