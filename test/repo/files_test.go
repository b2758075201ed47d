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

// What belongs to one machine, or to the route by which packages reach it. The words are put together here so that this
// file does not match itself.
var (
	folders = []string{"/work" + "/", "/root" + "/", "/home" + "/", "/Users" + "/", "../" + "shared"}
	hosts   = []string{
		"proxy." + "golang.org", "sum." + "golang.org", "pypi" + ".org", "pypi." + "python.org", "python" + "hosted.org",
		"registry." + "npmjs", "crates" + ".io", "repo." + "maven", "repo1." + "maven", "deb." + "debian.org",
	}
	// A folder counts where a path begins, and not within one or below a home.
	atStart = regexp.MustCompile(`(^|[^\w./~-])$`)
)

// machineName returns the first name of a machine's folder or a registry's host in the content, and where it is.
func machineName(content []byte) (string, int) {
	for _, host := range hosts {
		if at := bytes.Index(content, []byte(host)); at >= 0 {
			return host, at
		}
	}
	for _, folder := range folders {
		for from := 0; ; {
			at := bytes.Index(content[from:], []byte(folder))
			if at < 0 {
				break
			}
			from += at
			if atStart.Match(content[max(0, from-1):from]) {
				return folder, from
			}
			from += len(folder)
		}
	}
	return "", 0
}

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
		if found, at := machineName(content); found != "" {
			t.Errorf("%s:%d names a machine's folder or a registry's host: %q", name, 1+bytes.Count(content[:at], []byte("\n")), found)
		}
	}
}

func TestMachineName(t *testing.T) {
	for line, want := range map[string]bool{
		"cd /" + "work/main":                       true,
		"HOME=/" + "root/.cache":                   true,
		"see https://" + "pypi" + ".org/project/x": true,
		"GOPROXY=https://proxy." + "golang.org":    true,
		"read ../" + "shared/design.md":            true,
		"https://host/root/of":                     false,
		"a network/root/cause, ./work/x, ~/work/y": false,
		"/" + "root":                     false,
		"./work/x and then /" + "work/x": true,
		"the wheel on PyPI":              false,
	} {
		if got, _ := machineName([]byte(line)); (got != "") != want {
			t.Errorf("%q: found %q, want one: %t", line, got, want)
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
