package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// module is the module's path; packages in it have their source below the root.
const module = "github.com/sluice-epp/sluice"

// comments are the doc comments of struct fields, by package path, type and field.
type comments struct {
	root   string
	parsed map[string]map[string]map[string]string
}

// of is the comment of a field, as a text of one paragraph. A field without one takes that of the same name in another
// struct of its package.
func (c *comments) of(owner reflect.Type, fieldName string) (string, error) {
	pkg := owner.PkgPath()
	if _, ok := c.parsed[pkg]; !ok {
		types, err := parsePackage(filepath.Join(c.root, strings.TrimPrefix(pkg, module)))
		if err != nil {
			return "", fmt.Errorf("package %s: %w", pkg, err)
		}
		c.parsed[pkg] = types
	}
	if text := c.parsed[pkg][owner.Name()][fieldName]; text != "" {
		return text, nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.parsed[pkg])) {
		if text := c.parsed[pkg][name][fieldName]; text != "" {
			return text, nil
		}
	}
	return "", fmt.Errorf("field %s.%s has no doc comment", owner, fieldName)
}

func parsePackage(dir string) (map[string]map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	}
	types := map[string]map[string]string{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := spec.Type.(*ast.StructType); ok {
				types[spec.Name.Name] = fieldComments(st)
			}
			return true
		})
	}
	return types, nil
}

func fieldComments(st *ast.StructType) map[string]string {
	fields := map[string]string{}
	for _, f := range st.Fields.List {
		text := strings.Join(strings.Fields(f.Doc.Text()), " ")
		for _, name := range f.Names {
			fields[name.Name] = text
		}
	}
	return fields
}

// word matches what may be the name of a field within a comment.
var word = regexp.MustCompile(`\b[A-Z][A-Za-z0-9]+\b`)

// inWords turns a comment into a sentence about keys. The field's own name, with which a comment begins, is left out, for
// the table has it; names of other fields of the struct become keys, unless they could be plain words.
func inWords(goName, comment string, keys map[string]string) string {
	text := comment
	if rest, ok := strings.CutPrefix(comment, goName+" "); ok {
		for _, verb := range []string{"is ", "are "} {
			if after, ok := strings.CutPrefix(rest, verb); ok {
				rest = after
				break
			}
		}
		text = strings.ToUpper(rest[:1]) + rest[1:]
	}
	text = word.ReplaceAllStringFunc(text, func(name string) string {
		key, ok := keys[name]
		if !ok || strings.ToLower(name[1:]) == name[1:] || strings.ToUpper(name) == name {
			return name
		}
		return "`" + key + "`"
	})
	return strings.ReplaceAll(text, "|", `\|`)
}
