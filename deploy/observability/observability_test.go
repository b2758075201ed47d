package observability

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

func files(t *testing.T) map[string][]byte {
	t.Helper()
	all, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFilesAreFresh(t *testing.T) {
	for path, want := range files(t) {
		got, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(path)))
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not fresh: go generate ./deploy/observability (-made +there):\n%s", path, diff)
		}
	}
}

// Each alert is complete, and its runbook link leads to its section of the page.
func TestAlerts(t *testing.T) {
	page := string(files(t)[AlertsPath])
	seen, group := map[string]bool{}, map[string]bool{}
	last := ""
	for _, a := range Alerts() {
		if !strings.HasPrefix(a.Name, "Sluice") || seen[a.Name] {
			t.Errorf("%q: a name of its own that begins with Sluice is needed", a.Name)
		}
		seen[a.Name] = true
		if a.Group != last && group[a.Group] {
			t.Errorf("%s: the group %s is not in one piece", a.Name, a.Group)
		}
		last, group[a.Group] = a.Group, true
		if a.Expr == "" || a.Summary == "" || a.Description == "" || a.Means == "" || len(a.Do) == 0 {
			t.Errorf("%s: something is left out", a.Name)
		}
		for _, sentence := range append([]string{a.Summary, a.Description, a.Means}, a.Do...) {
			if !strings.HasSuffix(sentence, ".") {
				t.Errorf("%s: no sentence: %q", a.Name, sentence)
			}
		}
		if !slices.Contains([]Severity{Critical, Warning, Info}, a.Severity) {
			t.Errorf("%s: severity %q", a.Name, a.Severity)
		}
		if !strings.Contains(page, "\n## "+a.Name+"\n") {
			t.Errorf("%s: the page has no section", a.Name)
		}
	}
}

// What is asked of Go's and the process's collectors is there.
func TestProcessMetricsExist(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
	}
	if !there["process_cpu_seconds_total"] {
		t.Skip("the process says nothing of itself on this system")
	}
	asked := regexp.MustCompile(`\b(?:process|go)_[a-z_]+`).FindAllString(string(files(t)[DashboardPath]), -1)
	if len(asked) == 0 {
		t.Error("nothing is asked")
	}
	for _, name := range asked {
		if !there[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
