package span

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables of docs/tracing.md anew")

const page = "../../../docs/tracing.md"

// tables are what the page says of spans and attributes.
func tables() string {
	var b strings.Builder
	b.WriteString("| span | covers |\n|---|---|\n")
	for _, m := range Spans() {
		b.WriteString("| `" + m.Name + "` | " + m.Means + " |\n")
	}
	b.WriteString("\n## Attributes\n\nThey are on the span `" + Request + "`")
	b.WriteString(", but for `" + string(Plugin) + "`, which is on those of producers.\n\n| attribute | meaning |\n|---|---|\n")
	for _, m := range Attributes() {
		b.WriteString("| `" + m.Name + "` | " + m.Means + " |\n")
	}
	return b.String()
}

func TestPage(t *testing.T) {
	const begin, end = "<!-- tables -->\n", "<!-- end of tables -->\n"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	between, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the tables", page)
	}
	want := "\n" + tables() + "\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, between); diff != "" {
		t.Errorf("%s is not what the code says (-want +got; go test -update writes it):\n%s", page, diff)
	}
}

func TestMeaningsAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range append(Spans(), Attributes()...) {
		switch {
		case m.Name == "" || m.Means == "" || strings.ContainsAny(m.Means, "|\n") || strings.HasSuffix(m.Means, "."):
			t.Errorf("%+v", m)
		case seen[m.Name]:
			t.Errorf("%s stands twice", m.Name)
		case strings.HasPrefix(m.Name, "sluice.") && m.On == "":
			t.Errorf("%s is on no span", m.Name)
		}
		seen[m.Name] = true
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "",
		"a\xff":                               "a\uFFFD",
		strings.Repeat("m", MaxText) + "more": strings.Repeat("m", MaxText),
		strings.Repeat("m", MaxText-1) + "é":  strings.Repeat("m", MaxText-1) + "\uFFFD",
	} {
		if got := Text(in); got != want {
			t.Errorf("%.20q became %q", in, got)
		}
	}
}
