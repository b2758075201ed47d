package server

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const metricsPage = "../docs/metrics.md"

const metricsHead = `# Metrics

<!-- Written by the tests of package server from what a process registers: go test ./server -run MetricsPage -update. Do not edit. -->

What ` + "`/metrics`" + ` on the admin port serves beside the Go runtime's and the process's own (` + "`go_…`, `process_…`" + `). A
histogram has the usual ` + "`_bucket`, `_sum` and `_count`" + `. [operating.md](operating.md) says which to watch,
[engine-metrics.md](engine-metrics.md) what Sluice reads of the engines' metrics.

| metric | labels | meaning |
|---|---|---|
`

// described matches the text of a prometheus.Desc, which keeps its fields to itself.
var described = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// page lists what a registry may serve.
func page(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	rows := map[string]bool{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		name, err := strconv.Unquote(m[1])
		if err != nil {
			t.Fatal(err)
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		if !strings.HasSuffix(help, ".") || !strings.HasPrefix(name, "sluice_") {
			t.Errorf("%s: its help is no sentence: %q", name, help)
		}
		var labels []string
		for _, list := range m[3:] {
			for label := range strings.SplitSeq(list, ",") {
				if label, _, _ = strings.Cut(strings.TrimSpace(label), "="); label != "" {
					labels = append(labels, "`"+strings.TrimPrefix(label, "c(")+"`")
				}
			}
		}
		rows[fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.Join(labels, ", "), strings.ReplaceAll(help, "|", `\|`))] = true
	}
	var lines []string
	for row := range rows {
		lines = append(lines, row)
	}
	slices.Sort(lines)
	return metricsHead + strings.Join(lines, "")
}

// The page lists every metric, of a process that has all there is.
func TestMetricsPage(t *testing.T) {
	registry := prometheus.NewRegistry()
	launch(t, "server: {tls: {mode: selfSigned}}\n", func(o *Options) { o.Registry = registry })
	got := page(t, registry)
	if *update {
		if err := os.WriteFile(metricsPage, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is not fresh (-page +process; go test ./server -run MetricsPage -update writes it):\n%s", diff)
	}
	if rows := strings.Count(got, "\n| `sluice_"); rows < 40 {
		t.Errorf("only %d metrics", rows)
	}
}
