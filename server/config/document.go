package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// document is a parsed file: one YAML document whose root is a mapping, without duplicate keys.
type document struct {
	name    string
	root    ast.Node
	anchors map[string]ast.Node
}

// parseDocument reads YAML. The document is nil where it cannot be read at all; it may be there beside faults.
func parseDocument(name string, data []byte) (*document, Faults) {
	text := strings.TrimPrefix(string(data), "\ufeff")
	if faults := checkSource(name, text); len(faults) > 0 {
		return nil, faults
	}
	file, err := parseYAML(shieldReferences(text))
	if err != nil {
		return nil, Faults{syntaxFault(name, err)}
	}
	nothing := Fault{File: name, Line: 1, Column: 1, Message: "has nothing in it; leave the file out to run the built-in configuration"}
	bodies := bodiesOf(file)
	if len(bodies) == 0 {
		return nil, Faults{nothing}
	}
	d := &document{name: name, root: bodies[0], anchors: map[string]ast.Node{}}
	if len(bodies) > 1 {
		return nil, Faults{d.at(bodies[1], "").fault("a second document begins here; a configuration file holds exactly one")}
	}
	m, ok := d.root.(*ast.MappingNode)
	switch {
	case d.root.Type() == ast.NullType || ok && len(m.Values) == 0:
		return nil, Faults{nothing}
	case !ok:
		return nil, Faults{d.at(d.root, "").fault("must be a mapping of keys to values, got %s", kindOf(d.root))}
	}
	w := &structureWalk{document: d}
	w.walk("", d.root)
	return d, w.faults
}

func bodiesOf(file *ast.File) []ast.Node {
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.DirectiveType || doc.Body.Type() == ast.CommentType {
			continue
		}
		bodies = append(bodies, doc.Body)
	}
	return bodies
}

// positioned is an error at a token.
type positioned struct {
	token   *token.Token
	message string
}

func (p *positioned) Error() string { return p.message }

// parseYAML parses; what makes the parser panic is a syntax error too.
func parseYAML(text string) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			file, err = nil, &positioned{message: fmt.Sprintf("cannot be read as YAML (%v)", r)}
		}
	}()
	tokens := lexer.Tokenize(text)
	if err := checkNesting(tokens); err != nil {
		return nil, err
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// checkNesting bounds what makes the parser recurse: open flow collections, and collections, keys, tags and anchors that
// open one after another on one line. Deeper block nesting costs indentation, which the file's size bounds.
func checkNesting(tokens token.Tokens) error {
	flow, onLine, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position != nil && t.Position.Line != line {
			line, onLine = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.TagType, token.AnchorType, token.AliasType:
			if flow <= 0 {
				onLine++
			}
		}
		if flow > maxNesting || onLine > maxNesting {
			return &positioned{token: t, message: fmt.Sprintf("nests deeper than %d levels", maxNesting)}
		}
	}
	return nil
}

func syntaxFault(name string, err error) Fault {
	f := Fault{File: name, Line: 1, Column: 1, Message: err.Error()}
	var at *token.Token
	var ours *positioned
	var theirs yaml.Error
	switch {
	case errors.As(err, &ours):
		at = ours.token
	case errors.As(err, &theirs):
		at, f.Message = theirs.GetToken(), theirs.GetMessage()
	}
	if at != nil && at.Position != nil {
		f.Line, f.Column = max(1, at.Position.Line), max(1, at.Position.Column)
	}
	f.Message = "not valid YAML: " + unshield(f.Message)
	if strings.Contains(f.Message, "tab character") || strings.Contains(f.Message, "\t") {
		f.Message = "not valid YAML: a tab indents this line; YAML indents with spaces only"
	}
	return f
}

// at is a node's place.
func (d *document) at(n ast.Node, path string) origin {
	o := origin{file: d.name, line: 1, column: 1, path: path}
	if t := firstToken(n); t != nil && t.Position != nil {
		o.line, o.column = max(1, t.Position.Line), max(1, t.Position.Column)
	}
	return o
}

// firstToken is the token where a node begins; the parser's own answer for a block mapping is its first colon.
func firstToken(n ast.Node) *token.Token {
	switch n := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return firstToken(n.Values[0])
		}
	case *ast.MappingValueNode:
		return firstToken(n.Key)
	}
	return n.GetToken()
}

// resolve follows aliases and anchors to the value. A nil node is null.
func (d *document) resolve(n ast.Node) ast.Node {
	for range maxNesting {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			n = d.anchors[nodeText(v.Value)]
		case *ast.NullNode:
			return nil
		default:
			return n
		}
	}
	return nil
}

// entries are the keys and values of a mapping; ok is false for other nodes.
func (d *document) entries(n ast.Node) (entries []*ast.MappingValueNode, ok bool) {
	switch v := d.resolve(n).(type) {
	case *ast.MappingNode:
		return v.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{v}, true
	}
	return nil, false
}

// find is the value of a key of a mapping, or nil.
func (d *document) find(n ast.Node, key string) ast.Node {
	entries, _ := d.entries(n)
	for _, e := range entries {
		if keyText(e) == key {
			return e.Value
		}
	}
	return nil
}

// item is an item of a list, or nil.
func (d *document) item(n ast.Node, i int) ast.Node {
	list, ok := d.resolve(n).(*ast.SequenceNode)
	if !ok || i >= len(list.Values) {
		return nil
	}
	return list.Values[i]
}

func keyText(e *ast.MappingValueNode) string { return nodeText(e.Key) }

// nodeText is a scalar's text as written, without quotes.
func nodeText(n ast.Node) string {
	switch v := n.(type) {
	case nil:
		return ""
	case *ast.StringNode:
		return unshield(v.Value)
	case *ast.LiteralNode:
		return unshield(v.Value.Value)
	}
	if t := n.GetToken(); t != nil {
		return unshield(t.Value)
	}
	return ""
}

// kindOf names a node's kind for errors.
func kindOf(n ast.Node) string {
	switch v := n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", clip(nodeText(v)))
	}
}

// clip shortens what an error quotes.
func clip(s string) string {
	if runes := []rune(s); len(runes) > 60 {
		return string(runes[:60]) + "…"
	}
	return s
}
