package decisionlog

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// rowsAtATime is how many rows of Parquet are taken apart at once.
const rowsAtATime = 16

// parquet yields the decisions of a file of Parquet.
func (r *Reader) parquet(f *os.File, yield func(*decisionv1.Decision, error) bool) (goOn bool) {
	info, err := f.Stat()
	if err != nil {
		return yield(nil, &Skip{File: f.Name(), Reason: SkippedFile, Err: err})
	}
	begun := r.read.Load()
	p, err := openParquet(f, info.Size())
	if err != nil {
		return yield(nil, &Skip{File: f.Name(), Reason: SkippedFile, Err: err})
	}
	defer p.close()
	for row := int64(1); ; {
		found, err := p.next()
		for _, from := range found {
			d := &decisionv1.Decision{}
			if bad := assembleRow(d.ProtoReflect(), from, 0); bad != nil {
				goOn = yield(nil, &Skip{File: f.Name(), Row: row, Reason: SkippedRow, Err: bad})
			} else {
				goOn = yieldRow(d, &Skip{File: f.Name(), Row: row}, yield)
			}
			if !goOn {
				return false
			}
			row++
		}
		if n := p.reader.NumRows(); n > 0 {
			r.read.Store(begun + int64(float64(info.Size())*min(1, float64(row-1)/float64(n))))
		}
		switch {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			return yield(nil, &Skip{File: f.Name(), Row: row, Reason: SkippedFile, Err: err})
		}
	}
}

// parquetRows reads rows of Parquet. What the library panics over becomes an error.
type parquetRows struct {
	reader *parquet.GenericReader[any]
	buffer [rowsAtATime]any
}

func openParquet(from io.ReaderAt, size int64) (p *parquetRows, err error) {
	defer caught(&err)
	file, err := parquet.OpenFile(from, size)
	if err != nil {
		return nil, err
	}
	return &parquetRows{reader: parquet.NewGenericReader[any](file)}, nil
}

func (p *parquetRows) next() (found []any, err error) {
	defer caught(&err)
	clear(p.buffer[:])
	n, err := p.reader.Read(p.buffer[:])
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	return p.buffer[:n], err
}

func (p *parquetRows) close() {
	var err error
	defer caught(&err)
	_ = p.reader.Close()
}

func caught(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("the file is damaged: %v", v)
	}
}

// assembleRow sets a message's fields from what the library makes of a group: columns by their names, so that a log of
// another version can be read as far as it is the same.
func assembleRow(m protoreflect.Message, from any, depth int) error {
	columns, ok := from.(map[string]any)
	if !ok || depth > maxDepth {
		return fmt.Errorf("%s is %T", m.Descriptor().FullName(), from)
	}
	known := 0
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		v, ok := columns[string(fd.Name())]
		if !ok {
			continue
		}
		known++
		if v == nil {
			continue
		}
		if err := assembleField(m, fd, v, depth); err != nil {
			return err
		}
	}
	if known == 0 {
		return fmt.Errorf("%s has none of its columns", m.Descriptor().FullName())
	}
	return nil
}

func assembleField(m protoreflect.Message, fd protoreflect.FieldDescriptor, v any, depth int) error {
	switch {
	case fd.IsMap():
		pairs, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %T", fd.FullName(), v)
		}
		for key, value := range pairs {
			text, err := scalarOf(fd.MapValue(), value)
			if err != nil {
				return err
			}
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString(key).MapKey(), text)
		}
		return nil
	case fd.IsList():
		elements, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s is %T", fd.FullName(), v)
		}
		l := m.Mutable(fd).List()
		for _, e := range elements {
			if fd.Message() != nil {
				if err := assembleRow(l.AppendMutable().Message(), e, depth+1); err != nil {
					return err
				}
				continue
			}
			value, err := scalarOf(fd, e)
			if err != nil {
				return err
			}
			l.Append(value)
		}
		return nil
	case fd.Message() != nil:
		return assembleRow(m.Mutable(fd).Message(), v, depth+1)
	}
	value, err := scalarOf(fd, v)
	if err == nil {
		m.Set(fd, value)
	}
	return err
}

// scalarOf is a value of a field's kind. Whole numbers may come as the physical type that holds them.
func scalarOf(fd protoreflect.FieldDescriptor, v any) (protoreflect.Value, error) {
	if b, ok := v.([]byte); ok {
		v = string(b)
	}
	switch x := v.(type) {
	case string:
		switch fd.Kind() {
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(x), nil
		case protoreflect.EnumKind:
			if named := fd.Enum().Values().ByName(protoreflect.Name(x)); named != nil {
				return protoreflect.ValueOfEnum(named.Number()), nil
			}
			return protoreflect.ValueOfEnum(enumNumber(x)), nil
		}
	case bool:
		if fd.Kind() == protoreflect.BoolKind {
			return protoreflect.ValueOfBool(x), nil
		}
	case float64:
		if fd.Kind() == protoreflect.DoubleKind {
			return protoreflect.ValueOfFloat64(x), nil
		}
	case int32:
		return wholeOf(fd, uint64(uint32(x)), int64(x))
	case uint32:
		return wholeOf(fd, uint64(x), int64(x))
	case int64:
		return wholeOf(fd, uint64(x), x)
	case uint64:
		return wholeOf(fd, x, int64(x))
	}
	return protoreflect.Value{}, fmt.Errorf("%s is %T", fd.FullName(), v)
}

// enumNumber reads a value without a name, which is written as its number; what is no number is 0, as "not said".
func enumNumber(s string) protoreflect.EnumNumber {
	var n int32
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil {
		return 0
	}
	return protoreflect.EnumNumber(n)
}

func wholeOf(fd protoreflect.FieldDescriptor, u uint64, s int64) (protoreflect.Value, error) {
	switch fd.Kind() {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(s)), nil
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(s), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(u)), nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(u), nil
	}
	return protoreflect.Value{}, fmt.Errorf("%s is a whole number", fd.FullName())
}
