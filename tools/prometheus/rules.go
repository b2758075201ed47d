package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
)

// heading is one of the runbook page, of one word.
var heading = regexp.MustCompile(`(?m)^## ([A-Za-z]+)$`)

var severities = []string{"critical", "warning", "info"}

// checkRules reads a rule file as Prometheus does and returns its alerts. Each has to say what it is about, and to
// lead to a section of the runbook page.
func checkRules(file string, runbook []byte, known map[string]metric) (rules []rulefmt.Rule, faults []error) {
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, promQL, promslog.NewNopLogger())
	if len(errs) > 0 {
		return nil, errs
	}
	sections := map[string]bool{}
	for _, m := range heading.FindAllSubmatch(runbook, -1) {
		sections[strings.ToLower(string(m[1]))] = true
	}
	alerts := map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			fault := func(format string, args ...any) {
				faults = append(faults, fmt.Errorf("%s: %s: "+format, append([]any{file, r.Alert}, args...)...))
			}
			if r.Alert == "" || alerts[r.Alert] {
				fault("every rule is an alert of a name of its own, got record %q", r.Record)
			}
			if r.KeepFiringFor != 0 {
				fault("keep_firing_for: the unit tests do not know it")
			}
			alerts[r.Alert], rules = true, append(rules, r)
			for _, err := range checkExpr(r.Expr, known) {
				fault("%w", err)
			}
			if !slices.Contains(severities, r.Labels["severity"]) {
				fault("severity: must be one of %v, got %q", severities, r.Labels["severity"])
			}
			for _, name := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[name] == "" {
					fault("it has no %s", name)
				}
			}
			if _, section, _ := strings.Cut(r.Annotations["runbook_url"], "#"); !sections[section] {
				fault("runbook_url: the page has no section %q", section)
			}
		}
	}
	for section := range sections {
		if !slices.ContainsFunc(keys(alerts), func(name string) bool { return strings.ToLower(name) == section }) {
			faults = append(faults, fmt.Errorf("the runbook page has a section %q of no alert", section))
		}
	}
	return rules, faults
}

func keys(of map[string]bool) []string {
	all := make([]string, 0, len(of))
	for k := range of {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
