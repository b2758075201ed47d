package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"
)

// tests is a file of unit tests in promtool's format, as far as alerts go.
type tests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []group        `yaml:"tests"`
}

type group struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	AlertRuleTests []alertTest `yaml:"alert_rule_test"`
}

type alertTest struct {
	EvalTime  model.Duration `yaml:"eval_time"`
	Alertname string         `yaml:"alertname"`
	ExpAlerts []expected     `yaml:"exp_alerts"`
}

// expected is a firing alert with all its labels but its name, and those annotations that are to be looked at.
type expected struct {
	ExpLabels      map[string]string `yaml:"exp_labels"`
	ExpAnnotations map[string]string `yaml:"exp_annotations"`
}

// runTests runs a file of unit tests over some rules and returns the number of its cases. Every alert must be seen to
// fire in one and not to in another.
func runTests(file string, rules []rulefmt.Rule) (cases int, faults []error) {
	alerts := map[string]bool{}
	for _, r := range rules {
		alerts[r.Alert] = true
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, []error{err}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(content)))
	decoder.KnownFields(true)
	var t tests
	if err := decoder.Decode(&t); err != nil {
		return 0, []error{fmt.Errorf("%s: %w", file, err)}
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, g := range t.Tests {
		for _, a := range g.AlertRuleTests {
			cases++
			if len(a.ExpAlerts) > 0 {
				fires[a.Alertname] = true
			} else {
				quiet[a.Alertname] = true
			}
			if !alerts[a.Alertname] {
				faults = append(faults, fmt.Errorf("%s: %s: no such alert: %q", file, g.Name, a.Alertname))
			}
		}
		for _, err := range g.run(time.Duration(t.EvaluationInterval), rules) {
			faults = append(faults, fmt.Errorf("%s: %s: %w", file, g.Name, err))
		}
	}
	for _, name := range keys(alerts) {
		if !fires[name] || !quiet[name] {
			faults = append(faults, fmt.Errorf("%s: %s: it must be seen to fire, which is %v, and not to fire, which is %v", file, name, fires[name], quiet[name]))
		}
	}
	return cases, faults
}

// run evaluates the rules over the series, from one interval to the next, and compares what fires at the times asked for.
func (g group) run(every time.Duration, rules []rulefmt.Rule) (faults []error) {
	if every <= 0 || g.Interval <= 0 {
		return []error{errors.New("interval and evaluation_interval must be positive")}
	}
	var given series
	for _, s := range g.InputSeries {
		faults = appendIf(faults, given.add(s.Series+" "+s.Values, time.Duration(g.Interval)))
	}
	byName := map[string]*alerting{}
	for _, r := range rules {
		byName[r.Alert] = &alerting{rule: r}
	}
	end := time.Duration(0)
	for _, a := range g.AlertRuleTests {
		end = max(end, time.Duration(a.EvalTime))
	}
	for at := time.Duration(0); at <= end && len(faults) == 0; at += every {
		for name, rule := range byName {
			if err := rule.eval(context.Background(), given, time.Unix(0, 0).Add(at)); err != nil {
				faults = append(faults, fmt.Errorf("%s after %s: %w", name, at, err))
			}
		}
		for _, a := range g.AlertRuleTests {
			if t := time.Duration(a.EvalTime); t >= at && t < at+every && byName[a.Alertname] != nil {
				faults = appendIf(faults, a.compare(byName[a.Alertname]))
			}
		}
	}
	return faults
}

func appendIf(faults []error, err error) []error {
	if err != nil {
		faults = append(faults, err)
	}
	return faults
}

// compare holds what fires against what should.
func (a alertTest) compare(rule *alerting) error {
	var firing []*alert
	for _, active := range rule.active {
		if active.firing {
			firing = append(firing, active)
		}
	}
	var errs []error
	for _, want := range a.ExpAlerts {
		i := slices.IndexFunc(firing, func(f *alert) bool { return labels.Equal(f.labels, want.labels(a.Alertname)) })
		if i < 0 {
			errs = append(errs, fmt.Errorf("%s after %s: %v does not fire; what fires: %s", a.Alertname, a.EvalTime, want.ExpLabels, list(firing)))
			continue
		}
		for name, text := range want.ExpAnnotations {
			if got := firing[i].annotations[name]; got != text {
				errs = append(errs, fmt.Errorf("%s after %s: %s is %q, want %q", a.Alertname, a.EvalTime, name, got, text))
			}
		}
		firing = slices.Delete(firing, i, i+1)
	}
	if len(firing) > 0 {
		errs = append(errs, fmt.Errorf("%s after %s: it fires, and should not: %s", a.Alertname, a.EvalTime, list(firing)))
	}
	return errors.Join(errs...)
}

// labels are all that the alert has.
func (e expected) labels(name string) labels.Labels {
	all := map[string]string{labels.AlertName: name}
	maps.Copy(all, e.ExpLabels)
	return labels.FromMap(all)
}

func list(alerts []*alert) string {
	if len(alerts) == 0 {
		return "nothing"
	}
	var all []string
	for _, a := range alerts {
		all = append(all, a.labels.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
