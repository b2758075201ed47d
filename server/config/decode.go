package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// raw is a part of the document that is kept as it is.
type raw struct {
	node ast.Node
	at   origin
}

var (
	rawType      = reflect.TypeFor[raw]()
	originType   = reflect.TypeFor[origin]()
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// maxNodes bounds what one decoding visits; aliases can multiply a small file.
const maxNodes = 100_000

// decoder writes a part of a document into a value, strictly, and gathers every fault.
//
// It fills structs by their yaml tags (see fieldsOf), lists, maps from text, pointers, text, numbers, booleans,
// time.Duration, any, and whatever reads itself from text. What the document leaves out keeps its value.
type decoder struct {
	document *document
	lookup   func(string) (string, bool)
	// drop names keys that are passed over; nil passes over none. It gets a struct's path and the key.
	drop func(at origin, key string, value ast.Node) bool
	// expanded is told of every scalar with references; nil: nobody is.
	expanded func(expansion)
	faults   Faults
	// shown is how the scalars with references were written, by path.
	shown map[string]string
	// places are those of all values that were decoded.
	places map[string]origin
	// secret says that a secret's value is decoded.
	secret bool
	// top is what is decoded as a whole, and topPath where it stands.
	top     reflect.Type
	topPath string
	nodes   int
	depth   int
}

func (d *decoder) addf(at origin, format string, args ...any) {
	d.faults = append(d.faults, at.fault(format, args...))
}

// decode writes node into v, which is settable.
func (d *decoder) decode(path string, node ast.Node, v reflect.Value) {
	at := d.document.at(node, path)
	if d.top == nil {
		d.top, d.topPath = v.Type(), path
	}
	if d.nodes++; d.nodes > maxNodes || d.depth > maxNesting {
		if d.nodes == maxNodes+1 || d.depth > maxNesting {
			d.addf(at, "holds too much: aliases multiply it, or it nests too deep")
		}
		return
	}
	d.depth++
	defer func() { d.depth-- }()
	if d.places != nil {
		d.places[path] = at
	}
	n := d.document.resolve(node)
	if v.Type() == rawType {
		v.Set(reflect.ValueOf(raw{node: n, at: at}))
		return
	}
	if n == nil {
		return
	}
	switch {
	case v.Type() == durationType || v.CanAddr() && v.Addr().Type().Implements(textType):
		d.scalar(at, n, v)
	case v.Kind() == reflect.Pointer:
		d.pointer(path, node, v)
	case v.Kind() == reflect.Struct:
		d.structure(at, n, v)
	case v.Kind() == reflect.Slice:
		d.list(at, n, v)
	case v.Kind() == reflect.Map:
		d.table(at, n, v)
	case v.Kind() == reflect.Interface && v.NumMethod() == 0:
		d.free(at, n, v)
	default:
		d.scalar(at, n, v)
	}
}

// pointer decodes into a fresh value, so that defaults shared with others stay untouched.
func (d *decoder) pointer(path string, node ast.Node, v reflect.Value) {
	fresh := reflect.New(v.Type().Elem())
	if !v.IsNil() {
		fresh.Elem().Set(v.Elem())
	}
	d.depth-- // the pointer is no level of its own
	d.decode(path, node, fresh.Elem())
	d.depth++
	v.Set(fresh)
}

func (d *decoder) structure(at origin, n ast.Node, v reflect.Value) {
	fields := fieldsOf(v)
	for _, f := range fields {
		if f.value.Type() == originType {
			f.value.Set(reflect.ValueOf(at))
		}
	}
	entries, ok := d.document.entries(n)
	if !ok {
		d.addf(at, "must be a mapping of keys to values, got %s", kindOf(n))
		return
	}
	seen := map[string]bool{}
	for _, e := range entries {
		key := keyText(e)
		if seen[key] {
			continue // the structure walk has reported it
		}
		seen[key] = true
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key })
		if i >= 0 {
			d.secret = isSecret(fields[i])
			d.decode(join(at.path, key), e.Value, fields[i].value)
			d.secret = false
			d.inRange(join(at.path, key), e.Value, fields[i])
			continue
		}
		keyAt := d.document.at(e.Key, join(at.path, key))
		if _, merge := e.Key.(*ast.MergeKeyNode); merge || d.drop != nil && d.drop(keyAt, key, e.Value) {
			continue
		}
		d.addf(keyAt, "unknown key%s", d.hint(key, names(fields)))
	}
}

func (d *decoder) list(at origin, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.addf(at, "must be a list, got %s", kindOf(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		path := fmt.Sprintf("%s[%d]", at.path, i)
		if d.document.resolve(item) == nil {
			d.addf(d.document.at(item, path), "is empty")
			continue
		}
		d.decode(path, item, out.Index(i))
	}
	v.Set(out)
}

func (d *decoder) table(at origin, n ast.Node, v reflect.Value) {
	entries, ok := d.document.entries(n)
	if !ok {
		d.addf(at, "must be a mapping of keys to values, got %s", kindOf(n))
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(entries))
	for _, e := range entries {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(join(at.path, keyText(e)), e.Value, item)
		out.SetMapIndex(reflect.ValueOf(keyText(e)).Convert(v.Type().Key()), item)
	}
	v.Set(out)
}

// free decodes what has no type of its own: into map[string]any, []any, string, bool or float64.
func (d *decoder) free(at origin, n ast.Node, v reflect.Value) {
	var into reflect.Value
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		into = reflect.New(reflect.TypeFor[map[string]any]()).Elem()
	case *ast.SequenceNode:
		into = reflect.New(reflect.TypeFor[[]any]()).Elem()
	case *ast.BoolNode:
		into = reflect.New(reflect.TypeFor[bool]()).Elem()
	case *ast.IntegerNode, *ast.FloatNode:
		into = reflect.New(reflect.TypeFor[float64]()).Elem()
	default:
		into = reflect.New(reflect.TypeFor[string]()).Elem()
	}
	d.nodes--
	d.decode(at.path, n, into)
	v.Set(into)
}

// field is a struct's field as the configuration sees it.
type field struct {
	name  string
	tag   reflect.StructTag
	index int
	owner reflect.Type
	value reflect.Value
}

// fieldsOf lists a struct's fields under the names of their yaml tags, or else their own with a small first letter.
// Embedded structs and those tagged ",inline" count as their fields; "-" and unexported fields do not count.
func fieldsOf(v reflect.Value) []field {
	var fields []field
	t := v.Type()
	for i := range t.NumField() {
		sf := t.Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		inline := options == "inline" || sf.Anonymous && name == ""
		switch {
		case inline && sf.Type.Kind() == reflect.Struct:
			fields = append(fields, fieldsOf(v.Field(i))...)
		case name == "-" && sf.Type != originType || !sf.IsExported():
		default:
			if name == "" {
				name = strings.ToLower(sf.Name[:1]) + sf.Name[1:]
			}
			fields = append(fields, field{name: name, tag: sf.Tag, index: i, owner: t, value: v.Field(i)})
		}
	}
	return fields
}

func names(fields []field) []string {
	var names []string
	for _, f := range fields {
		if f.name != "-" {
			names = append(names, f.name)
		}
	}
	return names
}
