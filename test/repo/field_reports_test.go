package repo

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	caseRow  = regexp.MustCompile(`(?m)^\| (C\d\d) \|`)
	caseTest = regexp.MustCompile(`func Test(C\d\d)_`)
	caseName = regexp.MustCompile(`"C\d\d [^"\n]*"`) // of a part of a test, which -run does not find by the number alone
)

// Every case of docs/field-reports.md has a test of its number, and every number in a test's name is in the table.
func TestCasesHaveTests(t *testing.T) {
	root := goTree(t).Root
	page, err := os.ReadFile(filepath.Join(root, "docs", "field-reports.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented, tested := map[string]bool{}, map[string]bool{}
	for _, m := range caseRow.FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	for _, name := range trackedFiles(t, root) {
		if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/repo/") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range caseTest.FindAllStringSubmatch(string(content), -1) {
			tested[m[1]] = true
		}
		if m := caseName.Find(content); m != nil {
			t.Errorf("%s: %s: a case is a test of its own, whose name begins with its number", name, m)
		}
	}
	if len(documented) < 30 {
		t.Fatalf("%d cases in the table", len(documented))
	}
	for c := range documented {
		if !tested[c] {
			t.Errorf("%s is in docs/field-reports.md and has no test", c)
		}
	}
	for c := range tested {
		if !documented[c] {
			t.Errorf("%s has tests and is not in docs/field-reports.md", c)
		}
	}
}
