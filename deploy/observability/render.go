package observability

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const generated = "Made by go generate ./deploy/observability. Do not edit."

// rulesYAML is the rule file of Prometheus with some alerts, which stand group by group.
func rulesYAML(alerts []Alert) []byte {
	var b strings.Builder
	b.WriteString("# " + generated + "\ngroups:\n")
	group := ""
	for _, a := range alerts {
		if a.Group != group {
			group = a.Group
			fmt.Fprintf(&b, "  - name: %s\n    rules:\n", group)
		}
		fmt.Fprintf(&b, "      - alert: %s\n        expr: |-\n", a.Name)
		for line := range strings.SplitSeq(a.Expr, "\n") {
			fmt.Fprintf(&b, "          %s\n", line)
		}
		if a.For > 0 {
			fmt.Fprintf(&b, "        for: %s\n", duration(a.For))
		}
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n        annotations:\n", a.Severity)
		for _, annotation := range [][2]string{{"summary", a.Summary}, {"description", a.Description}, {"runbook_url", runbook + anchor(a.Name)}} {
			fmt.Fprintf(&b, "          %s: %s\n", annotation[0], strconv.Quote(annotation[1])) // a Go string is a YAML one here
		}
	}
	return []byte(b.String())
}

// duration is a duration as Prometheus writes it.
func duration(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}} {
		if d%unit.of == 0 {
			return strconv.Itoa(int(d/unit.of)) + unit.name
		}
	}
	return strconv.Itoa(int(d/time.Second)) + "s"
}

// anchor is the fragment by which a heading of one word is linked to.
func anchor(heading string) string { return strings.ToLower(heading) }

const alertsHead = `# Alerts

<!-- ` + generated + ` -->

What each of the alerts in [deploy/prometheus/rules.yaml](../deploy/prometheus/rules.yaml) means, and what to do. To have them,
name the file under ` + "`rule_files`" + ` of Prometheus, or take its groups into a PrometheusRule. Thresholds are starting points:
copy what you change. [deploy/grafana/sluice.json](../deploy/grafana/sluice.json) is the dashboard beside them;
[metrics.md](metrics.md) says what each metric counts.

| severity | |
|---|---|
| critical | requests fail, or are about to |
| warning | something is wrong that will be felt |
| info | something that pays to look at |
`

// alertsPage is the page that the alerts' runbook links lead to.
func alertsPage(alerts []Alert) []byte {
	var b strings.Builder
	b.WriteString(alertsHead)
	for _, a := range alerts {
		held := "as soon as it is so"
		if a.For > 0 {
			held = "after " + duration(a.For)
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s (%s, %s)\n\n```\n%s\n```\n\n%s\n\n", a.Name, a.Summary, a.Severity, held, a.Expr, a.Means)
		for _, step := range a.Do {
			fmt.Fprintf(&b, "- %s\n", step)
		}
	}
	return []byte(b.String())
}
