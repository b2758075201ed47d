package decisionlog

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// drawn are decisions with anything in any field that there is, fields that are yet to come included.
func drawn(t *rapid.T) *decisionv1.Decision {
	d := &decisionv1.Decision{}
	fill(t, d.ProtoReflect(), 3)
	return d
}

var doubles = rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1e-300, 0.1}))

func fill(t *rapid.T, m protoreflect.Message, most int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		name := string(fd.Name())
		switch {
		case fd.IsMap():
			for range rapid.IntRange(0, most).Draw(t, name) {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(rapid.String().Draw(t, "key")).MapKey(), protoreflect.ValueOfString(rapid.String().Draw(t, "value")))
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			for range rapid.IntRange(0, most).Draw(t, name) {
				if fd.Message() != nil {
					fill(t, l.AppendMutable().Message(), most-1)
				} else {
					l.Append(scalar(t, fd))
				}
			}
		case fd.HasPresence() && rapid.Bool().Draw(t, "no "+name):
		case fd.Message() != nil:
			fill(t, m.Mutable(fd).Message(), most)
		default:
			m.Set(fd, scalar(t, fd))
		}
	}
}

func scalar(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(fd.Name())
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, name))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(rapid.SampledFrom(numbers(fd.Enum())).Draw(t, name))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(doubles.Draw(t, name))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, name))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, name))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, name))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, name))
	default:
		t.Fatalf("%s: no values of kind %v", fd.FullName(), fd.Kind())
		return protoreflect.Value{}
	}
}

func numbers(d protoreflect.EnumDescriptor) (all []protoreflect.EnumNumber) {
	for i := range d.Values().Len() {
		all = append(all, d.Values().Get(i).Number())
	}
	return all
}

// fataler is what tests of both kinds have.
type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func shapeFor(t fataler) *message {
	t.Helper()
	shape, err := decisionShape()
	if err != nil {
		t.Fatal(err)
	}
	return shape
}

// fromLine reads a line back with protobuf's own reader.
func fromLine(t fataler, line []byte) *decisionv1.Decision {
	t.Helper()
	d := &decisionv1.Decision{}
	if err := protojson.Unmarshal(line, d); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return d
}

// fromParquet reads a file back with parquet-go's own reader.
func fromParquet(t fataler, content []byte) (all []*decisionv1.Decision) {
	t.Helper()
	found, err := parquet.Read[any](bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range found {
		d := &decisionv1.Decision{}
		assemble(t, d.ProtoReflect(), row)
		all = append(all, d)
	}
	return all
}

// assemble sets a message's fields from what the reader made of a group.
func assemble(t fataler, m protoreflect.Message, from any) {
	t.Helper()
	columns, ok := from.(map[string]any)
	fields := m.Descriptor().Fields()
	if !ok || len(columns) != fields.Len() {
		t.Fatalf("%s is %T with %d columns, want %d", m.Descriptor().FullName(), from, len(columns), fields.Len())
	}
	for i := range fields.Len() {
		fd := fields.Get(i)
		v, ok := columns[string(fd.Name())]
		switch {
		case !ok:
			t.Fatalf("%s has no column", fd.FullName())
		case fd.IsMap():
			for key, value := range pairsIn(t, v) {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			for _, e := range elementsIn(t, v) {
				if fd.Message() != nil {
					assemble(t, l.AppendMutable().Message(), e)
				} else {
					l.Append(valueIn(t, fd, e))
				}
			}
		case v == nil:
			if !fd.HasPresence() {
				t.Fatalf("%s is null", fd.FullName())
			}
		case fd.Message() != nil:
			assemble(t, m.Mutable(fd).Message(), v)
		default:
			m.Set(fd, valueIn(t, fd, v))
		}
	}
}

func TestLineIsOneLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn(t)
		line := appendLine(nil, shapeFor(t), d)
		if bytes.IndexByte(line, '\n') != len(line)-1 || !json.Valid(line) {
			t.Fatalf("no line of JSON: %q", line)
		}
		if got := fromLine(t, line); !proto.Equal(got, d) {
			t.Fatalf("read back as\n%s\nwas\n%s", prototext.Format(got), prototext.Format(d))
		}
		if again := appendLine(nil, shapeFor(t), d); !bytes.Equal(again, line) {
			t.Fatalf("one decision, two lines:\n%s%s", line, again)
		}
	})
}

func TestParquetHoldsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := make([]*decisionv1.Decision, rapid.IntRange(1, 5).Draw(t, "rows"))
		for i := range all {
			all[i] = drawn(t)
		}
		for i, got := range fromParquet(t, inParquet(t, all)) {
			if !proto.Equal(got, all[i]) {
				t.Fatalf("row %d of %d read back as\n%s\nwas\n%s", i, len(all), prototext.Format(got), prototext.Format(all[i]))
			}
		}
	})
}

