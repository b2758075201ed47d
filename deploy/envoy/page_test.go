package envoy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The lines that docs/tracing.md gives to those who have a bootstrap of their own are in the bootstrap that is rendered.
func TestTracingPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "tracing.md"))
	if err != nil {
		t.Fatal(err)
	}
	bootstrap, err := os.ReadFile(filepath.Join("testdata", "traced.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	block, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("the page has no YAML")
	}
	var indented strings.Builder
	for line := range strings.Lines(block) {
		indented.WriteString(strings.Repeat(" ", 16) + line)
	}
	if !strings.Contains(string(bootstrap), indented.String()) {
		t.Errorf("the bootstrap does not have these lines:\n%s", &indented)
	}
}
