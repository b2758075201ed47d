package decisionlog

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// appendLine appends a decision as one line of JSON: protobuf's JSON form with the names of the .proto file, but that
// every field is there, in the order of the file, an absent one as null; and that 64-bit numbers are numbers, exact to
// the last digit, rather than strings. protojson reads it (https://protobuf.dev/programming-guides/json/).
func appendLine(b []byte, shape *message, d *decisionv1.Decision) []byte {
	return append(appendObject(b, shape, d.ProtoReflect()), '\n')
}

func appendObject(b []byte, shape *message, m protoreflect.Message) []byte {
	b = append(b, '{')
	for i := range shape.fields {
		f := &shape.fields[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.key...)
		switch {
		case f.kind == kindMap:
			b = appendMap(b, m.Get(f.desc).Map())
		case f.list:
			b = appendList(b, f, m.Get(f.desc).List())
		case f.optional && !m.Has(f.desc):
			b = append(b, "null"...)
		default:
			b = appendValue(b, f, m.Get(f.desc))
		}
	}
	return append(b, '}')
}

func appendList(b []byte, f *field, l protoreflect.List) []byte {
	b = append(b, '[')
	for i := range l.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, f, l.Get(i))
	}
	return append(b, ']')
}

func appendMap(b []byte, m protoreflect.Map) []byte {
	b = append(b, '{')
	for i, key := range sortedKeys(m) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key), ':')
		b = appendString(b, m.Get(protoreflect.ValueOfString(key).MapKey()).String())
	}
	return append(b, '}')
}

func sortedKeys(m protoreflect.Map) []string {
	if m.Len() == 0 {
		return nil
	}
	keys := make(map[string]struct{}, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys[k.String()] = struct{}{}
		return true
	})
	return slices.Sorted(maps.Keys(keys))
}

func appendValue(b []byte, f *field, v protoreflect.Value) []byte {
	switch f.kind {
	case kindBool:
		return strconv.AppendBool(b, v.Bool())
	case kindInt32, kindInt64:
		return strconv.AppendInt(b, v.Int(), 10)
	case kindUint32, kindUint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	case kindDouble:
		return appendDouble(b, v.Float())
	case kindString:
		return appendString(b, v.String())
	case kindEnum:
		if name, ok := f.enum[v.Enum()]; ok {
			return appendString(b, name)
		}
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	default:
		return appendObject(b, f.sub, v.Message())
	}
}

// appendDouble writes what JSON has no number for as the strings that protobuf's JSON form has.
func appendDouble(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// appendString writes a string, which records hold in valid UTF-8 only.
func appendString(b []byte, s string) []byte {
	quoted, err := jsontext.AppendQuote(b, s)
	if err != nil { // what is not UTF-8 is replaced
		return quoted
	}
	return quoted
}