// inParquet is a file with a row group for each two decisions.
func inParquet(t fataler, all []*decisionv1.Decision) []byte {
	t.Helper()
	shape := shapeFor(t)
	f := &file{}
	r := newRows(f, shape, parquetSchema(shape), &parquet.Uncompressed, 1<<30)
	for i, d := range all {
		if err := r.add(d); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			if err := r.writer.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	return f.tail.rest
}

// TestNumbersAreNumbers: 64 bits are exact, and in neither format a string.
func TestNumbersAreNumbers(t *testing.T) {
	d := &decisionv1.Decision{Id: math.MaxUint64, TimeUnixNano: math.MinInt64, Seed: 1<<63 + 1, Request: &decisionv1.Request{BlockHashes: []uint64{math.MaxUint64 - 1}}}
	line := string(appendLine(nil, shapeFor(t), d))
	for _, want := range []string{`"id":18446744073709551615,`, `"time_unix_nano":-9223372036854775808,`, `"seed":9223372036854775809,`, `"block_hashes":[18446744073709551614]`} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
	if got := fromParquet(t, inParquet(t, []*decisionv1.Decision{d}))[0]; !proto.Equal(got, d) {
		t.Errorf("in Parquet %v", got)
	}
}

// TestEveryFieldIsThere: a line has every field of the record, of an empty one too, so that queries find them.
func TestEveryFieldIsThere(t *testing.T) {
	d := &decisionv1.Decision{Request: &decisionv1.Request{}, Candidates: []*decisionv1.Candidate{{}}, Gates: []*decisionv1.GateReport{{}}, Outcome: &decisionv1.Outcome{}}
	for _, m := range []protoreflect.Message{d.ProtoReflect(), d.GetRequest().ProtoReflect(), d.GetCandidates()[0].ProtoReflect(), d.GetGates()[0].ProtoReflect(), d.GetOutcome().ProtoReflect()} {
		shape, err := shapeOf(m.Descriptor(), 0)
		if err != nil {
			t.Fatal(err)
		}
		var found map[string]any
		if err := json.Unmarshal(appendObject(nil, shape, m), &found); err != nil {
			t.Fatal(err)
		}
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			if _, ok := found[string(fields.Get(i).Name())]; !ok {
				t.Errorf("%s is not there", fields.Get(i).FullName())
			}
		}
		if len(found) != fields.Len() {
			t.Errorf("%s has %d keys, want %d", m.Descriptor().FullName(), len(found), fields.Len())
		}
	}
}

// TestUnknownEnumValues are those of a newer record: a number, as protobuf's JSON form has it.
func TestUnknownEnumValues(t *testing.T) {
	d := &decisionv1.Decision{Request: &decisionv1.Request{Operation: 99}}
	if line := appendLine(nil, shapeFor(t), d); !proto.Equal(fromLine(t, line), d) {
		t.Errorf("%s", line)
	}
	if content := inParquet(t, []*decisionv1.Decision{d}); !bytes.Contains(content, []byte{'P', 'A', 'R', '1'}) {
		t.Error("no Parquet")
	}
}

// FuzzFormats: whatever a record holds, both formats give it back.
func FuzzFormats(f *testing.F) {
	f.Add([]byte{})
	for _, d := range []*decisionv1.Decision{
		{Id: 1, Request: &decisionv1.Request{Model: "m\n\"\\\u2028"}, Candidates: []*decisionv1.Candidate{{Labels: map[string]string{"a": "b", "": ""}}, {}}},
		{Picks: []uint32{1, 2}, RunnerUpMargin: proto.Float64(math.NaN()), Outcome: &decisionv1.Outcome{TtftMs: proto.Float64(math.Inf(-1))}},
	} {
		b, err := proto.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &decisionv1.Decision{}
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, d) != nil || unnamed(d.ProtoReflect()) {
			t.Skip()
		}
		if got := fromLine(t, appendLine(nil, shapeFor(t), d)); !proto.Equal(got, d) {
			t.Fatalf("a line makes\n%s\nof\n%s", prototext.Format(got), prototext.Format(d))
		}
		if got := fromParquet(t, inParquet(t, []*decisionv1.Decision{d}))[0]; !proto.Equal(got, d) {
			t.Fatalf("Parquet makes\n%s\nof\n%s", prototext.Format(got), prototext.Format(d))
		}
	})
}

// unnamed reports whether an enum has a value without a name, which Parquet holds as a number in a string.
func unnamed(m protoreflect.Message) (found bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
		case fd.Message() != nil && fd.IsList():
			for i := range v.List().Len() {
				found = found || unnamed(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			found = found || unnamed(v.Message())
		case fd.Enum() != nil:
			found = found || fd.Enum().Values().ByNumber(v.Enum()) == nil
		}
		return !found
	})
	return found
}

func pairsIn(t fataler, v any) map[string]string {
	t.Helper()
	from, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("a map is %T", v)
	}
	pairs := map[string]string{}
	for key, value := range from {
		text, ok := value.([]byte)
		if !ok {
			t.Fatalf("a map's value is %T", value)
		}
		pairs[key] = string(text)
	}
	return pairs
}

func elementsIn(t fataler, v any) []any {
	t.Helper()
	l, ok := v.([]any)
	if !ok {
		t.Fatalf("a list is %T", v)
	}
	return l
}

// valueIn is a scalar of a field's kind.
func valueIn(t fataler, fd protoreflect.FieldDescriptor, v any) protoreflect.Value {
	t.Helper()
	if fd.Enum() != nil {
		if named := fd.Enum().Values().ByName(protoreflect.Name(v.(string))); named != nil {
			return protoreflect.ValueOfEnum(named.Number())
		}
		t.Fatalf("%s: no value %q", fd.FullName(), v)
	}
	if n, ok := v.(int64); ok && (fd.Kind() == protoreflect.Uint64Kind || fd.Kind() == protoreflect.Fixed64Kind) {
		return protoreflect.ValueOfUint64(uint64(n)) // the reader's type is the physical one
	}
	return protoreflect.ValueOf(v)
}
