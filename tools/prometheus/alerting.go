package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
)

// alert is an active alert of a rule: pending from since on, and firing once it has been active for as long as the rule
// says.
type alert struct {
	labels      labels.Labels
	annotations map[string]string
	since       time.Time
	firing      bool
}

// alerting evaluates one rule from one interval to the next, as Prometheus does: an element of the expression is an alert,
// which is the same one as long as its labels are, and gone with the first evaluation without it.
type alerting struct {
	rule   rulefmt.Rule
	active map[string]*alert // by labels
}

// engine evaluates expressions with Prometheus' defaults.
var engine = promql.NewEngine(promql.EngineOpts{
	MaxSamples: 1 << 20, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: promQL,
})

// eval evaluates the rule at a time.
func (a *alerting) eval(ctx context.Context, from storage.Queryable, at time.Time) error {
	query, err := engine.NewInstantQuery(ctx, from, nil, a.rule.Expr, at)
	if err != nil {
		return err
	}
	defer query.Close()
	result, err := query.Exec(ctx).Vector()
	if err != nil {
		return err
	}
	active := map[string]*alert{}
	for _, element := range result {
		now, err := a.alertOf(ctx, element, at)
		if err != nil {
			return err
		}
		key := now.labels.String()
		if active[key] != nil {
			return fmt.Errorf("two alerts with the labels %s", key)
		}
		if before := a.active[key]; before != nil {
			now.since = before.since
		}
		now.firing = at.Sub(now.since) >= time.Duration(a.rule.For)
		active[key] = now
	}
	a.active = active
	return nil
}

// alertOf is the alert that an element of the result makes, its labels and annotations filled in.
func (a *alerting) alertOf(ctx context.Context, element promql.Sample, at time.Time) (*alert, error) {
	of := element.Metric.Map()
	expand := func(text string) (string, error) {
		const defs = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
		data := template.AlertTemplateData(maps.Clone(of), nil, "", element)
		noQueries := func(context.Context, string, time.Time) (promql.Vector, error) {
			return nil, fmt.Errorf("templates of alerts may not query")
		}
		return template.NewTemplateExpander(ctx, defs+text, a.rule.Alert, data, model.TimeFromUnixNano(at.UnixNano()), noQueries, nil, nil).Expand()
	}
	made := labels.NewBuilder(element.Metric)
	made.Del(labels.MetricName)
	for name, text := range a.rule.Labels {
		value, err := expand(text)
		if err != nil {
			return nil, err
		}
		made.Set(name, value)
	}
	made.Set(labels.AlertName, a.rule.Alert)
	n := &alert{labels: made.Labels(), annotations: map[string]string{}, since: at}
	for name, text := range a.rule.Annotations {
		value, err := expand(text)
		if err != nil {
			return nil, err
		}
		if strings.Contains(value, "<no value>") {
			return nil, fmt.Errorf("%s: %q has no value", name, text)
		}
		n.annotations[name] = value
	}
	return n, nil
}
