package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
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

// runTests runs a file of unit tests over a rule file and returns the number of its cases. Every alert must be seen to
// fire in one and not to in another.
func runTests(file, ruleFile string, alerts map[string]bool) (cases int, faults []error) {
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
		for _, err := range g.run(time.Duration(t.EvaluationInterval), ruleFile) {
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

// load are the series in the language of Prometheus' own tests.
func (g group) load() string {
	var b strings.Builder
	fmt.Fprintf(&b, "load %s\n", g.Interval)
	for _, s := range g.InputSeries {
		fmt.Fprintf(&b, "  %s %s\n", s.Series, s.Values)
	}
	return b.String()
}

// run evaluates the rules over the series, from one interval to the next, and compares what fires at the times asked for.
func (g group) run(every time.Duration, ruleFile string) (faults []error) {
	suite, err := promqltest.NewLazyLoader(g.load(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: promQL})
	if err != nil {
		return []error{err}
	}
	defer func() { faults = appendIf(faults, suite.Close()) }()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), AppendableV2: suite.Storage(),
		Context: context.Background(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger: promslog.NewNopLogger(), Parser: promQL,
	})
	groups, errs := manager.LoadGroups(every, labels.EmptyLabels(), "", nil, false, ruleFile)
	if len(errs) > 0 {
		return errs
	}
	end := time.Duration(0)
	for _, a := range g.AlertRuleTests {
		end = max(end, time.Duration(a.EvalTime))
	}
	start := time.Unix(0, 0).UTC()
	for at := time.Duration(0); at <= end; at += every {
		suite.WithSamplesTill(start.Add(at), func(err error) { faults = appendIf(faults, err) })
		for _, of := range groups {
			of.Eval(suite.Context(), start.Add(at))
			for _, r := range of.Rules() {
				if err := r.LastError(); err != nil {
					return append(faults, fmt.Errorf("%s after %s: %w", r.Name(), at, err))
				}
			}
		}
		for _, a := range g.AlertRuleTests {
			if t := time.Duration(a.EvalTime); t >= at && t < at+every {
				faults = appendIf(faults, a.compare(groups))
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
func (a alertTest) compare(groups map[string]*rules.Group) error {
	var firing []*rules.Alert
	for _, g := range groups {
		for _, r := range g.AlertingRules() {
			if r.Name() != a.Alertname {
				continue
			}
			for _, alert := range r.ActiveAlerts() {
				if alert.State == rules.StateFiring {
					firing = append(firing, alert)
				}
			}
		}
	}
	var errs []error
	for _, want := range a.ExpAlerts {
		i := slices.IndexFunc(firing, want.is)
		if i < 0 {
			errs = append(errs, fmt.Errorf("%s after %s: %v does not fire; what fires: %s", a.Alertname, a.EvalTime, want.ExpLabels, list(firing)))
			continue
		}
		for name, text := range want.ExpAnnotations {
			if got := firing[i].Annotations.Get(name); got != text {
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

func (e expected) is(a *rules.Alert) bool {
	want := map[string]string{model.AlertNameLabel: a.Labels.Get(model.AlertNameLabel)}
	for k, v := range e.ExpLabels {
		want[k] = v
	}
	return labels.Equal(a.Labels, labels.FromMap(want))
}

func list(alerts []*rules.Alert) string {
	if len(alerts) == 0 {
		return "nothing"
	}
	var all []string
	for _, a := range alerts {
		all = append(all, a.Labels.String())
	}
	return strings.Join(all, ", ")
}
