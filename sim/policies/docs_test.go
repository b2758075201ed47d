package policies_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/sim/policies"
)

// The page's table is that of the policies.
func TestDocumentation(t *testing.T) {
	var table strings.Builder
	table.WriteString("| policy | what it does | source | parameters and their defaults |\n|---|---|---|---|\n")
	for _, p := range policies.All() {
		var parameters []string
		for _, q := range p.Parameters {
			parameters = append(parameters, fmt.Sprintf("`%s=%s`", q.Name, q.Default))
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", p.Name, p.Summary, p.Source, strings.Join(parameters, " "))
	}
	page, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/simulate.md lacks the table\n\n%s", table.String())
	}
}
