package repo

import (
	"bytes"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	for _, f := range goTree(t).Files {
		if lines := bytes.Count(f.Source, []byte("\n")); !f.Generated && lines > maxLines {
			t.Errorf("%s has %d lines, more than %d", f.Path, lines, maxLines)
		}
	}
}

// packages groups the hand-written files that are not _test.go by folder.
func packages(tree *tree) map[string][]*file {
	out := map[string][]*file{}
	for _, f := range tree.Files {
		if !f.Generated && !strings.HasSuffix(f.Path, "_test.go") {
			out[f.Folder()] = append(out[f.Folder()], f)
		}
	}
	return out
}

func TestEveryPackageHasOneDocComment(t *testing.T) {
	for folder, files := range packages(goTree(t)) {
		var docs []string
		for _, f := range files {
			if f.AST.Doc == nil {
				continue
			}
			docs = append(docs, f.Path)
			name, text := f.AST.Name.Name, f.AST.Doc.Text()
			want := "Package " + name + " "
			if name == "main" {
				want = "Command " + path.Base(folder) + " "
			}
			if !strings.HasPrefix(text, want) {
				t.Errorf("%s: the doc comment must begin with %q", f.Path, want)
			}
		}
		if len(docs) != 1 {
			t.Errorf("%s: %d files hold a package doc comment, want 1 %v", folder, len(docs), docs)
		}
	}
}

// emptyNames say nothing about what a package holds.
var emptyNames = []string{"base", "common", "core", "helper", "helpers", "lib", "misc", "pkg", "shared", "util", "utils"}

func TestPackagesAreNamedForWhatTheyHold(t *testing.T) {
	for _, f := range goTree(t).Files {
		for _, part := range append(strings.Split(f.Folder(), "/"), f.AST.Name.Name) {
			if slices.Contains(emptyNames, part) {
				t.Errorf("%s: %q is no name for a package", f.Path, part)
			}
		}
	}
}

// panicMarker on the line of a panic, or the one above, gives the reason why it may stay.
const panicMarker = "// panic allowed: "

func TestOnlyCommandsEndTheProcess(t *testing.T) {
	tree := goTree(t)
	for _, f := range tree.Files {
		if !f.Production() || f.AST.Name.Name == "main" {
			continue
		}
		lines := strings.Split(string(f.Source), "\n")
		tree.eachCall(f, func(call *ast.CallExpr) {
			name := qualified(call.Fun)
			ends := name == "panic" || name == "os.Exit" || strings.HasPrefix(name, "log.Fatal") || strings.HasPrefix(name, "log.Panic")
			if ends && !marked(lines, tree.Set.Position(call.Pos()).Line) {
				t.Errorf("%s calls %s outside a command: return an error (%sREASON where it cannot happen)", tree.at(f, call.Pos()), name, panicMarker)
			}
		})
	}
}

func marked(lines []string, line int) bool {
	for _, i := range []int{line - 1, line - 2} {
		if i >= 0 && i < len(lines) {
			if _, reason, found := strings.Cut(lines[i], panicMarker); found && len(reason) > 10 {
				return true
			}
		}
	}
	return false
}

func TestHouseWords(t *testing.T) {
	tree := goTree(t)
	for _, f := range tree.Files {
		if !f.Production() {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				switch qualified(n.Fun) {
				case "time.After", "time.Tick":
					t.Errorf("%s: %s leaks its timer until it fires: use a timer and stop it", tree.at(f, n.Pos()), qualified(n.Fun))
				case "net.ParseIP", "net.ParseCIDR":
					t.Errorf("%s: parse addresses with net/netip", tree.at(f, n.Pos()))
				}
			case *ast.InterfaceType:
				if n.Methods.NumFields() == 0 && bytes.HasPrefix(f.Source[tree.Set.Position(n.Pos()).Offset:], []byte("interface")) {
					t.Errorf("%s: write any", tree.at(f, n.Pos()))
				}
				if methods := countMethods(n); methods > 3 {
					t.Errorf("%s: an interface of %d methods; at most 3, declared where it is used", tree.at(f, n.Pos()), methods)
				}
			}
			return true
		})
	}
}

func countMethods(n *ast.InterfaceType) int {
	methods := 0
	for _, field := range n.Methods.List {
		if _, ok := field.Type.(*ast.FuncType); ok {
			methods += len(field.Names)
		}
	}
	return methods
}

// A package that starts goroutines shows in its tests that they end.
func TestGoroutinesAreLeakChecked(t *testing.T) {
	tree := goTree(t)
	starts, checks := map[string]token.Pos{}, map[string]bool{}
	place := map[string]*file{}
	for _, f := range tree.Files {
		if strings.HasSuffix(f.Path, "_test.go") {
			checks[f.Folder()] = checks[f.Folder()] || slices.Contains(f.Imports(), "go.uber.org/goleak")
			continue
		}
		if !f.Production() || f.AST.Name.Name == "main" {
			continue // what only tests import is checked by those that import it
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok && !starts[f.Folder()].IsValid() {
				starts[f.Folder()], place[f.Folder()] = g.Pos(), f
			}
			return true
		})
	}
	if len(starts) == 0 {
		t.Error("no package that starts goroutines was seen")
	}
	for folder, pos := range starts {
		if !checks[folder] {
			t.Errorf("%s starts a goroutine, and no test of the package uses goleak", tree.at(place[folder], pos))
		}
	}
}
