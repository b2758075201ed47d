// Command promcheck checks what Sluice is watched with: the alert rules as Prometheus reads them, the dashboard as Grafana
// does, and every expression of both against the metrics that a process serves. It runs the rules' unit tests, which are in
// promtool's format; unlike promtool, it compares annotations only where they are given.
//
//	promcheck -metrics docs/metrics.md -rules RULES -tests TESTS -alerts docs/alerts.md -dashboard DASHBOARD
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promcheck:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("promcheck", flag.ContinueOnError)
	metrics := flags.String("metrics", "", "the page that lists all metrics")
	rules := flags.String("rules", "", "the rule file")
	tests := flags.String("tests", "", "the rules' unit tests")
	alerts := flags.String("alerts", "", "the page that the rules' runbook links lead to")
	dashboard := flags.String("dashboard", "", "the dashboard")
	if err := flags.Parse(args); err != nil {
		return err
	}
	page, err := os.ReadFile(*metrics)
	if err != nil {
		return err
	}
	known, err := readPage(page)
	if err != nil {
		return fmt.Errorf("%s: %w", *metrics, err)
	}
	runbook, err := os.ReadFile(*alerts)
	if err != nil {
		return err
	}
	board, err := os.ReadFile(*dashboard)
	if err != nil {
		return err
	}
	named, faults := checkRules(*rules, runbook, known)
	cases, unitFaults := runTests(*tests, named)
	panels, boardFaults := checkDashboard(board, known)
	faults = append(faults, unitFaults...)
	for _, f := range boardFaults {
		faults = append(faults, fmt.Errorf("%s: %w", *dashboard, f))
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	_, err = fmt.Fprintf(out, "promcheck: %d metrics, %d alerts, %d test cases, %d panels\n", len(known), len(named), cases, panels)
	return err
}
