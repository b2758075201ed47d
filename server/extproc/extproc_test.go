package extproc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Kinds names every Note and Reason constant of the package.
func TestKindsAreComplete(t *testing.T) {
	for _, name := range []string{"extproc.go", "immediate.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "Note") && !strings.HasPrefix(spec.Names[0].Name, "Reason") || spec.Names[0].Name == "ReasonHeader" {
				return true
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			kind, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(Kinds(), kind) {
				t.Errorf("%s (%q) is not in Kinds", spec.Names[0].Name, kind)
			}
			return true
		})
	}
}
