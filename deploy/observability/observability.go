// Package observability is the one source of what operators get to watch Sluice with: the alert rules for Prometheus, the
// page that says what to do about each, and the dashboard for Grafana. The files under deploy and docs are made of it by
// go generate; a test fails when they are not fresh.
package observability

import "time"

//go:generate go run ./gen ../..

// The files that Files makes, by their paths in the repository.
const (
	RulesPath     = "deploy/prometheus/rules.yaml"
	DashboardPath = "deploy/grafana/sluice.json"
	AlertsPath    = "docs/alerts.md"
)

// runbook is where the sections of AlertsPath are read.
const runbook = "https://github.com/sluice-epp/sluice/blob/main/" + AlertsPath + "#"

// Severity says how soon an alert needs somebody.
type Severity string

// The severities: requests fail or are about to; something is wrong that will be felt; something that pays to look at.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// Alert is one alerting rule with its section of the page.
type Alert struct {
	// Name is the alert's name, which begins with Sluice; Group is the rule group that it is in.
	Name, Group string
	// Expr is the PromQL expression, For how long it must hold.
	Expr string
	For  time.Duration
	// Severity is the label of that name.
	Severity Severity
	// Summary is one line; Description says what was seen, as a template over $labels and $value.
	Summary, Description string
	// Means says what the alert tells and how its number came about, Do what to do about it. Both are Markdown.
	Means string
	Do    []string
}

// Files are the contents of all files, by path.
func Files() (map[string][]byte, error) {
	dashboard, err := dashboardJSON(Rows())
	if err != nil {
		return nil, err
	}
	alerts := Alerts()
	return map[string][]byte{
		RulesPath: rulesYAML(alerts), DashboardPath: dashboard, AlertsPath: alertsPage(alerts),
	}, nil
}
