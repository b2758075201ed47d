package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// known are a few metrics of each type.
var known = map[string]metric{
	"sluice_requests_total":    {kind: "counter", labels: map[string]bool{"result": true}},
	"sluice_endpoints":         {kind: "gauge", labels: map[string]bool{"state": true}},
	"sluice_decision_seconds":  {kind: "histogram", labels: map[string]bool{}},
	"sluice_outlier_something": {kind: "gauge", labels: map[string]bool{}},
}

func TestCheckExpr(t *testing.T) {
	for expr, want := range map[string]string{
		`sum by (instance, result) (rate(sluice_requests_total{result="picked"}[5m])) > 1`: "",
		`histogram_quantile(0.99, sum by (le) (rate(sluice_decision_seconds_bucket[5m])))`: "",
		`rate(sluice_decision_seconds_sum[5m]) / rate(sluice_decision_seconds_count[5m])`:  "",
		`max by (state) (sluice_endpoints{job="x"})`:                                       "",
		`rate(process_cpu_seconds_total[1m])`:                                              "",
		`sum(`:                                                                             "unclosed left parenthesis",
		`1 + 1`:                                                                            "asks for no series",
		`sluice_nothing`:                                                                   "no such metric: sluice_nothing",
		`vllm:num_requests_waiting`:                                                        "no such metric",
		`sluice_endpoints{stat="ready"}`:                                                   `no label "stat"`,
		`sum by (result) (sluice_endpoints)`:                                               `nothing below has the label "result"`,
		`sum by (le) (rate(sluice_decision_seconds_sum[5m]))`:                              `nothing below has the label "le"`,
		`rate(sluice_endpoints[5m])`:                                                       "rate needs a counter",
		`sluice_requests_total > 3`:                                                        "ask for its rate",
		`sluice_decision_seconds`:                                                          "is a histogram",
		`rate(sluice_decision_seconds_total[5m])`:                                          "no such metric",
		`rate(sluice_requests_total_bucket[5m])`:                                           "no such metric",
		`histogram_quantile(0.9, sluice_endpoints)`:                                        "needs buckets",
		`sum(rate(sluice_requests_total[5m])) and on (instance) sum by (instance) (sluice_endpoints{x="y"})`: `no label "x"`,
	} {
		faults := errors.Join(checkExpr(expr, known)...)
		if (faults == nil) != (want == "") || faults != nil && !strings.Contains(faults.Error(), want) {
			t.Errorf("%s: %v, want %q", expr, faults, want)
		}
	}
}

func TestReadPage(t *testing.T) {
	var page strings.Builder
	page.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for i := range fewest {
		fmt.Fprintf(&page, "| `sluice_m%d_total` | counter | `a`, `b` | Something. |\n", i)
	}
	page.WriteString("| `sluice_none` | gauge |  | No labels. |\n| `sluice_ready{state}` | `peer_metric` | `other` |\n")
	all, err := readPage([]byte(page.String()))
	if err != nil {
		t.Fatal(err)
	}
	if m := all["sluice_m0_total"]; m.kind != "counter" || !m.labels["a"] || !m.labels["b"] || len(m.labels) != 2 {
		t.Errorf("read as %+v", m)
	}
	if m := all["sluice_none"]; m.kind != "gauge" || len(m.labels) != 0 || len(all) != fewest+1 {
		t.Errorf("%d metrics, and one read as %+v", len(all), m)
	}
	if _, err := readPage([]byte("| `sluice_none` | gauge |  | No labels. |\n")); err == nil {
		t.Error("a page that is cut short passes")
	}
}

