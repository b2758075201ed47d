package repo

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/sluice-epp/sluice"

// file is a parsed Go file.
type file struct {
	Path      string // slash-separated, from the root
	Source    []byte
	AST       *ast.File
	Generated bool
	Test      bool // a _test.go file, or any file of a package that only tests import
}

// Area is the top-level folder.
func (f *file) Area() string { return strings.SplitN(f.Path, "/", 2)[0] }

// Folder is the package's folder.
func (f *file) Folder() string { return path.Dir(f.Path) }

// Production reports whether the file is hand-written and goes into a binary.
func (f *file) Production() bool { return !f.Generated && !f.Test }

// Imports are the import paths.
func (f *file) Imports() []string {
	var out []string
	for _, i := range f.AST.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

// tree is the module's Go files, parsed once.
type tree struct {
	Root  string
	Files []*file
	Set   *token.FileSet
}

var load = sync.OnceValues(func() (*tree, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	t := &tree{Root: root, Set: token.NewFileSet()}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipFolder(rel) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := t.parse(name, filepath.ToSlash(rel))
		t.Files = append(t.Files, f)
		return err
	})
	return t, err
})

// skipFolder leaves out what the module does not build: hidden folders, the tools' modules, and test data.
func skipFolder(rel string) bool {
	base := filepath.Base(rel)
	return rel != "." && (strings.HasPrefix(base, ".") || base == "testdata" || rel == "tools" || rel == "bin")
}

func (t *tree) parse(name, rel string) (*file, error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(t.Set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	support := strings.HasPrefix(rel, "test/") || strings.HasSuffix(path.Dir(rel), "test")
	return &file{
		Path: rel, Source: source, AST: parsed, Generated: ast.IsGenerated(parsed),
		Test: support || strings.HasSuffix(rel, "_test.go"),
	}, nil
}

func findRoot() (string, error) {
	folder, err := os.Getwd()
	for err == nil {
		content, readErr := os.ReadFile(filepath.Join(folder, "go.mod"))
		if readErr == nil && bytes.HasPrefix(content, []byte("module "+module+"\n")) {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", fs.ErrNotExist
		}
		folder = filepath.Dir(folder)
	}
	return "", err
}

// goTree returns the module's files and fails the test where it finds none.
func goTree(t *testing.T) *tree {
	t.Helper()
	found, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Files) == 0 {
		t.Fatal("no Go file found")
	}
	return found
}

// at names a place in a file.
func (t *tree) at(f *file, pos token.Pos) string {
	position := t.Set.Position(pos)
	position.Filename = f.Path
	return position.String()
}

// trackedFiles lists every file that git tracks or would track, from the root. Outside a clone it walks the tree.
func trackedFiles(t *testing.T, root string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil && len(out) > 0 {
		names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		return slices.DeleteFunc(names, func(name string) bool {
			info, err := os.Lstat(filepath.Join(root, name))
			return err != nil || !info.Mode().IsRegular()
		})
	}
	var names []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == ".git" || rel == ".tools" || rel == "bin") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			names = append(names, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
