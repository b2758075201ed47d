package repo

import (
	"bytes"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// machine matches what belongs to one machine or to the route by which packages reach it: home and work folders, and
// hosts of package registries. The words are put together here so that this file does not match itself.
var machine = regexp.MustCompile(`(^|[^\w.~-])/(` + strings.Join([]string{"work", "root", "home/[a-z]+", "Users/[A-Za-z]+"}, "|") + `)/|` +
	strings.Join([]string{
		`\bproxy\.` + `golang\.org`, `\bsum\.` + `golang\.org`, `\bpypi\.` + `(org|python\.org)`, `pythonhosted` + `\.org`,
		`registry\.` + `npmjs`, `\bcrates\.` + `io`, `repo1?\.maven` + `\.`, `deb\.debian` + `\.org`, `(^|[^\w.])\.\./` + `shared\b`,
	}, "|"))

func TestNoFileNamesAMachine(t *testing.T) {
	root := goTree(t).Root
	names := trackedFiles(t, root)
	if len(names) < 20 {
		t.Fatalf("only %d files found", len(names))
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			continue // binary
		}
		for i, line := range bytes.Split(content, []byte("\n")) {
			if found := machine.Find(line); found != nil {
				t.Errorf("%s:%d names a machine's folder or a registry's host: %q", name, i+1, found)
			}
		}
	}
}

func TestMachinePattern(t *testing.T) {
	for line, want := range map[string]bool{
		"cd /" + "work/main":                       true,
		"HOME=/" + "root/.cache":                   true,
		"see https://" + "pypi" + ".org/project/x": true,
		"GOPROXY=https://proxy." + "golang.org":    true,
		"read ../" + "shared/design.md":            true,
		"https://host/root/of":                     false,
		"a network/root/cause, ./work/x, ~/work/y": false,
		"the wheel on PyPI":                        false,
	} {
		if got := machine.MatchString(line); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
}

var phony = regexp.MustCompile(`(?m)^\.PHONY:\s*(.+)$`)

func TestMakeHelpListsEveryTarget(t *testing.T) {
	tree := goTree(t)
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make")
	}
	content, err := os.ReadFile(filepath.Join(tree.Root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "help")
	cmd.Dir = tree.Root
	help, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make help: %v\n%s", err, help)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(help)) {
		if name, about, ok := strings.Cut(strings.TrimSpace(line), " "); ok && len(strings.TrimSpace(about)) > 10 {
			listed[name] = true
		}
	}
	targets := 0
	for _, match := range phony.FindAllStringSubmatch(string(content), -1) {
		for name := range strings.FieldsSeq(match[1]) {
			targets++
			if !listed[name] {
				t.Errorf("make help does not list %s", name)
			}
		}
	}
	if targets < 10 {
		t.Errorf("only %d targets found in the Makefile", targets)
	}
}

func TestReadmeHasTheTwoCommands(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(goTree(t).Root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"make demo", "make test"} {
		if !regexp.MustCompile(`(?m)^\s*(\$ )?` + command + `\b`).Match(content) {
			t.Errorf("README.md has no line that runs %q", command)
		}
	}
}

// Every fuzz target begins from something: seeds in its code or a corpus beside it.
func TestFuzzTargetsHaveACorpus(t *testing.T) {
	tree := goTree(t)
	for _, f := range tree.Files {
		for _, d := range f.AST.Decls {
			target, ok := d.(*ast.FuncDecl)
			if !ok || target.Recv != nil || !strings.HasPrefix(target.Name.Name, "Fuzz") || !strings.HasSuffix(f.Path, "_test.go") {
				continue
			}
			seeds := false
			ast.Inspect(target, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && strings.HasSuffix(qualified(call.Fun), ".Add") {
					seeds = true
				}
				return !seeds
			})
			corpus, err := os.ReadDir(filepath.Join(tree.Root, f.Folder(), "testdata", "fuzz", target.Name.Name))
			if !seeds && (err != nil || len(corpus) == 0) {
				t.Errorf("%s: %s has neither seeds nor a corpus", f.Path, target.Name.Name)
			}
		}
	}
}