const (
	goodRules = `groups:
- name: g
  rules:
  - alert: SluiceFew
    expr: sluice_endpoints{state="ready"} < 2
    for: 2m
    labels: {severity: warning}
    annotations: {summary: Few., description: "{{ $value }} are left.", runbook_url: "https://x/#sluicefew"}
`
	goodTests = `rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
- name: few
  interval: 1m
  input_series: [{series: 'sluice_endpoints{state="ready"}', values: '5 1x9'}]
  alert_rule_test:
  - {eval_time: 2m, alertname: SluiceFew}
  - eval_time: 5m
    alertname: SluiceFew
    exp_alerts: [{exp_labels: {severity: warning, state: ready}, exp_annotations: {description: 1 are left.}}]
`
	runbookPage = "# Alerts\n\n## SluiceFew\n"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckRules(t *testing.T) {
	for name, tc := range map[string]struct{ from, to, want string }{
		"good":             {"", "", ""},
		"no severity":      {"severity: warning", "severity: grave", "severity: must be one of"},
		"no summary":       {"summary: Few., ", "", "it has no summary"},
		"no section":       {"#sluicefew", "#sluicemany", `no section "sluicemany"`},
		"unknown metric":   {"sluice_endpoints{", "sluice_endpoint{", "no such metric"},
		"unknown label":    {"state=", "status=", `no label "status"`},
		"no PromQL":        {"< 2", "< <", "could not parse"},
		"no template":      {"{{ $value }}", "{{ $valeu }}", "valeu"},
		"an unknown field": {"for: 2m", "four: 2m", "four"},
		"one that lingers": {"for: 2m", "for: 2m\n    keep_firing_for: 5m", "keep_firing_for"},
		"a recording rule": {"alert: SluiceFew", "record: few", "recording rule"},
	} {
		t.Run(name, func(t *testing.T) {
			rules := goodRules
			if tc.from != "" {
				rules = strings.ReplaceAll(goodRules, tc.from, tc.to)
			}
			alerts, faults := checkRules(write(t, "rules.yaml", rules), []byte(runbookPage), known)
			err := errors.Join(faults...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if tc.want == "" && (len(alerts) != 1 || alerts[0].Alert != "SluiceFew") {
				t.Errorf("alerts: %v", alerts)
			}
		})
	}
	_, faults := checkRules(write(t, "rules.yaml", goodRules), []byte(runbookPage+"\n## SluiceGone\n"), known)
	if err := errors.Join(faults...); err == nil || !strings.Contains(err.Error(), "of no alert") {
		t.Errorf("a section without an alert: %v", err)
	}
}

func TestRunTests(t *testing.T) {
	rules, faults := checkRules(write(t, "rules.yaml", goodRules), []byte(runbookPage), known)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for name, tc := range map[string]struct{ from, to, want string }{
		"good":             {"", "", ""},
		"does not fire":    {"5 1x9", "5x9", "does not fire; what fires: nothing"},
		"fires too early":  {"5 1x9", "1x9", "it fires, and should not"},
		"other labels":     {"state: ready", "state: draining", "does not fire"},
		"another text":     {"1 are left", "2 are left", `is "1 are left."`},
		"unknown alert":    {"eval_time: 2m, alertname: SluiceFew", "eval_time: 2m, alertname: SluiceNone", "no such alert"},
		"never fires":      {"exp_alerts: [{exp_labels: {severity: warning, state: ready}, exp_annotations: {description: 1 are left.}}]", "exp_alerts: []", "it must be seen to fire"},
		"never quiet":      {"  - {eval_time: 2m, alertname: SluiceFew}\n", "", "not to fire, which is false"},
		"unreadable input": {"5 1x9", "five", "five"},
		"an unknown field": {"exp_labels", "labels", "labels"},
		"no interval":      {"  interval: 1m\n", "", "must be positive"},
		// Pending begins anew after a minute without it.
		"interrupted": {"5 1x9", "5 1 1 5 1 1 1", "does not fire"},
		"stale":       {"5 1x9", "5 1 1 1 stale", "does not fire"},
	} {
		t.Run(name, func(t *testing.T) {
			tests := goodTests
			if tc.from != "" {
				tests = strings.Replace(goodTests, tc.from, tc.to, 1)
			}
			cases, faults := runTests(write(t, "tests.yaml", tests), rules)
			err := errors.Join(faults...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if tc.want == "" && cases != 2 {
				t.Errorf("%d cases, want 2", cases)
			}
		})
	}
}

const goodBoard = `{"uid": "u", "title": "T", "schemaVersion": 39,
 "templating": {"list": [{"name": "datasource", "type": "datasource"}]},
 "panels": [
  {"id": 1, "type": "row", "title": "R", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}},
  {"id": 2, "type": "timeseries", "title": "P", "gridPos": {"x": 0, "y": 1, "w": 12, "h": 8},
   "datasource": {"type": "prometheus", "uid": "${datasource}"},
   "targets": [{"refId": "A", "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "expr": "sum(rate(sluice_requests_total{instance=~\"$instance\"}[$__rate_interval]))"}]},
  {"id": 3, "type": "stat", "title": "Q", "gridPos": {"x": 12, "y": 1, "w": 12, "h": 8},
   "datasource": {"type": "prometheus", "uid": "${datasource}"},
   "targets": [{"refId": "A", "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "expr": "sluice_endpoints{instance=~\"$instance\"}"}]}]}`

func TestCheckDashboard(t *testing.T) {
	for name, tc := range map[string]struct{ from, to, want string }{
		"good":                {"", "", ""},
		"no JSON":             {`"panels": [`, `"panels": `, "invalid character"},
		"the same id":         {`"id": 3`, `"id": 2`, `is that of "P"`},
		"overlap":             {`"x": 12`, `"x": 11`, "overlap"},
		"out of the board":    {`"w": 12, "h": 8}`, `"w": 32, "h": 8}`, "out of the board"},
		"no variable":         {`"type": "datasource"`, `"type": "query"`, "no variable chooses"},
		"a fixed data source": {`"uid": "${datasource}"`, `"uid": "P1809F7CD0C75ACF3"`, "the chosen data source"},
		"no PromQL":           {`sum(rate(`, `sum(rate`, "parse"},
		"unknown metric":      {`sluice_endpoints`, `sluice_endpoint`, "no such metric"},
		"all instances":       {`{instance=~\"$instance\"}[`, `[`, "chosen instances"},
		"no title":            {`"title": "P"`, `"title": ""`, "no title"},
		"no schema":           {`"schemaVersion": 39`, `"schemaVersion": 0`, "schemaVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			board := goodBoard
			if tc.from != "" {
				board = strings.Replace(goodBoard, tc.from, tc.to, 1)
			}
			panels, faults := checkDashboard([]byte(board), known)
			err := errors.Join(faults...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if tc.want == "" && panels != 3 {
				t.Errorf("%d panels, want 3", panels)
			}
		})
	}
}
