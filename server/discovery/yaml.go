package discovery

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// anchors maps the anchors of a file to what they stand for. The file is read from its syntax tree and not decoded into
// structs: decoding gives up the whole file for one bad entry, and reads the label value 1.10 as the number 1.1.
type anchors map[string]ast.Node

// field is one key of a mapping.
type field struct {
	key   string
	value ast.Node
}

// collector gathers anchors on a walk over the tree.
type collector struct {
	found anchors
	twice *ast.AnchorNode
}

// Visit implements ast.Visitor.
func (c *collector) Visit(node ast.Node) ast.Visitor {
	anchor, ok := node.(*ast.AnchorNode)
	if !ok || anchor.Name == nil {
		return c
	}
	name := anchor.Name.GetToken().Value
	if c.found[name] != nil {
		c.twice = anchor
	}
	c.found[name] = anchor.Value
	return c
}

// collect finds the anchors below a node. A name may be given once: an alias then means the same wherever it stands.
func (a anchors) collect(node ast.Node) error {
	c := &collector{found: a}
	ast.Walk(c, node)
	if c.twice != nil {
		return fmt.Errorf("%sanchor &%s is defined twice", lineOf(c.twice), clip(c.twice.Name.GetToken().Value))
	}
	return nil
}

// resolve looks through anchors, aliases and tags. It returns nil for an alias that leads nowhere or to itself.
func (a anchors) resolve(node ast.Node) ast.Node {
	for range maxNesting {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
		case *ast.TagNode:
			node = n.Value
		case *ast.AliasNode:
			node = a[n.Value.GetToken().Value]
		default:
			return node
		}
	}
	return nil
}

// fields are the keys of a mapping, with those of merged mappings ("<<") that it does not set itself. Its errors begin
// with a colon or a key, to follow the path of the node.
func (a anchors) fields(node ast.Node) ([]field, error) { return a.fieldsAt(node, 0) }

func (a anchors) fieldsAt(node ast.Node, depth int) ([]field, error) {
	if depth == maxNesting {
		return nil, errors.New(": merges itself")
	}
	values, ok := mapping(a.resolve(node))
	if !ok {
		return nil, fmt.Errorf(": must be a mapping, got %s", kindOf(a.resolve(node)))
	}
	var fields []field
	var merged []ast.Node
	seen := make(map[string]bool, len(values))
	for _, v := range values {
		if v.Key.IsMergeKey() {
			merged = append(merged, v.Value)
			continue
		}
		key, err := a.key(v.Key)
		if err != nil {
			return nil, err
		}
		if seen[key] {
			return nil, fmt.Errorf(".%s: is set twice", clip(key))
		}
		seen[key] = true
		fields = append(fields, field{key: key, value: v.Value})
	}
	for _, m := range merged {
		inherited, err := a.fieldsAt(m, depth+1)
		if err != nil {
			return nil, err
		}
		for _, f := range inherited {
			if !seen[f.key] {
				seen[f.key] = true
				fields = append(fields, f)
			}
		}
	}
	return fields, nil
}

func mapping(node ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func (a anchors) key(node ast.Node) (string, error) {
	if k, ok := node.(*ast.MappingKeyNode); ok {
		node = k.Value
	}
	key, err := a.text(node)
	if err != nil {
		return "", fmt.Errorf(": a key %w", err)
	}
	return key, nil
}

// text is a scalar as it is written in the file, without quotes.
func (a anchors) text(node ast.Node) (string, error) {
	switch n := a.resolve(node).(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	default:
		return "", fmt.Errorf("must be text, got %s", kindOf(n))
	}
}

func (a anchors) nonEmpty(node ast.Node) (string, error) {
	s, err := a.text(node)
	if err == nil && s == "" {
		err = errors.New("has no value")
	}
	return s, err
}

// texts is a list of scalars, or one scalar as a list.
func (a anchors) texts(node ast.Node) ([]string, error) {
	seq, ok := a.resolve(node).(*ast.SequenceNode)
	if !ok {
		s, err := a.nonEmpty(node)
		return []string{s}, err
	}
	if len(seq.Values) > maxPorts {
		return nil, fmt.Errorf("at most %d are allowed, got %d", maxPorts, len(seq.Values))
	}
	list := make([]string, len(seq.Values))
	for i, v := range seq.Values {
		var err error
		if list[i], err = a.nonEmpty(v); err != nil {
			return nil, fmt.Errorf("[%d] %w", i, err)
		}
	}
	return list, nil
}

// kindOf names a node in an error message.
func kindOf(node ast.Node) string {
	switch node.(type) {
	case nil:
		return "an alias without its anchor"
	case *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "a truth value"
	}
	return "something else"
}

// lineOf begins an error message with the line of a node.
func lineOf(node ast.Node) string {
	if node == nil {
		return ""
	}
	if tk := node.GetToken(); tk != nil && tk.Position != nil {
		return fmt.Sprintf("line %d: ", tk.Position.Line)
	}
	return ""
}

// checkNesting refuses a file that is nested deeper than any list of endpoints: the parser's time and stack grow with the
// square of the depth, and a wrong file must not stop the server.
func checkNesting(data []byte) error {
	flow := 0
	for line := range bytes.Lines(data) {
		opened := 0 // levels that markers open without a value between them
		before := byte(' ')
		for i, c := range line {
			starts := before <= ' ' || bytes.IndexByte([]byte("[{,"), before) >= 0
			if before = c; c == '#' && starts {
				break
			}
			switch {
			case c == '[' || c == '{':
				flow++
			case c == ']' || c == '}':
				flow = max(0, flow-1)
			case (c == '&' || c == '!') && starts:
				opened++
			case (c == '-' || c == '?' || c == ':') && (i+1 == len(line) || line[i+1] <= ' '):
				opened++
			case c == ',':
				opened = 0
			}
			if flow > maxNesting || opened > maxNesting {
				return fmt.Errorf("is nested deeper than %d levels: not a list of endpoints", maxNesting)
			}
		}
	}
	return nil
}
