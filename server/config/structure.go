package config

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// structureWalk goes once over a whole document, the sections that nobody decodes included, and reports duplicate keys
// and the parts of YAML that are not accepted. It collects the anchors.
type structureWalk struct {
	document *document
	faults   Faults
}

func (w *structureWalk) walk(path string, n ast.Node) {
	switch v := n.(type) {
	case *ast.MappingNode:
		w.mapping(path, v.Values)
	case *ast.MappingValueNode:
		w.mapping(path, []*ast.MappingValueNode{v})
	case *ast.SequenceNode:
		for i, item := range v.Values {
			w.walk(fmt.Sprintf("%s[%d]", path, i), item)
		}
	case *ast.AnchorNode:
		w.anchor(path, v)
	case *ast.AliasNode:
		if _, ok := w.document.anchors[nodeText(v.Value)]; !ok {
			w.addf(n, path, "alias *%s stands for no anchor before it", clip(nodeText(v.Value)))
		}
	case *ast.TagNode:
		w.addf(n, path, "YAML tags are not accepted")
	}
}

// anchor takes an anchor in once its value has been walked, so that no alias can stand within its own value.
func (w *structureWalk) anchor(path string, v *ast.AnchorNode) {
	w.walk(path, v.Value)
	name := nodeText(v.Name)
	if _, twice := w.document.anchors[name]; twice {
		w.addf(v, path, "anchor &%s is defined twice", clip(name))
		return
	}
	w.document.anchors[name] = v.Value
}

func (w *structureWalk) mapping(path string, entries []*ast.MappingValueNode) {
	first := make(map[string]*ast.MappingValueNode, len(entries))
	for _, e := range entries {
		if !w.key(path, e) {
			continue
		}
		key := keyText(e)
		at := join(path, key)
		if earlier, twice := first[key]; twice {
			o := w.document.at(earlier.Key, at)
			w.addf(e.Key, at, "duplicate key; it stands at %d:%d already", o.line, o.column)
		} else {
			first[key] = e
		}
		w.walk(at, e.Value)
	}
}

// key reports whether an entry's key is plain.
func (w *structureWalk) key(path string, e *ast.MappingValueNode) bool {
	switch e.Key.(type) {
	case *ast.MergeKeyNode:
		w.addf(e.Key, path, `merge keys ("<<") are not accepted; write the keys out`)
		return false
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return true
	}
	w.addf(e.Key, path, "a key must be plain text")
	return false
}

func (w *structureWalk) addf(n ast.Node, path, format string, args ...any) {
	w.faults = append(w.faults, w.document.at(n, path).fault(format, args...))
}

// join appends a key to a path.
func join(path, key string) string {
	key = clip(key)
	if path == "" {
		return key
	}
	return path + "." + key
}
