package decisionlog

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// message is the shape of a message of the record, from its descriptor: both formats are made from it, so that a field
// that is added to the record is in both.
type message struct{ fields []field }

// field is a field of a message.
type field struct {
	desc protoreflect.FieldDescriptor
	// list is a repeated field, but not a map; optional is one that may be absent.
	list, optional bool

	name string // as in the .proto file
	key  string // as in JSON, with its quotes and the colon
	kind kind
	sub  *message // of a message's
	enum map[protoreflect.EnumNumber]string
	leaf leaf // of a scalar's in Parquet
	// the leaves of a map of strings
	keys, values leaf
}

// kind says how a field's values are written.
type kind uint8

const (
	kindBool kind = iota
	kindInt32
	kindInt64
	kindUint32
	kindUint64
	kindDouble
	kindString
	kindEnum
	kindMessage
	kindMap // of strings by strings
)

var kinds = map[protoreflect.Kind]kind{
	protoreflect.BoolKind: kindBool, protoreflect.StringKind: kindString, protoreflect.EnumKind: kindEnum, protoreflect.DoubleKind: kindDouble,
	protoreflect.Int32Kind: kindInt32, protoreflect.Sint32Kind: kindInt32, protoreflect.Sfixed32Kind: kindInt32,
	protoreflect.Int64Kind: kindInt64, protoreflect.Sint64Kind: kindInt64, protoreflect.Sfixed64Kind: kindInt64,
	protoreflect.Uint32Kind: kindUint32, protoreflect.Fixed32Kind: kindUint32,
	protoreflect.Uint64Kind: kindUint64, protoreflect.Fixed64Kind: kindUint64,
	protoreflect.MessageKind: kindMessage,
}

// decisionShape is the shape of a decision.
var decisionShape = sync.OnceValues(func() (*message, error) {
	m, err := shapeOf((*decisionv1.Decision)(nil).ProtoReflect().Descriptor(), 0)
	if err != nil {
		return nil, fmt.Errorf("the decision record has no shape in the decision log: %w", err)
	}
	m.number(new(int), 0, 0)
	return m, nil
})

// maxDepth is more than the record is deep: a message within itself has no columns.
const maxDepth = 16

func shapeOf(d protoreflect.MessageDescriptor, depth int) (*message, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: is deeper than %d", d.FullName(), maxDepth)
	}
	m := &message{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := field{desc: fd, list: fd.IsList(), optional: fd.HasPresence(), name: string(fd.Name()), key: `"` + string(fd.Name()) + `":`}
		var known bool
		if f.kind, known = kinds[fd.Kind()]; !known || fd.ContainingOneof() != nil && !fd.HasOptionalKeyword() {
			return nil, fmt.Errorf("%s: its type has no form here", fd.FullName())
		}
		switch {
		case fd.IsMap():
			if fd.MapKey().Kind() != protoreflect.StringKind || fd.MapValue().Kind() != protoreflect.StringKind {
				return nil, fmt.Errorf("%s: only maps of strings have a form here", fd.FullName())
			}
			f.kind = kindMap
		case f.kind == kindMessage:
			var err error
			if f.sub, err = shapeOf(fd.Message(), depth+1); err != nil {
				return nil, err
			}
		case f.kind == kindEnum:
			f.enum = map[protoreflect.EnumNumber]string{}
			for j := range fd.Enum().Values().Len() {
				v := fd.Enum().Values().Get(j)
				f.enum[v.Number()] = string(v.Name())
			}
		}
		m.fields = append(m.fields, f)
	}
	return m, nil
}

// number gives the leaves their columns, in order, and their levels: rep and def are those of the message.
func (m *message) number(column *int, rep, def int) {
	next := func(rep, def int) leaf {
		l := leaf{column: *column, rep: rep, def: def}
		*column++
		return l
	}
	for i := range m.fields {
		f := &m.fields[i]
		rep, def := rep, def
		if f.list || f.kind == kindMap {
			rep, def = rep+1, def+1
		} else if f.optional {
			def++
		}
		switch f.kind {
		case kindMessage:
			f.sub.number(column, rep, def)
		case kindMap:
			f.keys, f.values = next(rep, def), next(rep, def)
		default:
			f.leaf = next(rep, def)
		}
	}
}
