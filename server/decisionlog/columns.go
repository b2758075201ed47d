package decisionlog

import (
	"io"
	"strconv"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// leaf is a column of Parquet: its index and its highest repetition and definition levels.
type leaf struct{ column, rep, def int }

// group is a parquet.Group whose fields are in an order of their own rather than that of their names.
type group struct {
	parquet.Group
	fields []parquet.Field
}

// Fields are the fields in order.
func (g group) Fields() []parquet.Field { return g.fields }

// node is a message's columns: lists as LIST, maps as MAP, enums and strings as UTF-8 strings, unsigned integers as such.
// What may be absent is optional, all else required.
func (m *message) node() parquet.Node {
	nodes := parquet.Group{}
	for i := range m.fields {
		f := &m.fields[i]
		n := f.node()
		switch {
		case f.list:
			n = parquet.List(n)
		case f.kind != kindMap && f.optional:
			n = parquet.Optional(n)
		}
		nodes[f.name] = n
	}
	g := group{Group: nodes}
	byName := map[string]parquet.Field{}
	for _, f := range nodes.Fields() {
		byName[f.Name()] = f
	}
	for i := range m.fields {
		g.fields = append(g.fields, byName[m.fields[i].name])
	}
	return g
}

// ownWords are the strings that are another one in nearly every row, for which a dictionary is no gain.
var ownWords = map[string]bool{"client_request_id": true}

func (f *field) node() parquet.Node {
	words := func() parquet.Node { return parquet.Encoded(parquet.String(), &parquet.RLEDictionary) }
	switch f.kind {
	case kindBool:
		return parquet.Leaf(parquet.BooleanType)
	case kindInt32:
		return parquet.Int(32)
	case kindInt64:
		return parquet.Int(64)
	case kindUint32:
		return parquet.Uint(32)
	case kindUint64:
		return parquet.Uint(64)
	case kindDouble:
		return parquet.Leaf(parquet.DoubleType)
	case kindEnum:
		return words()
	case kindString:
		if ownWords[f.name] {
			return parquet.String()
		}
		return words()
	case kindMap:
		return parquet.Map(words(), words())
	default:
		return f.sub.node()
	}
}

// rower takes decisions apart into rows of Parquet, after "Dremel: Interactive Analysis of Web-Scale Datasets" (Melnik et
// al., 2010): each value with the level at which it repeats and the level down to which it is there.
type rower struct {
	columns [][]parquet.Value
	row     parquet.Row
	text    []byte
}

// rowOf is a decision's row, good until the next call.
func (r *rower) rowOf(shape *message, d *decisionv1.Decision) parquet.Row {
	for i := range r.columns {
		r.columns[i] = r.columns[i][:0]
	}
	r.row, r.text = r.row[:0], r.text[:0]
	r.message(shape, d.ProtoReflect(), 0, 0, 0)
	for i := range r.columns {
		r.row = append(r.row, r.columns[i]...)
	}
	return r.row
}

// message adds a message's values. at is the level at which its first values repeat, rep and def are the levels of the
// message itself.
func (r *rower) message(shape *message, m protoreflect.Message, at, rep, def int) {
	for i := range shape.fields {
		f := &shape.fields[i]
		switch {
		case f.kind == kindMap:
			r.pairs(f, m.Get(f.desc).Map(), at, def)
		case f.list:
			l := m.Get(f.desc).List()
			if l.Len() == 0 {
				r.absent(f, at, def)
			}
			for j := range l.Len() {
				level := at
				if j > 0 {
					level = rep + 1
				}
				r.value(f, l.Get(j), level, rep+1, def+1)
			}
		case !f.optional:
			r.value(f, m.Get(f.desc), at, rep, def)
		case m.Has(f.desc):
			r.value(f, m.Get(f.desc), at, rep, def+1)
		default:
			r.absent(f, at, def)
		}
	}
}

func (r *rower) value(f *field, v protoreflect.Value, at, rep, def int) {
	if f.kind == kindMessage {
		r.message(f.sub, v.Message(), at, rep, def)
		return
	}
	r.put(f.leaf, r.scalar(f, v), at, def)
}

func (r *rower) put(l leaf, v parquet.Value, at, def int) {
	r.columns[l.column] = append(r.columns[l.column], v.Level(at, def, l.column))
}

// absent adds to each column below a field that nothing is there.
func (r *rower) absent(f *field, at, def int) {
	switch f.kind {
	case kindMessage:
		for i := range f.sub.fields {
			r.absent(&f.sub.fields[i], at, def)
		}
	case kindMap:
		r.put(f.keys, parquet.NullValue(), at, def)
		r.put(f.values, parquet.NullValue(), at, def)
	default:
		r.put(f.leaf, parquet.NullValue(), at, def)
	}
}

func (r *rower) pairs(f *field, m protoreflect.Map, at, def int) {
	if m.Len() == 0 {
		r.absent(f, at, def)
		return
	}
	for _, key := range sortedKeys(m) {
		r.put(f.keys, r.string(key), at, def+1)
		r.put(f.values, r.string(m.Get(protoreflect.ValueOfString(key).MapKey()).String()), at, def+1)
		at = f.keys.rep
	}
}

// string copies a string to memory that the row keeps.
func (r *rower) string(s string) parquet.Value {
	from := len(r.text)
	r.text = append(r.text, s...)
	return parquet.ByteArrayValue(r.text[from:len(r.text):len(r.text)])
}

func (r *rower) scalar(f *field, v protoreflect.Value) parquet.Value {
	switch f.kind {
	case kindBool:
		return parquet.BooleanValue(v.Bool())
	case kindInt32:
		return parquet.Int32Value(int32(v.Int()))
	case kindInt64:
		return parquet.Int64Value(v.Int())
	case kindUint32:
		return parquet.Int32Value(int32(v.Uint()))
	case kindUint64:
		return parquet.Int64Value(int64(v.Uint()))
	case kindDouble:
		return parquet.DoubleValue(v.Float())
	case kindEnum:
		name, ok := f.enum[v.Enum()]
		if !ok {
			name = strconv.Itoa(int(v.Enum()))
		}
		return r.string(name)
	default:
		return r.string(v.String())
	}
}

// parquetSchema is the schema of a decision. Its columns are those that the shape was numbered with.
func parquetSchema(shape *message) *parquet.Schema {
	return parquet.NewSchema("decision", shape.node())
}

// newParquet returns a writer of Parquet. It keeps a row group in memory until Flush.
func newParquet(to io.Writer, schema *parquet.Schema, codec compress.Codec) *parquet.GenericWriter[any] {
	return parquet.NewGenericWriter[any](to, schema, parquet.Compression(codec), parquet.PageBufferSize(32<<10),
		parquet.WriteBufferSize(0), parquet.CreatedBy("sluice", "", ""))
}
