package repo

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// mayImport lists, for each top-level folder, the folders that its production code may import besides itself. A deeper
// folder's own line replaces that of the top-level one.
// Each import goes down: cmd, server, then cache, load and gate, then scheduling. The simulation knows no server.
var mayImport = map[string][]string{
	"api":        {},
	"scheduling": {},
	// The record of a decision, and what explains it, are the places where the core meets its wire form.
	"scheduling/record":  {"api"},
	"scheduling/explain": {"api"},
	"gate":               {"scheduling"},
	"cache":              {"scheduling"},
	"load":               {"scheduling"},
	"sim":                {"scheduling", "cache", "load", "gate"},
	"server":             {"api", "scheduling", "cache", "load", "gate"},
	"deploy":             {},
	"bench":              {"api", "scheduling", "cache", "load", "gate", "server", "sim", "deploy"},
	"cmd":                {"api", "scheduling", "cache", "load", "gate", "server", "sim", "deploy"},
}

// Tests may import sideways and up, but no file imports a command.
func TestImportsPointOneWay(t *testing.T) {
	tree := goTree(t)
	checked := 0
	for _, f := range tree.Files {
		for _, imported := range f.Imports() {
			inside, ok := strings.CutPrefix(imported, module+"/")
			if !ok {
				continue
			}
			checked++
			to := strings.SplitN(inside, "/", 2)[0]
			if to == "cmd" && f.Area() != "cmd" {
				t.Errorf("%s imports the command %s", f.Path, inside)
			}
			if f.Test || to == f.Area() {
				continue
			}
			allowed, known := mayImport[f.Folder()]
			if !known {
				allowed, known = mayImport[f.Area()]
			}
			if !known {
				t.Errorf("%s: the folder %s has no place in the import order", f.Path, f.Area())
			} else if !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s; %s may import only %v", f.Path, inside, f.Folder(), allowed)
			}
		}
	}
	if checked == 0 {
		t.Error("no import inside the module was seen")
	}
}

// What a pure package may not import: a decision must be the same for the same inputs, whenever and wherever it is made.
var impure = []string{
	"crypto/rand", "io/fs", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "net/netip",
	"net/url", "os", "os/exec", "os/signal", "path/filepath", "runtime", "syscall",
}

// clocks are the functions of package time that read or run the clock.
var clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

func TestSchedulingAndGateArePure(t *testing.T) {
	tree := goTree(t)
	checked := 0
	for _, f := range tree.Files {
		if !f.Production() || f.Area() != "scheduling" && f.Area() != "gate" {
			continue
		}
		checked++
		for _, imported := range f.Imports() {
			if slices.Contains(impure, imported) {
				t.Errorf("%s imports %s: scheduling and gate have no clock, chance, network, log or files of their own", f.Path, imported)
			}
		}
		tree.eachCall(f, func(call *ast.CallExpr) {
			if name := qualified(call.Fun); strings.HasPrefix(name, "time.") && slices.Contains(clocks, strings.TrimPrefix(name, "time.")) {
				t.Errorf("%s calls %s: time is a parameter here", tree.at(f, call.Pos()), name)
			}
		})
	}
	if checked == 0 {
		t.Error("no file of scheduling or gate was seen")
	}
}

func (t *tree) eachCall(f *file, visit func(*ast.CallExpr)) {
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			visit(call)
		}
		return true
	})
}

// qualified names a called function as written: panic, time.Now.
func qualified(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
	}
	return ""
}
