package sim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestModelIsPure keeps clocks, chance and input/output out of the model.
func TestModelIsPure(t *testing.T) {
	allowed := []string{"cmp", "encoding/binary", "errors", "fmt", "iter", "math", "slices", "time", "github.com/zeebo/xxh3"}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path := strings.Trim(i.Path.Value, `"`); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains([]string{"Duration", "Second"}, n.Sel.Name) {
					t.Errorf("%s uses time.%s", name, n.Sel.Name)
				}
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", name)
			}
			return true
		})
	}
}
